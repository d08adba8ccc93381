package rendezvous

import (
	"fmt"
	"strings"
)

// join registers a pending join; settle completes the round when it is due.
func (m *Machine) join(n *node, j Join) {
	if n.ended {
		m.fail(n, j.Number, Errorf(CodeInvalid, "run %q: node %s has already left", m.runID, n.id))
		return
	}
	if m.closed != nil {
		m.fail(n, j.Number, m.closedError())
		return
	}
	s := m.participantOf(n)
	if s != nil && m.finishing() {
		m.fail(n, j.Number, m.finishedError())
		return
	}
	if n.join != nil {
		m.fail(n, n.join.Number, Errorf(CodeCanceled, "run %q: node %s asked again to join", m.runID, n.id))
		m.dropJoin(n)
	}
	m.joinSeq++
	n.seq = m.joinSeq
	n.join = &j
	n.stale = ""
	m.countJoin(n)
	if s != nil {
		m.setParticipant(s, participantRejoined, "")
		return
	}
	m.arrived()
}

// arrived restarts the clocks that wait for quiet.
func (m *Machine) arrived() {
	if m.quiet.armed {
		m.disarm(&m.quiet, TimerQuiet)
	}
	if m.admit.armed && !m.admit.due {
		m.disarm(&m.admit, TimerAdmit)
	}
}

// withdraw takes a join back. The join is answered, too, so that a node which comes
// back with it does not join again.
func (m *Machine) withdraw(n *node, ev Withdraw) {
	if n.join == nil || n.join.Number != ev.Join {
		m.answer(n, ev.Number, Withdrawn{Completed: true})
		return
	}
	progress := m.progressOf(n)
	m.fail(n, n.join.Number, Errorf(CodeCanceled, "run %q: node %s withdrew", m.runID, n.id))
	m.dropJoin(n)
	m.touched = append(m.touched, n)
	if s := m.participantOf(n); s != nil {
		m.setParticipant(s, participantLost, "gave up waiting for the next round")
		m.note("node %s gave up waiting for the next round", n.name())
	}
	m.answer(n, ev.Number, Withdrawn{Progress: progress})
}

func (m *Machine) dropJoin(n *node) {
	m.uncountJoin(n)
	n.join = nil
}

// countJoin and uncountJoin keep the counters of pending joins. A node's place
// must not change between the two.
func (m *Machine) countJoin(n *node)   { m.addJoin(n, 1) }
func (m *Machine) uncountJoin(n *node) { m.addJoin(n, -1) }

func (m *Machine) addJoin(n *node, by int) {
	if n.join == nil {
		return
	}
	m.joined += by
	switch {
	case n.grace:
		m.joinedGrace += by
	case m.participantOf(n) == nil:
		m.newcomers += by
	}
}

// candidates returns the nodes with a pending join, members of the last round
// first and by rank, then the others in order of arrival.
func (m *Machine) candidates() []*node {
	list := make([]*node, 0, m.joined)
	for _, n := range m.nodes {
		if n.join != nil {
			list = append(list, n)
		}
	}
	m.sortCandidates(list)
	return list
}

// closedError tells a joiner who closed the run, when and why.
func (m *Machine) closedError() *Error {
	return Errorf(CodeClosed, "run %q is closed: %s", m.runID, m.closed.text())
}

// finishedError tells a member that the round cannot be formed again.
func (m *Machine) finishedError() *Error {
	text := fmt.Sprintf("run %q cannot regroup after round %d: finished: %s", m.runID, m.round, m.finishedNames())
	if m.tally[participantLost] > 0 {
		text += "; lost: " + m.inState(participantLost)
	}
	return &Error{CodeClosed, text}
}

func describePolicy(p Policy) string {
	parts := []string{fmt.Sprintf("nnodes=%d:%d", p.Min, p.Max)}
	if p.NodeUnit != 1 {
		parts = append(parts, fmt.Sprintf("node_unit=%d", p.NodeUnit))
	}
	if p.Target != 0 {
		parts = append(parts, fmt.Sprintf("target=%d", p.Target))
	}
	return strings.Join(parts, " ")
}
