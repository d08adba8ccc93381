package conformance

import (
	"net/netip"
	"slices"

	r "rallypoint/core/rendezvous"
)

// completed checks a new round, whose outcomes these are, and records it.
func (j *Checker) completed(told map[*session]r.Outcome) {
	all := j.candidates()
	chosen := slices.DeleteFunc(slices.Clone(all), func(s *session) bool { _, ok := told[s]; return !ok })
	if len(chosen) < len(told) {
		j.violated(4, "%d outcomes for nodes that were given up at the same event", len(told)-len(chosen))
	}
	if len(chosen) == 0 {
		return
	}
	first := told[chosen[0]]
	j.checkMoment(first, all)
	j.checkSize(first, told, chosen, all)
	j.checkRanks(told, chosen)
	j.checkShape(told, chosen)
	j.checkNumber(first)
	j.enter(first, told, chosen)
}

// candidates are the nodes with a pending join: members by rank, then the others
// in order of arrival.
func (j *Checker) candidates() []*session {
	list := j.joiners()
	slices.SortStableFunc(list, func(a, b *session) int { return j.precedence(a) - j.precedence(b) })
	return list
}

func (j *Checker) precedence(s *session) int {
	if t := j.participantOf(s); t != nil {
		return t.rank
	}
	return len(j.participants)
}

// checkMoment checks whether the round was due.
func (j *Checker) checkMoment(o r.Outcome, all []*session) {
	if n := j.joinersInGrace(); n > 0 {
		j.violated(5, "round %d was completed while the connections of %d participants are broken", o.Round, n)
	}
	if j.ended() {
		j.violated(9, "round %d was completed in a closed run", o.Round)
	}
	if j.count(finished) > 0 {
		j.violated(8, "round %d was completed though a member has finished", o.Round)
	}
	full := len(all) >= j.full()
	if j.held && !full {
		j.violated(5, "round %d of %d nodes was completed by a new control plane that waits for nodes of an earlier one", o.Round, len(all))
	}
	if j.live() == 0 {
		if !full && !j.due[r.TimerLastCall] && !j.due[r.TimerQuiet] {
			j.violated(5, "round %d was completed with %d nodes, before the last call or a quiet period had run out", o.Round, len(all))
		}
		return
	}
	awaited := j.awaited()
	switch {
	case j.count(rejoined) == 0:
		j.violated(6, "round %d was completed without any member of round %d", o.Round, j.round)
	case awaited > 0 && !j.due[r.TimerRegroup]:
		j.violated(6, "round %d was completed without %d live members of round %d", o.Round, awaited, j.round)
	case (awaited == 0) != (len(o.Dropped) == 0):
		j.violated(6, "round %d goes on without %d live members and names %q", o.Round, awaited, o.Dropped)
	}
}

func (j *Checker) checkSize(o r.Outcome, told map[*session]r.Outcome, chosen, all []*session) {
	p, n := j.policy, len(told)
	if n != o.World || n < p.Min || n > p.Max || p.NodeUnit > 0 && n%p.NodeUnit != 0 {
		j.violated(2, "round %d: %d outcomes of a world of %d; min %d, max %d, unit %d", o.Round, n, o.World, p.Min, p.Max, p.NodeUnit)
	}
	if want := j.fits(len(all)); n != want {
		j.violated(4, "round %d has %d nodes of %d that waited, %d have room", o.Round, n, len(all), want)
	} else if !slices.Equal(chosen, all[:n]) {
		j.violated(6, "round %d left out members, or who came first, for others", o.Round)
	}
}

// checkShape checks that all members were told the same, and the store's address.
func (j *Checker) checkShape(told map[*session]r.Outcome, chosen []*session) {
	shape := told[chosen[0]]
	shape.Rank = 0
	host, zero := -1, (*session)(nil)
	for _, s := range chosen {
		o := told[s]
		if s.inHost {
			host = o.Rank
		}
		if o.Rank == 0 {
			zero = s
		}
		o.Rank = 0
		if !equalOutcome(o, shape) {
			j.violated(3, "members of round %d disagree: %+v and %+v", o.Round, o, shape)
		}
	}
	if shape.HostRank != host {
		j.violated(3, "round %d names rank %d as the control plane's host, it is %d", shape.Round, shape.HostRank, host)
	}
	if zero == nil {
		return // checkRanks has said so
	}
	if shape.StorePort != zero.join.StorePort || zero.join.StoreAddr != "" && shape.StoreAddr != zero.join.StoreAddr {
		j.violated(3, "round %d has its store at %s:%d, rank 0 offered %s:%d",
			shape.Round, shape.StoreAddr, shape.StorePort, zero.join.StoreAddr, zero.join.StorePort)
	}
	if len(chosen) > 1 && zero.join.StoreAddr != "" {
		if a, err := netip.ParseAddr(shape.StoreAddr); err == nil && a.IsUnspecified() {
			j.violated(3, "round %d has its store at %s, which nobody can reach", shape.Round, shape.StoreAddr)
		}
	}
}

func equalOutcome(a, b r.Outcome) bool {
	return slices.Equal(a.Dropped, b.Dropped) && a.Generation == b.Generation && a.Round == b.Round && a.Rank == b.Rank &&
		a.World == b.World && a.HostRank == b.HostRank && a.StoreAddr == b.StoreAddr && a.StorePort == b.StorePort
}

func (j *Checker) checkNumber(o r.Outcome) {
	if highest := max(j.round, j.floor); o.Round != highest+1 {
		j.violated(1, "round %d comes after round %d", o.Round, highest)
	}
	if j.generation != "" && o.Generation != j.generation {
		j.violated(1, "round %d is of generation %s, the control plane's is %s", o.Round, o.Generation, j.generation)
	}
	if j.places[place{o.Generation, o.Round}] {
		j.violated(1, "round %d of generation %s was completed twice", o.Round, o.Generation)
	}
}

// checkRanks checks that each rank is there once, and who has which.
func (j *Checker) checkRanks(told map[*session]r.Outcome, chosen []*session) {
	have := map[int]*session{}
	for _, s := range chosen {
		o := told[s]
		if other := have[o.Rank]; other != nil {
			j.violated(2, "round %d: %s and %s both have rank %d", o.Round, other.node, s.node, o.Rank)
		}
		have[o.Rank] = s
		if o.Rank < 0 || o.Rank >= len(chosen) {
			j.violated(2, "round %d: %s has rank %d of %d", o.Round, s.node, o.Rank, len(chosen))
		}
		if o.Round <= s.round {
			j.violated(1, "%s was told of round %d after round %d", s.node, o.Round, s.round)
		}
	}
	for i, rank := range j.ruled(chosen) {
		if got := told[chosen[i]].Rank; got != rank {
			j.violated(10, "%s has rank %d, the rule gives it %d", chosen[i].node, got, rank)
		}
	}
}

// ruled gives the ranks as guarantee 10 words it.
func (j *Checker) ruled(chosen []*session) []int {
	n := len(chosen)
	ranks := slices.Repeat([]int{-1}, n)
	owner := slices.Repeat([]int{-1}, n)
	old := func(i int) int {
		if t := j.byNode[chosen[i].node]; t != nil {
			return t.rank
		}
		return -1
	}
	for _, wish := range []func(i int) int{
		func(i int) int { return chosen[i].join.NodeRank },
		old,
		func(i int) int { return chosen[i].join.RankHint },
	} {
		wanted := map[int][]int{}
		for i := range chosen {
			if ranks[i] < 0 {
				wanted[wish(i)] = append(wanted[wish(i)], i)
			}
		}
		for rank, who := range wanted {
			if rank >= 0 && rank < n && owner[rank] < 0 && len(who) == 1 {
				ranks[who[0]], owner[rank] = rank, who[0]
			}
		}
	}
	var rest []int
	for i := range chosen {
		if ranks[i] < 0 && old(i) >= 0 {
			rest = append(rest, i)
		}
	}
	slices.SortFunc(rest, func(a, b int) int { return old(a) - old(b) })
	for i := range chosen {
		if ranks[i] < 0 && old(i) < 0 {
			rest = append(rest, i)
		}
	}
	for _, i := range rest {
		hole := slices.Index(owner, -1)
		ranks[i], owner[hole] = hole, i
	}
	return ranks
}

// enter records the round.
func (j *Checker) enter(o r.Outcome, told map[*session]r.Outcome, chosen []*session) {
	for _, t := range j.participants {
		if s := j.nodeOf(t.node); t.state == running && s != nil {
			s.stale = true // the round goes on without it
		}
	}
	j.places[place{o.Generation, o.Round}] = true
	j.generation, j.origin, j.round, j.fresh = o.Generation, o.Generation, max(j.round, o.Round), false
	j.stored, j.overtaken = false, false
	j.participants, j.byNode = make([]*participant, len(chosen)), map[string]*participant{}
	for i, s := range chosen {
		rank := told[s].Rank
		t := &participant{rank: rank, node: s.node}
		if rank >= 0 && rank < len(j.participants) && j.participants[rank] == nil {
			j.participants[rank] = t
		} else {
			j.participants[i] = t // a violation already; go on with as many as there are
		}
		j.byNode[s.node], j.seen[s.node] = t, true
		s.join, s.round = nil, told[s].Round
		clear(s.barrier)
	}
	j.participants = slices.DeleteFunc(j.participants, func(t *participant) bool { return t == nil })
	for _, s := range j.sessions {
		clear(s.barrier)
	}
	clear(j.due)
	clear(j.sums)
}
