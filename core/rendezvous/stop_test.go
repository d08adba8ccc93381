package rendezvous

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// announce makes a node announce the stop of its round.
func (r *rig) announce(n *rigNode, leaving bool, reason string, change ...func(*AnnounceStop)) {
	r.t.Helper()
	ev := AnnounceStop{Request: n.request(), Generation: n.claim.Generation, Round: n.claim.Round, Leaving: leaving, Reason: reason}
	for _, f := range change {
		f(&ev)
	}
	r.apply(ev)
	if reply, ok := n.replies[ev.Number]; !ok || reply.Err != nil {
		r.t.Fatalf("the announcement of %s was answered by %+v", n.id, reply)
	}
}

// wantStop asserts what a node knows of the stop of its round.
func (r *rig) wantStop(n *rigNode, want RoundStop) {
	r.t.Helper()
	if n.notice.Stop != want || (want.Round > 0) != (n.notice.Waiting > 0) {
		r.t.Fatalf("node %s was told %+v, want the stop %+v", n.id, n.notice, want)
	}
}

// TestAnnouncedStop reaches every member at once, the first one counts, and it ends with
// the round.
func TestAnnouncedStop(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(3, 3), "a", "b", "c")
	r.announce(n[1], false, "rank 3 exited with code 7")
	want := RoundStop{Round: 1, Rank: n[1].claim.Rank, Reason: "rank 3 exited with code 7"}
	for _, node := range n {
		r.wantStop(node, want)
		if !strings.Contains(node.notice.Reason, "node b failed: rank 3 exited") {
			t.Errorf("the reason is %q", node.notice.Reason)
		}
	}
	if got := r.m.Status(); got.Stopping != "node b failed: rank 3 exited with code 7" || got.State != "restarting" {
		t.Errorf("the status says %q, state %q", got.Stopping, got.State)
	}
	r.announce(n[2], false, "later")
	r.wantStop(n[0], want)
	r.again(n[0], policy(3, 3))
	r.wantStop(n[0], want)

	for _, node := range n {
		r.join(node)
	}
	o := r.wantRound(n...)
	if r.m.Status().State == "restarting" {
		t.Error("it still restarts")
	}
	for _, node := range n {
		if o.Round != 2 || node.notice.Waiting > 0 {
			t.Errorf("in round %d node %s is told %+v", o.Round, node.id, node.notice)
		}
		r.wantStop(node, RoundStop{})
	}
}

// TestLateAnnouncement of a round that is over, of one that this control plane does not
// know, or by a node that regroups already, does nothing.
func TestLateAnnouncement(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 2), "a", "b")
	r.join(n[0])
	before := r.m.round.stop
	r.announce(n[0], false, "regroups already")
	if r.m.round.stop != before {
		t.Error("a node that regroups already stops its round")
	}
	r.join(n[1])
	r.wantRound(n...)
	for _, change := range []func(*AnnounceStop){
		func(ev *AnnounceStop) { ev.Round-- },
		func(ev *AnnounceStop) { ev.Round++ },
		func(ev *AnnounceStop) { ev.Generation = "another" },
	} {
		r.announce(n[0], false, "late", change)
		r.wantStop(n[1], RoundStop{})
	}
	spare := r.hello("c", policy(2, 2))
	r.announce(spare, true, "no member", func(ev *AnnounceStop) { ev.Round, ev.Generation = r.m.round.number, r.m.round.origin })
	r.wantStop(n[1], RoundStop{})
}

// TestLeavingAnnounced: a node that announces that it leaves is lost to its round, which
// regroups without waiting for its workers to end.
func TestLeavingAnnounced(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 3), "a", "b", "c")
	rank := n[2].claim.Rank
	r.announce(n[2], true, "got signal 15")
	want := RoundStop{Round: 1, Rank: rank, Leaving: true, Reason: "got signal 15", Lost: true}
	r.wantStop(n[0], want)
	r.wantStop(n[1], want)
	r.wantStop(n[2], RoundStop{})
	if r.m.Status().State == "restarting" {
		t.Error("it restarts, but no worker has failed")
	}
	if reason := n[0].notice.Reason; !strings.Contains(reason, "c (is leaving: got signal 15)") {
		t.Errorf("the reason is %q", reason)
	}
	r.join(n[0])
	r.join(n[1])
	r.wantRound(n[0], n[1])
	r.apply(Leave{Request: n[2].request(), Reason: "got signal 15"})
	r.wantStop(n[0], RoundStop{})
}

// TestLossWhileStopping tells the members that a node is lost: a failure may have followed
// from that.
func TestLossWhileStopping(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 3), "a", "b", "c")
	r.announce(n[0], false, "failed")
	want := RoundStop{Round: 1, Rank: n[0].claim.Rank, Reason: "failed"}
	r.wantStop(n[0], want)
	r.join(n[1])
	r.wantStop(n[0], want)
	r.lost(n[2])
	want.Lost = true
	r.wantStop(n[0], want)
}

// unfit makes a node announce a failure and ask to leave; the error says why it stays.
func (r *rig) unfit(n *rigNode, reason string) *Error {
	ev := AnnounceStop{Request: n.request(), Generation: n.claim.Generation, Round: n.claim.Round, Reason: reason, Away: time.Hour}
	r.apply(ev)
	return n.replies[ev.Number].Err
}

// TestUnfitNodeLeaves: its place goes to the spare, its session lasts until it leaves, and it
// is refused until its time is over.
func TestUnfitNodeLeaves(t *testing.T) {
	p := policy(3, 3)
	r := newRig(t, -1)
	n := r.group(p, "a", "b", "c")
	spare := r.hello("d", p)
	r.join(spare)
	rank := n[1].claim.Rank
	if err := r.unfit(n[1], "rank 1 exited with code 13"); err != nil {
		t.Fatal(err)
	}
	r.wantStop(n[0], RoundStop{Round: 1, Rank: rank, Leaving: true, Reason: "rank 1 exited with code 13", Lost: true})
	if s := r.m.Status(); len(s.Drained) != 1 || s.Drained[0] != (DrainedStatus{"b", "node b", "rank 1 exited with code 13", "failures", false}) {
		t.Errorf("kept out: %+v", s.Drained)
	}
	join := Join{Request: n[1].request(), NodeRank: -1, RankHint: -1}
	r.apply(join)
	if err := n[1].replies[join.Number].Err; err == nil || err.Code != CodeUnfit {
		t.Errorf("it joins again: %v", err)
	}
	r.join(n[0])
	r.join(n[2])
	r.wantRound(n[0], n[2], spare)
	if spare.claim.Rank != rank {
		t.Errorf("the spare has rank %d, the node that left had %d", spare.claim.Rank, rank)
	}
	r.apply(Leave{Request: n[1].request(), Reason: "unfit"})
	if back := r.hello("b", p); back.welcomed || !strings.Contains(back.refused.Text, "left it as unfit: rank 1 exited") {
		t.Errorf("it came back and was told %+v", back.refused)
	}
	m, err := Restore(r.m.Snapshot())
	if err != nil || *m.directives.drained["b"] != *r.m.directives.drained["b"] {
		t.Errorf("a restored machine is another one: %v", err)
	}
	r.fire(TimerDrained)
	if back := r.hello("b", p); !back.welcomed {
		t.Errorf("its time is over, and it is refused: %v", back.refused)
	}
}

// TestUnfitNodeStays where leaving would do harm, or another node may be the cause. The
// failure is announced all the same.
func TestUnfitNodeStays(t *testing.T) {
	for name, c := range map[string]struct {
		p      Policy
		before func(r *rig, n []*rigNode)
		want   string
	}{
		"too few left":     {policy(3, 3), nil, "2 would be left, at least 3 are needed"},
		"another failed":   {policy(1, 3), func(r *rig, n []*rigNode) { r.announce(n[0], false, "its disk") }, "node a failed: its disk"},
		"another was lost": {policy(1, 3), func(r *rig, n []*rigNode) { r.lost(n[2]) }, "the round lost a node before, which may be the cause: c"},
		"finishing":        {policy(1, 3), func(r *rig, n []*rigNode) { r.apply(Finish{Request: n[0].request()}) }, "the job is finishing"},
		"its share is out": {policy(1, 3), func(r *rig, n []*rigNode) {
			r.m.directives.drained["x"] = &DrainedFact{Node: "x", Cause: CauseFailures}
		}, "1 of at most 1 nodes are out at their own request"},
		"others were drained": {policy(1, 3), func(r *rig, n []*rigNode) { r.m.directives.drained["x"] = &DrainedFact{Node: "x"} }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, -1)
			n := r.group(c.p, "a", "b", "c")
			if c.before != nil {
				c.before(r, n)
			}
			first := r.m.round.stop == nil
			err := r.unfit(n[1], "failed")
			if c.want == "" {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Text, c.want) {
				t.Fatalf("it was told %v", err)
			}
			if _, out := r.m.directives.drained["b"]; out || first && (r.m.round.stop == nil || r.m.round.stop.Leaving || !strings.HasSuffix(err.Text, strings.TrimPrefix(r.m.round.stop.Reason, "failed; "))) {
				t.Errorf("out: %v, stop %+v", out, r.m.round.stop)
			}
		})
	}
}

// TestStopInSnapshot: an announced stop is part of the state.
func TestStopInSnapshot(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 2), "a", "b")
	r.announce(n[0], false, "failed")
	state := r.m.Snapshot()
	m, err := Restore(state)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(m.Snapshot(), state) {
		t.Error("a restored machine is another one")
	}
	r.m = m
	r.again(n[1], policy(2, 2))
	r.wantStop(n[1], RoundStop{Round: 1, Rank: n[0].claim.Rank, Reason: "failed"})
}

// announceAny is an action of TestGuarantees: a node announces the stop of its round, of
// an earlier or later one, or of one that was never here. rig and conformance check that
// each member knows of the stop of the running round, and that no other comes of it. If
// the last member that runs leaves, the next round may be complete, and has no stop.
func (s *sim) announceAny(t *rapid.T) {
	n := s.pick(t, func(n *rigNode) bool { return s.connected(n) && n.claim.Round > 0 })
	ev := AnnounceStop{Request: n.request(), Generation: n.claim.Generation, Round: n.claim.Round, Reason: "why", Leaving: rapid.IntRange(0, 2).Draw(t, "leaving") == 0}
	if rapid.IntRange(0, 3).Draw(t, "unfit") == 0 {
		ev.Leaving, ev.Away = false, time.Duration(rapid.IntRange(1, 60).Draw(t, "minutes"))*time.Minute
	}
	switch rapid.IntRange(0, 5).Draw(t, "round") {
	case 0:
		ev.Round--
	case 1:
		ev.Round++
	case 2:
		ev.Generation = "never here"
	}
	round, before, present := s.m.round.number, s.m.round.stop, ev.Round == s.m.round.number && ev.Generation == s.m.round.origin
	s.send(ev)
	if after := s.m.round.stop; after != before && s.m.round.number == round && (!present || before != nil) {
		s.t.Fatalf("%+v in round %d: the stop was %+v and is %+v", ev, s.m.round.number, before, after)
	}
}
