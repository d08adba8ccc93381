package succession

import (
	"maps"
	"time"
)

// Dead notes that a voter's process is proven dead, or has said that it votes no more. Until it is heard
// again this process, as the host, chooses others in its place.
func (b *Ballot) Dead(id Voter, now time.Duration) {
	if id == b.id || b.dead[id] || !b.speaksTo(id) {
		return
	}
	maps.DeleteFunc(b.dead, func(id Voter, _ bool) bool { return !b.speaksTo(id) })
	b.dead[id] = true
	delete(b.former, id)
	b.settle(now)
}

// excused reports whether a voter of a fixed list, whose host decides nothing without a majority of the list, need
// not agree to an election or to its own replacement: it is proven dead. In a list of three each change
// of the voters needs both that live, so that none was replaced without knowing. In a longer one only a
// host can tell: if voters were replaced without it, they know of a later term (docs/decisions/0139).
func (b *Ballot) excused(id Voter) bool {
	return b.dead[id] && (b.least == 2 || b.least > 0 && b.role == leader)
}

// speaksTo reports whether a process votes, or, as the host knows, has voted and does not know
// that it does no more.
func (b *Ballot) speaksTo(id Voter) bool {
	return b.accepted.Voters.Has(id) || b.role == leader && b.former[id]
}

// ProvenDead reports whether a voter was noted as dead.
func (b *Ballot) ProvenDead(id Voter) bool { return b.dead[id] }

// Stranded reports whether, as far as this process knows, nobody can ever be elected: it votes, the
// voters that are alive are no majority, and each other one is dead, or gone. alive reports that a voter is
// alive and no host, gone that nothing listens where it did. place is how many are alive before this
// one; proven tells that none is only gone.
func (b *Ballot) Stranded(alive, gone func(Voter) bool) (place int, stranded, proven bool) {
	before := true
	proven = true
	lives := map[Voter]bool{b.id: true}
	for _, id := range b.accepted.Voters.All() {
		switch {
		case id == b.id:
			before = false
		case b.dead[id]:
		case gone(id):
			proven = false
		case !alive(id):
			return 0, false, false
		default:
			lives[id] = true
			if before {
				place++
			}
		}
	}
	living := func(id Voter) uint64 {
		if lives[id] {
			return 1
		}
		return 0
	}
	return place, b.Votes() && b.accepted.Voters.agreed(living, nobody) == 0, proven
}
