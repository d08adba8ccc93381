package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// restarted replaces the control plane by a fresh one that just began to listen.
func (r *rig) restarted() *rig {
	fresh := newRig(r.t, 0)
	fresh.m = New(Config{RunID: "job", Generation: fmt.Sprint(r.m.generation, "+"), Uptime: 0})
	fresh.nodes = r.nodes
	return fresh
}

// returns says hello with the node's claim and a session the host does not know.
func (r *rig) returns(n *rigNode, p Policy) {
	r.t.Helper()
	n.replies = map[uint64]Reply{}
	n.joinNo = 0
	r.again(n, p)
}

func TestFreshHostHoldsAPartialRound(t *testing.T) {
	r := newRig(t, 0)
	p := policy(1, 3)
	p.QuietPeriod = time.Second
	a := r.hello("a", p)
	r.join(a)
	r.fire(TimerQuiet)
	r.wantPending(a)
	r.fire(TimerHold)
	r.wantRound(a)
}

// TestHowLongAFreshControlPlaneWaits has the times of docs/decisions/0038.
func TestHowLongAFreshControlPlaneWaits(t *testing.T) {
	slow, fast := policy(1, 4), policy(1, 4)
	slow.ReconnectGrace, fast.ReconnectGrace = 5*time.Second, 0
	claim := LastRound{Generation: "old", Round: 3, Rank: 1, World: 3, HostRank: 0}
	facts := Facts{Generation: "old", Origin: "old", Round: 3, World: 3, HostRank: 0}
	successor := Succession{Term: 2, From: "a", Facts: facts}
	large, larger := facts, facts
	large.World, larger.World = 2000, 8000
	for name, test := range map[string]struct {
		config Config
		policy Policy
		claim  LastRound
		want   time.Duration // 0: not at all
	}{
		"at a fixed endpoint":                {Config{}, policy(1, 4), LastRound{}, 2 * time.Second},
		"it has listened for a while":        {Config{Uptime: 1500 * time.Millisecond}, policy(1, 4), LastRound{}, 500 * time.Millisecond},
		"it has listened for longer":         {Config{Uptime: time.Minute}, policy(1, 4), LastRound{}, 0},
		"min is max":                         {Config{}, policy(4, 4), LastRound{}, 0},
		"at a port of the system":            {Config{Uptime: -1}, policy(1, 4), LastRound{}, 0},
		"a member has come":                  {Config{}, policy(1, 4), claim, 10 * time.Second},
		"a member has come, min is max":      {Config{}, policy(4, 4), claim, 10 * time.Second},
		"a successor":                        {Config{Succession: successor}, policy(1, 4), LastRound{}, 2 * time.Second},
		"a successor, a member has come":     {Config{Succession: successor}, policy(1, 4), claim, 2 * time.Second},
		"a successor, a longer grace":        {Config{Succession: successor}, slow, LastRound{}, 5 * time.Second},
		"a successor, no grace":              {Config{Succession: successor}, fast, LastRound{}, 2 * time.Second},
		"a successor of 2000 nodes":          {Config{Succession: Succession{Term: 2, From: "a", Facts: large}}, policy(1, 2000), LastRound{}, 4 * time.Second},
		"a successor of 8000 nodes":          {Config{Succession: Succession{Term: 2, From: "a", Facts: larger}}, policy(1, 8000), LastRound{}, 10 * time.Second},
		"a successor that has a long grace":  {Config{Succession: Succession{Term: 2, Facts: facts, Grace: time.Minute}}, fast, LastRound{}, time.Minute},
		"a successor that has a short grace": {Config{Succession: Succession{Term: 2, Facts: facts, Grace: time.Millisecond}}, fast, LastRound{}, 2 * time.Second},
		"a successor before the first round": {Config{Succession: Succession{Term: 2, Facts: Facts{Generation: "old", HostRank: -1}}},
			policy(1, 4), LastRound{}, 0},
		"a successor of a host that was alone": {Config{Succession: Succession{Term: 2, From: "a",
			Facts: Facts{Generation: "old", Origin: "old", Round: 3, World: 1}}}, policy(1, 4), LastRound{}, 0},
	} {
		r := newRig(t, 0)
		test.config.RunID, test.config.Generation = "job", "new"
		r.m, r.checker = New(test.config), deaf{}
		r.hello("b", test.policy, func(h *Hello) { h.LastRound = test.claim })
		var got time.Duration
		for timer, after := range r.timers {
			if timer.Kind == TimerHold {
				got = after
			}
		}
		if got != test.want {
			t.Errorf("%s: it waits %v, want %v", name, got, test.want)
		}
	}
}

func TestFreshHostAdoptsReturningMembers(t *testing.T) {
	old := newRig(t, -1)
	p := policy(1, 3)
	n := old.group(p, "a", "b", "c")
	r := old.restarted()
	r.returns(n[1], p)
	r.returns(n[2], p)
	if n[1].notice.Waiting != 0 {
		t.Fatalf("a member that came back received %+v", n[1].notice)
	}
	r.returns(n[0], p)
	before, after := old.m.Status(), r.m.Status()
	if after.RoundStore == "" || after.RoundStore != before.RoundStore || after.RoundGeneration != before.Generation {
		t.Errorf("the round's store is %q of %q, it was %q of %q", after.RoundStore, after.RoundGeneration, before.RoundStore, before.Generation)
	}
	if r.m.round.awaited() != 3 || r.m.Round() != 1 {
		t.Fatalf("round %d, %d members", r.m.Round(), r.m.round.awaited())
	}
	if r.runs(TimerHold) {
		t.Error("the hold goes on though all members are back")
	}
	if n[0].notice.Waiting != 0 {
		t.Fatalf("a whole round was disturbed: %+v", n[0].notice)
	}
	for _, x := range n {
		r.join(x)
	}
	if o := r.wantRound(n...); o.Round != 2 {
		t.Errorf("the next round is %d", o.Round)
	}
}

func TestTheRestartedHostsOwnNodeIsLostAtOnce(t *testing.T) {
	old := newRig(t, -1)
	p := policy(1, 2)
	a := old.hello("a", p, func(h *Hello) { h.InHost = true })
	b := old.hello("b", p)
	old.join(a)
	old.join(b)
	old.wantRound(a, b)
	r := old.restarted()
	r.returns(b, p)
	if b.notice.Waiting == 0 || !strings.Contains(b.notice.Reason, "hosted the control plane") {
		t.Fatalf("the survivor received %+v", b.notice)
	}
	again := r.hello("a2", p, func(h *Hello) { h.InHost = true })
	r.join(again)
	r.join(b)
	r.wantRound(again, b)
}

func TestAStragglerOfAnOlderRoundDoesNotHideTheNewerOne(t *testing.T) {
	old := newRig(t, -1)
	p := policy(1, 3)
	n := old.group(p, "a", "b", "c")
	old.apply(LeaseExpired{Session: n[2].session})
	old.join(n[0])
	old.join(n[1])
	old.wantRound(n[0], n[1]) // round 2, without c
	r := old.restarted()
	r.returns(n[2], p)
	r.returns(n[0], p)
	r.returns(n[1], p)
	if r.m.Round() != 2 || n[0].notice.Waiting != 0 || n[2].notice.Waiting == 0 {
		t.Fatalf("round %d; members told %+v, straggler %+v", r.m.Round(), n[0].notice, n[2].notice)
	}
}

func TestALastRoundCannotMakeTheHostAllocate(t *testing.T) {
	r := newRig(t, 0)
	p := policy(1, 2)
	r.hello("x", p, func(h *Hello) {
		h.LastRound = LastRound{Generation: "g", Round: 1, Rank: 0, World: 1 << 30, HostRank: -1}
	})
	if len(r.m.round.participants) > 2 {
		t.Fatalf("%d seats were made", len(r.m.round.participants))
	}
}
