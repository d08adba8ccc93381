package rendezvous

import (
	"slices"
	"time"

	"rallypoint/internal/pack"
	"rallypoint/internal/printable"
)

// Facts are what only the control plane knows of a run and a successor of it has to know
// (docs/decisions/0037). Each membership update carries them to the nodes, and each hello
// back. The zero value says nothing.
type Facts struct {
	Generation string // of the control plane that told them; "": nothing was told

	// The last round, which need not be the one of the node that reports it. Round is 0
	// before the first one.
	Origin        string // generation in which it was completed
	Round         uint64
	World         int   // 0: of the round is known no more than its number
	HostRank      int   // rank of the node in whose process the control plane runs; -1: it has none
	Finished      bool  // a member has finished
	FinishedHosts []int // ranks of the members that host the control plane, or have hosted it, and have finished; ascending

	Closed Closing // the zero value: the run is open

	Directives DirectiveFacts `json:",omitzero"`
}

// maxFinishedHosts bounds FinishedHosts. Each death of a host adds one at most.
const maxFinishedHosts = 64

// Limits of a closing that is part of facts; longer texts are cut.
const (
	maxClosingBy     = 2 * MaxNameLen
	maxClosingReason = 4 << 10
)

// Facts are what the node of an outcome knows of its round before the first update.
func (o Outcome) Facts() Facts {
	return Facts{Generation: o.Generation, Origin: o.Generation, Round: o.Round, World: o.World, HostRank: o.HostRank}
}

func (f Facts) equal(g Facts) bool {
	return f.Generation == g.Generation && f.Origin == g.Origin && f.Round == g.Round && f.World == g.World && f.HostRank == g.HostRank &&
		f.Finished == g.Finished && slices.Equal(f.FinishedHosts, g.FinishedHosts) && f.Closed.equal(g.Closed) &&
		f.Directives.equal(g.Directives)
}

// possible reports whether a control plane of rounds of at most so many nodes can have
// told these facts to a node that reports c.
func (f Facts) possible(c LastRound, most int) bool {
	if f.Generation == "" {
		return true // there are none
	}
	last := -1
	for _, rank := range f.FinishedHosts {
		if rank <= last || rank >= f.World {
			return false
		}
		last = rank
	}
	switch {
	case f.Round > maxRound, f.World < 0, f.World > most, f.Round == 0 && f.World > 0:
		return false
	case f.HostRank < -1, f.HostRank >= f.World, len(f.FinishedHosts) > maxFinishedHosts:
		return false
	case f.Finished && f.Round == 0, len(f.FinishedHosts) > 0 && !f.Finished:
		return false
	case f.Closed.Kind < 0, f.Closed.Kind > ClosedRequeue:
		return false
	case !f.Directives.possible(f.Round, most):
		return false
	}
	return c.Round != f.Round || c.Generation != f.Origin || c.World == f.World
}

// facts are what the nodes have to know for a successor.
func (m *Machine) facts() Facts {
	if m.generation == "" {
		return Facts{}
	}
	f := Facts{
		Generation: m.generation, Origin: m.round.origin, Round: m.round.number, World: len(m.round.participants), HostRank: m.round.hostRank,
		Finished: m.round.finishing(), FinishedHosts: m.round.finishedHosts,
	}
	if m.canBeSucceeded() {
		f.Directives = m.directives.facts()
	}
	if m.closed != nil {
		f.Closed = m.closed.cut()
	}
	return f
}

// Succession is what a control plane begins with that goes on with a run whose host's
// process has ended. The zero value is that of a run's first one.
type Succession struct {
	Term  uint64        // 1, or 0, for the first control plane, and one more for each that follows
	From  string        // id of the node whose process hosted the one before
	Facts Facts         // what that one told this process last
	Grace time.Duration // how long members may take to come; 0: reconnect_grace, and at least leastGrace and gracePerNode
	Left  bool          // that node leaves and has handed the control plane on; else its process is dead
}

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

// Succession returns what the machine began with.
func (m *Machine) Succession() Succession { return m.succession }

// succeeds reports whether the machine goes on with the run of one that has ended.
func (m *Machine) succeeds() bool { return m.succession.Term > 1 }

// returnGrace is how long a control plane waits for the missing members of a round that an
// earlier one completed.
func (m *Machine) returnGrace() time.Duration {
	switch {
	case !m.succeeds():
		return m.forming.policy.LeaseTimeout
	case m.succession.Grace > 0:
		return m.succession.Grace
	}
	members := time.Duration(len(m.round.participants))
	return max(m.forming.policy.ReconnectGrace, leastGrace, min(members*gracePerNode, m.forming.policy.LeaseTimeout), members*leastGracePerNode)
}

// takeOver makes the last round of the control plane before the present one. Its members
// are unknown until they come.
func (m *Machine) takeOver() {
	m.out.note("the control plane goes on here, in term %d, after that of node %s", m.succession.Term, printable.Text(m.succession.From))
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

// lastRound is a report of the round that the facts are about, by none of its members.
func (f Facts) lastRound() LastRound {
	return LastRound{Generation: f.Origin, Round: f.Round, Rank: -1, World: f.World, HostRank: -1}
}

// believes reports whether facts are of the control plane that this one succeeds, or of an
// earlier one's round that goes on here. Any others may be a stranger's.
func (m *Machine) believes(f Facts) bool {
	if !m.succeeds() || !m.round.fresh || f.Generation == "" {
		return false
	}
	return f.Generation == m.succession.Facts.Generation || f.Round > 0 && f.Round == m.round.number && f.Origin == m.round.origin
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
			m.accountFor(f.HostRank, participantLost, m.causeHost())
		}
		m.round.finishReported = m.round.finishReported || f.Finished
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
// new start of it has its rank again. One that has asked to join already is a newcomer.
func (m *Machine) nameHost(s *participant) {
	from := m.succession.From
	if s.node != "" || from == "" || printable.Text(from) != from || m.round.byNode[from] != nil {
		return
	}
	if n := m.nodes.live[from]; n != nil && n.join != nil {
		return
	}
	s.node = from
	m.round.byNode[from] = s
}

// causeHost is why the member is lost whose process hosted before.
func (m *Machine) causeHost() string {
	if m.succession.Left {
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
			m.out.note("%s %s", s.name(), cause)
		}
	}
}

// packFacts writes facts.
func packFacts(p *pack.Packer, f Facts) {
	if f.Generation == "" {
		p.None()
		return
	}
	p.List(9)
	p.Text(f.Generation)
	p.Text(f.Origin)
	p.Uint(f.Round)
	p.Int(f.World)
	p.Int(f.HostRank)
	p.Bool(f.Finished)
	packRanks(p, f.FinishedHosts)
	c := f.Closed.cut()
	p.List(4)
	p.Int(int(c.Kind))
	p.Text(c.By)
	p.Text(c.Reason)
	p.Time(c.At)
	packDirectiveFacts(p, f.Directives)
}

// unpackFacts reads what packFacts wrote.
func unpackFacts(u *pack.Unpacker) (f Facts) {
	if u.Open() > 0 {
		f = Facts{
			Generation: u.Text(MaxNameLen), Origin: u.Text(MaxNameLen), Round: u.Uint(), World: u.Int(),
			HostRank: u.IntOr(-1), Finished: u.Bool(), FinishedHosts: unpackRanks(u),
		}
		u.Open()
		f.Closed = Closing{Kind: ClosedKind(u.Int()), By: u.Text(maxClosingBy), Reason: u.Text(maxClosingReason), At: u.Time()}
		u.Close()
		f.Directives = unpackDirectiveFacts(u)
	}
	u.Close()
	return f
}

// packSuccession writes what a successor needs, and what it begins with.
func (m *Machine) packSuccession(p *pack.Packer) {
	p.List(12)
	p.Uint(m.succession.Term)
	p.Text(m.succession.From)
	packFacts(p, m.succession.Facts)
	p.Duration(m.succession.Grace)
	p.Int(m.round.hostRank)
	packRanks(p, m.round.finishedHosts)
	p.Bool(m.round.finishReported)
	p.Text(m.viewed.generation)
	p.Int(m.viewed.host)
	p.Bool(m.viewed.finished)
	p.Int(m.viewed.finishedHosts)
	p.Bool(m.succession.Left)
}

// unpackSuccession reads what packSuccession wrote. A state of version 1 has the host in
// its members only.
func (m *Machine) unpackSuccession(u *pack.Unpacker) {
	version1 := u.Open() == 0
	m.succession = Succession{Term: u.Uint(), From: u.Text(maxText), Facts: unpackFacts(u), Grace: u.Duration()}
	m.round.hostRank, m.round.finishedHosts, m.round.finishReported = u.IntOr(-1), unpackRanks(u), u.Bool()
	m.viewed.generation, m.viewed.host, m.viewed.finished, m.viewed.finishedHosts = u.Text(maxText), u.IntOr(-1), u.Bool(), u.Int()
	m.succession.Left = u.Bool()
	u.Close()
	if !version1 {
		return
	}
	for _, s := range m.round.participants {
		if s.host {
			m.round.hostRank = s.rank
		}
	}
}

func packRanks(p *pack.Packer, ranks []int) {
	p.List(len(ranks))
	for _, rank := range ranks {
		p.Int(rank)
	}
}

func unpackRanks(u *pack.Unpacker) (ranks []int) {
	n := u.Open()
	if n > maxFinishedHosts {
		u.Fail("%d hosts that have finished, at most %d are possible", n, maxFinishedHosts)
		n = 0
	}
	for range n {
		ranks = append(ranks, u.Int())
	}
	u.Close()
	return ranks
}

// cut is the closing with texts as long as facts hold them.
func (c Closing) cut() Closing {
	c.By, c.Reason = pack.CutText(c.By, maxClosingBy), pack.CutText(c.Reason, maxClosingReason)
	return c
}

func (c Closing) equal(d Closing) bool {
	return c.Kind == d.Kind && c.By == d.By && c.Reason == d.Reason && c.At.Equal(d.At)
}

// canBeSucceeded reports whether another process may go on with this control plane's run:
// one that is alone, or stores what it knows, has no successor and tells no facts of
// directives, however many nodes are drained.
func (m *Machine) canBeSucceeded() bool { return m.succession.Term > 0 }

// directiveTooMuch refuses a directive with which the facts would grow out of bounds.
func (m *Machine) directiveTooMuch(d Direct) *Error {
	f := m.directives.makeFacts()
	f.Standing = append(f.Standing, StandingFact{Direct: d})
	for _, s := range f.Standing { // who is going to be drained
		if !s.Kind.NamesNodes() {
			continue
		}
		for _, node := range s.Nodes {
			f.Drained = append(f.Drained, DrainedFact{Node: node, By: s.By, Reason: s.Reason, For: s.For})
		}
	}
	return m.tooMuchToTell(f)
}

// tooMuchToTell refuses facts out of bounds: what they tell must not be lost with the control
// plane's host.
func (m *Machine) tooMuchToTell(f DirectiveFacts) *Error {
	if !m.canBeSucceeded() {
		return nil
	}
	f.Ended, f.Seq = nil, m.directives.seq+1
	if size := len(pack.Append(nil, func(p *pack.Packer) { packDirectiveFacts(p, f) })); size > maxDirectiveFacts {
		return Errorf(CodeTooLarge, "with it, the run's directives and drained nodes would have %d bytes; a control plane in a node's process hands at most %d on to "+
			"its next host: name fewer nodes at a time, undrain some, give a shorter reason, or meet at `rallypoint serve`", size, maxDirectiveFacts)
	}
	return nil
}
