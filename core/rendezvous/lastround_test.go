package rendezvous

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"rallypoint/core/store"
)

// claiming makes a new node say hello with a claim.
func (r *rig) claiming(id string, p Policy, c LastRound) *rigNode {
	r.t.Helper()
	n := r.hello(id, p, func(h *Hello) { h.LastRound = c })
	n.claim = c
	return n
}

// strange is a claim of another job's round.
func strange(round uint64) LastRound {
	return LastRound{Generation: "another job", Round: round, World: 2, HostRank: -1}
}

// TestAStrangersLastRoundLeavesTheRunningRoundAlone has a node of another job say hello
// while a round runs, at the worst moment: one member waits in the exit barrier.
func TestAStrangersLastRoundLeavesTheRunningRoundAlone(t *testing.T) {
	for round, next := range map[uint64]uint64{7: 8, 1: 2, maxFloor: maxFloor + 1, maxFloor + 1: 2, math.MaxUint64: 2} {
		t.Run(fmt.Sprint("claim of ", round), func(t *testing.T) {
			r := newRig(t, 0)
			p := policy(2, 3)
			n := r.group(p, "a", "b")
			r.key(n[0], store.OpSet, 0, "k", "v")
			r.key(n[1], store.OpWait, 0, ExitBarrierLast)
			waits := n[1].number
			x := r.claiming("x", p, strange(round))
			if x.notice.Waiting == 0 || !strings.Contains(x.notice.Reason, fmt.Sprint("round ", round)) {
				t.Errorf("the stranger received %+v", x.notice)
			}
			if n[0].notice.Waiting != 0 || n[1].notice.Waiting != 0 {
				t.Errorf("members received %+v, %+v", n[0].notice, n[1].notice)
			}
			if reply := r.key(n[1], store.OpGet, 0, "k"); reply.Err != nil {
				t.Fatalf("the keys are gone: %v", reply.Err)
			}
			r.key(n[0], store.OpAdd, 1, ExitBarrierCount)
			r.key(n[1], store.OpAdd, 1, ExitBarrierCount)
			if reply := n[1].replies[waits]; reply.Err != nil || !reply.Result.(KeyResult).Ready {
				t.Fatalf("the exit barrier ended with %+v", reply)
			}

			r = newRig(t, 0)
			n = r.group(p, "a", "b")
			r.claiming("x", p, strange(round))
			r.join(n[0])
			r.join(n[1])
			if o := r.wantRound(n...); o.Round != next {
				t.Errorf("the next round is %d, want %d", o.Round, next)
			}
		})
	}
}

// TestAStrangersLastRoundLeavesAnAdoptedRoundAlone has it come to a control plane that was
// restarted, whose members are all back.
func TestAStrangersLastRoundLeavesAnAdoptedRoundAlone(t *testing.T) {
	old := newRig(t, -1)
	p := policy(1, 3)
	n := old.group(p, "a", "b")
	r := old.restarted()
	r.returns(n[0], p)
	r.returns(n[1], p)
	r.claiming("x", p, strange(7))
	if r.m.Round() != 1 || n[0].notice.Waiting != 0 || n[1].notice.Waiting != 0 {
		t.Fatalf("round %d; the members received %+v, %+v", r.m.Round(), n[0].notice, n[1].notice)
	}
	if r.runs(TimerHold) {
		t.Error("the hold goes on though all members are back")
	}
	r.join(n[0])
	r.join(n[1])
	if o := r.wantRound(n...); o.Round != 8 {
		t.Errorf("the next round is %d", o.Round)
	}
}

// TestAFalseLastRoundOfThisGeneration names a round in which no node can have been: a control
// plane that was never restarted knows all of its own.
func TestAFalseLastRoundOfThisGeneration(t *testing.T) {
	r := newRig(t, 0)
	p := policy(1, 3)
	n := r.group(p, "a", "b")
	generation := r.m.generation
	c := n[0].claim
	c.Round = 5
	r.claiming("x", p, c)
	if r.m.generation != generation || n[0].notice.Waiting != 0 {
		t.Fatalf("generation %s, the members received %+v", r.m.generation, n[0].notice)
	}
}

// goBack replaces the control plane by one that was started on an older state.
func (r *rig) goBack(state []byte) {
	r.t.Helper()
	m, err := Restore(state)
	if err != nil {
		r.t.Fatal(err)
	}
	r.m = m
	clear(r.timers)
	for _, t := range m.Timers() {
		r.timers[t.Timer] = t.After
	}
	r.apply(Recovered{Generation: "drawn at the start"})
}

// lateRig is a run of a, b and c in round 2, and what its control plane was in round 1,
// when b's join of it was still pending, and without c. Its checker follows the older state.
func lateRig(t *testing.T, p Policy) (r *rig, n []*rigNode, state []byte) {
	r = newRig(t, -1)
	a, b := r.hello("a", p), r.hello("b", p)
	r.join(a)
	r.join(b)
	if r.runs(TimerLastCall) {
		r.fire(TimerLastCall)
	}
	r.wantRound(a, b)
	r.join(b)
	state = r.m.Snapshot()
	checker := r.checker
	r.checker = deaf{}
	c := r.hello("c", p)
	r.join(c)
	r.join(a)
	r.wantRound(a, b, c)
	r.checker = checker
	return r, []*rigNode{a, b, c}, state
}

type deaf struct{}

func (deaf) Apply(Event, []Effect)       {}
func (deaf) Found() []string             { return nil }
func (deaf) Restarted()                  {}
func (deaf) TookOver(string, Succession) {}

// TestAStateThatWentBackInTime restores a copy of what the control plane had stored. The
// nodes were in round 2, of which it knows nothing; one of them is dead.
func TestAStateThatWentBackInTime(t *testing.T) {
	p := policy(2, 3)
	r, n, state := lateRig(t, p)
	generation := r.m.generation
	r.goBack(state)
	r.again(n[0], p)
	if r.m.generation != "drawn at the start" {
		t.Errorf("it goes on under %s", r.m.generation)
	}
	if n[0].notice.Waiting == 0 || !strings.Contains(n[0].notice.Reason, "was in round 2") {
		t.Fatalf("a member received %+v", n[0].notice)
	}
	if reply := r.key(n[0], store.OpGet, 0, RoleInfoPrefix+"1"); CodeOf(reply.Err) != CodeRoundOver {
		t.Fatalf("a request of round 2 was answered by %+v", reply)
	}
	r.claiming("c", p, n[2].claim)
	c := r.nodes["c"]
	if c.notice.Waiting == 0 {
		t.Errorf("c received %+v", c.notice)
	}
	r.join(n[0])
	r.join(c)
	r.wantPending(n[0], c) // b may come back
	r.fire(TimerGrace)
	if o := r.wantRound(n[0], c); o.Round != 3 || o.Generation == generation {
		t.Errorf("round %d of generation %s", o.Round, o.Generation)
	}
}

// TestAJoinThatWasAnsweredInALostState is of a node whose join is pending in the restored
// copy: its answer was the round that it is in.
func TestAJoinThatWasAnsweredInALostState(t *testing.T) {
	p := policy(2, 3)
	r, n, state := lateRig(t, p)
	r.goBack(state)
	r.again(n[0], p)
	r.join(n[0])
	r.again(n[1], p)
	r.wantPending(n[0]) // b has to join first: what the control plane holds is no join of its
	if n[1].notice.Waiting == 0 {
		t.Fatalf("b received %+v", n[1].notice)
	}
	r.join(n[1])
	r.wantRound(n[0], n[1])
}

// TestAFirstJoinThatWasAnsweredInALostState is of a node whose first join is pending in the
// restored copy. It comes back when others have told of the round that it is in already,
// before or after a round without it.
func TestAFirstJoinThatWasAnsweredInALostState(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("late ", late), func(t *testing.T) {
			r := newRig(t, -1)
			p := policy(2, 3)
			n := r.group(p, "a", "b")
			c := r.hello("c", p)
			r.join(c)
			state := r.m.Snapshot()
			checker := r.checker
			r.checker = deaf{}
			r.join(n[0])
			r.join(n[1])
			r.wantRound(n[0], n[1], c)
			r.checker = checker
			r.goBack(state)
			r.again(n[0], p)
			r.again(n[1], p)
			if late {
				r.join(n[0])
				r.join(n[1])
				if r.runs(TimerLastCall) {
					r.fire(TimerLastCall)
				}
				r.wantRound(n...)
			}
			r.again(c, p)
			if c.notice.Waiting == 0 || !strings.Contains(c.notice.Reason, "was in round 2") {
				t.Fatalf("c received %+v", c.notice)
			}
			r.join(c)
			r.join(n[0])
			r.join(n[1])
			r.wantRound(n[0], n[1], c)
		})
	}
}

// TestOnlyNewNodesKnowOfTheLostState has no session come back that the copy knows.
func TestOnlyNewNodesKnowOfTheLostState(t *testing.T) {
	p := policy(1, 3)
	r, n, state := lateRig(t, p)
	r.goBack(state)
	r.claiming("c", p, n[2].claim)
	c := r.nodes["c"]
	r.join(c)
	for range 2 {
		r.fire(TimerGrace)
	}
	if r.runs(TimerLastCall) {
		r.fire(TimerLastCall)
	}
	if o := r.wantRound(c); o.Round != 3 || o.Generation != "drawn at the start" {
		t.Errorf("outcome %+v", o)
	}
}

// TestAnotherControlPlaneHadTheNodesMeanwhile restarts one that has lost nothing: an
// agent had taken its port and formed a round of its own.
func TestAnotherControlPlaneHadTheNodesMeanwhile(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 2)
	n := r.group(p, "a", "b")
	state := r.m.Snapshot()
	for i, x := range n {
		x.claim = LastRound{Generation: "an agent's", Round: 2, Rank: i, World: 2, HostRank: -1}
	}
	r.goBack(state)
	r.again(n[0], p)
	r.again(n[1], p)
	if n[0].notice.Waiting == 0 || n[1].notice.Waiting == 0 {
		t.Fatalf("told %+v, %+v", n[0].notice, n[1].notice)
	}
	r.join(n[0])
	r.join(n[1])
	if o := r.wantRound(n...); o.Round != 3 {
		t.Errorf("the next round is %d", o.Round)
	}
}

// TestANodeThatWasElsewhereIsLost has a member of a control plane that was never
// restarted come back from another one's round.
func TestANodeThatWasElsewhereIsLost(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 2)
	n := r.group(p, "a", "b")
	r.key(n[0], store.OpWait, 0, "k")
	wait := n[0].number
	n[0].claim = strange(5)
	r.apply(Disconnect{Session: n[0].session})
	r.again(n[0], p)
	if !strings.Contains(n[1].notice.Reason, "a (it was in round 5") || n[0].notice.Waiting == 0 {
		t.Fatalf("told %+v, %+v", n[0].notice, n[1].notice)
	}
	if CodeOf(n[0].replies[wait].Err) != CodeRoundOver {
		t.Errorf("its wait: %+v", n[0].replies[wait])
	}
	r.join(n[0])
	r.join(n[1])
	if o := r.wantRound(n...); o.Round != 6 {
		t.Errorf("the next round is %d", o.Round)
	}
}

// TestWhoKnowsOfTheLostStateComesLate has a round completed after the copy was restored,
// before a node shows that numbers may be used twice: the next ones are not.
func TestWhoKnowsOfTheLostStateComesLate(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 2)
	n := r.group(p, "a", "b")
	r.goBack(r.m.Snapshot())
	r.again(n[0], p)
	r.again(n[1], p)
	r.join(n[0])
	r.join(n[1])
	r.wantRound(n...)
	n[0].claim.Round = 5 // of the state that was lost
	r.apply(Disconnect{Session: n[0].session})
	r.again(n[0], p)
	if n[0].notice.Waiting == 0 || !strings.Contains(n[1].notice.Reason, "was in round 5") {
		t.Fatalf("told %+v, %+v", n[0].notice, n[1].notice)
	}
	r.join(n[0])
	r.join(n[1])
	if o := r.wantRound(n...); o.Round != 6 || o.Generation != "drawn at the start" {
		t.Errorf("the next round is %+v", o)
	}
}

// TestAFinishThatWasLostWithTheState brings the end of a node's workers back.
func TestAFinishThatWasLostWithTheState(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 2)
	n := r.group(p, "a", "b")
	r.goBack(r.m.Snapshot())
	n[0].claim.Finished = true
	r.again(n[0], p)
	r.again(n[1], p)
	r.key(n[1], store.OpWait, 0, ExitBarrierLast)
	waits := n[1].number
	r.key(n[1], store.OpAdd, 1, ExitBarrierCount)
	if reply, ok := n[1].replies[waits]; !ok || reply.Err != nil {
		t.Errorf("the exit barrier: %v, %+v", ok, reply)
	}
}

// TestRanksOfAnAdoptedRound restarts a control plane while its nodes assign ranks: what
// one of them had written is gone, so that the others must not wait for it.
func TestRanksOfAnAdoptedRound(t *testing.T) {
	for _, ask := range []func(r *rig, n *rigNode) Reply{
		func(r *rig, n *rigNode) Reply { return r.key(n, store.OpGet, 0, RoleInfoPrefix+"0") },
		func(r *rig, n *rigNode) Reply { return r.key(n, store.OpWait, 0, AssignedRanksPrefix+"1") },
		func(r *rig, n *rigNode) Reply {
			q := KeyRequest{Request: n.request(), Round: 1, Op: store.OpMultiGet, Keys: []string{RoleInfoPrefix + "0", RoleInfoPrefix + "1"}}
			r.apply(q)
			return n.replies[q.Number]
		},
	} {
		old := newRig(t, -1)
		p := policy(2, 3)
		n := old.group(p, "a", "b")
		old.publish(n[0], "default", 1)
		r := old.restarted()
		r.returns(n[0], p)
		r.returns(n[1], p)
		r.publish(n[1], "default", 1)
		if reply := r.key(n[1], store.OpGet, 0, RoleInfoPrefix+"1"); reply.Err != nil {
			t.Fatalf("what is there was answered by %v", reply.Err)
		}
		if reply := ask(r, n[1]); CodeOf(reply.Err) != CodeRoundOver || !strings.Contains(reply.Err.Text, "ranks of round 1") {
			t.Fatalf("what is lost was answered by %+v", reply)
		}
		for _, x := range n {
			if x.notice.Waiting == 0 || !strings.Contains(x.notice.Reason, "ranks of round 1") {
				t.Errorf("%s received %+v", x.id, x.notice)
			}
		}
		r.join(n[0])
		r.join(n[1])
		r.wantRound(n...)
		r.key(n[1], store.OpGet, 0, RoleInfoPrefix+"0") // of its own rounds it waits as ever
		if reply, ok := n[1].replies[n[1].number]; ok {
			t.Errorf("a wait was answered by %+v", reply)
		}
		if n[0].notice.Waiting != 0 {
			t.Errorf("the new round received %+v", n[0].notice)
		}
	}
}

// stranger says hello with a claim of a round of another job, or of none. Where a round
// was completed here, or all members of an adopted one are accounted for, nothing comes
// of it but the number of the next round.
func (s *sim) stranger(t *rapid.T) {
	s.count++
	generations := []string{"another job", "a third job", ""}
	if !s.m.round.fresh && s.m.reserve == "" && s.host == "" { // a successor cannot tell it from one that knows more
		generations = append(generations, s.m.generation)
	}
	c := LastRound{
		Generation: rapid.SampledFrom(generations).Draw(t, "generation"),
		Round: rapid.SampledFrom([]uint64{
			1, s.m.round.number, s.m.round.number + 1, s.m.round.highest() + 1, maxFloor, maxFloor + 1, maxRound, math.MaxUint64,
		}).Draw(t, "round"),
		Rank: rapid.IntRange(-1, 3).Draw(t, "rank"), World: rapid.IntRange(0, 4).Draw(t, "world"),
		HostRank: rapid.IntRange(-1, 3).Draw(t, "host"), Finished: rapid.Bool().Draw(t, "finished"),
	}
	if c.Round == 0 || c.Round == s.m.round.number && c.Generation == s.m.generation {
		t.Skip("it is no stranger")
	}
	settled := !s.m.round.fresh || len(s.m.round.participants) > 0 && s.m.round.tally[participantUnknown] == 0 && c.Generation != s.m.round.origin
	if len(s.m.nodes.live) == 0 {
		settled = false // it brings the policy, and a closed run begins again
	}
	before := s.m.others()
	n := s.newNode(fmt.Sprint("stranger", s.count))
	n.claim = c
	s.do(Hello{Session: n.session, Node: n.id, Policy: s.policy, SeenAddr: "10.0.0.1", LastRound: c})
	if after := s.m.others(); settled && !bytes.Equal(before, after) {
		s.t.Fatalf("the claim %+v has changed the round:\n%q\n%q", c, before, after)
	}
}

// others is the state but for what a stranger may change: the next round's number, and
// that it runs.
func (m *Machine) others() []byte {
	floor, live, sessions := m.round.floor, m.nodes.live, m.nodes.sessions
	m.round.floor, m.nodes.live, m.nodes.sessions = 0, map[string]*node{}, map[SessionID]*node{}
	for session, n := range sessions {
		if !strings.HasPrefix(n.id, "stranger") {
			m.nodes.live[n.id], m.nodes.sessions[session] = n, n
		}
	}
	defer func() { m.round.floor, m.nodes.live, m.nodes.sessions = floor, live, sessions }()
	return m.Snapshot()
}
