package rendezvous

import (
	"fmt"
	"slices"
	"time"
)

// closedKind is how a run was closed.
type closedKind int

const (
	closedAdmission closedKind = iota + 1 // no node joins any more; the running round goes on
	closedSuccess                         // a member's agent ended normally
	closedFailed                          // everybody stops at once
)

// closing records who closed the run, when and why.
type closing struct {
	kind   closedKind
	by     string
	reason string
	at     time.Time
}

func (c *closing) how() string {
	switch c.kind {
	case closedSuccess:
		return "ended successfully"
	case closedFailed:
		return "failed"
	}
	return "closed"
}

func (c *closing) text() string {
	text := fmt.Sprintf("%s by %s", c.how(), c.by)
	if !c.at.IsZero() {
		text += " at " + c.at.UTC().Format(time.RFC3339)
	}
	if c.reason != "" {
		text += ": " + c.reason
	}
	return text
}

// closeRun closes on request (set_closed, admin).
func (m *Machine) closeRun(ev CloseRun) {
	kind := closedAdmission
	if ev.Stop {
		kind = closedFailed
	}
	by := ev.By
	if n := m.sessions[ev.Session]; n != nil {
		by = n.name()
	}
	m.close(closing{kind: kind, by: by, reason: ev.Reason, at: ev.At})
}

// close closes the run for good and answers every pending join. A later close
// counts only if it says more: an ended admission may still end well or badly,
// and a failure overrules a success for nodes that still run.
func (m *Machine) close(c closing) {
	if m.closed != nil && m.closed.kind >= c.kind {
		return
	}
	m.closed = &c
	m.note("the run %s", c.text())
	m.disarmAll()
	m.stopHold()
	for _, n := range m.candidates() {
		number, s := n.join.Number, m.participantOf(n)
		m.dropJoin(n)
		switch {
		case s != nil:
			m.setParticipant(s, participantLost, "could not regroup after the run was closed")
			m.fail(n, number, m.closedError())
		case c.kind == closedSuccess:
			m.fail(n, number, Errorf(CodeGraceful, "run %q ended without needing node %s: it %s", m.runID, n.id, c.text()))
		default:
			m.fail(n, number, m.closedError())
		}
	}
}

// finish records that all workers of the node succeeded (guarantee 8).
func (m *Machine) finish(n *node) {
	s := m.participantOf(n)
	if s == nil || s.state != participantRunning || m.disowned() {
		return
	}
	m.setParticipant(s, participantFinished, "")
	m.touched = append(m.touched, n)
	m.note("node %s finished", n.name())
}

// endIfAllFinished closes the run when its round is over but no node that could
// say so is left: the finished nodes went without a goodbye.
func (m *Machine) endIfAllFinished() {
	if m.tally[participantFinished] == 0 || m.live() > 0 {
		return
	}
	for _, s := range m.participants {
		if s.state == participantFinished && m.nodes[s.node] != nil {
			return
		}
	}
	c := closing{kind: closedSuccess, by: "the control plane", reason: "every member has finished"}
	if m.tally[participantLost] > 0 {
		c.kind, c.reason = closedFailed, "lost before it finished: "+m.inState(participantLost)
	}
	m.close(c)
}

// settleAwaitPeers answers the nodes that wait for the others to end.
func (m *Machine) settleAwaitPeers() {
	m.awaitingPeers = slices.DeleteFunc(m.awaitingPeers, func(n *node) bool {
		if m.sessions[n.session] != n {
			return true
		}
		if !m.othersEnded(n) {
			return false
		}
		for _, number := range n.linger {
			m.answer(n, number, nil)
		}
		n.linger = nil
		return true
	})
}

// othersEnded reports whether every other member of the node's round has
// finished, left or is lost. Members of a later round need the control plane's
// host, but no longer this node's round store.
func (m *Machine) othersEnded(n *node) bool {
	own := m.byNode[n.id]
	if own == nil && !n.inHost {
		return true
	}
	others := m.live()
	if own != nil && own.live() {
		others--
	}
	return others == 0
}
