package control

import (
	"context"
	"maps"
	"math"
	"slices"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// TestHostKilledDuringATransfer kills the host that hands its control plane on: before the
// first standby has been asked, when that begins to host, and together with that one.
func TestHostKilledDuringATransfer(t *testing.T) {
	for name, test := range map[string]struct {
		begun bool // the first standby has begun to host
		dead  int
	}{"at once": {false, 1}, "when the next host begins": {true, 1}, "with the next host": {true, 2}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := elastic(t, 4)
			p.LeaseTimeout = 3 * time.Second
			nodes := form(t, p, 4)
			round := nodes[0].in.Round
			if _, err := nodes[0].Start(rendezvous.Leave{}).Wait(controltest.Context(t)); err != nil {
				t.Fatal(err)
			}
			leaving, cancel := context.WithCancel(controltest.Context(t))
			var wg sync.WaitGroup
			wg.Go(func() { nodes[0].Close(leaving) })
			if test.begun {
				nodes[1].lines.Await(t, "the host leaves: this node hosts now", 1)
			}
			for _, n := range nodes[:test.dead] {
				wg.Go(n.kill)
			}
			cancel()
			wg.Wait()
			left := nodes[test.dead:]
			regroup(t, left)
			// After a next host that has begun, any standby may be next: it may have put them in an
			// order of its own, and who was told that it hosts, and not more, cannot tell of its death.
			if got := hosts(left); len(got) != 1 || got[0] != left[0].name && test.dead == 1 {
				t.Errorf("hosts: %v, want one, the first of those left unless it died as well: %s", got, left[0].name)
			}
			if got := left[0].in.Round; got != round+1 && got%1000 != 1 { // a host that nobody has elected leaves a gap
				t.Errorf("round %d after round %d", got, round)
			}
			awaitStandbys(t, left, len(left)-1)
		})
	}
}

// atExitBarrier tells the control plane that the node's workers have finished, as its agent
// does, and begins to wait for the others.
func (p *plane) atExitBarrier() (wait *member.Call) {
	p.t.Helper()
	const key = "torchelastic/agent/terminal_state/"
	add := rendezvous.KeyRequest{Round: p.in.Round, Op: store.OpAdd, Keys: []string{rendezvous.ExitBarrierCount}, Amount: 1}
	if _, err := p.Start(add).Wait(controltest.Context(p.t)); err != nil {
		p.t.Fatal(err)
	}
	last := p.in.LastRound()
	last.Finished = true
	p.SetLastRound(last)
	return p.Start(rendezvous.KeyRequest{Round: p.in.Round, Op: store.OpWait, Keys: []string{key + "last_member"}})
}

// TestHostKilledWhileMembersAreInTheExitBarrier: two of four have finished, the host among
// them, when it is killed. The others' waits continue at the next host, no node regroups, and
// all leave the barrier once the last one has finished.
func TestHostKilledWhileMembersAreInTheExitBarrier(t *testing.T) {
	nodes := form(t, elastic(t, 4), 4)
	nodes[0].atExitBarrier()
	waits := []*member.Call{nodes[1].atExitBarrier()}
	told := func(n *plane) {
		n.obs.Await(t, "that the host has finished", func(e any) bool {
			u, ok := e.(rendezvous.MembershipUpdate)
			return ok && len(u.Facts.FinishedHosts) == 1
		})
	}
	for _, n := range nodes[1:] {
		told(n)
	}
	nodes[0].kill()
	for _, n := range nodes[1:] {
		n.lines.Await(t, "hosts now", 1)
	}
	waits = append(waits, nodes[2].atExitBarrier())
	for i, wait := range waits {
		select {
		case <-wait.Done:
			t.Errorf("wait %d ended before the last node has finished", i)
		default:
		}
	}
	waits = append(waits, nodes[3].atExitBarrier())
	for i, wait := range waits {
		if _, err := wait.Wait(controltest.Context(t)); err != nil {
			t.Errorf("wait %d: %v", i, err)
		}
	}
	for _, n := range nodes[1:] {
		for _, e := range n.obs.All() {
			if u, ok := e.(rendezvous.MembershipUpdate); ok && u.Waiting > 0 {
				t.Errorf("node %s had to regroup: %+v", n.name, u)
			}
		}
		if _, err := n.Start(rendezvous.Leave{Ending: rendezvous.EndSuccess}).Wait(controltest.Context(t)); err != nil {
			t.Error(err)
		}
	}
}

// leftOfATakeover is what a node of this test keeps when it is killed: its log, and what it
// received, which t.Cleanup holds until the end.
const leftOfATakeover = 64 << 10

// TestRestartedStandbyListensNowhere: a process in the place of one that stood by for the host
// before is on the list when it listens, not where that one has. One that is asked to host and
// cannot leaves the nodes alone.
func TestRestartedStandbyListensNowhere(t *testing.T) {
	p := elastic(t, 3)
	nodes := form(t, p, 3)
	nodes[0].kill()
	next, other := nodes[1], nodes[2]
	next.mustRegroup()
	other.mustRegroup()
	regroup(t, nodes[1:])
	if !next.Hosting() {
		next, other = other, next
	}
	awaitStandbys(t, nodes[1:], 1)
	other.kill()
	host := next.server()
	for end := time.Now().Add(testkit.Patience); len(host.cfg.Group.Report().Standbys) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a standby that is dead stays: %+v", host.cfg.Group.Report())
		}
	}
	h := testHello(other.name, "another", p)
	h.Incarnation = math.MaxInt64
	h.Features = []string{wire.FeatureSuccession, wire.FeatureStandby}
	n := dialNode(t, host.Addr().String())
	n.enter(h)
	for {
		if f, ok := n.next().(wire.Standbys); ok {
			if !f.Invited || len(f.List) != 0 {
				t.Errorf("it is told %+v", f)
			}
			return
		}
	}
}

// TestLeavingHostAwaitsWhomAProbeSentOn: the next host's probe may have all nodes sent on before
// its answer does; the leaving host waits all the same until they have read where to go.
func TestLeavingHostAwaitsWhomAProbeSentOn(t *testing.T) {
	nodes := form(t, elastic(t, 3), 3)
	s := nodes[0].server()
	r := s.lookUp(s.cfg.RunID)
	r.mu.Lock()
	conns := slices.Collect(maps.Values(r.conns))
	r.mu.Unlock()
	if len(conns) != len(nodes) {
		t.Fatalf("%d connections of %d nodes", len(conns), len(nodes))
	}
	to := wire.Redirect{Group: s.cfg.Group.Current().Group, Term: 2, Host: nodes[1].server().Addr().String(), Node: "b"}
	s.StepDown(to, "it is probed")
	s.StepDown(to, "it leaves")
	s.awaitSentOn()
	for i, p := range conns {
		select {
		case <-p.gone:
		default:
			t.Errorf("connection %d of %d is still open", i, len(conns))
		}
	}
}
