package rendezvous

import (
	"fmt"
	"time"
)

// startHold makes a fresh control plane wait for nodes of an earlier one, which
// need up to a lease to notice that it is back (docs/decisions/0014).
func (m *Machine) startHold() {
	if !m.fresh || m.holding || m.uptime < 0 || m.policy.Min == m.policy.Max {
		return
	}
	if rest := m.policy.LeaseTimeout - m.uptime; rest > 0 {
		m.hold(rest)
	}
	m.uptime = -1
}

func (m *Machine) hold(d time.Duration) {
	m.holding = true
	m.armTimer(Timer{Kind: TimerHold}, d)
}

// held reports whether only a full round may complete now.
func (m *Machine) held() bool { return m.holding }

func (m *Machine) stopHold() {
	if m.holding {
		m.holding = false
		m.stopTimer(Timer{Kind: TimerHold})
	}
}

// endHold gives up on the members that did not come back.
func (m *Machine) endHold() {
	m.holding = false
	for _, s := range m.participants {
		if s.state == participantUnknown {
			m.setParticipant(s, participantLost, CauseRestart)
			m.note("%s %s", s.name(), s.cause)
		}
	}
	m.assistRanks()
}

// Bounds of the rounds that nodes report. A round of an earlier control plane may be
// adopted up to maxRound, so that numbers never overflow; any other report raises the
// next number to maxFloor at most, so that rounds above it remain that can be adopted.
const (
	maxRound = 1 << 63
	maxFloor = 1 << 48
)

// adopt applies what a node that says hello for the first time reports of the round it
// was in. A report gives the node its place, or makes the round of an earlier control
// plane known again. Any other report leaves the running round alone: it raises the
// number of the next one, and its node has to rejoin.
func (m *Machine) adopt(n *node, c LastRound) {
	if c.Round == 0 {
		return
	}
	switch {
	case c.Generation == m.origin && c.Round == m.round && m.returnParticipant(n, c):
		return
	case m.adoptable(c):
		m.rebuild(c)
		m.returnParticipant(n, c)
		return
	case c.Generation == m.generation && m.isNews(c):
		m.renewGeneration(n, c)
	}
	m.raiseFloor(c.Round)
	n.stale = fmt.Sprintf("it was dropped from round %d", c.Round)
	if s := m.byNode[n.id]; s != nil && s.state == participantLost {
		n.stale += ": " + s.cause
	}
}

// adoptable tells whether a report makes an earlier control plane's round the present
// one: none was completed here, and the claimed one is the first that is heard of, or
// follows the adopted one: in its own generation, or while members of the adopted one
// are missing. Once those are accounted for, the adopted round is under way, and a
// report of another generation may be a stranger's.
func (m *Machine) adoptable(c LastRound) bool {
	follows := len(m.participants) == 0 || c.Generation == m.origin || m.tally[participantUnknown] > 0
	return m.fresh && follows && c.Generation != m.generation && c.Round > m.round && c.valid(m.policy.Max)
}

// valid bounds what a report may make the control plane allocate.
func (c LastRound) valid(most int) bool {
	return c.Round <= maxRound && c.World >= 1 && c.World <= most && c.Rank >= 0 && c.Rank < c.World && c.HostRank < c.World
}

// highest is the highest round that was completed or claimed: the next one is above it.
func (m *Machine) highest() uint64 { return max(m.round, m.floor) }

// isNews tells whether a report is of a later round than any that this control plane
// has completed, told or heard of.
func (m *Machine) isNews(c LastRound) bool { return c.Round > m.highest() && c.Round <= maxFloor }

func (m *Machine) raiseFloor(round uint64) {
	if round <= maxFloor {
		m.floor = max(m.floor, round)
	}
}

// reclaim applies what a node that is known says of its round when it comes back.
// Whatever this control plane has told it, or heard of it, is at most highest: a node
// that reports more had its answer from a later state, which is lost (an old copy was
// restored), or from another control plane at this endpoint.
func (m *Machine) reclaim(n *node, c LastRound) {
	switch {
	case m.closed != nil:
	case m.isNews(c):
		m.contradict(n, c)
	case c.Finished && c.Generation == m.origin && c.Round == m.round:
		m.finish(n)
	case n.join == nil && m.participantOf(n) == nil && m.isForeign(c):
		n.stale = fmt.Sprintf("it was in round %d, of which this control plane knows nothing", c.Round)
	}
}

// isForeign reports whether a claim is of a round that was neither completed nor adopted
// here, though others may have told of it already.
func (m *Machine) isForeign(c LastRound) bool {
	return c.Round > m.round || c.Round != 0 && c.Generation != m.origin && c.Generation != m.generation
}

// contradict ends what this control plane believes of a node that has been in a later
// round. If its last round was completed before it was restarted, what it believes of
// the others is no better, and all regroup; otherwise this node is lost to the round.
func (m *Machine) contradict(n *node, c LastRound) {
	cause := fmt.Sprintf("it was in round %d, of which this control plane knows nothing", c.Round)
	stored := m.stored
	if stored || c.Generation == m.generation {
		m.renewGeneration(n, c)
	}
	if s := m.participantOf(n); !stored && s != nil && s.live() {
		m.setParticipant(s, participantLost, "lost: "+cause)
		m.note("node %s lost: %s", n.name(), cause)
		m.assistRanks()
	}
	m.raiseFloor(c.Round)
	m.forgetJoin(n)
	if m.participantOf(n) == nil {
		n.stale = cause
		m.endWaits(n)
	}
}

// renewGeneration goes on under a new generation once a node has shown that rounds of
// the present one may have been completed and forgotten: their numbers must not name
// other rounds. Without a restart nothing can have been forgotten.
func (m *Machine) renewGeneration(n *node, c LastRound) {
	if m.reserve != "" {
		m.note("node %s was in round %d, round %d is the last one that is known here: what was stored is older than the nodes; "+
			"rounds go on under a new generation", n.name(), c.Round, m.round)
		m.generation, m.reserve = m.reserve, ""
	}
	if !m.stored || m.closed != nil {
		return
	}
	for _, other := range m.nodes {
		if other.grace { // what it waits for may be answered already; if not, it asks again
			m.forgetJoin(other)
		}
	}
	if m.overtaken != "" {
		return
	}
	m.overtake(fmt.Sprintf("node %s was in round %d, of which the control plane knows nothing since it was restarted", n.name(), c.Round))
	for _, s := range m.participants {
		if s.state != participantFinished {
			continue
		}
		m.setParticipant(s, participantLost, "lost: its round was overtaken")
		if other := m.nodes[s.node]; other != nil {
			other.stale = m.overtaken
			m.touched = append(m.touched, other)
		}
	}
	m.dropKeys(m.round)
}

// disowned reports whether the round that is known here is not the members' last one.
func (m *Machine) disowned() bool { return m.stored && m.overtaken != "" }

// overtake makes the members of the round regroup although none of them is lost.
func (m *Machine) overtake(why string) {
	if m.overtaken == "" && len(m.participants) > 0 {
		m.overtaken = why
		m.note("round %d is over: %s", m.round, why)
	}
}

// forgetJoin drops a pending join that was answered elsewhere. It has no answer here,
// so that the node can make the same request again.
func (m *Machine) forgetJoin(n *node) {
	if n.join == nil {
		return
	}
	s := m.participantOf(n)
	m.dropJoin(n)
	m.touched = append(m.touched, n)
	if s != nil && s.state == participantRejoined {
		m.setParticipant(s, participantRunning, "")
	}
}

// returnParticipant gives a returning node the still unknown place that it names.
func (m *Machine) returnParticipant(n *node, c LastRound) bool {
	if c.Rank < 0 || c.Rank >= len(m.participants) || m.participants[c.Rank].state != participantUnknown {
		return false
	}
	s := m.participants[c.Rank]
	s.node, s.label, s.host = n.id, n.name(), false
	m.byNode[n.id] = s
	m.seen[n.id] = struct{}{}
	state := participantRunning
	if c.Finished {
		state = participantFinished
	}
	m.setParticipant(s, state, "")
	m.note("node %s came back as rank %d of round %d", n.name(), s.rank, m.round)
	return true
}

// rebuild makes the round of an earlier control plane out of the first report; its
// other members are unknown until they return or the hold ends.
func (m *Machine) rebuild(c LastRound) {
	var pending []*node
	for _, n := range m.nodes {
		if n.join != nil {
			m.uncountJoin(n)
			pending = append(pending, n)
		}
		if s := m.participantOf(n); s != nil {
			n.stale = fmt.Sprintf("round %d was overtaken by round %d", m.round, c.Round)
			m.touched = append(m.touched, n)
		}
	}
	m.dropKeys(m.round)
	m.origin, m.round = c.Generation, c.Round
	m.overtaken, m.stop = "", nil
	m.participants, m.byNode, m.tally = make([]*participant, c.World), map[string]*participant{}, [participantStates]int{}
	for rank := range m.participants {
		m.participants[rank] = &participant{rank: rank, state: participantUnknown}
	}
	m.tally[participantUnknown] = c.World
	if c.HostRank >= 0 && c.HostRank != c.Rank {
		m.setParticipant(m.participants[c.HostRank], participantLost, "lost: it hosted the control plane, which was restarted")
	}
	for _, n := range pending {
		m.countJoin(n)
	}
	if !m.holding {
		m.hold(m.policy.LeaseTimeout)
	}
}
