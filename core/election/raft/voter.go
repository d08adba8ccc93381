package raft

import (
	"crypto/rand"
	"encoding/binary"
	"strconv"
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

// maxTerm bounds the terms that are believed, and maxAhead by how many a message may be ahead of its receiver: each
// leader adds one to its predecessor's.
const (
	maxTerm  = 1 << 32
	maxAhead = 4096
)
