package rendezvous

import (
	"fmt"
	"time"
)

// startHold makes a fresh control plane wait for nodes of an earlier one, which
// need up to a lease to notice that it is back (docs/design.md, host restart).
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
	for _, s := range m.seats {
		if s.state == seatUnknown {
			m.setSeat(s, seatLost, CauseRestart)
			m.change("%s %s", s.name(), s.cause)
		}
	}
	m.assistRanks()
}

// adopt takes up what a node says of the round it was in.
func (m *Machine) adopt(n *node, c Claim) {
	if c.Round == 0 {
		return
	}
	switch {
	case c.Generation == m.origin && c.Round == m.round && m.takeSeat(n, c):
		return
	case m.fresh && c.Round > m.round && c.valid(m.policy.Max):
		m.rebuild(c)
		m.takeSeat(n, c)
		return
	}
	if c.Round > m.round {
		m.dropKeys(m.round)
		m.round = c.Round
	}
	n.stale = fmt.Sprintf("it was dropped from round %d", c.Round)
	if s := m.byNode[n.id]; s != nil && s.state == seatLost {
		n.stale += ": " + s.cause
	}
}

// valid bounds what a claim may make the control plane allocate.
func (c Claim) valid(most int) bool {
	return c.World >= 1 && c.World <= most && c.Rank >= 0 && c.Rank < c.World && c.HostRank < c.World
}

// takeSeat seats a returning node on the still unknown seat it names.
func (m *Machine) takeSeat(n *node, c Claim) bool {
	if c.Rank < 0 || c.Rank >= len(m.seats) || m.seats[c.Rank].state != seatUnknown {
		return false
	}
	s := m.seats[c.Rank]
	s.node, s.label, s.host = n.id, n.name(), false
	m.byNode[n.id] = s
	m.seen[n.id] = struct{}{}
	state := seatRunning
	if c.Finished {
		state = seatFinished
	}
	m.setSeat(s, state, "")
	m.change("node %s came back as rank %d of round %d", n.name(), s.rank, m.round)
	return true
}

// rebuild makes the round of an earlier control plane out of the first claim; its
// other members are unknown until they return or the hold ends.
func (m *Machine) rebuild(c Claim) {
	var pending []*node
	for _, n := range m.nodes {
		if n.join != nil {
			m.uncountJoin(n)
			pending = append(pending, n)
		}
		if s := m.seatOf(n); s != nil {
			n.stale = fmt.Sprintf("round %d was overtaken by round %d", m.round, c.Round)
			m.touched = append(m.touched, n)
		}
	}
	m.dropKeys(m.round)
	m.origin, m.round = c.Generation, c.Round
	m.seats, m.byNode, m.tally = make([]*seat, c.World), map[string]*seat{}, [seatStates]int{}
	for rank := range m.seats {
		m.seats[rank] = &seat{rank: rank, state: seatUnknown}
	}
	m.tally[seatUnknown] = c.World
	if c.HostRank >= 0 && c.HostRank != c.Rank {
		m.setSeat(m.seats[c.HostRank], seatLost, "lost: it hosted the control plane, which was restarted")
	}
	for _, n := range pending {
		m.countJoin(n)
	}
	if !m.holding {
		m.hold(m.policy.LeaseTimeout)
	}
}
