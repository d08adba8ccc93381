package rendezvous

import (
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
)

func TestFirstRoundCompletesAtMax(t *testing.T) {
	r := newRig(t, -1)
	a, b := r.hello("a", policy(1, 2)), r.hello("b", policy(1, 2))
	r.join(a)
	r.wantPending(a)
	r.join(b)
	if o := r.wantRound(a, b); o.Round != 1 {
		t.Errorf("the first round has number %d", o.Round)
	}
}

func TestLastCallStartsAtMinAndIsNotExtended(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 4)
	a, b, c := r.hello("a", p), r.hello("b", p), r.hello("c", p)
	r.join(a)
	if r.runs(TimerLastCall) {
		t.Fatal("the last call began below the minimum")
	}
	r.join(b)
	var before Timer
	for timer := range r.timers {
		before = timer
	}
	r.join(c)
	if _, ok := r.timers[before]; !ok || len(r.timers) != 1 {
		t.Fatalf("an arrival changed the last call: %v", r.timers)
	}
	r.fire(TimerLastCall)
	r.wantRound(a, b, c)
}

func TestLastCallEndsBelowMin(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 4)
	a, b := r.hello("a", p), r.hello("b", p)
	r.join(a)
	r.join(b)
	r.lost(b)
	if r.runs(TimerLastCall) {
		t.Fatal("the last call goes on below the minimum")
	}
	r.wantPending(a)
}

func TestQuietPeriodRestartsWithEachArrival(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 4)
	p.QuietPeriod = time.Second
	a, b := r.hello("a", p), r.hello("b", p)
	r.join(a)
	old := r.timers
	r.timers = map[Timer]time.Duration{}
	for timer, after := range old {
		r.timers[timer] = after
	}
	var quiet Timer
	for timer := range r.timers {
		if timer.Kind == TimerQuiet {
			quiet = timer
		}
	}
	r.join(b)
	r.apply(TimerFired{quiet}) // the old one, too late
	r.wantPending(a, b)
	r.fire(TimerQuiet)
	r.wantRound(a, b)
}

// TestDeadNodeHasNoGrace: a node whose process is proven dead does not come back.
func TestDeadNodeHasNoGrace(t *testing.T) {
	for _, broken := range []bool{false, true} {
		r := newRig(t, -1)
		p := policy(2, 3)
		a, b, c := r.hello("a", p), r.hello("b", p), r.hello("c", p)
		r.join(a)
		r.join(b)
		if broken {
			r.apply(Disconnect{Session: c.session})
		}
		r.apply(Disconnect{Session: c.session, Dead: true})
		r.fire(TimerLastCall)
		r.wantRound(a, b)
		r.apply(Disconnect{Session: c.session, Dead: true})
	}
}

// TestDeadNodeThatHasLeft is forgotten, also by a control plane that was restarted meanwhile.
func TestDeadNodeThatHasLeft(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 3)
	a := r.hello("a", p)
	r.hello("b", p)
	leave := Leave{Request: a.request(), Reason: "why"}
	r.apply(leave)
	r.apply(Recovered{Generation: "r1"})
	r.apply(Disconnect{Session: a.session, Dead: true})
	if effects := r.apply(leave); len(effects) > 0 {
		t.Errorf("a node that is forgotten was answered by %+v", effects)
	}
}

func TestLossInsideAFormingRoundIsNotWaitedFor(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 3)
	a, b, c := r.hello("a", p), r.hello("b", p), r.hello("c", p)
	r.join(a)
	r.join(b)
	r.apply(Disconnect{Session: c.session})
	r.fire(TimerLastCall)
	r.wantRound(a, b)
}

func TestLostMemberIsAnnouncedAtOnceAndUntilTheNodeRejoins(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 3)
	n := r.group(p, "a", "b", "c")
	r.lost(n[1])
	for _, x := range []*rigNode{n[0], n[2]} {
		if x.notice.Waiting == 0 || !strings.Contains(x.notice.Reason, "b (connection closed)") {
			t.Fatalf("node %s received %+v", x.id, x.notice)
		}
	}
	r.join(n[0])
	r.wantPending(n[0])
	r.join(n[2])
	if o := r.wantRound(n[0], n[2]); o.Round != 2 {
		t.Errorf("the round after 1 is %d", o.Round)
	}
	if n[0].notice.Waiting != 0 || n[2].notice.Waiting != 0 {
		t.Errorf("a node still waits: %+v %+v", n[0].notice, n[2].notice)
	}
}

// TestNextRoundWhenNoMemberIsLeft forms as a first one does, with a number above: there
// is no node to wait for.
func TestNextRoundWhenNoMemberIsLeft(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 3)
	for _, n := range r.group(p, "a", "b", "c") {
		r.lost(n)
	}
	d, e := r.hello("d", p), r.hello("e", p)
	r.join(d)
	r.join(e)
	r.wantPending(d, e)
	r.fire(TimerLastCall)
	if o := r.wantRound(d, e); o.Round != 2 || o.World != 2 {
		t.Errorf("outcome %+v", o)
	}
}

func TestAWorkerFailureRegroupsAllNodes(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 2), "a", "b")
	r.join(n[0])
	if n[1].notice.Waiting == 0 {
		t.Fatal("the other member was not told")
	}
	r.join(n[1])
	r.wantRound(n[0], n[1])
}

func TestNewcomersAreAnnouncedAfterQuiet(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 4)
	n := r.group(p, "a", "b")
	c := r.hello("c", p)
	r.join(c)
	if n[0].notice.Waiting != 0 {
		t.Fatal("announced without admit_delay")
	}
	d := r.hello("d", p)
	r.join(d)
	r.fire(TimerAdmit)
	if n[0].notice.Waiting != 2 || n[1].notice.Waiting != 2 {
		t.Fatalf("two wait, members received %+v and %+v", n[0].notice, n[1].notice)
	}
	r.join(n[1])
	r.join(n[0])
	r.wantRound(n[0], n[1], c, d)
}

func TestAWaitingNodeThatGivesUpIsNeverAnnounced(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 4)
	n := r.group(p, "a", "b")
	c := r.hello("c", p)
	r.join(c)
	r.apply(Withdraw{Request: c.request(), Join: c.joinNo})
	if r.runs(TimerAdmit) || n[0].notice.Waiting != 0 {
		t.Fatal("the members were disturbed")
	}
	if w := c.replies[c.number].Result.(Withdrawn); w.Completed {
		t.Error("the withdrawal was not accepted")
	}
}

func TestSparesAreNotCounted(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.group(p, "a", "b")
	c := r.hello("c", p)
	r.join(c)
	if r.runs(TimerAdmit) || n[0].notice.Waiting != 0 {
		t.Fatal("a spare was announced")
	}
	_, waiting := r.m.Progress()
	if !waiting.Spare {
		t.Errorf("the spare is not told so: %+v", waiting)
	}
	r.lost(n[1])
	r.join(n[0])
	r.wantRound(n[0], c)
}

func TestMembersHavePriorityOverSpares(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.group(p, "a", "b")
	c := r.hello("c", p)
	r.join(c)
	r.join(n[0])
	r.join(n[1])
	r.wantRound(n[0], n[1])
	r.wantPending(c)
}

func TestRegroupTimeoutGoesOnWithoutAMember(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b", "c")
	r.join(n[0])
	r.join(n[1])
	r.wantPending(n[0], n[1])
	r.fire(TimerRegroup)
	o := r.wantRound(n[0], n[1])
	if len(o.Dropped) != 1 || o.Dropped[0] != "c" {
		t.Errorf("dropped: %q", o.Dropped)
	}
	if n[2].notice.Waiting == 0 {
		t.Fatal("the dropped member was not told")
	}
	r.join(n[2]) // it comes back as a waiting node
	r.fire(TimerAdmit)
	if n[0].notice.Waiting == 0 {
		t.Fatal("the returning node was not announced")
	}
}

func TestRegroupTimeoutBelowMinKeepsWaiting(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 2)
	n := r.group(p, "a", "b")
	r.join(n[0])
	r.fire(TimerRegroup)
	r.wantPending(n[0])
	forming, _ := r.m.Progress()
	if !strings.Contains(forming.Detail, "missing: b") {
		t.Errorf("progress does not name who is missing: %+v", forming)
	}
	c := r.hello("c", p)
	r.join(c)
	r.wantRound(n[0], c)
}

func TestEvictedNodeThatComesBackSeesWaiting(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.group(p, "a", "b")
	r.apply(LeaseExpired{Session: n[1].session})
	if n[1].dropped == nil {
		t.Fatal("its connection was not ended")
	}
	r.join(n[0])
	r.wantRound(n[0])
	r.again(n[1], p)
	if n[1].notice.Waiting == 0 || !strings.Contains(n[1].notice.Reason, "dropped from round 1") {
		t.Fatalf("the evicted node received %+v", n[1].notice)
	}
	r.join(n[1])
	r.fire(TimerAdmit)
	r.join(n[0])
	r.wantRound(n[0], n[1])
}

func TestKeysOfAPastRoundAreOver(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 2), "a", "b")
	r.key(n[0], store.OpWait, 0, "never")
	wait := n[0].number
	r.join(n[0])
	r.join(n[1])
	r.wantRound(n[0], n[1])
	if err := n[0].replies[wait].Err; err == nil || err.Code != CodeRoundOver {
		t.Fatalf("the wait of the past round got %v", n[0].replies[wait])
	}
	n[0].claim.Round = 1
	if err := r.key(n[0], store.OpGet, 0, "x").Err; err == nil || err.Code != CodeRoundOver {
		t.Fatalf("a past round's key got %v", err)
	}
}

func TestStoreAddress(t *testing.T) {
	seen := func(addr string) func(*Hello) {
		return func(h *Hello) { h.SeenAddr, h.ServerAddr = addr, "10.0.0.9" }
	}
	for name, c := range map[string]struct {
		first, second string
		announced     string
		want          string
	}{
		"as seen":                           {"10.0.0.1", "10.0.0.2", "", "10.0.0.1"},
		"as announced":                      {"10.0.0.1", "10.0.0.2", "node1", "node1"},
		"one machine":                       {"127.0.0.1", "127.0.0.1", "", "127.0.0.1"},
		"on the host's own machine, in two": {"127.0.0.1", "10.0.0.2", "", "10.0.0.9"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, -1)
			a, b := r.hello("a", policy(2, 2), seen(c.first)), r.hello("b", policy(2, 2), seen(c.second))
			r.join(a, func(j *Join) { j.StoreAddr, j.StorePort = c.announced, 7 })
			r.join(b)
			if o := r.wantRound(a, b); o.StoreAddr != c.want || o.StorePort != 7 {
				t.Errorf("the store is at %s:%d, want %s:7", o.StoreAddr, o.StorePort, c.want)
			}
		})
	}
}
