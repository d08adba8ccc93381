package rendezvous

import (
	"net/netip"
	"slices"

	"rallypoint/internal/wording"
)

// evaluate completes a round if one is due and keeps the clocks that decide it.
func (m *Machine) evaluate() {
	if m.round.finishing() { // guarantee 8: no node is admitted any more
		m.disarmAll()
		m.refuseRejoined()
		return
	}
	if m.round.live() == 0 {
		m.evaluateFirst()
	} else {
		m.evaluateRegroup()
	}
}

// evaluateFirst follows guarantee 5: the first round, and one that no member of
// the last round lives to regroup.
func (m *Machine) evaluateFirst() {
	m.out.disarm(&m.regroup, TimerRegroup)
	m.out.disarm(&m.admit, TimerAdmit)
	n := m.joined
	if n < m.policy.Min || m.policy.Min == 0 {
		m.out.disarm(&m.lastCall, TimerLastCall)
		m.out.disarm(&m.quiet, TimerQuiet)
		return
	}
	if !m.lastCall.armed {
		m.out.arm(&m.lastCall, TimerLastCall, m.policy.LastCallTimeout)
	}
	if !m.quiet.armed && m.policy.QuietPeriod > 0 {
		m.out.arm(&m.quiet, TimerQuiet, m.policy.QuietPeriod)
	}
	m.completeUnlessBlocked()
}

// evaluateRegroup follows guarantees 6 and 7.
func (m *Machine) evaluateRegroup() {
	m.out.disarm(&m.lastCall, TimerLastCall)
	m.out.disarm(&m.quiet, TimerQuiet)
	m.evaluateAdmission()
	if m.round.tally[participantRejoined] == 0 {
		m.out.disarm(&m.regroup, TimerRegroup)
		return
	}
	if m.round.awaited() > 0 && !m.regroup.armed {
		m.out.arm(&m.regroup, TimerRegroup, m.policy.RegroupTimeout)
	}
	m.completeUnlessBlocked()
}

func (m *Machine) completeUnlessBlocked() {
	if m.blocked() == blockedByNothing {
		m.complete()
	}
}

// blockedBy is what keeps the round that is being formed from being complete.
type blockedBy int

const (
	blockedByNothing     blockedBy = iota
	blockedByMembers               // of the last round: they have not rejoined, and have time to
	blockedByLack                  // fewer nodes than min have joined
	blockedByConnections           // of waiting nodes: they are broken, and have time to come back
	blockedByHold                  // the control plane is new: nodes of an earlier one have time to come
	blockedByTime                  // enough have joined; more have time to come
)

// blocked decides whether the next round is complete. What people and programs are told of a
// round that is being formed follows from this alone.
func (m *Machine) blocked() blockedBy {
	first := m.round.live() == 0
	switch {
	case !first && m.round.awaited() > 0 && !m.regroup.due:
		return blockedByMembers
	case m.lack() > 0 || m.policy.Min == 0:
		return blockedByLack
	case m.joinedGrace > 0:
		return blockedByConnections
	case m.joined >= m.enough():
		return blockedByNothing
	case m.holding:
		return blockedByHold
	case first && !m.lastCall.due && !m.quiet.due:
		return blockedByTime
	}
	return blockedByNothing
}

// lack is how many more nodes min needs.
func (m *Machine) lack() int { return max(0, m.policy.Min-m.joined) }

// places is how many nodes a round has at most: max, or the target of the last scale.
func (m *Machine) places() int {
	if m.target > 0 {
		return m.target
	}
	return m.policy.Max
}

// evaluateAdmission decides whether waiting newcomers are worth a regroup, and
// announces them after a quiet time.
func (m *Machine) evaluateAdmission() {
	if m.gain() == 0 {
		m.out.disarm(&m.admit, TimerAdmit)
		return
	}
	if !m.admit.armed {
		m.out.arm(&m.admit, TimerAdmit, m.policy.AdmitDelay)
	}
}

// gain is how many more nodes than the running round a regroup now would give places to.
func (m *Machine) gain() int {
	if m.newcomers == 0 {
		return 0
	}
	return max(0, m.seats(m.round.live()+m.newcomers)-len(m.round.participants))
}

// complete forms the next round of the candidates: the only place where a round
// number is taken and ranks are given.
func (m *Machine) complete() {
	candidates := m.candidates()
	size := m.seats(len(candidates))
	chosen := candidates[:size]
	dropped := m.dropAwaited()
	ranks := assignRanks(m.rankRequests(chosen))
	m.endGone()
	last := m.round.number
	m.round.number = m.round.highest() + 1
	m.round.origin = m.generation
	m.round.fresh, m.round.stored, m.mismatch = false, false, ""
	m.forgetAgreement()
	m.disarmAll()
	m.stopHold()

	for _, n := range candidates {
		m.uncountJoin(n)
	}
	m.round.replace(size)
	first := (*node)(nil)
	for i, n := range chosen {
		m.round.seat(ranks[i], n)
		if ranks[i] == 0 {
			first = n
		}
	}
	outcome := Outcome{
		Generation: m.generation, Round: m.round.number, World: size, HostRank: m.round.hostRank,
		StoreAddr: m.storeAddr(first, chosen), StorePort: first.join.StorePort, Dropped: dropped,
		ByDirective: last > 0 && m.endedRound == last,
	}
	m.round.store = outcome.store()
	for i, n := range chosen {
		number := n.join.Number
		n.join = nil
		n.update.Facts = outcome.Facts() // its outcome says so
		o := outcome
		o.Rank = ranks[i]
		m.nodes.answer(n, number, o)
	}
	for _, n := range candidates[size:] {
		m.countJoin(n)
	}
	m.dropKeys(last)
	m.out.note("round %d is complete: %d of %s, %d waiting", m.round.number, size, wording.Count(m.places(), "node", "nodes"), m.joined)
}

// dropAwaited marks the live members that the round goes on without, and names
// them. They learn it by their update and come back as waiting nodes.
func (m *Machine) dropAwaited() []string {
	if m.round.awaited() == 0 {
		return nil
	}
	var names []string
	for _, s := range m.round.participants {
		if s.state != participantRunning && s.state != participantUnknown {
			continue
		}
		if n := m.nodes.live[s.node]; n != nil && s.state == participantRunning {
			n.stale = "it did not rejoin within regroup_timeout"
			m.nodes.touch(n)
		}
		m.out.note("node %s was dropped: it did not rejoin within %v", s.name(), m.policy.RegroupTimeout)
		if len(names) < maxNames {
			names = append(names, s.name())
		}
	}
	return names
}

// refuseRejoined answers the joins of members that can no longer regroup.
func (m *Machine) refuseRejoined() {
	if m.round.tally[participantRejoined] == 0 {
		return
	}
	err := m.finishedError()
	for _, s := range m.round.participants {
		if s.state != participantRejoined {
			continue
		}
		n := m.nodes.live[s.node]
		m.nodes.fail(n, n.join.Number, err)
		m.dropJoin(n)
		m.nodes.touch(n)
		m.round.set(s, participantLost, "could not regroup after others had finished")
	}
}

// storeAddr is the address that the workers are given for the round store of the
// rank-0 node (docs/decisions/0033).
func (m *Machine) storeAddr(first *node, chosen []*node) string {
	if first.join.StoreAddr != "" {
		return first.join.StoreAddr
	}
	if !IsLoopback(first.seenAddr) {
		return first.seenAddr
	}
	for _, n := range chosen {
		if !IsLoopback(n.seenAddr) {
			return n.serverAddr
		}
	}
	return first.seenAddr
}

func (m *Machine) disarmAll() {
	m.out.disarm(&m.lastCall, TimerLastCall)
	m.out.disarm(&m.quiet, TimerQuiet)
	m.out.disarm(&m.regroup, TimerRegroup)
	m.out.disarm(&m.admit, TimerAdmit)
}

// rankRequest is what decides one node's rank. The requests of a round are given in
// order of arrival.
type rankRequest struct {
	prefer int // explicit preference; -1: none
	old    int // rank in the last round; -1: none
	hint   int // scheduler's hint; -1: none
}

// assignRanks gives the ranks 0..n-1, each once (guarantee 10): a unique explicit
// preference; then the old rank if it is free; then a unique hint if it is free;
// the rest fill the holes by old rank, then by arrival. The result is aligned with
// the requests and depends on nothing else.
func assignRanks(claims []rankRequest) []int {
	n := len(claims)
	ranks := make([]int, n)
	taken := make([]bool, n)
	for i := range ranks {
		ranks[i] = -1
	}
	give := func(pick func(rankRequest) int) {
		count := make([]int, n)
		for i, c := range claims {
			if r := pick(c); ranks[i] < 0 && r >= 0 && r < n {
				count[r]++
			}
		}
		for i, c := range claims {
			if r := pick(c); ranks[i] < 0 && r >= 0 && r < n && count[r] == 1 && !taken[r] {
				ranks[i], taken[r] = r, true
			}
		}
	}
	give(func(c rankRequest) int { return c.prefer })
	give(func(c rankRequest) int { return c.old })
	give(func(c rankRequest) int { return c.hint })

	rest := make([]int, 0, n)
	for i := range claims {
		if ranks[i] < 0 {
			rest = append(rest, i)
		}
	}
	slices.SortStableFunc(rest, func(a, b int) int { return fillOrder(claims[a]) - fillOrder(claims[b]) })
	next := 0
	for _, i := range rest {
		for taken[next] {
			next++
		}
		ranks[i], taken[next] = next, true
	}
	return ranks
}

// fillOrder puts nodes with an old rank first, in its order.
func fillOrder(c rankRequest) int {
	if c.old < 0 {
		return MaxNodes
	}
	return c.old
}

// rankRequests turns the chosen nodes into rank requests; it keeps their order.
func (m *Machine) rankRequests(chosen []*node) []rankRequest {
	claims := make([]rankRequest, len(chosen))
	for i, n := range chosen {
		c := rankRequest{prefer: n.join.NodeRank, old: -1, hint: n.join.RankHint}
		if s := m.round.byNode[n.id]; s != nil {
			c.old = s.rank
		}
		claims[i] = c
	}
	return claims
}

// IsLoopback reports whether host is an address of the loopback interface.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
