package rendezvous

import (
	"fmt"
	"slices"
	"time"

	"rallypoint/internal/printable"
)

// ClosedKind is how a run was closed; the numbers are append-only.
type ClosedKind int

// The kinds.
const (
	ClosedAdmission ClosedKind = iota + 1 // no node joins any more; the running round goes on
	ClosedSuccess                         // a member's agent ended normally
	ClosedFailed                          // all nodes stop at once
	ClosedRequeue                         // a directive has ended the run, to be queued again: all nodes stop at once
)

// Closing is who closed a run, when and why; the zero value is an open run.
type Closing struct {
	Kind   ClosedKind
	By     string
	Reason string
	At     time.Time
}

func (c *Closing) how() string {
	switch c.Kind {
	case ClosedSuccess:
		return "ended successfully"
	case ClosedFailed:
		return "failed"
	case ClosedRequeue:
		return "stopped to be queued again"
	}
	return "closed"
}

// did is how, behind a subject.
func (c *Closing) did() string {
	switch c.Kind {
	case ClosedAdmission, ClosedRequeue:
		return "was " + c.how()
	}
	return c.how()
}

func (c *Closing) text() string { return c.textOf(c.how()) }

// sentence is text behind a subject: "the run" or "it".
func (c *Closing) sentence() string { return c.textOf(c.did()) }

func (c *Closing) textOf(how string) string {
	text := fmt.Sprintf("%s by %s", how, c.By)
	if !c.At.IsZero() {
		text += " at " + c.At.UTC().Format(time.RFC3339)
	}
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

// closeRun closes on request (set_closed, admin).
func (m *Machine) closeRun(ev CloseRun) {
	kind := ClosedAdmission
	if ev.Stop {
		kind = ClosedFailed
	}
	by := printable.Text(ev.By)
	if n := m.sessions[ev.Session]; n != nil {
		by = n.name()
	}
	m.close(Closing{Kind: kind, By: by, Reason: printable.Text(ev.Reason), At: ev.At})
}

// close closes the run for good and answers every pending join. A later close
// counts only if it says more: an ended admission may still end well or badly,
// and a failure overrules a success for nodes that still run. What ends because a directive
// has ended the run fails nothing.
func (m *Machine) close(c Closing) {
	if m.closed != nil && m.closed.Kind >= c.Kind {
		return
	}
	m.closed = &c
	m.note("the run %s", c.sentence())
	m.disarmAll()
	m.keepClosed()
	m.endHoldIfComplete() // else it still ends what is known of missing members
	m.endDirectives()
	for _, n := range m.candidates() {
		number, s := n.join.Number, m.participantOf(n)
		m.dropJoin(n)
		if c.Kind == ClosedRequeue {
			m.notify(n, m.waitingReason) // before the answer: who is refused asks at once how the run has ended
		}
		switch {
		case s != nil:
			m.setParticipant(s, participantLost, "could not regroup after the run was closed")
			m.fail(n, number, m.closedError())
		case c.Kind == ClosedSuccess:
			m.fail(n, number, m.endedError(n))
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
	m.noteHost(n)
	m.touched = append(m.touched, n)
	m.note("node %s finished", n.name())
}

// endIfAllFinished closes the run when its round is over but no node that could
// say so is left: the finished nodes went without a goodbye.
func (m *Machine) endIfAllFinished() {
	if !m.finishing() || m.live() > 0 {
		return
	}
	for _, s := range m.participants {
		if s.state == participantFinished && m.nodes[s.node] != nil {
			return
		}
	}
	c := Closing{Kind: ClosedSuccess, By: "the control plane", Reason: "every member has finished"}
	if m.tally[participantLost] > 0 {
		c.Kind, c.Reason = ClosedFailed, "lost before it finished: "+m.inState(participantLost)
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
		m.dropAwaits(n)
		return true
	})
}

// othersEnded reports whether every other member of the node's round has
// finished, left or is lost. Members of a later round need the control plane's
// host, but no longer this node's round store; a host that leaves an open run hands the
// control plane on.
func (m *Machine) othersEnded(n *node) bool {
	own := m.byNode[n.id]
	if own == nil && (!n.inHost || m.closed == nil) {
		return true
	}
	others := m.live()
	if own != nil && own.live() {
		others--
	}
	return others == 0
}
