// Package progress gives each worker its progress record, 64 bytes of shared memory into
// which the worker writes the training step that it is at, and samples them. A worker
// writes by its own store instruction; no call reaches the agent (docs/progress-record.md).
package progress

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"

	"golang.org/x/sys/unix"

	"rallypoint/internal/ownfile"
)

// The variables of progress records.
const (
	EnvFile = "RALLYPOINT_PROGRESS_FILE" // of a worker: the path of its record
	EnvDir  = "RALLYPOINT_PROGRESS_DIR"  // of an agent: where records are made
)

// The layout of a record; docs/progress-record.md is the contract. Numbers are little-endian and
// aligned, so that each is stored at once. Reserved bytes are 0.
const (
	recordMagic   = "rp-steps"
	recordVersion = 1
	recordSize    = 64

	offsetVersion = 8
	offsetSize    = 12
	offsetStep    = 16 // a signed number, noStep before the first; the worker writes it
	offsetAsked   = 24 // what the agent asks; see asked
	offsetAnswer  = 32 // the worker's answer: the word at offsetAsked with a State in its first byte
	offsetKnows   = 40 // which of these words the worker understands; the worker writes it
	offsetReach   = 48 // the step from which a released worker takes the directive
	offsetCounted = 56 // how many steps optimizers have made; the worker writes it
)

// knowsDirectives is the bit at offsetKnows of a worker that lets itself be held.
const knowsDirectives = 1

// busyShift is where the word at offsetKnows has until when its worker has announced to make no
// step, in milliseconds of CLOCK_MONOTONIC; 0: it has not.
const busyShift = 8

// noStep is the step of a worker that has reported none.
const noStep = -1

// record is the agent's side of a worker's record. It is read by pread and not mapped: a
// worker that shortens its file would end a process that has mapped it. It costs no
// descriptor between two uses.
type record struct {
	file    *ownfile.File
	refused error // why it is not read any more
	asked   Asked // of the worker; zero: nothing
	whole   words // what was read last
}

// newRecord makes the file, which must not exist, with a record without a step. Extending the
// file without writing is not enough: a worker that writes to a page for which a full file system
// has no room is killed by SIGBUS.
func newRecord(path string) (*record, error) {
	file, err := ownfile.Create(path, blank())
	if err != nil {
		return nil, err
	}
	return &record{file: file, whole: words{step: noStep}}, nil
}

func blank() []byte {
	b := make([]byte, recordSize)
	copy(b, recordMagic)
	binary.LittleEndian.PutUint32(b[offsetVersion:], recordVersion)
	binary.LittleEndian.PutUint32(b[offsetSize:], recordSize)
	step := int64(noStep)
	binary.LittleEndian.PutUint64(b[offsetStep:], uint64(step))
	return b
}

// readTries bounds how often a record is read that changes while it is read.
const readTries = 5

// words are the values that a worker writes.
type words struct {
	step          int64 // noStep: none
	answer, knows uint64
	counted       uint64 // steps of optimizers, which count where step is noStep
}

// at is the step that the worker is at, and whether that is a count of its optimizers' steps.
func (w words) at() (step int64, counted bool) {
	if w.step == noStep && w.counted > 0 && w.counted <= math.MaxInt64 {
		return int64(w.counted), true
	}
	return w.step, false
}

// read returns the worker's words. An error is final: the record was corrupted.
func (r *record) read() (words, error) {
	if r.refused != nil {
		return words{step: noStep}, r.refused
	}
	// The kernel does not promise to copy a word at once: a value is whole if two reads
	// agree on it.
	last := r.whole
	for range readTries {
		again, err := r.readOnce()
		switch {
		case errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE):
			return r.whole, nil // it is as good as it was; there may be a descriptor the next time
		case err != nil:
			r.refused = err
			return words{step: noStep}, err
		}
		if again == last {
			break
		}
		last = again
	}
	r.whole = last
	return last, nil
}

func (r *record) readOnce() (words, error) {
	var b [recordSize]byte
	switch n, err := r.file.ReadAt(b[:], 0); {
	case err == io.EOF:
		return words{}, fmt.Errorf("it has %d bytes instead of %d", n, recordSize)
	case err != nil:
		return words{}, err
	}
	return parse(b[:])
}

func parse(b []byte) (words, error) {
	version, size := binary.LittleEndian.Uint32(b[offsetVersion:]), binary.LittleEndian.Uint32(b[offsetSize:])
	step := int64(binary.LittleEndian.Uint64(b[offsetStep:]))
	switch {
	case string(b[:len(recordMagic)]) != recordMagic:
		return words{}, errors.New("it does not begin like one")
	case version != recordVersion:
		return words{}, fmt.Errorf("its version is %d, this release knows %d", version, recordVersion)
	case size != recordSize:
		return words{}, fmt.Errorf("it says that it has %d bytes, it must be %d", size, recordSize)
	case step < noStep:
		return words{}, fmt.Errorf("its step is %d, which is negative", step)
	}
	word := func(offset int) uint64 { return binary.LittleEndian.Uint64(b[offset:]) }
	return words{step, word(offsetAnswer), word(offsetKnows), word(offsetCounted)}, nil
}
