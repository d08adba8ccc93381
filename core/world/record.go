// Package world is the record by which an agent tells a worker which world it is in: the round, its
// rank, the store. A worker that can regroup keeps its process when the round ends, and takes its
// place in the next one from there (docs/world-record.md is the contract).
package world

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"rallypoint/internal/ownfile"
)

// EnvFile is the variable of a worker with the path of its record.
const EnvFile = "RALLYPOINT_WORLD_FILE"

// The layout of a record. Numbers are little-endian and aligned. Reserved bytes are 0.
const (
	recordMagic   = "rp-world"
	recordVersion = 1
	recordSize    = 2048

	offsetVersion = 8
	offsetSize    = 12
	offsetOver    = 16 // the last round that the worker has to leave; the worker writes it, too, at an agreed step
	offsetTurn    = 24 // a byte: how many worlds were written; its lowest bit says which slot has the last one
	offsetLost    = 25 // a byte, 1: there is no other world for this worker, and the text says why
	offsetCan     = 32 // 1: the worker can regroup; the worker writes this word and the next two
	offsetWaits   = 40 // the round that it has left while it waits for the next one; 0: it does not wait
	offsetEntered = 48 // the round that it is in
	offsetSlots   = 64
	slotSize      = 448
	offsetText    = 1024 // to the end, with a NUL

	slotNumbers    = 8 // after the round: numbers of 4 bytes
	slotGeneration = 64
	generationSize = 64
	slotAddr       = slotGeneration + generationSize
	addrSize       = slotSize - slotAddr
)

// World is a worker's place in a round.
type World struct {
	Round                uint64
	Rank, Size           int // of the whole job
	LocalRank, LocalSize int
	Node, Nodes          int
	Carried              int // workers of the whole job that were in a round before this one
	StoreAddr            string
	StorePort            int
	Generation           string
}

// Said is what a worker has written.
type Said struct {
	Can     bool   // it can regroup
	Waits   uint64 // the round that it has left, while it waits for the next one; 0: it does not wait
	Entered uint64 // the round that it is in; 0: it has not asked yet
	Over    uint64 // the last round that it was told to leave
}

// Record is the agent's side of a worker's record. It is not mapped: a worker that shortens its
// file would end a process that has mapped it.
type Record struct {
	file *ownfile.File
	turn byte
}

// Create makes the file, which must not exist, with the first world.
func Create(path string, w World) (*Record, error) {
	b := make([]byte, recordSize)
	copy(b, recordMagic)
	binary.LittleEndian.PutUint32(b[offsetVersion:], recordVersion)
	binary.LittleEndian.PutUint32(b[offsetSize:], recordSize)
	slot, err := w.encode()
	if err != nil {
		return nil, err
	}
	copy(b[offsetSlots:], slot)
	file, err := ownfile.Create(path, b)
	if err != nil {
		return nil, err
	}
	return &Record{file: file}, nil
}

func (w World) encode() ([]byte, error) {
	if len(w.StoreAddr) >= addrSize || len(w.Generation) >= generationSize {
		return nil, fmt.Errorf("the address %.80q of the round's store, or the generation %.80q, is too long for a record", w.StoreAddr, w.Generation)
	}
	b := binary.LittleEndian.AppendUint64(nil, w.Round)
	for _, n := range []int{w.Rank, w.Size, w.LocalRank, w.LocalSize, w.Node, w.Nodes, w.StorePort, w.Carried} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	b = append(b, make([]byte, slotSize-len(b))...)
	copy(b[slotGeneration:], w.Generation)
	copy(b[slotAddr:], w.StoreAddr)
	return b, nil
}

// Path is where the record lies.
func (r *Record) Path() string { return r.file.Path() }

// Remove removes the record. A worker that is still there keeps its mapping.
func (r *Record) Remove() { r.file.Remove() }

// End tells the worker to leave a round.
func (r *Record) End(round uint64) error {
	return r.write(func(f *os.File) error { return put(f, offsetOver, binary.LittleEndian.AppendUint64(nil, round)) })
}

// Move gives the worker its place in the next round. It writes the slot that the worker does not
// read, and then the byte that says which one it reads.
func (r *Record) Move(w World) error {
	slot, err := w.encode()
	if err != nil {
		return err
	}
	return r.write(func(f *os.File) error {
		next := r.turn + 1
		if err := put(f, offsetSlots+int64(next&1)*slotSize, slot); err != nil {
			return err
		}
		r.turn = next
		return put(f, offsetTurn, []byte{next})
	})
}

// Lose tells the worker that there is no other world for it.
func (r *Record) Lose(why string) error {
	text := append([]byte(why[:min(len(why), recordSize-offsetText-1)]), 0)
	return r.write(func(f *os.File) error {
		return errors.Join(put(f, offsetText, text), put(f, offsetLost, []byte{1}))
	})
}

// Read returns what the worker has written.
func (r *Record) Read() (said Said, err error) {
	var b [offsetSlots]byte
	if _, err := r.file.ReadAt(b[:], 0); err != nil {
		return Said{}, err
	}
	return parse(b[:]), nil
}

func parse(b []byte) Said {
	word := func(offset int) uint64 { return binary.LittleEndian.Uint64(b[offset:]) }
	return Said{Can: word(offsetCan)&1 != 0, Waits: word(offsetWaits), Entered: word(offsetEntered), Over: word(offsetOver)}
}

func (r *Record) write(use func(*os.File) error) error {
	f, err := r.file.Open()
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return use(f)
}

func put(f *os.File, offset int64, b []byte) error {
	_, err := f.WriteAt(b, offset)
	return err
}

// Entered returns the round that the worker with the record at a path is in; 0 if it has no record,
// or has not asked for its world.
func Entered(path string) uint64 {
	if path == "" {
		return 0
	}
	var b [offsetSlots]byte
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }()
	if _, err := f.ReadAt(b[:], 0); err != nil || string(b[:len(recordMagic)]) != recordMagic {
		return 0
	}
	return parse(b[:]).Entered
}
