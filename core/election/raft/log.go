package raft

import (
	"fmt"
	"slices"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// How many entries that are applied the log keeps for voters that are a little behind. Those further behind get a
// snapshot: one value, or all that a Storage has.
const (
	keepEntries = 8
	keepStored  = 512     // with a Storage,
	keepBytes   = 4 << 20 // while they have no more bytes
)

// log is the memory of one voter in one cluster: raft's log, and what its applied entries come to.
type log struct {
	*etcdraft.MemoryStorage
	applied uint64
	term    uint64 // of the applied entry
	conf    *raftpb.ConfState
	value   []byte // of the last applied entry that has one; nil with a storage
	written uint64 // the term of that entry; 0: it came with a snapshot
	size    int    // of the entries since the log was compacted

	storage Storage // nil: the last entry's value is all
	change  Change  // that it has to save
}

// newLog makes a log that begins with a snapshot; with a nil one it is empty. A storage has the snapshot's data
// already.
func newLog(begin *raftpb.Snapshot, storage Storage) (*log, error) {
	l := &log{MemoryStorage: etcdraft.NewMemoryStorage(), conf: &raftpb.ConfState{}, storage: storage}
	if begin == nil {
		return l, nil
	}
	return l, l.restore(begin)
}

func snapshot(index, term uint64, conf *raftpb.ConfState, value []byte) *raftpb.Snapshot {
	return &raftpb.Snapshot{Data: value, Metadata: &raftpb.SnapshotMetadata{Index: new(index), Term: new(term), ConfState: conf}}
}

func (l *log) restore(s *raftpb.Snapshot) error {
	m, value := s.GetMetadata(), s.GetData()
	if l.storage != nil {
		value = nil
	}
	if err := l.ApplySnapshot(snapshot(m.GetIndex(), m.GetTerm(), m.GetConfState(), nil)); err != nil {
		return err
	}
	l.applied, l.term, l.conf, l.value, l.written = m.GetIndex(), m.GetTerm(), m.GetConfState(), value, 0
	return nil
}

// Snapshot implements raft's Storage with what is applied: a voter that was just added has to be in it.
func (l *log) Snapshot() (_ *raftpb.Snapshot, err error) {
	value := l.value
	if l.storage != nil {
		value, err = l.storage.Snapshot()
	}
	return snapshot(l.applied, l.term, l.conf, value), err
}

// save gives the storage what is new.
func (l *log) save() error {
	c := l.change
	l.change = Change{}
	if l.storage == nil || c.empty() {
		return nil
	}
	return l.storage.Save(c)
}

// durable reports whether the log itself is to be stored.
func (l *log) durable() bool { return l.storage != nil && l.storage.Durable() }

// keep notes entries that follow, for the storage.
func (l *log) keep(entries []*raftpb.Entry) error {
	if len(entries) == 0 || !l.durable() {
		return nil
	}
	l.change.First = entries[0].GetIndex()
	for _, e := range entries {
		b, err := proto.Marshal(e)
		if err != nil {
			return err
		}
		l.change.Entries = append(l.change.Entries, b)
	}
	return nil
}

// apply takes a committed entry. A change of voters is for the caller to carry out.
func (l *log) apply(e *raftpb.Entry) (change raftpb.ConfChangeI, err error) {
	l.applied, l.term = e.GetIndex(), e.GetTerm()
	switch e.GetType() {
	case raftpb.EntryNormal:
		switch {
		case len(e.GetData()) == 0:
		case l.storage != nil:
			l.size += len(e.GetData())
			l.change.Apply = append(l.change.Apply, e.GetData())
		default:
			l.value, l.written = e.GetData(), e.GetTerm()
		}
	case raftpb.EntryConfChangeV2:
		c := &raftpb.ConfChangeV2{}
		return c, unmarshal(e.GetData(), c)
	default:
		return nil, fmt.Errorf("an entry of type %v", e.GetType())
	}
	return nil, nil
}

// compact drops entries that nobody needs.
func (l *log) compact() error {
	keep := uint64(keepEntries)
	if l.storage != nil && l.size < keepBytes {
		keep = keepStored
	}
	first, err := l.FirstIndex()
	if err != nil || l.applied < first+2*keep {
		return err
	}
	l.size = 0
	l.change.Keep = l.applied - keep + 1
	return l.Compact(l.applied - keep)
}

// unapplied returns the entries that are not known to be committed.
func (l *log) unapplied() []*raftpb.Entry {
	index, _ := l.last()
	if index <= l.applied {
		return nil
	}
	entries, err := l.Entries(l.applied+1, index+1, 1<<62)
	if err != nil {
		return nil
	}
	return entries
}

// isValue reports whether an entry has a value: it is no change of voters, and not a new leader's first one.
func isValue(e *raftpb.Entry) bool {
	return e.GetType() == raftpb.EntryNormal && len(e.GetData()) > 0
}

// last returns the position of the last entry.
func (l *log) last() (index, term uint64) {
	index, _ = l.LastIndex()
	term, _ = l.Term(index)
	return index, term
}

// latest returns the value as it is once the last entry is committed, and the term in which it was written.
func (l *log) latest() (value []byte, written uint64) {
	for _, e := range slices.Backward(l.unapplied()) {
		if isValue(e) {
			return e.GetData(), e.GetTerm()
		}
	}
	return l.value, l.written
}
