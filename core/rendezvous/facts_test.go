package rendezvous

import (
	"strings"
	"testing"
	"time"
)

// TestFactsOfARunThatWasBegunAgain: a successor knows no more of its last round than the number, and
// what it tells the next one can be believed, though a directive had ended that round.
func TestFactsOfARunThatWasBegunAgain(t *testing.T) {
	p := policy(1, 3)
	was := Facts{Generation: "g", Origin: "g", Round: 3, HostRank: -1, Directives: DirectiveFacts{Seq: 1, EndedRound: 3}}
	m := New(Config{RunID: "job", Generation: "g2", Uptime: -1, Succession: Succession{Term: 2, From: "a", Facts: was}})
	m.Apply(Hello{Session: "s", Node: "b", Policy: p, LastRound: LastRound{HostRank: -1}, InHost: true})
	m.Apply(CloseRun{By: "admin", Reason: "why", Stop: true})
	f := m.Facts()
	if f.Closed.Kind != ClosedFailed || !f.possible(LastRound{}, p.Max) {
		t.Errorf("it tells what no successor believes: %+v", f)
	}
}

// TestStrangersFacts has a node of another job report at a successor, and one whose facts
// cannot be: nothing comes of either.
func TestStrangersFacts(t *testing.T) {
	p := policy(1, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	r = r.dies(n[0], n[1], p)
	known := n[2].facts
	for name, change := range map[string]func(f *Facts, c *LastRound){
		"another job's":           func(f *Facts, c *LastRound) { f.Generation, f.Origin, c.Generation = "x", "x", "x" },
		"a round without end":     func(f *Facts, c *LastRound) { f.Round, c.Round = 1<<64-1, 1<<64-1 },
		"more nodes than max":     func(f *Facts, _ *LastRound) { f.World = 4 },
		"another world":           func(f *Facts, _ *LastRound) { f.World = 2 },
		"no such host":            func(f *Facts, _ *LastRound) { f.HostRank = 3 },
		"hosts that ran on":       func(f *Facts, _ *LastRound) { f.Finished, f.FinishedHosts = false, []int{0} },
		"one host finished twice": func(f *Facts, _ *LastRound) { f.FinishedHosts = []int{0, 0} },
		"a finish of no round":    func(f *Facts, c *LastRound) { f.Round, f.World = 0, 0 },
		"closed somehow":          func(f *Facts, _ *LastRound) { f.Closed.Kind = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			c := n[2].claim
			c.Facts = known
			c.Facts.Finished, c.Facts.Closed = true, Closing{Kind: ClosedFailed, By: "x", Reason: "y"}
			change(&c.Facts, &c)
			x := r.claiming("x "+name, p, c)
			if r.m.closed != nil || r.m.round.finishing() || r.m.round.tally[participantUnknown] != 1 || x.notice.Waiting == 0 {
				t.Errorf("closed %v, finishing %v, %d unknown, it was told %+v", r.m.closed, r.m.round.finishing(), r.m.round.tally[participantUnknown], x.notice)
			}
		})
	}
	r.follows(p, n[2])
	if n[2].notice.Closed || r.m.round.tally[participantUnknown] != 0 {
		t.Errorf("c was told %+v", n[2].notice)
	}
}

// TestKeptOutNodeHasJoinedAlready: a node that is kept out gets no place at a next host either, which
// learns of that after the node has asked for one.
func TestKeptOutNodeHasJoinedAlready(t *testing.T) {
	p := policy(2, 4)
	r, n := hostedRig(t, p, "a", "b", "c", "d")
	told := n[2].facts
	r.apply(Cordon{Node: "b", By: "admin", Reason: "its disk"})
	n[2].facts = told // c was not told of it
	r = r.dies(n[0], n[2], p)
	r.join(n[2])
	b := r.hello("b", p)
	r.join(b)
	r.follows(p, n[3])
	if err := r.wantError(b, CodeGraceful); !strings.Contains(err.Text, "cordoned by admin: its disk") {
		t.Errorf("it was told %q", err.Text)
	}
	r.join(n[3])
	r.fire(TimerLastCall)
	r.wantRound(n[2], n[3])
}

// TestClosedWhileOneRegroups: a node that waits for a place in the next round has none to rejoin for
// when another one reports both a later round and that the run was closed.
func TestClosedWhileOneRegroups(t *testing.T) {
	p := policy(1, 3)
	r := newRig(t, -1)
	r.m = New(Config{RunID: "job", Generation: "g+", Succession: Succession{Term: 2, From: "a"}})
	r.checker.TookOver("c", Succession{Term: 2, From: "a"})
	b := r.hello("b", p, func(h *Hello) { h.LastRound = LastRound{Generation: "g", Round: 2, Rank: 1, World: 2, HostRank: -1} })
	r.join(b)
	r.hello("c", p, func(h *Hello) {
		h.LastRound = LastRound{Generation: "g", Round: 4, World: 1, HostRank: -1, Facts: Facts{Generation: "g", Origin: "g", Round: 4, World: 1, HostRank: -1, Closed: Closing{Kind: ClosedAdmission, By: "admin", Reason: "why"}}}
	})
	r.wantError(b, CodeClosed)
	if b.notice.Waiting != 0 {
		t.Errorf("it was told %+v", b.notice)
	}
}

// TestForgottenRunKeepsItsNumbers has the host die after a closed run was begun again.
func TestForgottenRunKeepsItsNumbers(t *testing.T) {
	r, n := hostedRound(t, policy(1, 2), "a", "b")
	r.apply(CloseRun{By: "admin"})
	r.lost(n[0])
	r.lost(n[1])
	r.fire(TimerClosed)
	p := policy(2, 2)
	c, d := r.hello("c", p), r.hello("d", p)
	r = r.dies(n[0], c, p)
	r.follows(p, d)
	r.join(c)
	r.join(d)
	if o := r.wantRound(c, d); o.Round != 2 {
		t.Errorf("outcome %+v", o)
	}
}

// TestCordonedAgain: how long a node is kept out that was cordoned twice is what the later administrator has said, at
// the next host, too.
func TestCordonedAgain(t *testing.T) {
	p := policy(1, 2)
	r, n := hostedRound(t, p, "a", "b")
	for _, kept := range []time.Duration{time.Hour, 0} {
		r.apply(Cordon{Node: "x", For: kept, By: "admin", Reason: "its disk"})
	}
	next := r.dies(n[0], n[1], p).m
	if timers := next.out.timersOf(TimerDrained); next.directives.drained["x"] == nil || len(timers) > 0 {
		t.Errorf("it is let back in when %v runs out", timers)
	}
}
