package conformance

import "rallypoint/internal/printable"

import r "rallypoint/core/rendezvous"

// announceStop records the first announced stop of the running round. A node that leaves
// is a member of it no more.
func (c *Checker) announceStop(ev r.AnnounceStop) {
	t := c.participantOf(c.sessions[ev.Session])
	if t == nil || t.state != running || ev.Round != c.round || ev.Generation != c.origin || c.disowned() {
		return
	}
	if c.stop.Round == 0 {
		c.stop = r.RoundStop{Round: c.round, Rank: t.rank, Leaving: ev.Leaving, Reason: printable.Text(ev.Reason)}
	}
	if ev.Leaving {
		t.state = lost
	}
}

// checkStop checks that a member whose workers may run knows of the stop of its round,
// and no other node of any.
func (c *Checker) checkStop(s *session) {
	var want r.RoundStop
	if t := c.participantOf(s); t != nil && t.state == running && c.stop.Round > 0 {
		want = c.stop
		want.Lost = c.count(lost) > 0 || c.overtaken
	}
	if s.update.Stop != want {
		c.violated(7, "node %s should know of the announced stop %+v, it was told %+v", s.node, want, s.update.Stop)
	}
}
