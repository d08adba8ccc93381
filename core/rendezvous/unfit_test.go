package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// checked has a node ask to be drained because a check found it unfit.
func (r *rig) checked(n *rigNode, within time.Duration) *Error {
	ev := GiveDirective{Request: n.request(), Unfit: true, Directive: Direct{ID: "of " + n.id, Kind: DirectiveDrain, Within: within, For: time.Hour, Reason: "gpu_xid: Xid 79"}}
	r.apply(ev)
	return n.replies[ev.Number].Err
}

// TestWrongCheckOnAllNodes: of 16 nodes on which a check turns bad 2 leave, once their workers have
// had their time, and 14 continue.
func TestWrongCheckOnAllNodes(t *testing.T) {
	r := newRig(t, -1)
	var ids []string
	for i := range 16 {
		ids = append(ids, fmt.Sprintf("n%02d", i))
	}
	n := r.group(policy(8, 16), ids...)
	out := 0
	for i, node := range n {
		err := r.checked(node, time.Minute)
		if err == nil {
			out++
		} else if !strings.Contains(err.Text, "2 of at most 16 nodes are out at their own request already") && !strings.Contains(err.Text, "2 of at most 2 nodes") {
			t.Errorf("node %d was told %v", i, err)
		}
	}
	s := r.m.Status()
	if out != 2 || len(s.Drained) != 2 || len(s.Directives) != 1 || len(s.Directives[0].Nodes) != 2 {
		t.Fatalf("%d may leave; kept out: %+v; standing %+v", out, s.Drained, s.Directives)
	}
	for _, d := range s.Drained {
		if d.Cause != CauseCheck.String() || !d.Cordoned || d.By != "node "+d.Node {
			t.Errorf("%+v", d)
		}
	}
	r.fire(TimerDirective)
	for _, node := range n[:2] {
		if node.dropped == nil {
			t.Errorf("node %s was not drained", node.id)
		}
		if back := r.hello(node.id, policy(8, 16)); back.welcomed || back.refused.Code != CodeUnfit || !strings.Contains(back.refused.Text, "gpu_xid: Xid 79") {
			t.Errorf("it came back and was told %+v", back.refused)
		}
	}
	if s := r.m.Status(); len(s.Drained) != 2 || s.Drained[0].Cause != CauseCheck.String() || s.Drained[0].Cordoned {
		t.Errorf("kept out: %+v", s.Drained)
	}
	for _, node := range n[2:] {
		r.join(node)
	}
	r.wantRound(n[2:]...)
}

// TestUnfitByCheck: which nodes may leave because of a check, and what becomes of the others.
func TestUnfitByCheck(t *testing.T) {
	host := func(name string) func(*Hello) { return func(h *Hello) { h.HostName = name } }
	for name, c := range map[string]struct {
		p      Policy
		within time.Duration
		hosts  [3]string
		before func(r *rig, n []*rigNode)
		want   string // refusal
		key    string
		stands int
	}{
		"while its workers run": {policy(1, 3), time.Minute, [3]string{"h0", "h1", "h2"}, nil, "", "h1", 1},
		"once they have ended":  {policy(1, 3), 0, [3]string{"h0", "h1", "h2"}, nil, "", "h1", 0},
		"two nodes of a host":   {policy(1, 3), time.Minute, [3]string{"h", "h", "h2"}, nil, "", "b", 1},
		"no host":               {policy(1, 3), time.Minute, [3]string{}, nil, "", "b", 1},
		"too few":               {policy(3, 3), time.Minute, [3]string{}, nil, "2 would be left, at least 3 are needed", "", 0},
		"too few are fit":       {policy(2, 3), time.Minute, [3]string{}, func(r *rig, n []*rigNode) { r.apply(Cordon{Node: "c", By: "x", Reason: "y"}) }, "1 would be left", "", 0},
		"finishing":             {policy(1, 3), time.Minute, [3]string{}, func(r *rig, n []*rigNode) { r.apply(Finish{Request: n[0].request()}) }, "the job is finishing", "", 0},
		"after a failure":       {policy(1, 3), 0, [3]string{}, func(r *rig, n []*rigNode) { r.announce(n[1], false, "failed") }, "", "b", 0},
		"a stop stands": {policy(1, 3), time.Minute, [3]string{}, func(r *rig, n []*rigNode) {
			r.apply(Direct{ID: "s", Kind: DirectiveStop, Within: time.Hour, By: "x", Reason: "y"})
		}, "", "b", 1},
		"a save stands": {policy(1, 3), time.Minute, [3]string{}, func(r *rig, n []*rigNode) {
			r.apply(Direct{ID: "s", Kind: DirectiveSave, Within: time.Hour, By: "x", Reason: "y"})
		}, "", "b", 1},
		"another drain stands": {policy(1, 3), time.Minute, [3]string{}, func(r *rig, n []*rigNode) {
			r.apply(Direct{ID: "s", Kind: DirectiveDrain, Nodes: []string{"c"}, Within: time.Hour, By: "x", Reason: "y"})
		}, "", "b", 1},
		"an administrator was first": {policy(1, 3), time.Minute, [3]string{}, func(r *rig, n []*rigNode) { r.apply(Cordon{Node: "b", By: "x", Reason: "y"}) }, "", "", 0},
		"its share is out": {policy(1, 3), time.Minute, [3]string{}, func(r *rig, n []*rigNode) {
			r.m.directives.drained["x"] = &DrainedFact{Node: "x", Cause: CauseFailures}
		}, "1 of at most 1 nodes are out at their own request", "", 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, -1)
			var n []*rigNode
			for i, id := range []string{"a", "b", "c"} {
				n = append(n, r.hello(id, c.p, host(c.hosts[i])))
				r.join(n[i])
			}
			if r.m.round.number == 0 {
				r.fire(TimerLastCall)
			}
			if c.before != nil {
				c.before(r, n)
			}
			err := r.checked(n[1], c.within)
			row := r.m.directives.drained[c.key]
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Text, c.want) || (row == nil) != (c.key == "") || row != nil && row.Cause != CauseCheck {
				t.Fatalf("it was told %v; the row %+v of %q", err, row, c.key)
			}
			if got := len(r.m.Status().Directives); got != c.stands {
				t.Errorf("%d directives stand, want %d", got, c.stands)
			}
			if again := r.checked(n[1], c.within); (again == nil) != (err == nil) {
				t.Errorf("asked again it was told %v", again)
			}
			if n[1].dropped != nil {
				t.Errorf("it was dropped: %v", n[1].dropped)
			}
		})
	}
}

// TestUnfitNodeThatWaits: a node whose request comes when its workers are stopped and it has asked
// for a place gets none.
func TestUnfitNodeThatWaits(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b", "c")
	r.announce(n[2], false, "failed")
	r.join(n[0])
	r.join(n[1])
	if err := r.checked(n[0], time.Minute); err != nil {
		t.Fatal(err)
	}
	if err := n[0].replies[n[0].joinNo].Err; err == nil || err.Code != CodeUnfit || !strings.Contains(err.Text, "gpu_xid: Xid 79") {
		t.Errorf("its join was answered by %v", err)
	}
	if s := r.m.Status(); len(s.Directives) > 0 || len(s.Drained) != 1 || s.Drained[0].Cordoned {
		t.Errorf("%+v", s)
	}
	r.join(n[2])
	r.wantRound(n[1], n[2])
}

// TestUnfitNodeSavesForLong: a node that is kept out for less time than its workers have to save is
// out by its check all the same.
func TestUnfitNodeSavesForLong(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b", "c")
	ev := GiveDirective{Request: n[1].request(), Unfit: true, Directive: Direct{ID: "x", Kind: DirectiveDrain, Within: time.Hour, For: time.Minute, Reason: "gpu_xid"}}
	r.apply(ev)
	r.fire(TimerDrained)
	if s := r.m.Status(); len(s.Drained) != 1 || !s.Drained[0].Cordoned || len(s.Directives) != 1 {
		t.Fatalf("%+v", s)
	}
	r.fire(TimerDirective)
	if s := r.m.Status(); len(s.Drained) != 1 || s.Drained[0].Cordoned || s.Drained[0].Cause != CauseCheck.String() {
		t.Fatalf("%+v", s.Drained)
	}
	r.fire(TimerDrained)
	if s := r.m.Status(); len(s.Drained) != 0 {
		t.Errorf("%+v", s.Drained)
	}
}

// TestUnfitNodeThatHasLeft: its word keeps out itself, and no other node of its host.
func TestUnfitNodeThatHasLeft(t *testing.T) {
	p := policy(1, 3)
	r := newRig(t, -1)
	onHost := func(h *Hello) { h.HostName = "host" }
	a, b := r.hello("a", p, onHost), r.hello("b", p, onHost)
	r.join(b)
	r.apply(Leave{Request: a.request(), Reason: "why"})
	r.apply(GiveDirective{Request: a.request(), Unfit: true, Directive: Direct{ID: "u", Kind: DirectiveDrain, Reason: "why", For: time.Hour}})
	r.fire(TimerLastCall)
	r.wantRound(b)
	if s := r.m.Status(); len(s.Drained) != 1 || s.Drained[0].Node != "a" {
		t.Errorf("%+v", s.Drained)
	}
}

// unfitAny is an action of TestGuarantees: a node asks to be kept out, by a failure or a check.
func (s *sim) unfitAny(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) && n.claim.Round == s.m.round.number })
	away := time.Duration(rapid.IntRange(1, 60).Draw(t, "away")) * time.Minute
	if rapid.Bool().Draw(t, "fails") {
		s.send(AnnounceStop{Request: n.request(), Generation: n.claim.Generation, Round: n.claim.Round, Reason: "why", Away: away})
		return
	}
	s.count++
	s.send(GiveDirective{Request: n.request(), Unfit: true, Directive: Direct{
		ID: fmt.Sprint("u", s.count), Kind: DirectiveDrain, Reason: "why", Within: time.Duration(rapid.IntRange(0, 1).Draw(t, "within")) * time.Minute, For: away,
	}})
}
