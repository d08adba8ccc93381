package member_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

const terminal = "torchelastic/agent/terminal_state"

var errHostDied = errors.New("connection refused")

// barrier is torch's exit barrier as its agent goes through it.
func barrier(s store.Store, world int64) error {
	return store.GenericBarrier(context.Background(), s, terminal, world)
}

// The node that hosts the control plane dies while another one waits in its exit
// barrier: that ends after a lease, not after torch's 300 s, and so does the
// shutdown that follows.
func TestExitBarrierOfAnOrphan(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		nodes[0].plane.host = true
		o := form(t, nodes)
		done := make(chan error, 1)
		began := time.Now()
		go func() { done <- barrier(nodes[1].Keys(o.Round), 2) }()
		synctest.Wait()
		w.setDown(errHostDied)
		lost := time.Now()
		time.Sleep(rendezvous.DefaultLeaseTimeout - time.Millisecond)
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("the barrier ended after %v with %v", time.Since(began), err)
		default:
		}
		if err := <-done; err != nil || time.Since(lost) > rendezvous.DefaultLeaseTimeout {
			t.Errorf("after %v: %v", time.Since(lost), err)
		}
		told := strings.Join(nodes[1].log.take(), "\n")
		if strings.Count(told, "the exit barrier ends without the other nodes") != 1 {
			t.Errorf("the text is %q", told)
		}
		// One that comes later does not wait at all.
		before := time.Now()
		if err := barrier(nodes[1].Keys(o.Round), 2); err != nil || time.Since(before) != 0 {
			t.Errorf("after %v: %v", time.Since(before), err)
		}
		if err := nodes[1].Shutdown(context.Background(), rendezvous.EndSuccess, ""); err == nil || time.Since(before) > params.DefaultCloseTimeout {
			t.Errorf("shutdown after %v: %v", time.Since(before), err)
		}
	})
}

// A host that comes back in time, and a control plane that is no node of the job,
// are waited for.
func TestExitBarrierWaitsForAControlPlane(t *testing.T) {
	for name, hosted := range map[string]bool{"host that returns": true, "server": false} {
		t.Run(name, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				var nodes []*node
				for _, name := range []string{"a", "b"} {
					p := nodeParams(name, 2, 2)
					p.ReconnectGrace = time.Hour // no node is lost meanwhile
					nodes = append(nodes, w.node(p))
				}
				nodes[0].plane.host = hosted
				o := form(t, nodes)
				done := make(chan error, 1)
				go func() { done <- barrier(nodes[1].Keys(o.Round), 2) }()
				synctest.Wait()
				for range 3 { // shorter than a lease each, longer together
					w.setDown(errHostDied)
					time.Sleep(rendezvous.DefaultLeaseTimeout * 3 / 4)
					if !hosted {
						time.Sleep(10 * rendezvous.DefaultLeaseTimeout)
					}
					w.setDown(nil)
					time.Sleep(2 * time.Second)
				}
				select {
				case err := <-done:
					t.Fatalf("the barrier ended with %v", err)
				default:
				}
				if err := barrier(nodes[0].Keys(o.Round), 2); err != nil {
					t.Error(err)
				}
				if err := <-done; err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// The host is no member of the round: it has left, and the others have regrouped. Its
// control plane served on, and then its process dies, too.
func TestExitBarrierWhoseHostIsNoMember(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 2, 3)
		nodes[0].plane.host = true
		form(t, nodes)
		w.lose(nodes[0])
		if err := nodes[0].Close(); err != nil {
			t.Fatal(err)
		}
		o := form(t, nodes[1:])
		if o.HostRank != -1 {
			t.Fatalf("rank %d hosts", o.HostRank)
		}
		done := make(chan error, 1)
		go func() { done <- barrier(nodes[1].Keys(o.Round), 2) }()
		synctest.Wait()
		w.setDown(errHostDied)
		lost := time.Now()
		if err := <-done; err != nil || time.Since(lost) != rendezvous.DefaultLeaseTimeout {
			t.Errorf("after %v: %v", time.Since(lost), err)
		}
		if err := nodes[1].Shutdown(context.Background(), rendezvous.EndSuccess, ""); err == nil || time.Since(lost) > 2*params.DefaultCloseTimeout {
			t.Errorf("shutdown after %v: %v", time.Since(lost), err)
		}
	})
}

// A spare whose host died is not needed: no control plane is left that could give it a place. A
// short outage ends nothing, and its time does not count.
func TestSpareOfADeadHost(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		p := nodeParams("a", 1, 1)
		p.ReconnectGrace = time.Hour
		host, other := w.node(p), nodeParams("b", 1, 1)
		other.ReconnectGrace = time.Hour
		next := w.node(other)
		host.plane.host = true
		form(t, []*node{host})
		spare := next.join()
		wait(2 * params.DefaultJoinTimeout)
		for range 3 {
			w.setDown(errHostDied)
			wait(rendezvous.DefaultLeaseTimeout - time.Second)
			w.setDown(nil)
			wait(2 * time.Second)
		}
		if spare.ended() {
			t.Fatalf("the spare gave up: %v", spare.err)
		}
		w.setDown(errHostDied)
		lost := time.Now()
		<-spare.done
		refuses(t, spare.err, rendezvous.ErrConnection, "this node was a spare", "out of reach for 10 s")
		if since := time.Since(lost); since != rendezvous.DefaultLeaseTimeout {
			t.Errorf("it took %v", since)
		}
		if err := next.Shutdown(context.Background(), rendezvous.EndLeave, ""); err == nil || time.Since(lost) > rendezvous.DefaultLeaseTimeout {
			t.Errorf("shutdown after %v: %v", time.Since(lost), err)
		}
	})
}

// Who waits for a round that is being formed waits for a host that is started again.
func TestCandidateOfADeadHost(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		nodes[0].plane.host = true
		first := nodes[0].join()
		wait(time.Second)
		w.setDown(errHostDied)
		wait(3 * rendezvous.DefaultLeaseTimeout)
		if first.ended() {
			t.Fatalf("the candidate gave up: %v", first.err)
		}
		w.setDown(nil)
		round(t, first, nodes[1].join())
	})
}
