package rendezvous

import (
	"cmp"
	"fmt"
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

// TestFactsOfARunThatWasBegunAgain: a successor knows no more of its last round than the number, and
// what it tells the next one can be believed, though a directive had ended that round.
func TestFactsOfARunThatWasBegunAgain(t *testing.T) {
	p := policy(1, 3)
	was := Facts{Generation: "g", Origin: "g", Round: 3, HostRank: -1, Directives: DirectiveFacts{Seq: 1, EndedRound: 3}}
	m := New(Config{RunID: "job", Generation: "g2", Uptime: -1, Succession: Succession{Term: 2, From: "a", Facts: was}})
	m.Apply(Hello{Session: "s", Node: "b", Policy: p, LastRound: LastRound{HostRank: -1}, InHost: true})
	m.Apply(CloseRun{By: "admin", Reason: "why", Stop: true})
	f := m.Facts()
	if f.Closed.Kind != ClosedFailed || !f.possible(LastRound{}, p.Max) {
		t.Errorf("it tells what no successor believes: %+v", f)
	}
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

// TestStrangersFacts has a node of another job report at a successor, and one whose facts
// cannot be: nothing comes of either.
func TestStrangersFacts(t *testing.T) {
	p := policy(1, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	r = r.dies(n[0], n[1], p)
	known := n[2].facts
	for name, change := range map[string]func(f *Facts, c *LastRound){
		"another job's":           func(f *Facts, c *LastRound) { f.Generation, f.Origin, c.Generation = "x", "x", "x" },
		"a round without end":     func(f *Facts, c *LastRound) { f.Round, c.Round = 1<<64-1, 1<<64-1 },
		"more nodes than max":     func(f *Facts, _ *LastRound) { f.World = 4 },
		"another world":           func(f *Facts, _ *LastRound) { f.World = 2 },
		"no such host":            func(f *Facts, _ *LastRound) { f.HostRank = 3 },
		"hosts that ran on":       func(f *Facts, _ *LastRound) { f.Finished, f.FinishedHosts = false, []int{0} },
		"one host finished twice": func(f *Facts, _ *LastRound) { f.FinishedHosts = []int{0, 0} },
		"a finish of no round":    func(f *Facts, c *LastRound) { f.Round, f.World = 0, 0 },
		"closed somehow":          func(f *Facts, _ *LastRound) { f.Closed.Kind = 5 },
	} {
		t.Run(name, func(t *testing.T) {
			c := n[2].claim
			c.Facts = known
			c.Facts.Finished, c.Facts.Closed = true, Closing{Kind: ClosedFailed, By: "x", Reason: "y"}
			change(&c.Facts, &c)
			x := r.claiming("x "+name, p, c)
			if r.m.closed != nil || r.m.round.finishing() || r.m.round.tally[participantUnknown] != 1 || x.notice.Waiting == 0 {
				t.Errorf("closed %v, finishing %v, %d unknown, it was told %+v", r.m.closed, r.m.round.finishing(), r.m.round.tally[participantUnknown], x.notice)
			}
		})
	}
	r.follows(p, n[2])
	if n[2].notice.Closed || r.m.round.tally[participantUnknown] != 0 {
		t.Errorf("c was told %+v", n[2].notice)
	}
}

// TestFactsThatOnlyOneWasTold has the next host begin without what another node was told
// last.
func TestFactsThatOnlyOneWasTold(t *testing.T) {
	p := policy(1, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	r.apply(CloseRun{By: "admin", Reason: "why"})
	n[1].forgets(1)
	r = r.dies(n[0], n[1], p)
	if n[1].notice.Closed {
		t.Fatalf("b was told %+v", n[1].notice)
	}
	r.follows(p, n[2])
	if !n[1].notice.Closed || !n[2].notice.Closed {
		t.Errorf("told %+v, %+v", n[1].notice, n[2].notice)
	}
}

// TestKeptOutNodeHasJoinedAlready: a node that is kept out gets no place at a next host either, which
// learns of that after the node has asked for one.
func TestKeptOutNodeHasJoinedAlready(t *testing.T) {
	p := policy(2, 4)
	r, n := hostedRig(t, p, "a", "b", "c", "d")
	told := n[2].facts
	r.apply(Cordon{Node: "b", By: "admin", Reason: "its disk"})
	n[2].facts = told // c was not told of it
	r = r.dies(n[0], n[2], p)
	r.join(n[2])
	b := r.hello("b", p)
	r.join(b)
	r.follows(p, n[3])
	if err := r.wantError(b, CodeGraceful); !strings.Contains(err.Text, "cordoned by admin: its disk") {
		t.Errorf("it was told %q", err.Text)
	}
	r.join(n[3])
	r.fire(TimerLastCall)
	r.wantRound(n[2], n[3])
}

// TestClosedWhileOneRegroups: a node that waits for a place in the next round has none to rejoin for
// when another one reports both a later round and that the run was closed.
func TestClosedWhileOneRegroups(t *testing.T) {
	p := policy(1, 3)
	r := newRig(t, -1)
	r.m = New(Config{RunID: "job", Generation: "g+", Succession: Succession{Term: 2, From: "a"}})
	r.checker.TookOver("c", Succession{Term: 2, From: "a"})
	b := r.hello("b", p, func(h *Hello) { h.LastRound = LastRound{Generation: "g", Round: 2, Rank: 1, World: 2, HostRank: -1} })
	r.join(b)
	r.hello("c", p, func(h *Hello) {
		h.LastRound = LastRound{Generation: "g", Round: 4, World: 1, HostRank: -1, Facts: Facts{Generation: "g", Origin: "g", Round: 4, World: 1, HostRank: -1, Closed: Closing{Kind: ClosedAdmission, By: "admin", Reason: "why"}}}
	})
	r.wantError(b, CodeClosed)
	if b.notice.Waiting != 0 {
		t.Errorf("it was told %+v", b.notice)
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

// TestForgottenRunKeepsItsNumbers has the host die after a closed run was begun again.
func TestForgottenRunKeepsItsNumbers(t *testing.T) {
	r, n := hostedRound(t, policy(1, 2), "a", "b")
	r.apply(CloseRun{By: "admin"})
	r.lost(n[0])
	r.lost(n[1])
	r.fire(TimerClosed)
	p := policy(2, 2)
	c, d := r.hello("c", p), r.hello("d", p)
	r = r.dies(n[0], c, p)
	r.follows(p, d)
	r.join(c)
	r.join(d)
	if o := r.wantRound(c, d); o.Round != 2 {
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

// TestOldNodesFollow has nodes of a release that knows of no facts come to a successor.
func TestOldNodesFollow(t *testing.T) {
	p := policy(1, 3)
	r, n := hostedRound(t, p, "a", "b", "c")
	for _, x := range n {
		x.facts = Facts{}
	}
	r = r.dies(n[0], n[1], p)
	r.follows(p, n[2])
	r.wantRegroup("hosted the control plane", n[1], n[2])
	r.join(n[1])
	r.join(n[2])
	r.wantRound(n[1], n[2])
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
