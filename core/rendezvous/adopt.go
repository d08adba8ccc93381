package rendezvous

import (
	"cmp"
	"fmt"
	"time"

	"rallypoint/internal/printable"
)

// returnTime is how long a fresh control plane waits for nodes of an earlier one of which
// it knows nothing: their longest pause between two tries to reach it, and a second
// (docs/decisions/0014).
const returnTime = 2 * time.Second

// begin makes a fresh control plane wait for nodes of an earlier one, once the policy
// is known.
func (m *Machine) begin() {
	switch {
	case !m.round.fresh || m.uptime < 0:
		return
	case m.succession.succeeds():
		m.uptime = -1
		m.takeOver()
		return
	case m.forming.holding || m.forming.policy.Min == m.forming.policy.Max:
		return
	}
	if rest := returnTime - m.uptime; rest > 0 {
		m.forming.hold(rest)
	}
	m.uptime = -1
}

// endHold gives up on the members that did not come back.
func (m *Machine) endHold() {
	m.forming.holding = false
	for rank := range m.round.participants {
		m.accountFor(rank, participantLost, m.succession.causeAway())
	}
	m.assistRanks()
}

// causeAway is why members are lost that did not come back to a fresh control plane.
func (s *Succession) causeAway() string {
	if s.succeeds() {
		return "lost: did not come to the control plane's next host"
	}
	return CauseRestart
}

// causeHost is why the member is lost whose process hosted before.
func (s *Succession) causeHost() string {
	if s.Left {
		return "left, and handed the control plane on"
	}
	return "lost: its process ended, which hosted the control plane"
}

// adopt applies what a node that says hello for the first time reports of the round it
// was in. A report gives the node its place, or makes the round of an earlier control
// plane known again. Any other report leaves the running round alone: it raises the
// number of the next one, and its node has to rejoin.
func (m *Machine) adopt(n *node, c LastRound) {
	f := c.Facts
	if !f.possible(c, m.forming.policy.Max) {
		m.round.raiseFloor(c.Round)
		if c.Round > 0 {
			n.stale = fmt.Sprintf("what it reports of round %d cannot be", c.Round)
		}
		return
	}
	if m.round.believes(f) && f.Round > c.Round && f.World > 0 && m.round.adoptable(f.Origin, f.Round) {
		m.rebuild(f.lastRound())
	}
	m.adoptRound(n, c)
	if m.round.believes(f) {
		m.round.raiseFloor(f.Round)
		m.learn(f)
	}
}

// adoptRound applies what the report says of the node's own round.
func (m *Machine) adoptRound(n *node, c LastRound) {
	if c.Round == 0 {
		return
	}
	switch {
	case c.Generation == m.round.origin && c.Round == m.round.number && m.round.returnParticipant(n, c):
		m.round.store = cmp.Or(m.round.store, c.Store)
		return
	case m.round.adoptable(c.Generation, c.Round) && c.valid(m.forming.policy.Max):
		m.rebuild(c)
		m.round.returnParticipant(n, c)
		return
	case c.Generation == m.generation && m.round.isNews(c):
		m.renewGeneration(n, c)
	}
	m.round.raiseFloor(c.Round)
	n.stale = fmt.Sprintf("it was dropped from round %d", c.Round)
	if s := m.round.byNode[n.id]; s != nil && s.state == participantLost {
		n.stale += ": " + s.cause
	}
}

// adoptable tells whether a report makes an earlier control plane's round the present
// one: none was completed here, and the reported one is the first that is heard of, or
// follows the adopted one: in its own generation, or while members of the adopted one
// are missing. Once those are accounted for, the adopted round is under way, and a
// report of another generation may be a stranger's. A successor knows from the beginning
// whose rounds may be reported.
func (r *round) adoptable(generation string, round uint64) bool {
	follows := len(r.participants) == 0 || generation == r.origin || r.tally[participantUnknown] > 0
	if known := r.run.succession.Facts.Generation; known != "" && r.run.succession.succeeds() {
		follows = generation == r.origin || generation == known
	}
	return r.fresh && follows && generation != r.run.generation && round > r.number
}

// reclaim applies what a node that is known says of its round when it comes back.
// Whatever this control plane has told it, or heard of it, is at most highest: a node
// that reports more had its answer from a later state, which is lost (an old copy was
// restored), or from another control plane at this endpoint.
func (m *Machine) reclaim(n *node, c LastRound) {
	switch {
	case m.closed != nil:
	case m.round.isNews(c):
		m.contradict(n, c)
	case c.Finished && c.Generation == m.round.origin && c.Round == m.round.number:
		m.finish(n)
	case n.join == nil && m.round.participantOf(n) == nil && m.round.isForeign(c):
		n.stale = fmt.Sprintf("it was in round %d, of which this control plane knows nothing", c.Round)
	}
}

// isForeign reports whether a report is of a round that was neither completed nor adopted
// here, though others may have told of it already.
func (r *round) isForeign(c LastRound) bool {
	return c.Round > r.number || c.Round != 0 && c.Generation != r.origin && c.Generation != r.run.generation
}

// contradict ends what this control plane believes of a node that has been in a later
// round. If its last round was completed before it was restarted, what it believes of
// the others is no better, and all regroup; otherwise this node is lost to the round.
func (m *Machine) contradict(n *node, c LastRound) {
	cause := fmt.Sprintf("it was in round %d, of which this control plane knows nothing", c.Round)
	stored := m.round.stored
	if stored || c.Generation == m.generation {
		m.renewGeneration(n, c)
	}
	if s := m.round.participantOf(n); !stored && s != nil && s.live() {
		m.round.set(s, participantLost, "lost: "+cause)
		m.out.note("node %s lost: %s", m.names.of(n.id), cause)
		m.assistRanks()
	}
	m.round.raiseFloor(c.Round)
	m.forming.forgetJoin(n)
	if m.round.participantOf(n) == nil {
		n.stale = cause
		m.endWaits(n)
	}
}

// renewGeneration continues under a new generation once a node has shown that rounds of
// the present one may have been completed and forgotten: their numbers must not name
// other rounds. Without a restart nothing can have been forgotten.
func (m *Machine) renewGeneration(n *node, c LastRound) {
	if m.reserve != "" {
		m.out.note("node %s was in round %d, round %d is the last one that is known here: what was stored is older than the nodes; "+
			"rounds go on under a new generation", m.names.of(n.id), c.Round, m.round.number)
		m.generation, m.reserve = m.reserve, ""
	}
	if !m.round.stored || m.closed != nil {
		return
	}
	for _, other := range m.nodes.live {
		if other.grace { // what it waits for may be answered already; if not, it asks again
			m.forming.forgetJoin(other)
		}
	}
	if m.round.overtaken != "" {
		return
	}
	m.round.overtake(fmt.Sprintf("node %s was in round %d, of which the control plane knows nothing since it was restarted", m.names.of(n.id), c.Round))
	for _, s := range m.round.participants {
		if s.state != participantFinished {
			continue
		}
		m.round.set(s, participantLost, "lost: its round was overtaken")
		if other := m.nodes.live[s.node]; other != nil {
			other.stale = m.round.overtaken
			m.nodes.touch(other)
		}
	}
	m.dropKeys(m.round.number)
}

// returnParticipant gives a returning node the still unknown place that it names.
func (r *round) returnParticipant(n *node, c LastRound) bool {
	if c.Rank < 0 || c.Rank >= len(r.participants) {
		return false
	}
	s := r.participants[c.Rank]
	if finished := s.state == participantFinished && s.node == "" && c.Finished; s.state != participantUnknown && !finished {
		return false
	}
	if named := r.byNode[n.id]; named != nil && named != s && named.state == participantUnknown {
		r.untie(named) // it was taken for the silent host's
		named.node = ""
	}
	r.untie(s)
	s.node, s.label, s.command, s.host = n.id, n.label, n.command, false
	r.setDomain(s, n.domain)
	r.tie(s)
	r.see(n.id)
	state := participantRunning
	if c.Finished {
		state = participantFinished
	}
	r.set(s, state, "")
	r.out.note("node %s came back as rank %d of round %d", r.names.of(n.id), s.rank, r.number)
	return true
}

// rebuild makes the round of an earlier control plane out of the first report; its
// other members are unknown until they return or the hold ends.
func (m *Machine) rebuild(c LastRound) {
	var pending []*node
	for _, n := range m.nodes.live {
		if n.join != nil {
			m.forming.uncountJoin(n)
			pending = append(pending, n)
		} else if m.round.participantOf(n) != nil {
			n.stale = fmt.Sprintf("round %d was overtaken by round %d", m.round.number, c.Round)
			m.nodes.touch(n)
		}
	}
	m.dropKeys(m.round.number)
	m.directives.forgetAgreement()
	m.round.replace(c.World)
	m.round.origin, m.round.number, m.round.store = c.Generation, c.Round, c.Store
	for rank := range m.round.participants {
		m.round.participants[rank] = &participant{rank: rank, state: participantUnknown}
		m.round.next.add("", 1)
	}
	m.round.tally[participantUnknown] = c.World
	// Facts of the same round know better, which learn applies.
	if same := c.Facts.Round == c.Round && c.Facts.Origin == c.Generation && m.round.believes(c.Facts); !same && !m.succession.Silent && c.HostRank >= 0 && c.HostRank != c.Rank {
		m.round.set(m.round.participants[c.HostRank], participantLost, "lost: it hosted the control plane, which was restarted")
	}
	for _, n := range pending {
		m.forming.countJoin(n)
	}
	if m.round.tally[participantUnknown] > 0 {
		m.forming.hold(m.forming.returnGrace())
	}
}

// CauseRestart is why a node was lost that did not come back after a restart.
const CauseRestart = "lost: did not come back after the control plane was restarted"

func (n *node) graceCause() string {
	if n.recovering {
		return CauseRestart
	}
	return "lost: connection closed"
}

// takeOver makes the last round of the control plane before the present one. Its members
// are unknown until they come.
func (m *Machine) takeOver() {
	before := cmp.Or(m.names.of(printable.Text(m.succession.From)), "another node")
	m.out.note("the control plane continues here, in term %d; %s hosted it before", m.succession.Term, before)
	f := m.succession.Facts
	if f.Generation == "" || !f.possible(LastRound{}, m.forming.policy.Max) {
		return
	}
	if f.World > 0 {
		m.rebuild(f.lastRound())
	}
	m.round.raiseFloor(f.Round)
	m.learn(f)
}

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
	if m.directives.learn(f.Directives) {
		m.refuseKeptOut()
	}
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

// accountFor says what became of a member that does not come back, if that is not known yet.
func (m *Machine) accountFor(rank int, state participantState, cause string) {
	s := m.round.participants[rank]
	if s.state == participantUnknown || s.state == participantLost && state == participantFinished && m.nodes.live[s.node] == nil {
		m.round.set(s, state, cause)
		if cause != "" {
			m.out.note("%s %s", m.names.ofMember(s), cause)
		}
	}
}
