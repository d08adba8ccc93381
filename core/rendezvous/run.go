package rendezvous

import "time"

// run is what all parts know of the run: its names, what its control plane began with, and how
// it was closed.
type run struct {
	out        *output
	runID      string
	generation string
	succession Succession
	closed     *Closing // nil: it is open
}

// requeued reports whether a directive has ended the run.
func (r *run) requeued() bool { return r.closed != nil && r.closed.Kind == ClosedRequeue }

// NoRunID is the run id of a job that was given none: torchrun's default. Once its nodes are gone
// the next node begins such a run again, since people repeat a command; the kept part of its end
// serves to report that.
const NoRunID = "none"

// Kept returns as what and for how long the run stays closed, of which some may have passed;
// false if it is open, or may begin again.
func (r *run) Kept() (Ended, bool) {
	running, ok := r.out.running[Timer{Kind: TimerClosed}]
	if !ok || r.closed == nil {
		return Ended{}, false
	}
	return Ended{Closing: r.closed.cut(), For: running.after}, true
}

// closedError tells a joiner who closed the run, when and why.
func (r *run) closedError() *Error {
	return Errorf(CodeClosed, "run %q is closed: %s%s", r.runID, r.closed.text(), r.howToBeginAgain())
}

// howToBeginAgain ends an error of a run that stays closed for a time.
func (r *run) howToBeginAgain() string {
	kept, ok := r.Kept()
	switch {
	case !ok:
		return ""
	case r.runID == NoRunID:
		return "; a node that comes once all its nodes are gone begins it again"
	}
	return "; to begin it again before " + kept.For.Round(time.Second).String() + " have passed, use another run id, the option begin_again=1, or `rallypoint admin forget`"
}
