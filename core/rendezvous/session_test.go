package rendezvous

import (
	"strings"
	"testing"

	"rallypoint/core/store"
)

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
	r.apply(Disconnect{Session: n.session})
	r.again(n, p)
	again := r.apply(join)
	if len(again) != 1 || again[0].(Reply).Result.(Outcome).Round != 1 {
		t.Fatalf("the repeated join was answered with %+v", again)
	}
}

// TestLossComesBehindAnOutcomeDeliveredAgain: the node takes a notice that comes before
// its outcome for one of the round before.
func TestLossComesBehindAnOutcomeDeliveredAgain(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 2)
	a, b := r.hello("a", p), r.hello("b", p)
	join := Join{Request: a.request(), NodeRank: -1, RankHint: -1}
	a.joinNo = join.Number
	r.apply(join)
	r.join(b)
	r.apply(Disconnect{Session: a.session})
	r.apply(LeaseExpired{Session: b.session})
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
	r.apply(Disconnect{Session: n.session})
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
