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

func TestFirstRoundCompletesAtTarget(t *testing.T) {
	p := policy(1, 4)
	p.Target = 2
	r := newRig(t, 0)
	r.group(p, "a", "b")
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

func TestNoRoundCompletesInsideAGrace(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 3)
	a, b, c := r.hello("a", p), r.hello("b", p), r.hello("c", p)
	r.join(a)
	r.join(b)
	r.apply(Disconnect{a.session})
	r.join(c)
	r.wantPending(a, b, c)
	r.again(a, p)
	r.wantRound(a, b, c)
}

func TestLossInsideAFormingRoundIsNotWaitedFor(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 3)
	a, b, c := r.hello("a", p), r.hello("b", p), r.hello("c", p)
	r.join(a)
	r.join(b)
	r.apply(Disconnect{c.session})
	r.fire(TimerLastCall)
	r.wantRound(a, b)
}

func TestRoundIsAMultipleOfTheUnit(t *testing.T) {
	p := policy(2, 6)
	p.NodeUnit = 2
	r := newRig(t, -1)
	var nodes []*rigNode
	for _, id := range []string{"a", "b", "c", "d", "e"} {
		n := r.hello(id, p)
		r.join(n)
		nodes = append(nodes, n)
	}
	r.fire(TimerLastCall)
	r.wantRound(nodes[:4]...)
	r.wantPending(nodes[4])
}

func TestLostMemberIsAnnouncedAtOnceAndUntilTheNodeRejoins(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 3)
	n := r.group(p, "a", "b", "c")
	r.lost(n[1])
	for _, x := range []*rigNode{n[0], n[2]} {
		if x.notice.Waiting == 0 || !strings.Contains(x.notice.Reason, "b (lost: connection closed)") {
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

func TestLossIsAnnouncedBelowMin(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 2)
	n := r.group(p, "a", "b")
	r.lost(n[1])
	if n[0].notice.Waiting == 0 {
		t.Fatal("the survivor was not told")
	}
	r.join(n[0])
	r.wantPending(n[0])
	c := r.hello("c", p)
	r.join(c)
	r.wantRound(n[0], c)
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

func TestAWorkerFailureRegroupsEverybody(t *testing.T) {
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
	r.apply(LeaseExpired{n[1].session})
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

func TestFinishedMemberIsNeitherWaitedForNorLost(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b", "c")
	r.key(n[0], store.OpAdd, 1, ExitBarrierCount)
	r.lost(n[0])
	if n[1].notice.Waiting != 0 {
		t.Fatal("a finished member was announced as lost")
	}
	r.join(n[1])
	err := r.wantError(n[1], CodeClosed)
	if !strings.Contains(err.Text, "finished: a") {
		t.Errorf("the error does not name who finished: %v", err)
	}
}

func TestExitBarrierDoesNotWaitForTheLost(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b", "c")
	r.key(n[0], store.OpAdd, 1, ExitBarrierCount)
	if reply := r.key(n[0], store.OpWait, 0, exitBarrierLast); reply.Result != nil {
		t.Fatal("the barrier opened early")
	}
	wait := n[0].number
	r.key(n[1], store.OpAdd, 1, ExitBarrierCount)
	r.lost(n[2])
	if _, ok := n[0].replies[wait]; !ok {
		t.Fatal("the barrier did not open when the last unfinished member was lost")
	}
}

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

func TestNobodyIsAdmittedAfterAFinish(t *testing.T) {
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

func TestSuccessfulEndTellsSparesAndDisturbsNobody(t *testing.T) {
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
	if err := r.wantError(d, CodeClosed); !strings.Contains(err.Text, "ended successfully by a") {
		t.Errorf("the error does not say who closed: %v", err)
	}
}

func TestFailedEndStopsEverybody(t *testing.T) {
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

func TestLeavingIsNotClosingForWhoeverIsNoMember(t *testing.T) {
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

func TestAdminStopIsAFailedClose(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 2), "a", "b")
	r.apply(CloseRun{By: "admin", Reason: "maintenance", Stop: true})
	if n[0].notice.Waiting == 0 || !strings.Contains(n[0].notice.Reason, "maintenance") {
		t.Fatalf("the member received %+v", n[0].notice)
	}
}

func TestClosedRunIsForgottenWhenANewNodeComesToAnEmptyOne(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 1)
	n := r.group(p, "a")
	r.apply(Leave{Request: n[0].request(), Ending: EndSuccess})
	r.apply(Disconnect{n[0].session})
	back := r.hello("a", p)
	r.join(back)
	r.wantError(back, CodeClosed)
	r.lost(back)
	fresh := r.hello("b", policy(1, 2))
	r.join(fresh)
	r.fire(TimerLastCall)
	if o := r.wantRound(fresh); o.Round != 2 {
		t.Errorf("the forgotten run's numbers did not go on: round %d", o.Round)
	}
}

func TestNodesThatDisagreeAreRefusedByName(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 3), "a", "b")
	c := r.hello("c", policy(1, 3))
	if c.refused == nil || c.refused.Code != CodeMismatch {
		t.Fatalf("refused: %v", c.refused)
	}
	for _, want := range []string{"node c", "nnodes=1:3", "node a", "nnodes=2:3"} {
		if !strings.Contains(c.refused.Text, want) {
			t.Errorf("%q lacks %q", c.refused.Text, want)
		}
	}
	if n[0].notice.Waiting != 0 {
		t.Error("the healthy job noticed")
	}
}

func TestANewerIncarnationReplacesAtOnce(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.group(p, "a", "b")
	second := r.hello("b", p, func(h *Hello) { h.Incarnation = 1 })
	if second.refused != nil || n[0].notice.Waiting == 0 {
		t.Fatalf("refused %v, the other received %+v", second.refused, n[0].notice)
	}
	third := r.hello("b", p)
	if third.refused == nil || third.refused.Code != CodeNodeInUse {
		t.Fatalf("an older start took the name of a live node: %v", third.refused)
	}
	delete(r.nodes, "b")
	r.join(second)
	r.join(n[0])
	if o := r.wantRound(n[0], second); o.World != 2 {
		t.Error(o)
	}
	if o, _, _ := second.outcome(); o.Rank != 1 {
		t.Errorf("the restarted node did not get its old rank back, but %d", o.Rank)
	}
}

func TestASessionBelongsToOneNode(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")[0]
	r.apply(Hello{Session: n.session, Node: "b", Policy: policy(1, 1)})
	if n.refused == nil || n.refused.Code != CodeInvalid {
		t.Fatalf("another node took the session over: %v", n.refused)
	}
}

func TestRequestsAreAppliedOnce(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")[0]
	add := KeyRequest{Request: n.request(), Round: 1, Op: store.OpAdd, Keys: []string{"k"}, Amount: 5}
	for range 3 {
		r.apply(add)
	}
	if got := n.replies[add.Request.Number].Result.(KeyResult).Number; got != 5 {
		t.Fatalf("applied more than once: %d", got)
	}
	next := n.request()
	next.Acked = add.Request.Number
	r.apply(KeyRequest{Request: next, Round: 1, Op: store.OpNumKeys})
	r.apply(add) // a late duplicate of what was acknowledged
	if got := r.key(n, store.OpGet, 0, "k").Result.(KeyResult); string(got.Values[0]) != "5" {
		t.Fatalf("a late duplicate was applied: %s", got.Values[0])
	}
}

func TestOutcomeIsDeliveredAgainUntilAcknowledged(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 1)
	n := r.hello("a", p)
	join := Join{Request: n.request(), NodeRank: -1, RankHint: -1}
	n.joinNo = join.Number
	r.apply(join)
	r.wantRound(n)
	r.apply(Disconnect{n.session})
	r.again(n, p)
	again := r.apply(join)
	if len(again) != 1 || again[0].(Reply).Result.(Outcome).Round != 1 {
		t.Fatalf("the repeated join was answered with %+v", again)
	}
}

// TestLossIsToldBehindAnOutcomeDeliveredAgain: the node takes a notice that comes before
// its outcome for one of the round before.
func TestLossIsToldBehindAnOutcomeDeliveredAgain(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 2)
	a, b := r.hello("a", p), r.hello("b", p)
	join := Join{Request: a.request(), NodeRank: -1, RankHint: -1}
	a.joinNo = join.Number
	r.apply(join)
	r.join(b)
	r.apply(Disconnect{a.session})
	r.apply(LeaseExpired{b.session})
	r.again(a, p)
	again := r.apply(join)
	if len(again) != 2 || again[0].(Reply).Result.(Outcome).Round != 1 || again[1].(Notify).Update.Waiting != 1 {
		t.Fatalf("the repeated join was answered with %+v", again)
	}
}

// TestWithdrawnJoinIsNotRepeated has a node come back with a join whose withdrawal
// was answered while it was away: no node waits in it any more.
func TestWithdrawnJoinIsNotRepeated(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.hello("a", p)
	join := Join{Request: n.request(), NodeRank: -1, RankHint: -1, StorePort: 1}
	n.joinNo = join.Number
	withdraw := Withdraw{Request: n.request(), Join: join.Number}
	r.apply(join)
	r.apply(withdraw)
	r.apply(Disconnect{n.session})
	r.again(n, p)
	r.apply(join)
	r.apply(withdraw)
	r.wantError(n, CodeCanceled)
	if _, pending := r.m.Forming(n.session); pending {
		t.Error("the node takes part again")
	}
}

func TestWithdrawingACompletedJoinHasSucceeded(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 1), "a")[0]
	r.apply(Withdraw{Request: n.request(), Join: n.joinNo})
	if w := n.replies[n.number].Result.(Withdrawn); !w.Completed {
		t.Fatal("a completed join was withdrawn")
	}
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

func TestLingerEndsWhenTheOthersAreDone(t *testing.T) {
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

func TestVanishedFinishersEndTheRun(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.group(p, "a", "b")
	spare := r.hello("c", p)
	r.join(spare)
	for _, x := range n {
		r.key(x, store.OpAdd, 1, ExitBarrierCount)
	}
	r.lost(n[0])
	r.wantPending(spare)
	r.lost(n[1])
	r.wantError(spare, CodeGraceful)
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
