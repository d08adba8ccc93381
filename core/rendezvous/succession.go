package rendezvous

import (
	"time"

	"rallypoint/internal/printable"
)

// Facts returns what a successor has to know, and the nodes for it.
func (m *Machine) Facts() Facts {
	if m.generation == "" {
		return Facts{}
	}
	f := Facts{
		Generation: m.generation, Origin: m.round.origin, Round: m.round.number, World: len(m.round.participants), HostRank: m.round.hostRank,
		Domains: m.round.domains, Finished: m.round.finishing(), FinishedHosts: m.round.finishedHosts,
	}
	if m.succession.canBeSucceeded() {
		f.Directives = m.directives.facts()
		if f.Directives.EndedRound > f.Round { // of a run that was begun again, whose rounds this machine does not know
			f.Directives.EndedRound = 0
		}
	}
	if m.closed != nil {
		f.Closed = m.closed.cut()
	}
	return f
}

// Succession returns what the machine began with.
func (m *Machine) Succession() Succession { return m.succession }

// succeeds reports whether the machine continues the run of one that has ended.
func (s *Succession) succeeds() bool { return s.Term > 1 }

// canBeSucceeded reports whether another process may continue this control plane's run:
// one that is alone, or stores what it knows, has no successor and tells no facts of
// directives, however many nodes are drained.
func (s *Succession) canBeSucceeded() bool { return s.Term > 0 }

// leastGrace is how long a successor waits at least for the members of a round: their
// proof that the host is dead takes 100 ms, their search for the successor about as long, and a
// second more if the network loses the first packet of it, which the kernel then sends again.
const leastGrace = 2 * time.Second

// gracePerNode is how long it waits at least for each member of the round, up to one lease
// for all: they look for it at one time, and a machine that is busy with workers lets a few
// hundred of them in each second. leastGracePerNode has no such bound: to let a member in takes
// 0.2 ms of CPU, so that 50 000 nodes need a lease.
const (
	gracePerNode      = 2 * time.Millisecond
	leastGracePerNode = 300 * time.Microsecond
)

// returnGrace is how long a control plane waits for the missing members of a round that an
// earlier one completed.
func (f *forming) returnGrace() time.Duration {
	switch {
	case !f.round.run.succession.succeeds():
		return f.policy.LeaseTimeout
	case f.round.run.succession.Grace > 0:
		return f.round.run.succession.Grace
	}
	members := time.Duration(len(f.round.participants))
	return max(f.policy.ReconnectGrace, leastGrace, min(members*gracePerNode, f.policy.LeaseTimeout), members*leastGracePerNode)
}

// believes reports whether facts are of the control plane that this one succeeds, or of an earlier
// one's round that continues here. Any others may be a stranger's.
func (r *round) believes(f Facts) bool {
	if !r.run.succession.succeeds() || !r.fresh || f.Generation == "" {
		return false
	}
	return f.Generation == r.run.succession.Facts.Generation || f.Round > 0 && f.Round == r.number && f.Origin == r.origin
}

// learn applies facts that are believed.
func (m *Machine) learn(f Facts) {
	if f.Round == m.round.number && f.Origin == m.round.origin && f.World == len(m.round.participants) {
		for _, rank := range f.FinishedHosts {
			m.accountFor(rank, participantFinished, "")
			if m.round.participants[rank].state == participantFinished {
				m.round.addFinishedHost(rank)
			}
		}
		if f.HostRank >= 0 && f.Generation == m.succession.Facts.Generation {
			m.nameHost(m.round.participants[f.HostRank])
			if !m.succession.Silent {
				m.accountFor(f.HostRank, participantLost, m.succession.causeHost())
			}
		}
		m.round.finishReported = m.round.finishReported || f.Finished
		m.round.learnDomains(f.Domains)
	}
	if c := f.Closed; c.Kind != 0 {
		c.By, c.Reason = printable.Text(c.By), printable.Text(c.Reason)
		m.close(c)
	}
	if m.closed != nil {
		f.Directives.Standing = nil // none stands in a closed run
	}
	m.directives.learn(f.Directives)
	m.forming.endHoldIfComplete()
}

// nameHost gives the place of the dead host's node its name, so that texts name it and a
// new start of it has its rank again. One that has asked to join already is a newcomer, and so is one
// that came without the place of a host that was only silent.
func (m *Machine) nameHost(s *participant) {
	from := m.succession.From
	if s.node != "" || from == "" || printable.Text(from) != from || m.round.byNode[from] != nil {
		return
	}
	if n := m.nodes.live[from]; n != nil && (n.join != nil || m.succession.Silent) {
		return
	}
	s.node = from
	m.round.tie(s)
}

// causeHost is why the member is lost whose process hosted before.
func (s *Succession) causeHost() string {
	if s.Left {
		return "left, and handed the control plane on"
	}
	return "lost: its process ended, which hosted the control plane"
}

// accountFor says what became of a member that does not come back.
func (m *Machine) accountFor(rank int, state participantState, cause string) {
	s := m.round.participants[rank]
	if s.state == participantUnknown || s.state == participantLost && state == participantFinished && m.nodes.live[s.node] == nil {
		m.round.set(s, state, cause)
		if cause != "" {
			m.out.note("%s %s", m.names.ofMember(s), cause)
		}
	}
}
