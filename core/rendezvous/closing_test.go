package rendezvous

import (
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
)

func TestALossAfterAFinishFailsTheUnfinished(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b", "c")
	r.key(n[0], store.OpAdd, 1, ExitBarrierCount)
	r.lost(n[1])
	if n[2].notice.Waiting == 0 {
		t.Fatal("the unfinished member was not told")
	}
	r.join(n[2])
	err := r.wantError(n[2], CodeClosed)
	for _, want := range []string{"finished: a", "lost: b"} {
		if !strings.Contains(err.Text, want) {
			t.Errorf("%q lacks %q", err.Text, want)
		}
	}
}

func TestNoNodeIsAdmittedAfterAFinish(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 3)
	n := r.group(p, "a", "b")
	r.key(n[0], store.OpAdd, 1, ExitBarrierCount)
	c := r.hello("c", p)
	r.join(c)
	if r.runs(TimerAdmit) {
		t.Fatal("a newcomer is to be admitted")
	}
	r.apply(Leave{Request: n[0].request(), Ending: EndSuccess})
	r.wantError(c, CodeGraceful)
}

func TestSuccessfulEndReachesSparesAndDisturbsNoMember(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.group(p, "a", "b")
	c := r.hello("c", p)
	r.join(c)
	r.key(n[0], store.OpAdd, 1, ExitBarrierCount)
	r.apply(Leave{Request: n[0].request(), Ending: EndSuccess})
	r.wantError(c, CodeGraceful)
	if n[1].notice.Waiting != 0 || !n[1].notice.Closed {
		t.Fatalf("the running member received %+v", n[1].notice)
	}
	d := r.hello("d", p)
	r.join(d)
	if err := r.wantError(d, CodeGraceful); !strings.Contains(err.Text, "ended successfully by a") {
		t.Errorf("the error does not say who closed: %v", err)
	}
}

func TestFailedEndStopsAllNodes(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b", "c")
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.apply(Leave{Request: n[0].request(), Ending: EndFailed, Reason: "rank 0 exited with 1", At: at})
	if n[1].notice.Waiting == 0 || n[2].notice.Waiting == 0 {
		t.Fatal("the others were not told")
	}
	r.join(n[1])
	err := r.wantError(n[1], CodeClosed)
	for _, want := range []string{"failed by a", "2026-01-02T03:04:05Z", "rank 0 exited with 1"} {
		if !strings.Contains(err.Text, want) {
			t.Errorf("%q lacks %q", err.Text, want)
		}
	}
}

func TestLeavingClosesNothingForANodeThatIsNoMember(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.group(p, "a", "b")
	spare, idle := r.hello("c", p), r.hello("d", p)
	r.join(spare)
	for _, x := range []*rigNode{spare, idle} {
		r.apply(Leave{Request: x.request(), Ending: EndSuccess})
		r.apply(Leave{Request: x.request(), Ending: EndFailed})
	}
	if n[0].notice.Closed || n[0].notice.Waiting != 0 {
		t.Fatalf("a bystander's end reached the members: %+v", n[0].notice)
	}
	r.apply(Leave{Request: n[1].request(), Ending: EndLeave})
	if n[0].notice.Closed || n[0].notice.Waiting == 0 {
		t.Fatalf("a member's leave must regroup, not close: %+v", n[0].notice)
	}
}

func TestSetClosedLeavesTheRunningRoundAlone(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 3)
	n := r.group(p, "a", "b")
	c := r.hello("c", p)
	r.join(c)
	r.apply(CloseRun{Request: n[0].request()})
	if n[1].notice.Waiting != 0 || !n[1].notice.Closed {
		t.Fatalf("the running member received %+v", n[1].notice)
	}
	r.wantError(c, CodeClosed)
}

func TestClosedRunIsForgottenWhenItsTimeIsOver(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 1)
	n := r.group(p, "a")
	r.apply(Leave{Request: n[0].request(), Ending: EndSuccess})
	r.apply(Disconnect{Session: n[0].session})
	back := r.hello("a", p)
	r.join(back)
	r.wantError(back, CodeGraceful)
	r.lost(back)
	r.fire(TimerClosed)
	fresh := r.hello("b", policy(1, 2))
	r.join(fresh)
	r.fire(TimerLastCall)
	if o := r.wantRound(fresh); o.Round != 2 {
		t.Errorf("the forgotten run's numbers did not go on: round %d", o.Round)
	}
}

func TestAwaitPeersEndsWhenTheOthersAreDone(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b", "c")
	r.apply(Leave{Request: n[0].request(), Ending: EndSuccess})
	r.apply(AwaitPeers{n[0].request()})
	linger := n[0].number
	done := func() bool { _, ok := n[0].replies[linger]; return ok }
	r.key(n[1], store.OpAdd, 1, ExitBarrierCount)
	if done() {
		t.Fatal("it ended while a member runs")
	}
	r.lost(n[2])
	if !done() {
		t.Fatal("it did not end when the last member was lost")
	}
}

// TestEndIsKnownBeforeTheRefusal: a node whose join is refused because the run has ended knows
// by then how it has ended, which its agent asks for next.
func TestEndIsKnownBeforeTheRefusal(t *testing.T) {
	p := policy(2, 2)
	r := newRig(t, -1)
	n := r.group(p, "a", "b")
	spare := r.hello("c", p)
	r.join(spare)
	r.join(n[1])
	r.apply(Direct{ID: "d1", Kind: DirectiveStop, By: "admin carol", Reason: "why not"})
	for _, node := range []*rigNode{spare, n[1]} {
		r.wantError(node, CodeClosed)
		told := false
		for _, e := range r.effects {
			switch e := e.(type) {
			case Notify:
				told = told || e.Session == node.session && e.Update.Requeue && e.Update.Closed
			case Reply:
				if e.Session == node.session && !told {
					t.Errorf("node %s was refused before it was told how the run has ended: %+v", node.id, r.effects)
				}
			}
		}
	}
}

// TestHowItEnded: a run was closed, or stopped, by an administrator or a node; it failed, or
// ended, by itself.
func TestHowItEnded(t *testing.T) {
	for kind, want := range map[ClosedKind]string{
		ClosedAdmission: "was closed by carol: why",
		ClosedRequeue:   "was stopped to be queued again by carol: why",
		ClosedFailed:    "failed by carol: why",
		ClosedSuccess:   "ended successfully by carol: why",
	} {
		c := Closing{Kind: kind, By: "carol", Reason: "why"}
		if got := c.sentence(); got != want {
			t.Errorf("it %q, want %q", got, want)
		}
	}
}
