package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// TestCensusAgreesWithStatus counts what Status lists, over random histories.
func TestCensusAgreesWithStatus(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := newSim(t)
		t.Repeat(map[string]func(*rapid.T){
			"hello": s.hello, "join": s.join, "disconnect": s.disconnect, "reconnect": s.reconnect,
			"timer": s.timer, "withdraw": s.withdraw, "finish": s.finish, "leave": s.leave,
			"close": s.close, "evict": s.evict, "restart": s.restart,
			"": func(t *rapid.T) {
				if err := compareCensus(s.m); err != nil {
					t.Fatal(err)
				}
			},
		})
	})
}

func compareCensus(m *Machine) error {
	c, s := m.Census(), m.Status()
	want := Census{Phase: s.Phase, Round: s.Round, Live: len(m.nodes.live), Lack: s.Missing.Min, LackFull: s.Missing.Target, Idle: len(s.Idle)}
	for _, member := range s.Members {
		switch member.State {
		case "running":
			want.Running++
		case "unknown":
			want.Unknown++
		case "rejoined":
			want.Rejoined++
		case "finished":
			want.Finished++
			if member.Session != "" {
				want.Idle++
			}
		case "lost":
			want.Lost++
		}
	}
	for _, w := range s.Waiting {
		switch w.Role {
		case RoleSpare:
			want.Spare++
		case RoleNewcomer:
			want.Waiting++
		}
	}
	counts := CountsStatus{c.Running, c.Unknown, c.Rejoined, c.Finished, c.Lost, c.Waiting, c.Spare, len(s.Idle)}
	if s.Counts != counts || len(s.Finished) != c.Finished {
		return fmt.Errorf("the status counts %+v, and %d finished, it lists %+v", s.Counts, len(s.Finished), counts)
	}
	if s.Closed != nil {
		want.Ended = s.Closed.How
	}
	if c != want {
		return fmt.Errorf("the census is %+v, the status says %+v: %+v", c, want, s)
	}
	if forming := s.Phase.Forming(); (s.NotStarted != "") != (forming || s.Phase == PhaseEmpty) || (s.Missing != Missing{}) && !forming {
		return fmt.Errorf("phase %s, not started: %q, missing: %+v", s.Phase, s.NotStarted, s.Missing)
	}
	return nil
}

// TestNotStarted says in each situation what keeps the round from starting.
func TestNotStarted(t *testing.T) {
	three := func(r *rig) []*rigNode { return r.group(policy(2, 4), "a", "b", "c") }
	for says, test := range map[string]struct {
		uptime time.Duration
		happen func(r *rig)
	}{
		"no node is here": {-1, func(*rig) {}},
		"no node has asked for a place; 2 nodes are connected": {-1, func(r *rig) {
			r.hello("a", policy(2, 2))
			r.hello("b", policy(2, 2))
		}},
		"1 of at least 3 nodes are here, 2 more needed; no node has come for node rank 0, 2, 3": {-1, func(r *rig) {
			r.join(r.hello("a", policy(3, 4)), func(j *Join) { j.NodeRank = 1 })
		}},
		"enough nodes are here (1); more are waited for until last_call_timeout (30s) has passed or 2 are here": {-1, func(r *rig) {
			r.join(r.hello("a", policy(1, 2)))
		}},
		"enough nodes are here (1); more are waited for until none has come for quiet_period (5s), at most for last_call_timeout (30s)": {-1, func(r *rig) {
			p := policy(1, 2)
			p.QuietPeriod = 5 * time.Second
			r.join(r.hello("a", p))
		}},
		"for at most 2s it waits for nodes of an earlier one; with 2 nodes the round starts at once": {0, func(r *rig) {
			r.join(r.hello("a", policy(1, 2)))
		}},
		"the connection of a waiting node is broken; the round waits for its return, at most for reconnect_grace (1s)": {-1, func(r *rig) {
			a := r.hello("a", policy(1, 2))
			r.join(a)
			r.apply(Disconnect{Session: a.session})
		}},
		"it regroups after round 1 and waits at most regroup_timeout (1m30s) for members that have not rejoined: b, c of round 1": {-1, func(r *rig) {
			r.join(three(r)[0])
		}},
		"it regroups after round 1 and waits for replacements: 1 of at least 2 nodes are here, 1 more needed; lost from round 1: b (connection closed), c": {-1, func(r *rig) {
			n := three(r)
			r.lost(n[1])
			r.lost(n[2])
			r.join(n[0])
		}},
	} {
		r := newRig(t, test.uptime)
		test.happen(r)
		if got := r.m.Status().NotStarted; !strings.Contains(got, says) {
			t.Errorf("it says  %s\nit should %s", got, says)
		}
	}
}

// TestStateOfARun: a run restarts from the announced failure of workers until the next round is
// complete, unless members have finished or it is closed.
func TestStateOfARun(t *testing.T) {
	for want, follows := range map[string]func(r *rig, n []*rigNode){
		"restarting": func(*rig, []*rigNode) {},
		"finishing":  func(r *rig, n []*rigNode) { r.finish(n[2]) },
		"closed":     func(r *rig, _ []*rigNode) { r.apply(CloseRun{By: "admin", Reason: "why"}) },
	} {
		r := newRig(t, -1)
		n := r.group(policy(2, 3), "a", "b", "c")
		r.announce(n[0], false, "rank 1 exited with code 7")
		follows(r, n)
		if s := r.m.Status(); s.State != want {
			t.Errorf("%s: phase %s, state %s", want, s.Phase, s.State)
		}
		if want == "restarting" {
			r.join(n[0])
			if s := r.m.Status(); s.Phase != PhaseRegroup || s.State != want {
				t.Errorf("phase %s, state %s", s.Phase, s.State)
			}
		}
	}
}

func TestStatusOfNodes(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(2, 3), "a", "b")
	r.apply(Disconnect{Session: n[1].session})
	r.hello("idle", policy(2, 3))
	s := r.m.Status()
	if len(s.Members) != 2 || s.Members[0].Reconnecting || !s.Members[1].Reconnecting || s.Members[1].Label != "b" || len(s.Idle) != 1 || s.Idle[0].Node != "idle" {
		t.Errorf("%+v", s)
	}
	labelled := r.hello("c", policy(2, 3), func(h *Hello) { h.Label = "host pid 7" })
	r.lost(n[1])
	r.join(labelled)
	r.join(n[0])
	r.lost(labelled)
	s = r.m.Status()
	if m := s.Members[1]; m.Node != "c" || m.Label != "host pid 7" || m.State != "lost" || m.Session != "" || m.Alive {
		t.Errorf("a lost member is %+v", m)
	}
}

// TestCountsAfterAScale: a round of a job of 1:4 that was scaled to 2 is full with two nodes. Nobody
// hears that four are waited for, and a third node is a spare everywhere.
func TestCountsAfterAScale(t *testing.T) {
	p := policy(1, 4)
	r := newRig(t, -1)
	n := r.group(p, "a", "b", "c", "d")
	r.apply(Direct{ID: "s1", Kind: DirectiveScale, Target: 2, By: "admin", Reason: "why"})
	for _, x := range n {
		r.join(x)
	}
	r.wantRound(n[0], n[1])
	r.wantChange("round 2 is complete: 2 of 2 nodes, 2 waiting")
	if _, beside := r.m.Progress(); !beside.Spare || beside.Headline != "round 2 runs with 2 of 2 nodes" {
		t.Errorf("who waits is told %+v", beside)
	}

	want := func(waiting, spare, full int, missing, headline string) {
		t.Helper()
		c, s := r.m.Census(), r.m.Status()
		if c.Waiting != waiting || c.Spare != spare || c.LackFull != full || s.Missing.Who != missing {
			t.Errorf("%+v, missing %+v", c, s.Missing)
		}
		if forming, _ := r.m.Progress(); forming.Headline != headline {
			t.Errorf("who joins is told %+v", forming)
		}
		if err := compareCensus(r.m); err != nil {
			t.Error(err)
		}
	}
	r.join(n[0]) // its workers have failed: the other one is waited for
	want(1, 1, 0, "b of round 2", "3 of 2 nodes here (at least 1 needed)")
	r.lost(n[2])
	r.lost(n[3])
	r.lost(n[1])
	r.wantRound(n[0])
	r.lost(n[0])
	e := r.hello("e", p)
	r.join(e)
	want(1, 0, 1, "1; lost from round 3: a (connection closed)", "1 of 2 nodes here (at least 1 needed)")
	if s := r.m.Status().NotStarted; !strings.HasSuffix(s, "has passed or 2 are here") {
		t.Error(s)
	}
	r.join(r.hello("f", p))
	r.wantRound(e, r.nodes["f"])
}

// TestBelowTheMaximum: a round that runs with fewer nodes than it may have says how many, and who
// was lost and has not come back.
func TestBelowTheMaximum(t *testing.T) {
	r := newRig(t, -1)
	p := policy(1, 4)
	n := r.group(p, "a", "b", "c", "d")
	want := func(below Below) {
		t.Helper()
		if got := r.m.Status().Below; got != below {
			t.Errorf("%+v, expected %+v", got, below)
		}
	}
	want(Below{})
	r.lost(n[2])
	r.lost(n[1])
	want(Below{}) // the next round is being formed
	r.join(n[0])
	r.join(n[3])
	r.wantRound(n[0], n[3])
	want(Below{2, "b, c"})
	back := r.hello("b", p)
	r.join(back)
	r.fire(TimerAdmit)
	r.join(n[0])
	r.join(n[3])
	r.wantRound(n[0], n[3], back)
	want(Below{1, "c"})
}
