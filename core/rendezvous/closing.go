package rendezvous

import (
	"cmp"
	"slices"

	"rallypoint/internal/printable"
)

func (m *Machine) closeRun(ev CloseRun) {
	kind := ClosedAdmission
	if ev.Stop {
		kind = ClosedFailed
	}
	by := printable.Text(ev.By)
	if n := m.nodes.sessions[ev.Session]; n != nil {
		by = m.names.of(n.id)
	}
	m.close(Closing{Kind: kind, By: by, Reason: printable.Text(ev.Reason), At: ev.At})
}

// close closes the run for good and answers every pending join. A later close counts only if it
// says more: an ended admission may still end well or badly, and a failure overrules a success for
// nodes that still run. A failure because a directive has ended the run fails nothing.
func (m *Machine) close(c Closing) {
	if m.closed != nil && m.closed.Kind >= c.Kind {
		return
	}
	if c.lasts() {
		c.Commands = cmp.Or(c.Commands, m.round.commands())
	}
	m.closed = &c
	m.out.note("the run %s", c.sentence())
	m.forming.disarm(clockKinds...)
	m.forming.keepClosed()
	m.forming.endHoldIfComplete() // else it still ends what is known of missing members
	if m.directives.standing != nil {
		m.directives.end(m.directives.standing)
	}
	for _, n := range m.forming.candidates() {
		number, s := n.join.Number, m.round.participantOf(n)
		m.forming.dropJoin(n)
		if c.Kind == ClosedRequeue {
			m.notify(n, m.forming.waitingReason) // before the answer: a refused node asks at once how the run has ended
		}
		switch {
		case s != nil:
			m.round.set(s, participantLost, "could not regroup after the run was closed")
			m.nodes.fail(n, number, m.closedError())
		case c.Kind == ClosedSuccess:
			m.nodes.fail(n, number, m.round.endedError(n))
		default:
			m.nodes.fail(n, number, m.closedError())
		}
	}
}

// finish records that all workers of the node succeeded (guarantee 8).
func (m *Machine) finish(n *node) {
	s := m.round.participantOf(n)
	if s == nil || s.state != participantRunning || m.round.disowned() {
		return
	}
	m.round.set(s, participantFinished, "")
	m.round.noteHost(n)
	m.nodes.touch(n)
	m.out.note("node %s finished", m.names.of(n.id))
}

// endIfAllFinished closes the run when its round is over but no node is left that could report it:
// the finished nodes went without a goodbye.
func (m *Machine) endIfAllFinished() {
	remains := func(s *participant) bool { return s.state == participantFinished && m.nodes.live[s.node] != nil }
	if !m.round.finishing() || m.round.live() > 0 || slices.ContainsFunc(m.round.participants, remains) {
		return
	}
	c := Closing{Kind: ClosedSuccess, By: "the control plane", Reason: "every member has finished"}
	if m.round.tally[participantLost] > 0 {
		c.Kind, c.Reason = ClosedFailed, ExitBarrierLost+m.round.inState(participantLost)
	}
	m.close(c)
}

func (m *Machine) settleAwaitPeers() {
	m.nodes.awaitingPeers = slices.DeleteFunc(m.nodes.awaitingPeers, func(n *node) bool {
		if m.nodes.sessions[n.session] != n {
			return true
		}
		if !m.round.othersEnded(n) {
			return false
		}
		for _, number := range n.linger {
			m.nodes.answer(n, number, nil)
		}
		m.nodes.dropAwaits(n)
		return true
	})
}

// othersEnded reports whether every other member of the node's round has
// finished, left or is lost. Members of a later round need the control plane's
// host, but no longer this node's round store; a host that leaves an open run hands the
// control plane on.
func (r *round) othersEnded(n *node) bool {
	own := r.byNode[n.id]
	if own == nil && (!n.inHost || r.run.closed == nil) {
		return true
	}
	others := r.live()
	if own != nil && own.live() {
		others--
	}
	return others == 0
}

// keepClosed has the run stay closed for its time, or end that: a run that failed, or was ended to
// be queued again, begins again as soon as its nodes are gone.
func (f *forming) keepClosed() {
	f.out.stop(Timer{Kind: TimerClosed})
	if f.policy.ClosedFor > 0 && f.round.run.closed.lasts() {
		f.out.set(Timer{Kind: TimerClosed}, f.policy.ClosedFor)
	}
}

// goOnClosed applies Ended: to a run that nothing else has happened to.
func (m *Machine) goOnClosed(ev Ended) {
	if m.closed != nil || m.round.number > 0 || len(m.nodes.sessions) > 0 || !ev.Closing.lasts() || ev.For <= 0 || ev.For > MaxTimeout {
		return
	}
	c := ev.Closing
	c.By, c.Reason = printable.Text(c.By), printable.Text(c.Reason)
	m.closed = &c
	m.out.set(Timer{Kind: TimerClosed}, ev.For)
}

// forgettable returns why an administrator cannot have the run begin again, nil if he can.
func (ns *nodes) forgettable() *Error {
	switch {
	case ns.run.closed == nil:
		return Errorf(CodeInvalid, "run %q is open: there is nothing to forget", ns.run.runID)
	case len(ns.live) > 0:
		return Errorf(CodeInvalid, "run %q is closed, but nodes of it are alive; wait until they have ended", ns.run.runID)
	}
	return nil
}

func (m *Machine) forgetClosed(ev Forget) {
	m.out.note("the run may begin again, by %s: %s", printable.Text(ev.By), printable.Text(ev.Reason))
	m.forget()
}

// beginsAgain reports whether a node that comes to a closed run without live nodes begins it
// again. A process that was in a round, or that a control plane of the run has told of it, is of the job
// that has ended, and has yet to learn it: a successor may close the run before it knows any other node, and the one
// that it succeeds may have been unknown to that node. Once the run's time is
// over, any other begins it whose node was never part of it. One that asks for it need not wait for that, and of
// a run that was ended to be queued again, or has no id of its own, it may be any.
func (r *round) beginsAgain(h Hello) bool {
	if h.LastRound.Round > 0 || h.LastRound.Facts.Generation != "" {
		return false
	}
	if h.BeginAgain || r.run.requeued() || r.run.runID == NoRunID {
		return true
	}
	_, part := r.seen[h.Node]
	_, kept := r.run.Kept()
	return !part && !kept
}

// endedError tells a node that comes when the run has ended: after a success it was not needed,
// unless it is a member that cannot regroup.
func (r *round) endedError(n *node) *Error {
	if s := r.participantOf(n); r.run.closed.Kind != ClosedSuccess || s != nil && s.state != participantFinished {
		return r.run.closedError()
	}
	if !n.member && r.run.closed.ranAnother(n.command) {
		return Errorf(CodeMismatch, "run %q: it %s, and ran another command than node %s was started with: %s. %s%s", r.run.runID, r.run.closed.sentence(), r.names.of(n.id), quoted(n.command), ownJob, r.run.howToBeginAgain())
	}
	return Errorf(CodeGraceful, "run %q ended without needing node %s: it %s%s", r.run.runID, r.names.of(n.id), r.run.closed.sentence(), r.run.howToBeginAgain())
}

// forget starts the run afresh under the same name; round numbers continue.
func (m *Machine) forget() {
	for _, n := range m.nodes.sessions {
		m.nodes.remove(n)
	}
	m.dropKeys(m.round.number)
	m.closed = nil
	m.round.replace(0)
	m.round.forgetSeen()
	m.directives.forgetDrained()
	m.forming.target = 0
	m.directives.forgetAgreement()
	m.directives.changed()
	m.forming.disarm(clockKinds...)
	m.out.stop(Timer{Kind: TimerClosed})
	m.forming.stopHold()
	m.viewed = view{}
}
