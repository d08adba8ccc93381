package rendezvous

import (
	"testing"
	"time"
)

// fallsSilent has the process of next elected while the host is silent, which lives.
func (r *rig) fallsSilent(host, next *rigNode, p Policy, left time.Duration) *rig {
	r.t.Helper()
	r.hosts[r.m.generation] = host.id
	s := Succession{Term: max(r.m.succession.Term, 1) + 1, From: host.id, Facts: next.facts, Silent: true, Grace: left}
	fresh := &rig{
		t: r.t, hosts: r.hosts, nodes: r.nodes, timers: map[Timer]time.Duration{}, checker: r.checker, steps: r.steps,
		m: New(Config{RunID: "job", Generation: r.m.generation + "+", Succession: s}),
	}
	fresh.checker.TookOver(next.id, s)
	host.inHost, next.inHost = false, true
	fresh.follows(p, next)
	return fresh
}

// TestSilentHostComesBack: no worker restarts, whoever hosts afterwards.
func TestSilentHostComesBack(t *testing.T) {
	p := policy(1, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	r = r.fallsSilent(n[0], n[1], p, 4*time.Second)
	if s := r.m.Status().Members[0]; s.State != "unknown" || s.Node != "a" {
		t.Errorf("the silent host's member is %+v", s)
	}
	r.follows(p, n[2])
	for timer, after := range r.timers {
		if timer.Kind == TimerHold && after != 4*time.Second {
			t.Errorf("it waits for members for %v", after)
		}
	}
	if !r.runs(TimerHold) {
		t.Error("it does not wait for a")
	}
	r.wantQuiet(n[1], n[2])
	r.follows(p, n[0])
	r.wantQuiet(n...)
	if r.runs(TimerHold) {
		t.Error("it waits for members, all of which are there")
	}
	r = r.fallsSilent(n[1], n[0], p, 4*time.Second) // and once more, to the node that had it first
	r.follows(p, n[2], n[1])
	r.wantQuiet(n...)
}

// TestSilentHostIsLost once its lease is over, as any other node.
func TestSilentHostIsLost(t *testing.T) {
	p := policy(1, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	r = r.fallsSilent(n[0], n[1], p, 4*time.Second)
	r.follows(p, n[2])
	r.fire(TimerHold)
	r.wantRegroup("a", n[1], n[2])
	r.join(n[1])
	r.join(n[2])
	if o := r.wantRound(n[1], n[2]); o.Round != 2 {
		t.Errorf("outcome %+v", o)
	}
	r.follows(p, n[0]) // its place is taken: it asks to join the next round
	if n[0].notice.Waiting == 0 {
		t.Errorf("the host that was silent was told %+v", n[0].notice)
	}
}

// TestSilentHostStartsAgain: its place is not waited for once a process of its name runs that does
// not claim it, and each node is told to regroup.
func TestSilentHostStartsAgain(t *testing.T) {
	p := policy(1, 3)
	for _, facts := range []Facts{{}, {Generation: "g", Round: 0, World: 1}} { // none, and such as cannot be
		r, n := hostedRound(t, p, "a", "b", "c")
		r = r.fallsSilent(n[0], n[1], p, 4*time.Second)
		r.follows(p, n[2])
		if !r.runs(TimerHold) {
			t.Error("it does not wait for a")
		}
		r.hello("a", p, func(h *Hello) { h.LastRound = LastRound{Round: 1, Rank: -1, HostRank: -1, Facts: facts} })
		if r.runs(TimerHold) {
			t.Error("it waits for members, of which none is missing")
		}
		r.wantRegroup("its node came back without its place in the round", n[1], n[2])
		if a := r.nodes["a"]; a.notice.Waiting == 0 {
			t.Errorf("a was told %+v", a.notice)
		}
	}
}
