package sharedlog

import (
	"errors"
	"fmt"
	"slices"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

// registerState is what a register holds. A state is never changed once it was stored or
// seen.
type registerState struct {
	runID      string
	generation string
	nonce      string // of the write: no two states are equal
	snapshot   Snapshot
	base       uint64 // index before the first of entries; at most snapshot.Index
	entries    [][]byte
	beats      []registerHeartbeat // the one who beat last comes last
}

type registerHeartbeat struct {
	session rendezvous.SessionID
	count   uint64
}

const (
	registerMagic   = "rallypoint"
	registerVersion = 1

	maxRegister        = 64 << 20
	maxRegisterEntries = 1 << 16
	maxRegisterBeats   = 1 << 13 // nodes that died leave theirs behind: the oldest go first

	// keptEntries is how many entries before a snapshot are kept for readers that
	// are a little behind it.
	keptEntries = 64
)

// last is the index of the last entry.
func (s *registerState) last() uint64 { return s.base + uint64(len(s.entries)) }

func (s *registerState) copy() *registerState {
	if s == nil {
		return nil
	}
	c := *s
	c.entries = slices.Clip(s.entries)
	c.beats = slices.Clone(s.beats)
	return &c
}

// after returns the entries behind an index.
func (s *registerState) after(index uint64) (Batch, error) {
	b := Batch{Snapshot: s.snapshot.Index}
	if index < s.base {
		return b, ErrCompacted
	}
	for i := index; i < s.last(); i++ {
		b.Entries = append(b.Entries, Entry{Index: i + 1, Data: s.entries[i-s.base]})
	}
	return b, nil
}

// compact installs a snapshot, and reports whether it was newer.
func (s *registerState) compact(snapshot Snapshot) bool {
	if snapshot.Index <= s.snapshot.Index || snapshot.Index > s.last() {
		return false
	}
	s.snapshot = snapshot
	if base := snapshot.Index - min(snapshot.Index, keptEntries); base > s.base {
		s.entries = s.entries[base-s.base:]
		s.base = base
	}
	return true
}

// beat counts a node's counter on and forgets that of its last session.
func (s *registerState) beat(session, last rendezvous.SessionID) {
	var count uint64
	s.beats = slices.DeleteFunc(s.beats, func(b registerHeartbeat) bool {
		if b.session == session {
			count = b.count
		}
		return b.session == session || b.session == last
	})
	if session != "" {
		s.beats = append(s.beats, registerHeartbeat{session, count + 1})
	}
	s.beats = s.beats[max(0, len(s.beats)-maxRegisterBeats):]
}

// sign is what the state shows of a node: one that has no counter took it back.
func (s *registerState) sign(session rendezvous.SessionID) Liveness {
	for _, b := range s.beats {
		if b.session == session {
			return Liveness{Heartbeats: b.count}
		}
	}
	return Liveness{State: LivenessDisconnected}
}

func (s *registerState) encode() []byte {
	return pack.Append(nil, func(p *pack.Packer) {
		p.List(10)
		p.Text(registerMagic)
		p.Uint(registerVersion)
		p.Text(s.runID)
		p.Text(s.generation)
		p.Text(s.nonce)
		p.Uint(s.snapshot.Index)
		p.Bytes(s.snapshot.State)
		p.Uint(s.base)
		p.Values(s.entries)
		p.List(2 * len(s.beats))
		for _, b := range s.beats {
			p.Text(string(b.session))
			p.Uint(b.count)
		}
	})
}

// decodeRegister reads what encode wrote. It takes nothing on trust.
func decodeRegister(data []byte) (*registerState, error) {
	if len(data) > maxRegister {
		return nil, fmt.Errorf("it has %d bytes, at most %d are allowed", len(data), maxRegister)
	}
	u := pack.NewUnpacker(data)
	defer u.Release()
	u.Open()
	if magic := u.Text(len(registerMagic)); magic != registerMagic || u.Err() != nil {
		return nil, errors.New("it was written by something else")
	}
	if version := u.Uint(); u.Err() == nil && version != registerVersion {
		return nil, fmt.Errorf("it has version %d, this release knows %d", version, registerVersion)
	}
	s := &registerState{
		runID: u.Text(rendezvous.MaxNameLen), generation: u.Text(rendezvous.MaxNameLen), nonce: u.Text(rendezvous.MaxNameLen),
		snapshot: Snapshot{Index: u.Uint(), State: u.Bytes(maxRegister)},
		base:     u.Uint(), entries: u.Values(maxRegisterEntries, maxRegister),
	}
	n := u.Open()
	for range n / 2 {
		if u.Err() != nil || len(s.beats) == maxRegisterBeats {
			break
		}
		s.beats = append(s.beats, registerHeartbeat{rendezvous.SessionID(u.Text(rendezvous.MaxNameLen)), u.Uint()})
	}
	u.Close()
	u.Close()
	u.End()
	switch {
	case u.Err() != nil:
		return nil, u.Err()
	case s.generation == "" || s.base > s.snapshot.Index || s.last() < s.base || s.snapshot.Index > s.last():
		return nil, errors.New("its parts contradict each other")
	}
	return s, nil
}
