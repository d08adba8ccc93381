package rendezvous

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"rallypoint/internal/wording"
)

// evaluate completes a round if one is due and keeps the clocks that decide it.
func (m *Machine) evaluate() {
	if m.finishing() { // guarantee 8: no node is admitted any more
		m.disarmAll()
		m.refuseRejoined()
		return
	}
	if m.live() == 0 {
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
	if m.tally[participantRejoined] == 0 {
		m.out.disarm(&m.regroup, TimerRegroup)
		return
	}
	if m.awaited() > 0 && !m.regroup.armed {
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
	first := m.live() == 0
	switch {
	case !first && m.awaited() > 0 && !m.regroup.due:
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
	return max(0, m.seats(m.live()+m.newcomers)-len(m.participants))
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
	last := m.round
	m.round = m.highest() + 1
	m.origin = m.generation
	m.fresh, m.stored, m.overtaken, m.stop, m.mismatch = false, false, "", nil, ""
	m.finishReported, m.finishedHosts = false, nil
	m.forgetAgreement()
	m.disarmAll()
	m.stopHold()

	for _, n := range candidates {
		m.uncountJoin(n)
	}
	m.participants, m.byNode, m.tally = make([]*participant, size), make(map[string]*participant, size), [participantStates]int{}
	first := (*node)(nil)
	m.hostRank = -1
	for i, n := range chosen {
		s := &participant{rank: ranks[i], node: n.id, label: n.label, host: n.inHost, state: participantRunning}
		m.participants[s.rank], m.byNode[n.id] = s, s
		m.tally[participantRunning]++
		m.see(n.id)
		if n.inHost {
			m.hostRank = s.rank
		}
		if s.rank == 0 {
			first = n
		}
	}
	outcome := Outcome{
		Generation: m.generation, Round: m.round, World: size, HostRank: m.hostRank,
		StoreAddr: m.storeAddr(first, chosen), StorePort: first.join.StorePort, Dropped: dropped,
		ByDirective: last > 0 && m.endedRound == last,
	}
	m.store = outcome.store()
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
	m.out.note("round %d is complete: %d of %s, %d waiting", m.round, size, wording.Count(m.places(), "node", "nodes"), m.joined)
}

// dropAwaited marks the live members that the round goes on without, and names
// them. They learn it by their update and come back as waiting nodes.
func (m *Machine) dropAwaited() []string {
	if m.awaited() == 0 {
		return nil
	}
	var names []string
	for _, s := range m.participants {
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
	if m.tally[participantRejoined] == 0 {
		return
	}
	err := m.finishedError()
	for _, s := range m.participants {
		if s.state != participantRejoined {
			continue
		}
		n := m.nodes.live[s.node]
		m.nodes.fail(n, n.join.Number, err)
		m.dropJoin(n)
		m.nodes.touch(n)
		m.setParticipant(s, participantLost, "could not regroup after others had finished")
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

// priority orders members by rank before all other nodes.
func (m *Machine) priority(n *node) int {
	if s := m.participantOf(n); s != nil {
		return s.rank
	}
	return len(m.participants)
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
		if s := m.byNode[n.id]; s != nil {
			c.old = s.rank
		}
		claims[i] = c
	}
	return claims
}

// participantState is where a member of the last completed round stands.
type participantState int

const (
	participantRunning  participantState = iota // its workers run
	participantUnknown                          // of a round of an earlier control plane; not heard of yet
	participantRejoined                         // it waits for the next round
	participantFinished                         // its workers all succeeded
	participantLost                             // it died, left or gave up
	participantStates
)

// participant is one member of the last completed round.
type participant struct {
	rank  int
	node  string // id; "" while unknown
	label string // for display
	host  bool   // its process hosts the control plane
	state participantState
	cause string // why it was lost
}

// live reports whether the round still counts on the member.
func (p *participant) live() bool {
	return p.state != participantFinished && p.state != participantLost
}

func (p *participant) name() string {
	if p.node == "" {
		return fmt.Sprintf("the node of rank %d", p.rank)
	}
	return p.node
}

// participantOf returns the node's place in the last round, nil if it has none or lost
// it to time.
func (m *Machine) participantOf(n *node) *participant {
	s := m.byNode[n.id]
	if s == nil || s.state == participantLost || n.ended {
		return nil
	}
	return s
}

func (m *Machine) setParticipant(s *participant, state participantState, cause string) {
	if s.state == participantFinished && state != s.state {
		m.dropFinishedHost(s.rank)
	}
	if was, is := s.state == participantRunning, state == participantRunning; was && !is {
		m.countReports(s.rank, -1)
	} else if is && !was {
		m.countReports(s.rank, 1)
	}
	m.tally[s.state]--
	s.state, s.cause = state, cause
	m.tally[s.state]++
}

// awaited is the number of live members that have not rejoined.
func (m *Machine) awaited() int { return m.tally[participantRunning] + m.tally[participantUnknown] }

// live is the number of members that the round still counts on.
func (m *Machine) live() int { return m.awaited() + m.tally[participantRejoined] }

// inState lists the members in a state by name, with the cause if there is one.
func (m *Machine) inState(state participantState) string {
	var names []string
	for _, s := range m.participants {
		if len(names) == m.tally[state] {
			break // each member's hello asks: few should look at all of them
		}
		if s.state != state {
			continue
		}
		if len(names) == maxNames {
			names = append(names, fmt.Sprintf("and %d more", m.tally[state]-maxNames))
			break
		}
		name := s.name()
		if s.cause != "" {
			name += " (" + strings.TrimPrefix(s.cause, "lost: ") + ")"
		}
		names = append(names, name)
	}
	return strings.Join(names, ", ")
}

// maxNames bounds how many nodes a text or a progress report names, so that
// neither grows with the size of the job.
const maxNames = 8

// IsLoopback reports whether host is an address of the loopback interface.
func IsLoopback(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
