package rendezvous

import (
	"testing"
	"time"
)

// TestDirectivesTakeTurns: a second directive is agreed when the first one is over, or has
// had its time; the first one stands on, with its step, and the workers that have saved.
func TestDirectivesTakeTurns(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 2), "a", "b")
	r.apply(saveOf("s1", time.Hour))
	r.apply(saveOf("s2", 8*time.Second))
	r.wantAsked("s1", 1, n...)
	r.held(n[0], "s1", 7)
	r.held(n[1], "s1", 7)
	r.wantAgreed("s1", 1, 7, n...)
	r.saved(n[0], "s1")
	if after := r.timers[r.timer(TimerTurn)]; after != 2*time.Second {
		t.Errorf("the second one has its turn in %v", after)
	}
	r.fire(TimerTurn)
	r.wantAsked("s2", 1, n...)
	r.held(n[0], "s2", 9)
	r.held(n[1], "s2", 10)
	r.wantAgreed("s2", 1, 10, n...)
	r.saved(n[0], "s2")
	r.saved(n[1], "s2")
	r.wantAgreed("s1", 1, 7, n...)
	r.saved(n[1], "s1")
	r.wantNoDirective(n...)

	r.apply(saveOf("s3", time.Hour))
	r.apply(saveOf("s4", time.Hour))
	r.held(n[0], "s3", 20)
	r.apply(CancelDirective{ID: "s3", By: "admin", Reason: "why not"}) // in the agreement: all are released
	r.wantAsked("s4", 1, n...)
}

// TestTurnBehindDrain: workers that wait for a drain to be carried out are asked for nothing else,
// unless that could be too late.
func TestTurnBehindDrain(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 2), "a", "b")
	r.apply(saveOf("s1", time.Hour))
	for _, x := range n {
		r.held(x, "s1", 7)
	}
	r.apply(drainOf("d1", time.Hour, time.Hour, "b"))
	r.fire(TimerTurn)
	for _, x := range n {
		r.held(x, "d1", 8)
	}
	r.apply(saveOf("s2", 8*time.Minute))
	r.wantAgreed("d1", 1, 8, n...)
	if after := r.timers[r.timer(TimerTurn)]; after != 4*time.Minute {
		t.Errorf("a save behind a drain has its turn in %v", after)
	}
	r.fire(TimerTurn)
	r.wantAsked("s2", 1, n...)
}

// clock fires the machine's timers in the order of their ends.
type clock struct {
	r   *rig
	now time.Duration
	due map[Timer]time.Duration
}

// until fires what ends until then.
func (c *clock) until(end time.Duration) {
	for {
		for timer, after := range c.r.timers {
			if _, runs := c.due[timer]; !runs {
				c.due[timer] = c.now + after
			}
		}
		first, at := Timer{}, end+1
		for timer, due := range c.due {
			if _, runs := c.r.timers[timer]; runs && due < at {
				first, at = timer, due
			}
		}
		if at > end {
			c.now = end
			return
		}
		c.now = at
		delete(c.r.timers, first)
		c.r.apply(TimerFired{first})
	}
}

// TestTurnsBehindDrainAreInTime: whatever waits behind a drain, which no worker acknowledges, is
// asked for in time for its deadline.
func TestTurnsBehindDrainAreInTime(t *testing.T) {
	type given struct {
		at time.Duration
		ev Event
	}
	type asked map[string]time.Duration // when, at the latest
	cancel := func(id string) Event { return CancelDirective{ID: id, By: "admin", Reason: "why not"} }
	drain := func(id string, within time.Duration) Event { return drainOf(id, within, time.Hour, "b") }
	const later = 30 * time.Second
	for name, c := range map[string]struct {
		events []given
		want   asked
	}{
		"half of the time": {
			[]given{{0, drain("d1", time.Hour)}, {0, saveOf("s2", 8*time.Minute)}},
			asked{"s2": 4 * time.Minute},
		},
		"of one in a hurry behind one that is not": {
			[]given{{0, drain("d1", time.Hour)}, {0, saveOf("s2", time.Hour)}, {later, drain("d3", time.Minute)}},
			asked{"s2": later + 30*time.Second, "d3": later + 35*time.Second},
		},
		"of several at once": {
			[]given{{0, drain("d1", time.Minute)}, {0, drain("d2", time.Minute)}, {0, drain("d3", time.Minute)}, {0, drain("d4", time.Minute)}},
			asked{"d2": 30 * time.Second, "d3": 35 * time.Second, "d4": 40 * time.Second},
		},
		"of one behind one that is canceled": {
			[]given{{0, drain("d1", time.Hour)}, {0, saveOf("s2", time.Hour)}, {later, saveOf("s3", 2*later)}, {later, cancel("s2")}},
			asked{"s3": 2 * later},
		},
		"of one behind a drain that is canceled": {
			[]given{{0, saveOf("s0", time.Hour)}, {0, drain("d1", time.Hour)}, {later, saveOf("s2", time.Hour)}, {2 * later, cancel("d1")}},
			asked{"s2": 2*later + 5*time.Second},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, -1)
			n := r.group(policy(1, 2), "a", "b")
			at := map[string]time.Duration{}
			clock := &clock{r: r, due: map[Timer]time.Duration{}}
			answer := func() {
				for _, x := range n {
					if d := x.notice.Directive; d.Round == 1 && !d.Agreed {
						at[d.ID] = clock.now
						r.held(x, d.ID, 7)
					}
				}
			}
			next := 0
			for clock.now < 10*time.Minute {
				for ; next < len(c.events) && c.events[next].at <= clock.now; next++ {
					r.apply(c.events[next].ev)
					answer()
				}
				clock.until(clock.now + 100*time.Millisecond)
				answer()
			}
			for id, latest := range c.want {
				if when, was := at[id]; !was || when > latest+time.Second {
					t.Errorf("%s is asked for at %v (%v), want %v", id, when, was, latest)
				} else if when < latest-time.Second {
					t.Errorf("%s is asked for at %v, want %v", id, when, latest)
				}
			}
		})
	}
}
