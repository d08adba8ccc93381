package raft

import (
	"errors"
	"fmt"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"

	"rallypoint/internal/pack"
)

// Storage is what the entries of a log come to, where that is more than the last of them, and perhaps a disk that
// has both. A node calls it one call at a time.
type Storage interface {
	// Save takes a change. After an error the memory is lost.
	Save(Change) error
	// Flush returns once all changes are where they outlive the process, if this storage does. After an error the node
	// takes part in nothing until another call returns nil.
	Flush() error
	// Durable reports whether this storage outlives the process. Else it needs no records and entries.
	Durable() bool
	// Snapshot returns all that was applied, for a voter that lacks entries.
	Snapshot() ([]byte, error)
}

// Change is what a node knows more than before.
type Change struct {
	Replace  bool     // first: a snapshot takes the place of all that was applied
	Snapshot []byte   // nil: nothing does
	Apply    [][]byte // then: entries, in order, each once

	Record  []byte   // of the node, for Recover; nil: as before
	Reset   bool     // the log begins anew: no entry before is needed
	First   uint64   // Entries take the place of those with this number and higher ones; 0: there are none
	Entries [][]byte // not yet applied, perhaps
	Keep    uint64   // those with a lower number are not needed
}

func (c *Change) empty() bool {
	return !c.Replace && len(c.Apply) == 0 && c.Record == nil && !c.Reset && c.First == 0 && c.Keep == 0
}

// maxRecord bounds each part of a record.
const maxRecord = 1 << 16

// Record is what Recover needs beside the entries, of a node that takes part in a cluster.
func (n *Node) Record() ([]byte, error) {
	hard, _, err := n.log.InitialState()
	if err != nil {
		return nil, err
	}
	first, err := n.log.FirstIndex()
	if err != nil {
		return nil, err
	}
	base, err := n.log.Term(first - 1)
	if err != nil {
		return nil, err
	}
	packed, err := proto.Marshal(hard)
	voters, wrong := proto.Marshal(n.log.conf)
	return pack.Append(nil, func(p *pack.Packer) {
		p.List(8)
		p.Uint(uint64(n.id))
		p.Text(n.cluster)
		p.Bytes(packed)
		p.Bytes(voters)
		p.Uint(n.log.applied)
		p.Uint(n.log.term)
		p.Uint(first - 1)
		p.Uint(base)
	}), errors.Join(err, wrong)
}

// Recover makes this node, which is new, the one whose record and entries a storage has kept, with what they came to.
// as is the name that it votes by from now on: another one where the memory may be a copy of an older one. Then
// it votes in none of the cluster's elections, and its name has to come among the voters first.
func (n *Node) Recover(record []byte, entries [][]byte, as Voter) error {
	u := pack.NewUnpacker(record)
	defer u.Release()
	u.Open()
	_, cluster := u.Uint(), u.Text(maxRecord)
	hard, conf := &raftpb.HardState{}, &raftpb.ConfState{}
	err := errors.Join(unmarshal(u.Bytes(maxRecord), hard), unmarshal(u.Bytes(maxRecord), conf))
	applied, term, base, baseTerm := u.Uint(), u.Uint(), u.Uint(), u.Uint()
	u.Close()
	u.End()
	if err = errors.Join(err, u.Err()); err != nil {
		return fmt.Errorf("the record of a voter: %w", err)
	}
	l, err := newLog(snapshot(base, baseTerm, conf, nil), n.storage)
	if err != nil {
		return err
	}
	l.applied, l.term = applied, term
	next := base
	for _, b := range entries {
		e := &raftpb.Entry{}
		if err := unmarshal(b, e); err != nil {
			return fmt.Errorf("an entry of the log: %w", err)
		}
		if next++; e.GetIndex() != next {
			return fmt.Errorf("entry %d of the log follows entry %d", e.GetIndex(), next-1)
		}
		if err := l.Append([]*raftpb.Entry{e}); err != nil {
			return err
		}
	}
	if hard.GetCommit() > next || applied > hard.GetCommit() || applied < base {
		return fmt.Errorf("the log has %d entries, of which %d are committed and %d applied", next, hard.GetCommit(), applied)
	}
	if err := l.SetHardState(hard); err != nil {
		return err
	}
	n.id = as
	n.start(cluster, l)
	if n.lost {
		return errors.New("raft refuses the log")
	}
	return nil
}

// VoterOf reads the name of the voter from a record; 0: it is none.
func VoterOf(record []byte) Voter {
	u := pack.NewUnpacker(record)
	defer u.Release()
	u.Open()
	return Voter(u.Uint())
}
