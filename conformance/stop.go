package conformance

import r "rallypoint/core/rendezvous"

// announceStop records the first announced stop of the running round. A node that leaves
// is a member of it no more.
func (j *Checker) announceStop(ev r.AnnounceStop) {
	t := j.participantOf(j.sessions[ev.Session])
	if t == nil || t.state != running || ev.Round != j.round || ev.Generation != j.origin || j.disowned() {
		return
	}
	if j.stop.Round == 0 {
		j.stop = r.RoundStop{Round: j.round, Rank: t.rank, Leaving: ev.Leaving, Reason: r.Printable(ev.Reason)}
	}
	if ev.Leaving {
		t.state = lost
	}
}

// checkStop checks that a member whose workers may run knows of the stop of its round,
// and no other node of any.
func (j *Checker) checkStop(s *session) {
	var want r.RoundStop
	if t := j.participantOf(s); t != nil && t.state == running && j.stop.Round > 0 {
		want = j.stop
		want.Lost = j.count(lost) > 0 || j.overtaken
	}
	if s.update.Stop != want {
		j.violated(7, "node %s should know of the announced stop %+v, it was told %+v", s.node, want, s.update.Stop)
	}
}
