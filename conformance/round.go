package conformance

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	r "rallypoint/core/rendezvous"
)

// completed checks and records a new round with these outcomes.
func (c *Checker) completed(told map[*session]r.Outcome) {
	all := c.candidates()
	chosen := slices.DeleteFunc(slices.Clone(all), func(s *session) bool { _, ok := told[s]; return !ok })
	if len(chosen) < len(told) {
		c.violated(4, "%d outcomes for nodes that were given up at the same event", len(told)-len(chosen))
	}
	if len(chosen) == 0 {
		return
	}
	first := told[chosen[0]]
	for _, s := range chosen {
		if c.isOut(s) {
			c.violated(4, "round %d has a rank for node %s, which is kept out", first.Round, s.node)
		}
	}
	c.checkMoment(first, all)
	c.checkSize(first, told, chosen, all)
	c.checkRanks(told, chosen, all)
	c.checkShape(told, chosen)
	c.checkNumber(first)
	c.endGone()
	if first.ByDirective && (c.round == 0 || c.endedRound != c.round) {
		c.violated(12, "round %d was told that a drain or a scale has ended round %d, none has", first.Round, c.round)
	}
	c.enter(first, told, chosen)
}

// candidates are the nodes with a pending join: members by rank, then the others
// in order of arrival.
func (c *Checker) candidates() []*session {
	list := c.joiners()
	slices.SortStableFunc(list, func(a, b *session) int { return c.precedence(a) - c.precedence(b) })
	return list
}

func (c *Checker) precedence(s *session) int {
	if t := c.participantOf(s); t != nil {
		return t.rank
	}
	return len(c.participants)
}

func (c *Checker) checkMoment(o r.Outcome, all []*session) {
	if n := c.joinersInGrace(); n > 0 {
		c.violated(5, "round %d was completed while the connections of %d participants are broken", o.Round, n)
	}
	if c.ended() {
		c.violated(9, "round %d was completed in a closed run", o.Round)
	}
	if c.finishing() {
		c.violated(8, "round %d was completed though a member has finished", o.Round)
	}
	full := c.inSegments(domainsOf(all)) >= c.full()
	if waited := len(c.participants) == 0 || c.count(unknown) > 0; c.held && waited && !full {
		c.violated(5, "round %d of %d nodes was completed by a new control plane that waits for nodes of an earlier one", o.Round, len(all))
	}
	if c.live() == 0 {
		if !full && !c.due[r.TimerLastCall] && !c.due[r.TimerQuiet] {
			c.violated(5, "round %d was completed with %d nodes, before the last call or a quiet period had run out", o.Round, len(all))
		}
		return
	}
	awaited := c.awaited()
	switch {
	case c.count(rejoined) == 0:
		c.violated(6, "round %d was completed without any member of round %d", o.Round, c.round)
	case awaited > 0 && !c.due[r.TimerRegroup]:
		c.violated(6, "round %d was completed without %d live members of round %d", o.Round, awaited, c.round)
	case (awaited == 0) != (len(o.Dropped) == 0):
		c.violated(6, "round %d continues without %d live members and names %q", o.Round, awaited, o.Dropped)
	}
}

func (c *Checker) checkSize(o r.Outcome, told map[*session]r.Outcome, chosen, all []*session) {
	p, n := c.policy, len(told)
	if n != o.World || n < p.Min || n > p.Max || p.NodeUnit > 0 && n%p.NodeUnit != 0 {
		c.violated(2, "round %d: %d outcomes of a world of %d; min %d, max %d, unit %d", o.Round, n, o.World, p.Min, p.Max, p.NodeUnit)
	}
	if want := c.fits(c.inSegments(domainsOf(all))); n != want {
		c.violated(4, "round %d has %d nodes of %d that waited, %d have room", o.Round, n, len(all), want)
	} else if c.oneDomain(all) && !slices.Equal(chosen, all[:n]) {
		c.violated(6, "round %d left out members, or who came first, for others", o.Round)
	}
}

// checkShape checks that all members were told the same, and the store's address.
func (c *Checker) checkShape(told map[*session]r.Outcome, chosen []*session) {
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
			c.violated(3, "members of round %d disagree: %+v and %+v", o.Round, o, shape)
		}
	}
	if shape.HostRank != host {
		c.violated(3, "round %d names rank %d as the control plane's host, it is %d", shape.Round, shape.HostRank, host)
	}
	if zero == nil {
		return // checkRanks has said so
	}
	if shape.StorePort != zero.join.StorePort || zero.join.StoreAddr != "" && shape.StoreAddr != zero.join.StoreAddr {
		c.violated(3, "round %d has its store at %s:%d, rank 0 offered %s:%d",
			shape.Round, shape.StoreAddr, shape.StorePort, zero.join.StoreAddr, zero.join.StorePort)
	}
	if len(chosen) > 1 && zero.join.StoreAddr != "" {
		if a, err := netip.ParseAddr(shape.StoreAddr); err == nil && a.IsUnspecified() {
			c.violated(3, "round %d has its store at %s, which no worker can reach", shape.Round, shape.StoreAddr)
		}
	}
}

func equalOutcome(a, b r.Outcome) bool {
	return slices.Equal(a.Dropped, b.Dropped) && a.Generation == b.Generation && a.Round == b.Round && a.Rank == b.Rank &&
		a.World == b.World && a.HostRank == b.HostRank && a.StoreAddr == b.StoreAddr && a.StorePort == b.StorePort && a.ByDirective == b.ByDirective && a.Domains == b.Domains && a.Commands == b.Commands
}

func (c *Checker) checkNumber(o r.Outcome) {
	highest := max(c.round, c.floor)
	next := highest + 1
	if c.succession.Alone && c.fresh { // another control plane may form the rounds between
		next = (highest/1000+1)*1000 + 1
	}
	if o.Round != next {
		c.violated(1, "round %d comes after round %d", o.Round, highest)
	}
	if want := cmp.Or(c.reserve, c.generation); want != "" && o.Generation != want {
		c.violated(1, "round %d is of generation %s, the control plane's is %s", o.Round, o.Generation, want)
	}
	if c.places[place{o.Generation, o.Round}] {
		c.violated(1, "round %d of generation %s was completed twice", o.Round, o.Generation)
	}
}

// checkRanks checks that each rank occurs once, and which node has it.
func (c *Checker) checkRanks(told map[*session]r.Outcome, chosen, all []*session) {
	have := map[int]*session{}
	for _, s := range chosen {
		o := told[s]
		if other := have[o.Rank]; other != nil {
			c.violated(2, "round %d: %s and %s both have rank %d", o.Round, other.node, s.node, o.Rank)
		}
		have[o.Rank] = s
		if o.Rank < 0 || o.Rank >= len(chosen) {
			c.violated(2, "round %d: %s has rank %d of %d", o.Round, s.node, o.Rank, len(chosen))
		}
		if o.Round <= s.round {
			c.violated(1, "%s was told of round %d after round %d", s.node, o.Round, s.round)
		}
	}
	if !c.oneDomain(all) {
		c.checkSegments(told, chosen, all)
		return
	}
	for i, rank := range c.ruled(chosen) {
		if got := told[chosen[i]].Rank; got != rank {
			c.violated(10, "%s has rank %d, the rule gives it %d", chosen[i].node, got, rank)
		}
	}
}

// ruled gives the ranks as guarantee 10 words it.
func (c *Checker) ruled(chosen []*session) []int {
	n := len(chosen)
	ranks := slices.Repeat([]int{-1}, n)
	owner := slices.Repeat([]int{-1}, n)
	old := func(i int) int {
		if t := c.byNode[chosen[i].node]; t != nil {
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

func (c *Checker) enter(o r.Outcome, told map[*session]r.Outcome, chosen []*session) {
	for _, t := range c.participants {
		if s := c.nodeOf(t.node); t.state == running && s != nil {
			s.stale = true // the round continues without it
		}
	}
	c.forgetSteps()
	c.places[place{o.Generation, o.Round}] = true
	c.generation, c.origin, c.round, c.fresh = o.Generation, o.Generation, max(c.round, o.Round), false
	c.stored, c.reserve, c.overtaken, c.stop = false, "", false, r.RoundStop{}
	c.hostRank, c.finishedHosts, c.finishReported = o.HostRank, nil, false
	c.generations[o.Generation] = true
	c.told[fmt.Sprint(o.Facts())] = true
	c.participants, c.byNode = make([]*participant, len(chosen)), map[string]*participant{}
	for i, s := range chosen {
		rank := told[s].Rank
		t := &participant{rank: rank, node: s.node, domain: s.domain, command: s.command}
		if rank >= 0 && rank < len(c.participants) && c.participants[rank] == nil {
			c.participants[rank] = t
		} else {
			c.participants[i] = t // a violation already; continue with as many as there are
		}
		c.byNode[s.node], c.seen[s.node] = t, true
		s.join, s.round, s.member, s.update.Facts = nil, told[s].Round, true, o.Facts()
		clear(s.barrier)
	}
	c.participants = slices.DeleteFunc(c.participants, func(t *participant) bool { return t == nil })
	if c.domains = o.Domains; c.domains != "" && c.domains != domainText(c.participants) {
		c.violated(3, "round %d was told to be in the domains %q, it is in %q", o.Round, c.domains, domainText(c.participants))
	}
	for _, s := range c.sessions {
		clear(s.barrier)
	}
	clear(c.due)
	clear(c.sums)
}
