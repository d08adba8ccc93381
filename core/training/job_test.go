package training

import (
	"testing"
	"time"
)

// TestJob follows a run through rounds. The steps of the second one begin below those of
// the first.
func TestJob(t *testing.T) {
	const s = time.Second
	var j Job
	now := time.Unix(1e9, 0)
	take := func(r Report, wantLost time.Duration, wantCause Cause) {
		t.Helper()
		r.Workers, r.Reporting = 8, 8
		if lost, cause := j.Take(&r, now); lost != wantLost || lost > 0 && cause != wantCause {
			t.Errorf("round %d: lost %v by %q, want %v by %q", r.Round, lost, CauseNames[cause], wantLost, CauseNames[wantCause])
		}
	}
	want := func(want Census) {
		t.Helper()
		if got := j.Census(now); got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	}
	want(Census{})
	take(Report{Round: 1, Largest: 5}, 0, NoCause) // of a round that is not known here
	want(Census{})
	j.Begin(1, NodeJoined)
	take(Report{Round: 1, Largest: 5, SinceFirst: s, SinceChange: s}, 0, NoCause) // the first round loses nothing
	now = now.Add(10 * s)
	take(Report{Round: 1, Largest: 9, SinceChange: 2 * s, PerStep: 3 * s}, 0, NoCause)
	take(Report{Round: 1, Largest: 8, SinceChange: 4 * s, PerStep: 7 * s}, 0, NoCause)
	want(Census{true, 9, 3 * s, 2 * s})

	// The last report of the round comes after the next one has begun.
	j.Begin(2, NodeLost)
	j.Begin(2, NodeLost)
	want(Census{})
	take(Report{Round: 1, Largest: 10, SinceChange: s}, 0, NoCause)
	now = now.Add(60 * s)
	take(Report{Round: 2, Largest: 4, SinceFirst: 20 * s, SinceChange: s, Gap: 50 * s}, 41*s, NodeLost)
	take(Report{Round: 2, Largest: 4, SinceFirst: 20 * s, SinceChange: s, Gap: 50 * s}, 0, NoCause)
	want(Census{true, 4, 0, s})

	// Without a last report the node's own gap counts.
	j.Begin(3, WorkerFailed)
	now = now.Add(30 * s)
	take(Report{Round: 3, Largest: 4, SinceFirst: s, SinceChange: s, Gap: 5 * s}, 5*s, WorkerFailed)

	// A newcomer does not know it; a control plane that did not complete the round counts nothing.
	j.Begin(4, NodeJoined)
	now = now.Add(10 * s)
	take(Report{Round: 4, Largest: 4}, 11*s, NodeJoined)
	j.Begin(7, NoCause)
	now = now.Add(10 * s)
	take(Report{Round: 7, Largest: 4, Gap: 10 * s}, 0, NoCause)
}
