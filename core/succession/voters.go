package succession

import (
	"math"
	"slices"
	"time"
)

// Voter names a process that votes. Each process, and each of its memories, has a name of its
// own, so that an empty memory never votes under a name that has voted before.
type Voter string

// Voters are the processes whose majority decides. While Outgoing is not empty they are being
// changed, and a majority of both is needed (Raft's joint consensus).
type Voters struct {
	Incoming []Voter // all of them, unless a change is under way
	Outgoing []Voter // those before the change that is under way
}

// maxName bounds the length of a voter's name.
const maxName = 256

// MaxVoters is how many processes vote at most.
const MaxVoters = 5

// Has reports whether a process votes.
func (v Voters) Has(id Voter) bool {
	return slices.Contains(v.Incoming, id) || slices.Contains(v.Outgoing, id)
}

// All returns each voter once.
func (v Voters) All() []Voter {
	all := slices.Clone(v.Incoming)
	for _, id := range v.Outgoing {
		if !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// possible reports whether a host that follows the protocol can have chosen them.
func (v Voters) possible() bool {
	return len(v.Incoming) > 0 && distinct(v.Incoming) && distinct(v.Outgoing)
}

// distinct reports whether a list names few enough voters, and each once.
func distinct(set []Voter) bool {
	if len(set) > MaxVoters {
		return false
	}
	for i, id := range set {
		if id == "" || len(id) > maxName || slices.Contains(set[:i], id) {
			return false
		}
	}
	return true
}

// changing reports whether a change is under way.
func (v Voters) changing() bool { return len(v.Outgoing) > 0 }

// agreed returns the largest number that enough voters have reached: in each set a majority, or
// all that are not dead. A set of dead voters objects to nothing.
func (v Voters) agreed(reached func(Voter) uint64, dead func(Voter) bool) uint64 {
	least := agreedIn(v.Incoming, reached, dead)
	if v.changing() {
		least = min(least, agreedIn(v.Outgoing, reached, dead))
	}
	return least
}

// reachedBy returns the largest number that a majority of a set, and at least that many of it,
// have reached.
func reachedBy(set []Voter, reached func(Voter) uint64, least int) uint64 {
	need := max(len(set)/2+1, least)
	if need > len(set) {
		return 0
	}
	var all []uint64
	for _, id := range set {
		all = append(all, reached(id))
	}
	slices.Sort(all)
	return all[len(all)-need]
}

func agreedIn(set []Voter, reached func(Voter) uint64, dead func(Voter) bool) uint64 {
	if len(set) == 0 {
		return 0
	}
	all := uint64(math.MaxUint64) // that live
	for _, id := range set {
		if !dead(id) {
			all = min(all, reached(id))
		}
	}
	return max(reachedBy(set, reached, 0), all)
}

// sameSet reports whether two lists name the same voters.
func sameSet(a, b []Voter) bool {
	return len(a) == len(b) && !slices.ContainsFunc(a, func(id Voter) bool { return !slices.Contains(b, id) })
}

// Times of a vote, as parts of the lease: nothing is urgent, since workers run without a
// control plane, and any other silent node is lost after one lease, too.
const (
	beatParts   = 20 // the host's word to each voter, and the least time between two ticks
	standParts  = 2  // a voter stands when it has not heard the host for so long
	lateParts   = 10 // a voter whose clock is so late has heard nothing that counts
	deposeParts = 4  // no later term ends one that is younger; a host that has had no majority for this long tells nothing
)

// GiveUp is for how many leases the processes of a fixed list keep a memory by which they, though enough of
// them reach each other, elect nobody: the others that have voted by it are gone.
const GiveUp = 4

// termsOfOne is how many terms a dead voter may have gone through that nobody else knows of.
const termsOfOne = 8

// Beat is how often Tick is called, and how often the host speaks to each voter.
func Beat(lease time.Duration) time.Duration { return lease / beatParts }
