package sharedlog

import (
	"errors"
	"fmt"
	"slices"

	"rallypoint/core/rendezvous"
	"rallypoint/internal/pack"
)

// registerState is the content of a register. A state does not change once it was stored or read.
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

	// keptEntries is how many entries before a snapshot are kept for readers that lag a
	// little.
	keptEntries = 64
)

// last is the index of the last entry.
func (r *registerState) last() uint64 { return r.base + uint64(len(r.entries)) }

func (r *registerState) copy() *registerState {
	if r == nil {
		return nil
	}
	c := *r
	c.entries = slices.Clip(r.entries)
	c.beats = slices.Clone(r.beats)
	return &c
}

// after returns the entries after an index.
func (r *registerState) after(index uint64) (Batch, error) {
	b := Batch{Snapshot: r.snapshot.Index}
	if index < r.base {
		return b, ErrCompacted
	}
	for i := index; i < r.last(); i++ {
		b.Entries = append(b.Entries, Entry{Index: i + 1, Data: r.entries[i-r.base]})
	}
	return b, nil
}

// compact installs a snapshot, and reports whether it was newer.
func (r *registerState) compact(snapshot Snapshot) bool {
	if snapshot.Index <= r.snapshot.Index || snapshot.Index > r.last() {
		return false
	}
	r.snapshot = snapshot
	if base := snapshot.Index - min(snapshot.Index, keptEntries); base > r.base {
		r.entries = r.entries[base-r.base:]
		r.base = base
	}
	return true
}

// beat counts a node's counter on and forgets that of its last session.
func (r *registerState) beat(session, last rendezvous.SessionID) {
	var count uint64
	r.beats = slices.DeleteFunc(r.beats, func(b registerHeartbeat) bool {
		if b.session == session {
			count = b.count
		}
		return b.session == session || b.session == last
	})
	if session != "" {
		r.beats = append(r.beats, registerHeartbeat{session, count + 1})
	}
	r.beats = r.beats[max(0, len(r.beats)-maxRegisterBeats):]
}

// sign is a node's sign of life in the state. A node without a counter has removed it.
func (r *registerState) sign(session rendezvous.SessionID) Liveness {
	for _, b := range r.beats {
		if b.session == session {
			return Liveness{Heartbeats: b.count}
		}
	}
	return Liveness{State: LivenessDisconnected}
}

func (r *registerState) encode() []byte {
	return pack.Append(nil, func(p *pack.Packer) {
		p.List(10)
		p.Text(registerMagic)
		p.Uint(registerVersion)
		p.Text(r.runID)
		p.Text(r.generation)
		p.Text(r.nonce)
		p.Uint(r.snapshot.Index)
		p.Bytes(r.snapshot.State)
		p.Uint(r.base)
		p.Values(r.entries)
		p.List(2 * len(r.beats))
		for _, b := range r.beats {
			p.Text(string(b.session))
			p.Uint(b.count)
		}
	})
}

// decodeRegister decodes the result of encode, and checks everything.
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
