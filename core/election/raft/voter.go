package raft

import (
	"crypto/rand"
	"encoding/binary"
	"slices"
	"strconv"

	"go.etcd.io/raft/v3/raftpb"
)

// Voter names one memory of a process: a process whose memory is lost votes under another name, or it
// might vote twice in one term. 0 is none.
type Voter uint64

// MaxVoters is how many processes vote at most.
const MaxVoters = 5

// placeBits is where a voter's place stands in its name.
const placeBits = 56

// NewVoter draws a name. place is its place in a fixed list of servers, from 1 on; 0: there is no list.
func NewVoter(place int) Voter {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return VoterAt(place, binary.LittleEndian.Uint64(b[:]))
}

// VoterAt is the voter of a place whose name follows from a number.
func VoterAt(place int, number uint64) Voter {
	return Voter(place)<<placeBits | Voter(number>>(64-placeBits)) | 1
}

// Place is the place in a fixed list that a voter has; 0: there is no list.
func (v Voter) Place() int { return int(v >> placeBits) }

// String is the voter's name in a message; "" for none.
func (v Voter) String() string {
	if v == 0 {
		return ""
	}
	return strconv.FormatUint(uint64(v), 36)
}

// ParseVoter reads a name. What is none of a voter is 0.
func ParseVoter(s string) Voter {
	n, err := strconv.ParseUint(s, 36, 64)
	if err != nil || strconv.FormatUint(n, 36) != s {
		return 0
	}
	return Voter(n)
}

// maxTerm bounds the terms that are believed, and maxAhead by how many a message may be ahead of a receiver that has
// entries: each leader adds one to its predecessor's.
const (
	maxTerm  = 1 << 32
	maxAhead = 4096
)

// Voters are the processes whose majority decides. While Outgoing is not empty they are being changed, and a
// majority of both is needed (raft's joint consensus).
type Voters struct {
	Incoming []Voter // all of them, unless a change is under way
	Outgoing []Voter // those before the change that is under way
}

func voters(c *raftpb.ConfState) (v Voters) {
	for _, id := range c.GetVoters() {
		v.Incoming = append(v.Incoming, Voter(id))
	}
	for _, id := range c.GetVotersOutgoing() {
		v.Outgoing = append(v.Outgoing, Voter(id))
	}
	return v
}

// after returns the voters that follow from a change.
func (v Voters) after(c *raftpb.ConfChangeV2) Voters {
	next := Voters{Incoming: slices.Clone(v.Incoming)}
	if joint := c.GetTransition() != raftpb.ConfChangeTransitionAuto || len(c.GetChanges()) > 1; joint && len(v.Incoming) > 1 { // see carryOut
		next.Outgoing = v.Incoming
	}
	for _, change := range c.GetChanges() {
		id := Voter(change.GetNodeId())
		next.Incoming = slices.DeleteFunc(next.Incoming, func(has Voter) bool { return has == id })
		if change.GetType() == raftpb.ConfChangeAddNode {
			next.Incoming = append(next.Incoming, id)
		}
	}
	return next
}

// Has reports whether a process votes.
func (v Voters) Has(id Voter) bool {
	return slices.Contains(v.Incoming, id) || slices.Contains(v.Outgoing, id)
}

// All returns each voter once.
func (v Voters) All() []Voter {
	all := slices.Concat(v.Incoming, v.Outgoing)
	slices.Sort(all)
	return slices.Compact(all)
}

// Majority reports whether a set of processes is a majority of them.
func (v Voters) Majority(of []Voter) bool {
	in := func(set []Voter) bool {
		count := 0
		for _, id := range set {
			if slices.Contains(of, id) {
				count++
			}
		}
		return count > len(set)/2
	}
	return in(v.Incoming) && (len(v.Outgoing) == 0 || in(v.Outgoing))
}

// possible reports whether a leader can have chosen them.
func (v Voters) possible() bool {
	distinct := func(set []Voter) bool {
		for i, id := range set {
			if id == 0 || slices.Contains(set[:i], id) {
				return false
			}
		}
		return len(set) <= MaxVoters
	}
	return len(v.Incoming) > 0 && distinct(v.Incoming) && distinct(v.Outgoing)
}
