package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// TestSuccessorFailsBeforeAnotherNodeCame: no process that knows of the run begins it again; a new one does.
func TestSuccessorFailsBeforeAnotherNodeCame(t *testing.T) {
	p := policy(1, 4)
	r, n := hostedRig(t, p, "a", "b", "c", "spare")
	for _, x := range n[:3] {
		r.join(x)
	}
	r.fire(TimerLastCall)
	r.wantRound(n[:3]...)
	r = r.dies(n[0], n[1], p)
	r.apply(Leave{Request: n[1].request(), Ending: EndFailed, Reason: "exit code 7"})
	r.follows(p, n[2])
	if !n[2].notice.Closed {
		t.Errorf("a member was told %+v", n[2].notice)
	}
	r.lost(n[2])
	r.follows(p, n[3])
	if !n[3].notice.Closed {
		t.Errorf("a spare was told %+v", n[3].notice)
	}
	r.lost(n[3])
	r.join(r.hello("new", p))
	r.fire(TimerLastCall)
	r.wantRound(r.nodes["new"])
}

// TestSpareThatMissedASuccessor knows another control plane of the run than the one that has closed it knows. It does not
// begin the run again either.
func TestSpareThatMissedASuccessor(t *testing.T) {
	p := policy(1, 4)
	r, n := hostedRig(t, p, "a", "b", "c", "spare")
	for _, x := range n[:3] {
		r.join(x)
	}
	r.fire(TimerLastCall)
	r.wantRound(n[:3]...)
	r = r.dies(n[0], n[1], p)
	r.follows(p, n[2])
	r = r.dies(n[1], n[2], p)
	r.apply(Leave{Request: n[2].request(), Ending: EndFailed, Reason: "exit code 7"})
	r.follows(p, n[3])
	if !n[3].notice.Closed {
		t.Errorf("it was told %+v", n[3].notice)
	}
}

// TestHostKilledBetweenCompletionAndOutcomes has a round completed of whose outcome
// no node, or not every node, was told.
func TestHostKilledBetweenCompletionAndOutcomes(t *testing.T) {
	p := policy(2, 3)
	t.Run("no node was told", func(t *testing.T) {
		r, n := hostedRound(t, p, "a", "b", "c")
		n[1].forgets(1)
		n[2].forgets(1)
		r = r.dies(n[0], n[1], p)
		r.follows(p, n[2])
		r.fire(TimerLastCall)
		r.wantRound(n[1], n[2])
	})
	for next := 1; next <= 2; next++ {
		t.Run(fmt.Sprint("only b was told, the next host is ", next), func(t *testing.T) {
			r, n := hostedRound(t, p, "a", "b", "c")
			n[2].forgets(1)
			r = r.dies(n[0], n[next], p)
			r.follows(p, n[3-next])
			r.wantRegroup("a", n[1])
			r.join(n[1])
			r.wantPending(n[1], n[2]) // the member whose outcome was lost may come
			r.fire(TimerHold)
			if o := r.wantRound(n[1], n[2]); o.Round != 2 || o.HostRank < 0 {
				t.Errorf("outcome %+v", o)
			}
		})
	}
}

// TestHostKilledBeforeItsWorkersHaveFinished has another member finish first: the run
// cannot regroup, and says so, whether the one that has finished comes back or not.
func TestHostKilledBeforeItsWorkersHaveFinished(t *testing.T) {
	for _, comes := range []bool{true, false} {
		t.Run(fmt.Sprint("the one that has finished comes: ", comes), func(t *testing.T) {
			p := policy(1, 3)
			r, n := hostedRound(t, p, "a", "b", "c")
			r.finish(n[1])
			r = r.dies(n[0], n[2], p)
			if comes {
				r.follows(p, n[1])
			} else {
				r.fire(TimerHold)
			}
			r.wantRegroup("a", n[2])
			r.join(n[2])
			err := r.wantError(n[2], CodeClosed)
			if comes != strings.Contains(err.Text, "finished: b") || !strings.Contains(err.Text, "finished: ") || !strings.Contains(err.Text, "lost: a (") {
				t.Errorf("it was told %v", err)
			}
		})
	}
}

// TestSessionMovesIntoTheHost has a known session say that its process hosts: the next
// outcome names it.
func TestSessionMovesIntoTheHost(t *testing.T) {
	r := newRig(t, -1)
	p := policy(2, 2)
	n := r.group(p, "a", "b")
	r.apply(Disconnect{Session: n[1].session})
	n[1].inHost = true
	r.again(n[1], p)
	rank := n[1].claim.Rank
	if n[0].facts.HostRank != rank {
		t.Errorf("a was told %+v", n[0].facts)
	}
	r.join(n[0])
	r.join(n[1])
	if o := r.wantRound(n...); o.HostRank != rank {
		t.Errorf("outcome %+v", o)
	}
}

// TestHostThatHandsOn: of a host that has handed the control plane on it is said that it
// left, not that it is dead, though its member is lost all the same.
func TestHostThatHandsOn(t *testing.T) {
	p := policy(2, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	s := Succession{Term: 2, From: "a", Facts: n[1].facts, Left: true}
	m := New(Config{RunID: "job", Generation: "next", Succession: s})
	fresh := &rig{t: t, nodes: r.nodes, timers: map[Timer]time.Duration{}, checker: r.checker, m: m}
	delete(fresh.nodes, "a")
	fresh.checker.TookOver("b", s)
	n[1].inHost = true
	fresh.follows(p, n[1], n[2])
	fresh.wantRegroup("lost: a (left, and handed the control plane on)", n[1], n[2])
	fresh.join(n[1])
	fresh.join(n[2])
	fresh.wantRound(n[1], n[2])
}

// TestGraceOfACrowd: a successor waits longer for the members of a large round, and for one that
// takes longer than a lease to let in as long as that takes.
func TestGraceOfACrowd(t *testing.T) {
	for members, want := range map[int]time.Duration{
		3: leastGrace, 1000: leastGrace, 2000: 4 * time.Second, 5000: 10 * time.Second, 33000: 10 * time.Second, 100000: 30 * time.Second,
	} {
		m := New(Config{RunID: "job", Succession: Succession{Term: 2}})
		m.forming.policy, m.round.participants = policy(1, 4), make([]*participant, members)
		if got := m.forming.returnGrace(); got != want {
			t.Errorf("%d members: %v, want %v", members, got, want)
		}
	}
}
