package rendezvous

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
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

func TestHostKilledBeforeTheFirstJoin(t *testing.T) {
	p := policy(2, 3)
	r, n := hostedRig(t, p, "a", "b", "c")
	r.join(n[0])
	r.join(n[1])
	r = r.dies(n[0], n[1], p)
	if r.runs(TimerHold) {
		t.Error("it waits for members, of which there are none")
	}
	r.follows(p, n[2])
	r.join(n[2])
	r.fire(TimerLastCall)
	r.wantRound(n[1], n[2])

	p = policy(2, 2)
	r, n = hostedRig(t, p, "a", "b")
	r.join(n[1])
	r = r.dies(n[0], n[1], p)
	again := r.hello("a2", p)
	r.join(again)
	r.wantRound(n[1], again)
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

func TestHostKilledBetweenOutcomeAndAcknowledgement(t *testing.T) {
	p := policy(1, 4)
	r, n := hostedRound(t, p, "a", "b", "c")
	r = r.dies(n[0], n[1], p)
	if s := r.m.Status().Members[0]; s.State != "lost" || s.Node != "a" {
		t.Errorf("the dead host's member is %+v", s)
	}
	if !r.runs(TimerHold) {
		t.Error("it does not wait for c")
	}
	for timer, after := range r.timers {
		if timer.Kind == TimerHold && after != leastGrace {
			t.Errorf("it waits for members for %v", after)
		}
	}
	r.follows(p, n[2])
	if r.runs(TimerHold) {
		t.Error("it waits for members, all of which are accounted for")
	}
	r.wantRegroup("lost: a (its process ended", n[1], n[2])
	r.join(n[1])
	r.wantPending(n[1])
	r.join(n[2])
	if o := r.wantRound(n[1], n[2]); o.Round != 2 || o.HostRank != 1 {
		got, _, _ := n[1].outcome()
		t.Errorf("outcome %+v, the host has rank %d", o, got.Rank)
	}
}

func TestHostKilledInRankAssignment(t *testing.T) {
	p := policy(1, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	r.publish(n[0], "default", 1)
	r.publish(n[1], "default", 1)
	wait := KeyRequest{Request: n[1].request(), Round: 1, Op: store.OpGet, Keys: []string{AssignedRanksPrefix + "1"}}
	r.apply(wait)
	r = r.dies(n[0], n[1], p)
	r.apply(wait) // its answer did not come
	if reply := n[1].replies[wait.Number]; CodeOf(reply.Err) != CodeRoundOver {
		t.Fatalf("the wait for ranks was answered %+v", reply)
	}
	r.follows(p, n[2])
	r.wantRegroup("a", n[1], n[2])
	r.join(n[1])
	r.join(n[2])
	r.wantRound(n[1], n[2])
}

// TestHostKilledAfterItsWorkersHaveFinished has the others continue, and end well: also after
// the death of the next host, whose workers have finished as well.
func TestHostKilledAfterItsWorkersHaveFinished(t *testing.T) {
	p := policy(1, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	r.finish(n[0])
	r = r.dies(n[0], n[1], p)
	r.follows(p, n[2])
	r.wantQuiet(n[1], n[2])
	if r.runs(TimerHold) {
		t.Error("it waits for a member that has finished")
	}
	late := r.hello("late", p)
	r.join(late)
	r.wantPending(late)
	r.wantQuiet(n[1], n[2])

	r.finish(n[1])
	r = r.dies(n[1], n[2], p)
	r.follows(p, late)
	r.wantQuiet(n[2])
	wait := r.finish(n[2])
	if _, ok := n[2].replies[wait]; !ok {
		t.Error("the last member waits in the exit barrier")
	}
	r.apply(Leave{Request: n[2].request(), Ending: EndSuccess, Reason: "done"})
	r.wantError(late, CodeGraceful)
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

func TestHostKilledInTheExitBarrier(t *testing.T) {
	for _, last := range []bool{true, false} {
		t.Run(fmt.Sprint("all have finished: ", last), func(t *testing.T) {
			p := policy(1, 3)
			r, n := hostedRound(t, p, "a", "b", "c")
			r.finish(n[0])
			r.finish(n[1])
			if last {
				r.finish(n[2])
			}
			r = r.dies(n[0], n[1], p)
			r.follows(p, n[2])
			r.wantQuiet(n[1], n[2])
			wait := KeyRequest{Request: n[1].request(), Round: 1, Op: store.OpWait, Keys: []string{ExitBarrierLast}}
			r.apply(wait)
			if _, ok := n[1].replies[wait.Number]; ok != last {
				t.Errorf("b has left the exit barrier: %v", ok)
			}
			if !last {
				r.finish(n[2])
			}
			if reply, ok := n[1].replies[wait.Number]; !ok || reply.Err != nil {
				t.Errorf("the exit barrier ended %v, %+v", ok, reply)
			}
			r.apply(AwaitPeers{n[1].request()})
			if _, ok := n[1].replies[n[1].number]; !ok {
				t.Error("the next host waits for peers that have all ended")
			}
		})
	}
}

func TestHostKilledAfterAClose(t *testing.T) {
	at := time.Unix(1700000000, 0)
	for _, stop := range []bool{false, true} {
		for _, formed := range []bool{true, false} {
			t.Run(fmt.Sprintf("stop %v, formed %v", stop, formed), func(t *testing.T) {
				p := policy(1, 4)
				r, n := hostedRig(t, p, "a", "b", "c")
				if formed {
					r, n = hostedRound(t, p, "a", "b", "c")
				}
				r.apply(CloseRun{By: "root@h", Reason: "maintenance", Stop: stop, At: at})
				r = r.dies(n[0], n[1], p)
				r.follows(p, n[2])
				for _, x := range n[1:] {
					if !x.notice.Closed || !strings.Contains(x.notice.Reason, "root@h at 2023-11-14T22:13:20Z: maintenance") {
						t.Errorf("%s was told %+v", x.id, x.notice)
					}
				}
				late := r.hello("late", p)
				r.join(late)
				if err := r.wantError(late, CodeClosed); !strings.Contains(err.Text, "root@h") || !strings.Contains(err.Text, "maintenance") {
					t.Errorf("a late node was told %v", err)
				}
				if !formed {
					return
				}
				r.join(n[2]) // its round has lost the host
				r.wantError(n[2], CodeClosed)
			})
		}
	}
}

func TestHostKilledAfterASuccess(t *testing.T) {
	p := policy(1, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	spare := r.hello("d", p)
	for _, x := range n {
		r.finish(x)
	}
	r.apply(Leave{Request: n[2].request(), Ending: EndSuccess})
	delete(r.nodes, "c")
	r = r.dies(n[0], n[1], p)
	r.follows(p, spare)
	if !spare.notice.Closed || spare.notice.Waiting != 0 {
		t.Errorf("a spare was told %+v", spare.notice)
	}
	r.apply(AwaitPeers{n[1].request()})
	r.fire(TimerHold) // c has left, of which the next host does not know
	if _, ok := n[1].replies[n[1].number]; !ok {
		t.Error("the next host waits for a peer that has left")
	}
}

// TestHostThatIsASpare has nothing happen to the round: its members were not in the process
// that died. The host that follows is one of them.
func TestHostThatIsASpare(t *testing.T) {
	p := policy(1, 2)
	r, n := hostedRig(t, p, "a", "b", "c")
	r.join(n[1])
	r.join(n[2])
	r.wantRound(n[1], n[2])
	r.join(n[0])
	r = r.dies(n[0], n[1], p)
	r.follows(p, n[2])
	r.wantQuiet(n[1], n[2])
	if r.runs(TimerHold) {
		t.Error("it waits for members, all of which are there")
	}
	r = r.dies(n[1], n[2], p)
	r.wantRegroup("lost: b", n[2])
	if r.runs(TimerHold) {
		t.Error("it waits for the dead host's member")
	}
	r.join(n[2])
	r.wantRound(n[2])
}

// TestASpareHostsNext has two spares at the next host before any member, as many as a round
// takes: it is the members' all the same.
func TestASpareHostsNext(t *testing.T) {
	p := policy(1, 2)
	r, n := hostedRound(t, p, "a", "b")
	d, e := r.hello("d", p), r.hello("e", p)
	r.join(d)
	r.join(e)
	r = r.dies(n[0], d, p)
	r.follows(p, e)
	r.wantPending(d, e)
	r.follows(p, n[1])
	r.wantRegroup("a", n[1])
	r.join(n[1])
	if o := r.wantRound(n[1], d); o.Round != 2 {
		t.Errorf("outcome %+v", o)
	}
	r.wantPending(e)
}

func TestHostAndStandbyKilledAtOnce(t *testing.T) {
	p := policy(1, 4)
	r, n := hostedRound(t, p, "a", "b", "c", "d")
	delete(r.nodes, "b")
	r = r.dies(n[0], n[2], p)
	r.follows(p, n[3])
	r.join(n[2])
	r.join(n[3])
	r.wantPending(n[2], n[3])
	r.fire(TimerHold)
	if o := r.wantRound(n[2], n[3]); o.Round != 2 {
		t.Errorf("outcome %+v", o)
	}
}

// TestEachNextHostIsKilled continues down to one node, with a round each, and with none where
// a host dies before its nodes have come.
func TestEachNextHostIsKilled(t *testing.T) {
	p := policy(1, 5)
	r, n := hostedRound(t, p, "a", "b", "c", "d", "e")
	for i := 1; i < len(n); i++ {
		r = r.dies(n[i-1], n[i], p)
		if i == 2 { // at once again
			continue
		}
		r.follows(p, n[i+1:]...)
		for _, x := range n[i:] {
			r.join(x)
		}
		for kind := range r.timers { // what has died before it came is waited for
			if kind.Kind == TimerHold {
				r.fire(TimerHold)
			}
		}
		r.wantRound(n[i:]...)
	}
	if o := r.wantRound(n[4]); o.Round != 4 {
		t.Errorf("outcome %+v", o)
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

func TestRecoveredCarriesItsGrace(t *testing.T) {
	r := newRig(t, -1)
	n := r.group(policy(1, 3), "a", "b")
	r.apply(Recovered{Generation: "drawn", Grace: 3 * time.Second})
	for timer, after := range r.timers {
		if timer.Kind == TimerGrace && after != 3*time.Second {
			t.Errorf("session %s has %v to come back", timer.Session, after)
		}
	}
	r.again(n[0], policy(1, 3))
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
