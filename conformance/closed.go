package conformance

import r "rallypoint/core/rendezvous"

// beginsAgain reports whether a node begins a closed run again that has no live nodes: no process that
// was in a round or was told of the run; else one whose node was never part of it, once the run's time is over, or one
// that asks for it, or any where the run was ended to be queued again or has no id of its own.
func (c *Checker) beginsAgain(h r.Hello) bool {
	if h.LastRound.Round > 0 || h.LastRound.Facts.Generation != "" {
		return false
	}
	if h.BeginAgain || c.closing.kind == requeued || c.runID == r.NoRunID {
		return true
	}
	return !c.seen[h.Node] && !c.runs(r.TimerClosed)
}

// checkClosed checks that the time of a closed run begins when it is closed, is as long as its
// policy says, and ends by its own timer or with the closing, and by nothing else.
func (c *Checker) checkClosed(ev r.Event) {
	rest := c.rest
	if !c.ended() {
		rest = 0
	}
	if fired, ok := ev.(r.TimerFired); ok && fired.Timer.Kind == r.TimerClosed && !c.runs(r.TimerClosed) {
		c.rest, rest = 0, 0
	}
	switch t := c.timers[r.Timer{Kind: r.TimerClosed}]; {
	case t.running != (rest > 0):
		c.violated(9, "a run that was closed in the way %d stays closed for %v; its timer runs: %v", c.closing.kind, rest, t.running)
	case t.running && t.after != rest:
		c.violated(9, "a run stays closed for %v instead of %v", t.after, rest)
	}
}
