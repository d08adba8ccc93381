package rendezvous

import (
	"time"

	"rallypoint/internal/printable"
)

// NoRunID is the run id of a job that was given none: torchrun's default. Such a run is
// begun again at once, since people repeat a command.
const NoRunID = "none"

// Forget has a closed run begin again, as an administrator asks: the next node finds it open.
type Forget struct {
	By     string
	Reason string
}

// Ended is the first event of a log that takes the place of another one, whose run had ended:
// the run is closed like that, and stays so for the rest of its time.
type Ended struct {
	Closing Closing
	For     time.Duration
	// Machine and Uptime are whose clock said when, for the log: a clock that nobody can set.
	Machine string        `json:",omitempty"`
	Uptime  time.Duration `json:",omitempty"`
}

// keepClosed has the run stay closed for its time, or end that: what failed, or is to be
// queued again, begins again as soon as its nodes are gone.
func (m *Machine) keepClosed() {
	m.stopTimer(Timer{Kind: TimerClosed})
	if m.policy.ClosedFor > 0 && m.runID != NoRunID && m.closed.lasts() {
		m.armTimer(Timer{Kind: TimerClosed}, m.policy.ClosedFor)
	}
}

// lasts reports whether a run that was closed like that stays closed for a time.
func (c *Closing) lasts() bool { return c.Kind == ClosedSuccess || c.Kind == ClosedAdmission }

// Kept returns as what and for how long the run stays closed, of which some may have passed;
// false if it is open, or may begin again.
func (m *Machine) Kept() (Ended, bool) {
	running, ok := m.timers[Timer{Kind: TimerClosed}]
	if !ok || m.closed == nil {
		return Ended{}, false
	}
	return Ended{Closing: m.closed.cut(), For: running.after}, true
}

// goOnClosed applies Ended: to a run that nothing else has happened to.
func (m *Machine) goOnClosed(ev Ended) {
	if m.closed != nil || m.round > 0 || len(m.sessions) > 0 || !ev.Closing.lasts() || ev.For <= 0 || ev.For > MaxTimeout {
		return
	}
	c := ev.Closing
	c.By, c.Reason = printable.Text(c.By), printable.Text(c.Reason)
	m.closed = &c
	m.armTimer(Timer{Kind: TimerClosed}, ev.For)
}

// forgettable returns why an administrator cannot have the run begin again, nil if he can.
func (m *Machine) forgettable() *Error {
	switch {
	case m.closed == nil:
		return Errorf(CodeInvalid, "run %q is open: there is nothing to forget", m.runID)
	case len(m.nodes) > 0:
		return Errorf(CodeInvalid, "run %q is closed, but nodes of it are alive; wait until they have ended", m.runID)
	}
	return nil
}

func (m *Machine) forgetClosed(ev Forget) {
	m.note("the run may begin again, by %s: %s", printable.Text(ev.By), printable.Text(ev.Reason))
	m.forget()
}

// beginsAgain reports whether a node that comes to a closed run without live nodes begins it
// again. Once the run's time is over that is one that was never part of it. One that asks for it
// need not wait for that, and of a run that is to be queued again it may be any; but not a
// process that was in a round: that is of the job that has ended, and has yet to learn it.
func (m *Machine) beginsAgain(h Hello) bool {
	if h.LastRound.Round == 0 && (h.BeginAgain || m.requeued()) {
		return true
	}
	_, part := m.seen[h.Node]
	_, kept := m.Kept()
	return !part && !kept
}

// closedError tells a joiner who closed the run, when and why.
func (m *Machine) closedError() *Error {
	return Errorf(CodeClosed, "run %q is closed: %s%s", m.runID, m.closed.text(), m.howToBeginAgain())
}

// endedError tells a node that comes when the run has ended: after a success it was not needed,
// unless it is a member that cannot regroup.
func (m *Machine) endedError(n *node) *Error {
	if s := m.participantOf(n); m.closed.Kind != ClosedSuccess || s != nil && s.state != participantFinished {
		return m.closedError()
	}
	return Errorf(CodeGraceful, "run %q ended without needing node %s: it %s%s", m.runID, n.id, m.closed.sentence(), m.howToBeginAgain())
}

// howToBeginAgain ends an error of a run that stays closed for a time.
func (m *Machine) howToBeginAgain() string {
	kept, ok := m.Kept()
	if !ok {
		return ""
	}
	return "; to begin it again before " + kept.For.String() + " have passed, use another run id, the option begin_again=1, or `rallypoint admin forget`"
}
