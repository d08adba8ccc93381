package rendezvous

import (
	"cmp"
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
)

// hostedRig is a run that the process of its first node hosts. Its checker follows it from
// host to host.
func hostedRig(t *testing.T, p Policy, ids ...string) (r *rig, n []*rigNode) {
	r = newRig(t, -1)
	r.m.succession.Term = 1
	r.checker.TookOver(ids[0], Succession{Term: 1})
	for i, id := range ids {
		n = append(n, r.hello(id, p, func(h *Hello) { h.InHost = i == 0 }))
	}
	return r, n
}

// hostedRound is a round of the named nodes, of which the first one's process hosts.
func hostedRound(t *testing.T, p Policy, ids ...string) (r *rig, n []*rigNode) {
	r, n = hostedRig(t, p, ids...)
	for _, x := range n {
		r.join(x)
	}
	if _, _, ok := n[0].outcome(); !ok {
		r.fire(TimerLastCall)
	}
	r.wantRound(n...)
	return r, n
}

// dies kills the host's process. The process of next hosts on, with what it was told.
func (r *rig) dies(host, next *rigNode, p Policy) *rig {
	r.t.Helper()
	r.hosts[r.m.generation] = host.id
	s := Succession{Term: max(r.m.succession.Term, 1) + 1, From: cmp.Or(r.hosts[next.facts.Generation], host.id), Facts: next.facts}
	fresh := &rig{
		t: r.t, hosts: r.hosts, nodes: r.nodes, timers: map[Timer]time.Duration{}, checker: r.checker, steps: r.steps,
		m: New(Config{RunID: "job", Generation: r.m.generation + "+", Succession: s}),
	}
	delete(r.nodes, host.id)
	fresh.checker.TookOver(next.id, s)
	next.inHost = true
	fresh.follows(p, next)
	return fresh
}

// follows brings nodes to the next host, with the joins that they have no answer to.
func (r *rig) follows(p Policy, nodes ...*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		r.again(n, p)
		if _, _, answered := n.outcome(); n.joinNo > 0 && !answered {
			r.apply(Join{Request: Request{Session: n.session, Number: n.joinNo}, NodeRank: -1, RankHint: -1, StorePort: 1000})
		}
	}
}

func (r *rig) wantQuiet(nodes ...*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		if n.notice.Waiting != 0 || n.notice.Closed {
			r.t.Fatalf("node %s was told %+v", n.id, n.notice)
		}
	}
}

func (r *rig) wantRegroup(reason string, nodes ...*rigNode) {
	r.t.Helper()
	for _, n := range nodes {
		if n.notice.Waiting == 0 || !strings.Contains(n.notice.Reason, reason) {
			r.t.Fatalf("node %s was told %+v, want a regroup because of %q", n.id, n.notice, reason)
		}
	}
}

// finish brings a node to the exit barrier, where it waits.
func (r *rig) finish(n *rigNode) (wait uint64) {
	r.t.Helper()
	r.key(n, store.OpAdd, 1, ExitBarrierCount)
	n.claim.Finished = true
	r.key(n, store.OpWait, 0, ExitBarrierLast)
	return n.number
}
