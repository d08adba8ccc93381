package rendezvous

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"rallypoint/internal/printable"
	"rallypoint/internal/wording"
)

// hello registers a node, or ties a known session to a new connection.
func (m *Machine) hello(h Hello) {
	if n := m.nodes.sessions[h.Session]; n != nil {
		m.resume(n, h)
		return
	}
	if id := printable.Text(h.Node); id != h.Node {
		m.out.emit(Refuse{h.Session, Errorf(CodeInvalid, "run %q: the node id %q holds characters that cannot be shown", m.runID, h.Node)})
		return
	}
	if domain := printable.Text(h.Topology); domain != h.Topology {
		m.out.emit(Refuse{h.Session, Errorf(CodeInvalid, "run %q: the topology %q of node %s holds characters that cannot be shown", m.runID, h.Topology, h.Node)})
		return
	}
	again := ""
	if m.closed != nil && len(m.nodes.live) == 0 && m.round.beginsAgain(h) {
		again = "the run begins again; it " + m.closed.sentence()
		m.out.note("%s", again)
		m.forget()
	}
	if row := m.directives.rowOf(h.Node, printable.Text(h.HostName)); row != nil && !(row.Cordoned && h.LastRound.Round > 0) {
		m.out.emit(Refuse{h.Session, m.directives.drainedError(h.Node, row)})
		return
	}
	if err := m.acceptPolicy(h); err != nil {
		m.out.emit(Refuse{h.Session, err})
		return
	}
	if old := m.nodes.live[h.Node]; old != nil {
		if h.Incarnation <= old.incarnation {
			m.out.emit(Refuse{h.Session, Errorf(CodeNodeInUse,
				"run %q: node id %q is in use by %s, which is alive and, by the clocks, no older start of the same node; give each node its own node_id", m.runID, h.Node, cmp.Or(old.label, "another process"))})
			return
		}
		m.lose(old, "lost: replaced by a newer start of the same node")
	}
	n := &node{
		id: h.Node, label: printable.Text(h.Label), hostName: printable.Text(h.HostName), domain: h.Topology, command: h.Command.clean(), member: h.LastRound.Round > 0, session: h.Session, incarnation: h.Incarnation, inHost: h.InHost,
		seenAddr: h.SeenAddr, serverAddr: h.ServerAddr,
		answered: map[uint64]Reply{}, waits: map[uint64]*keyWait{},
	}
	m.nodes.enter(n)
	m.nodes.addSession(n)
	m.adopt(n, h.LastRound)
	if s := m.round.byNode[n.id]; s != nil && s.state == participantUnknown { // a silent host's place, which n does not report
		m.accountFor(s.rank, participantLost, "lost: its node came back without its place in the round")
		m.assistRanks()
	}
	m.directives.applyReports(n, h.LastRound)
	m.round.noteHost(n)
	n.update = m.updateFor(n, m.forming.waitingReason)
	told := n.update
	told.Reason = cmp.Or(told.Reason, again)
	m.out.emit(Welcome{Session: n.session, Update: told})
}

func (m *Machine) resume(n *node, h Hello) {
	if n.id != h.Node {
		m.out.emit(Refuse{h.Session, Errorf(CodeInvalid, "run %q: the session belongs to node %s, not to %s", m.runID, n.id, h.Node)})
		return
	}
	m.nodes.usage.Sessions -= n.cost()
	n.seenAddr, n.serverAddr, n.inHost = h.SeenAddr, h.ServerAddr, h.InHost
	n.command, n.member = h.Command.clean(), n.member || h.LastRound.Round > 0
	m.nodes.usage.Sessions += n.cost()
	m.round.noteHost(n)
	m.forming.setGrace(n, false)
	m.reclaim(n, h.LastRound)
	m.directives.applyReports(n, h.LastRound)
	n.update = m.updateFor(n, m.forming.waitingReason)
	m.out.emit(Welcome{Session: n.session, Resumed: true, Update: n.update})
}

// acceptPolicy takes the policy of the run's first live node and compares that
// of the others with it.
func (m *Machine) acceptPolicy(h Hello) *Error {
	if err := h.Policy.Validate(); err != nil {
		return Errorf(CodeInvalid, "%v", err)
	}
	if h.Topology == "" && h.Policy.segment() > 1 {
		return Errorf(CodeInvalid, "run %q: node %s names no topology domain, which segments of %d nodes need: give it --topology, such as the name of its rack",
			m.runID, h.Node, h.Policy.Segment)
	}
	if len(m.nodes.live) == 0 {
		m.forming.setPolicy(h.Policy, h.Node)
		if m.forming.target > 0 && !m.forming.policy.fits(m.forming.target) {
			m.forming.target = 0 // it was asked of a run of another size
			m.directives.changed()
		}
		m.begin()
		return nil
	}
	have, want := m.forming.policy, h.Policy
	if !have.Agrees(&want) {
		name := m.names.of(h.Node)
		return Errorf(CodeMismatch,
			"run %q: node %s wants %s, but the run has %s, as node %s started it; start all nodes with the same --nnodes and options",
			m.runID, name, describePolicy(want), describePolicy(have), m.names.of(m.forming.policyBy))
	}
	return nil
}

func (m *Machine) disconnect(ev Disconnect) {
	n := m.nodes.sessions[ev.Session]
	switch {
	case n == nil || n.grace && !ev.Dead:
	case n.ended:
		m.nodes.remove(n)
	case ev.Dead || m.forming.policy.ReconnectGrace == 0:
		m.lose(n, "lost: connection closed")
	default:
		m.forming.setGrace(n, true)
	}
}

func (f *forming) setGrace(n *node, grace bool) {
	switch {
	case n.grace == grace:
	case grace:
		f.beginGrace(n, f.policy.ReconnectGrace)
	default:
		f.uncountJoin(n)
		n.grace, n.recovering = false, false
		f.countJoin(n)
		f.out.stop(Timer{Kind: TimerGrace, Session: n.session})
	}
}

func (f *forming) beginGrace(n *node, after time.Duration) {
	f.uncountJoin(n)
	n.grace = true
	f.countJoin(n)
	f.out.set(Timer{Kind: TimerGrace, Session: n.session}, after)
}

// recovered gives every node one lease, or what the event says, to come back.
func (m *Machine) recovered(ev Recovered) {
	m.succession.Alone = ev.Alone || m.succession.Alone && (m.round.fresh || m.round.stored)
	m.round.stored, m.reserve = true, ev.Generation
	grace := cmp.Or(ev.Grace, m.forming.policy.LeaseTimeout)
	if len(m.nodes.live) > 0 {
		m.out.note("the control plane was restarted and knows %s %v to come back",
			wording.Count(len(m.nodes.live), "node, which has", "nodes, which have"), grace)
	}
	for _, session := range slices.Sorted(maps.Keys(m.nodes.sessions)) {
		n := m.nodes.sessions[session]
		m.forming.setGrace(n, false)
		m.forming.beginGrace(n, grace)
		n.recovering = true
	}
}
