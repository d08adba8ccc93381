package rendezvous

import "time"

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

// leastGrace is how long a successor waits at least for the members of a round: their
// proof that the host is dead and their search for the successor take about 0.1 s, and a
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
	if !f.round.run.succession.succeeds() {
		return f.policy.LeaseTimeout
	}
	members := time.Duration(len(f.round.participants))
	return max(f.round.run.succession.Grace, f.policy.ReconnectGrace, leastGrace, min(members*gracePerNode, f.policy.LeaseTimeout), members*leastGracePerNode)
}

// believes reports whether facts are of the control plane that this one succeeds, or of an earlier
// one's round that continues here. Any others may be a stranger's.
func (r *round) believes(f Facts) bool {
	if !r.run.succession.succeeds() || !r.fresh || f.Generation == "" {
		return false
	}
	return f.Generation == r.run.succession.Facts.Generation || f.Round > 0 && f.Round == r.number && f.Origin == r.origin
}
