package rendezvous_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

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
	bubble(t, func(t *testing.T, w *world) {
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
			t.Errorf("people are told %q", told)
		}
		// One that comes later does not wait at all.
		before := time.Now()
		if err := barrier(nodes[1].Keys(o.Round), 2); err != nil || time.Since(before) != 0 {
			t.Errorf("after %v: %v", time.Since(before), err)
		}
		if err := nodes[1].Shutdown(context.Background(), rendezvous.EndSuccess, ""); err == nil || time.Since(before) > rendezvous.DefaultCloseTimeout {
			t.Errorf("shutdown after %v: %v", time.Since(before), err)
		}
	})
}

// A host that comes back in time, and a control plane that is no node of the job,
// are waited for.
func TestExitBarrierWaitsForAControlPlane(t *testing.T) {
	for name, hosted := range map[string]bool{"host that returns": true, "server": false} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, w *world) {
				var nodes []*node
				for _, name := range []string{"a", "b"} {
					p := params(name, 2, 2)
					p.ReconnectGrace = time.Hour // nobody is lost meanwhile
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
