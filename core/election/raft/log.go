package raft

import (
	"fmt"

	etcdraft "go.etcd.io/raft/v3"
	"go.etcd.io/raft/v3/raftpb"
)

// keepEntries is how many entries that are applied the log keeps for voters that are a little behind.
// Those further behind get a snapshot, which is one value.
const keepEntries = 8

// log is the memory of one voter in one epoch: raft's log, and what its applied entries come to.
type log struct {
	*etcdraft.MemoryStorage
	applied uint64
	term    uint64 // of the applied entry
	conf    *raftpb.ConfState
	value   []byte // of the last applied entry that has one
	written uint64 // the term of that entry; 0: it came with a snapshot
}

// newLog makes a log that begins with a snapshot; with a nil one it is empty.
func newLog(begin *raftpb.Snapshot) (*log, error) {
	l := &log{MemoryStorage: etcdraft.NewMemoryStorage(), conf: &raftpb.ConfState{}}
	if begin == nil {
		return l, nil
	}
	return l, l.restore(begin)
}

func snapshot(index, term uint64, conf *raftpb.ConfState, value []byte) *raftpb.Snapshot {
	return &raftpb.Snapshot{Data: value, Metadata: &raftpb.SnapshotMetadata{Index: new(index), Term: new(term), ConfState: conf}}
}

func (l *log) restore(s *raftpb.Snapshot) error {
	if err := l.ApplySnapshot(s); err != nil {
		return err
	}
	m := s.GetMetadata()
	l.applied, l.term, l.conf, l.value, l.written = m.GetIndex(), m.GetTerm(), m.GetConfState(), s.GetData(), 0
	return nil
}

// Snapshot implements raft's Storage with what is applied: a voter that was just added has to be in it.
func (l *log) Snapshot() (*raftpb.Snapshot, error) {
	return snapshot(l.applied, l.term, l.conf, l.value), nil
}

// apply takes a committed entry. A change of voters is for the caller to carry out.
func (l *log) apply(e *raftpb.Entry) (change raftpb.ConfChangeI, err error) {
	l.applied, l.term = e.GetIndex(), e.GetTerm()
	switch e.GetType() {
	case raftpb.EntryNormal:
		if len(e.GetData()) > 0 {
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
	first, err := l.FirstIndex()
	if err != nil || l.applied < first+2*keepEntries {
		return err
	}
	return l.Compact(l.applied - keepEntries)
}

// last returns the position of the last entry.
func (l *log) last() (index, term uint64) {
	index, _ = l.LastIndex()
	term, _ = l.Term(index)
	return index, term
}

// latest returns the value as it is once the last entry is committed, and the term in which it was written.
func (l *log) latest() (value []byte, written uint64) {
	if index, _ := l.last(); index > l.applied {
		entries, err := l.Entries(l.applied+1, index+1, 1<<62)
		for i := len(entries) - 1; err == nil && i >= 0; i-- {
			if e := entries[i]; e.GetType() == raftpb.EntryNormal && len(e.GetData()) > 0 {
				return e.GetData(), e.GetTerm()
			}
		}
	}
	return l.value, l.written
}
