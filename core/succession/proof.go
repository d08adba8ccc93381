package succession

import (
	"maps"
	"slices"
	"time"
)

// Dead notes that a voter's process is proven dead, or has said that it votes no more. It counts
// only for a process that a host with a majority has heard, or, as the host, that a majority
// has heard, within half of a lease before: any other may have been replaced without knowing,
// and its successors are not in its list. It counts without that bound where too few others
// live to decide anything without this process.
func (b *Ballot) Dead(id Voter, now time.Duration) {
	if id == b.id || b.dead[id] || !b.speaksTo(id) {
		return
	}
	within := b.lease / standParts
	// In a list of three each change of the voters needs both that live, so that no voter is
	// replaced without knowing.
	recent := b.least == 2 || b.role == leader && !b.handed && b.hasMajority(now, within) || b.role != leader && now-b.sure <= within
	count := b.dead
	if !recent && !b.needed() {
		count = b.tooLate
	}
	maps.DeleteFunc(count, func(id Voter, _ bool) bool { return !b.speaksTo(id) })
	if count[id] = true; !b.dead[id] {
		return
	}
	delete(b.tooLate, id)
	delete(b.former, id)
	b.settle(now)
}

// needed reports whether nothing can be decided without this process, since the others that
// live are no majority: not of those who vote, nor, in a change, of those before or after it. In
// a change, that holds for a voter of both sets only: those who do not know of the change, or
// know that it is over, do not ask one that is in the other set. The host that has begun the change
// knows that it is not over: all others need a majority of those before it.
func (b *Ballot) needed() bool {
	others := func(id Voter) uint64 {
		if id == b.id || b.dead[id] {
			return 0
		}
		return 1
	}
	v := b.accepted.Voters
	if b.role == leader && b.changes {
		return agreedIn(v.Outgoing, others, nobody) == 0
	}
	if v.changing() && !(slices.Contains(v.Incoming, b.id) && slices.Contains(v.Outgoing, b.id)) {
		return false
	}
	return agreedIn(v.Incoming, others, nobody) == 0 && agreedIn(v.Outgoing, others, nobody) == 0
}

// speaksTo reports whether a process votes, or, as the host knows, has voted and does not know
// that it does no more.
func (b *Ballot) speaksTo(id Voter) bool {
	return b.accepted.Voters.Has(id) || b.role == leader && b.former[id]
}

// ProvenDead reports whether a voter was noted as dead, and counts as that.
func (b *Ballot) ProvenDead(id Voter) bool { return b.dead[id] }

// DeadLate reports whether a voter is proven dead, too late for that to count.
func (b *Ballot) DeadLate(id Voter) bool { return b.tooLate[id] }

// Stranded reports whether, as far as this process knows, nobody can ever be elected: it votes,
// and each other voter is dead, one of them too late for that to count, or gone, or alive and no host.
// alive reports that a voter is alive, gone that nothing listens where it did. place is how many are
// alive before this one; proven tells that none is only gone.
func (b *Ballot) Stranded(alive, gone func(Voter) bool) (place int, stranded, proven bool) {
	before := true
	proven = true
	for _, id := range b.accepted.Voters.All() {
		switch {
		case id == b.id:
			before = false
		case b.tooLate[id]:
			stranded = true
		case b.dead[id]:
		case gone(id):
			stranded, proven = true, false
		case !alive(id):
			return 0, false, false
		case before:
			place++
		}
	}
	return place, stranded && b.Votes(), proven
}
