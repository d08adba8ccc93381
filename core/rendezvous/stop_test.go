package rendezvous

import (
	"bytes"
	"strings"
	"testing"

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
	if got := r.m.Status(); got.Stopping != "node b failed: rank 3 exited with code 7" || !got.Restarting {
		t.Errorf("the status says %q, restarting %v", got.Stopping, got.Restarting)
	}
	r.announce(n[2], false, "later")
	r.wantStop(n[0], want)
	r.again(n[0], policy(3, 3))
	r.wantStop(n[0], want)

	for _, node := range n {
		r.join(node)
	}
	o := r.wantRound(n...)
	if r.m.Status().Restarting {
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
	before := r.m.stop
	r.announce(n[0], false, "regroups already")
	if r.m.stop != before {
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
	r.announce(spare, true, "no member", func(ev *AnnounceStop) { ev.Round, ev.Generation = r.m.round, r.m.origin })
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
	if r.m.Status().Restarting {
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

// TestStopInSnapshot: what was announced is part of the state.
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
	switch rapid.IntRange(0, 5).Draw(t, "round") {
	case 0:
		ev.Round--
	case 1:
		ev.Round++
	case 2:
		ev.Generation = "never here"
	}
	round, before, present := s.m.round, s.m.stop, ev.Round == s.m.round && ev.Generation == s.m.origin
	s.send(ev)
	if after := s.m.stop; after != before && s.m.round == round && (!present || before != nil) {
		s.t.Fatalf("%+v in round %d: the stop was %+v and is %+v", ev, s.m.round, before, after)
	}
}
