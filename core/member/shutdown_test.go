package member_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

func TestShutdownBeforeConnect(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		n := w.nodes(1, 1, 1)[0]
		for range 2 {
			if err := n.Shutdown(context.Background(), rendezvous.EndSuccess, ""); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		}
		if n.plane.connects != 0 || !n.plane.closed {
			t.Errorf("%d connects, closed %v", n.plane.connects, n.plane.closed)
		}
		_, err := n.Next(context.Background())
		refuses(t, err, rendezvous.ErrClosed, "has been shut down")
		refuses(t, n.SetClosed(context.Background(), ""), rendezvous.ErrClosed)
		refuses(t, n.Finish(context.Background()), rendezvous.ErrClosed)
	})
}

func TestShutdownClosesTheRunOnlyForMembersThatEnd(t *testing.T) {
	for _, c := range []struct {
		name    string
		ending  rendezvous.Ending
		closed  bool
		waiting bool
	}{
		{"success", rendezvous.EndSuccess, true, false},
		{"failure", rendezvous.EndFailed, true, true},
		{"leave", rendezvous.EndLeave, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				nodes := w.nodes(2, 1, 2)
				form(t, nodes)
				nodes[0].log.take()
				if err := nodes[1].Shutdown(context.Background(), c.ending, "because"); err != nil {
					t.Fatal(err)
				}
				synctest.Wait()
				n := nodes[0]
				if n.Closed() != c.closed || n.NodesWaiting() > 0 != c.waiting {
					t.Errorf("closed %v, waiting %d", n.Closed(), n.NodesWaiting())
				}
				if got := n.log.take(); len(got) != 1 || !strings.Contains(got[0], "because") {
					t.Errorf("lines %q", got)
				}
				if c.closed {
					_, err := n.Next(context.Background())
					refuses(t, err, rendezvous.ErrClosed, "because")
				}
			})
		})
	}
}

func TestShutdownAwaitsPeersOfItsRoundStore(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		form(t, nodes)
		done := make(chan error, 1)
		go func() { done <- nodes[0].Shutdown(context.Background(), rendezvous.EndSuccess, "") }()
		wait(5 * time.Second)
		if got := nodes[0].stores.states(); !slices.Equal(got, []string{"begun"}) {
			t.Errorf("the store is %v while the other node works", got)
		}
		if got := nodes[0].log.take(); !slices.Contains(got, "this process hosts the store of the round's workers: waiting until the other nodes have ended, at most 30 s") {
			t.Errorf("lines %q", got)
		}
		if err := nodes[1].Shutdown(context.Background(), rendezvous.EndSuccess, ""); err != nil {
			t.Error(err)
		}
		if err := <-done; err != nil {
			t.Error(err)
		}
		if got := nodes[0].stores.states(); !slices.Equal(got, []string{"closed"}) {
			t.Errorf("stores %v", got)
		}
		if c := nodes[0].plane.lastClaim(); !c.Finished {
			t.Errorf("claim %+v", c)
		}
	})
}

func TestHostAwaitsPeersAtMostCloseTimeout(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		nodes[1].plane.host = true // rank 1 has no round store
		form(t, nodes)
		began := time.Now()
		if err := nodes[1].Shutdown(context.Background(), rendezvous.EndSuccess, ""); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != params.DefaultCloseTimeout {
			t.Errorf("took %v", took)
		}
		if nodes[1].plane.closeCtx == nil {
			t.Error("the plane was given more time")
		}
	})
}

func TestShutdownIsCutShort(t *testing.T) {
	for _, by := range []string{"context", "Close"} {
		t.Run(by, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				nodes := w.nodes(2, 2, 2)
				form(t, nodes)
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				done := make(chan error, 2)
				began := time.Now()
				for range 2 { // the second waits for the first
					go func() { done <- nodes[0].Shutdown(ctx, rendezvous.EndSuccess, "") }()
				}
				wait(3 * time.Second)
				if by == "Close" {
					if err := nodes[0].Close(); err != nil {
						t.Error(err)
					}
				} else {
					cancel()
				}
				for range 2 {
					if err := <-done; err != nil && !errors.Is(err, rendezvous.ErrCanceled) {
						t.Error(err)
					}
				}
				if took := time.Since(began); took != 3*time.Second {
					t.Errorf("took %v", took)
				}
			})
		})
	}
}

func TestShutdownEndsEverythingElse(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 3)
		form(t, nodes)
		keys := nodes[1].Keys(1)
		get := make(chan error, 1)
		go func() {
			_, err := keys.Get(context.Background(), "never")
			get <- err
		}()
		j := nodes[1].join()
		synctest.Wait()
		if err := nodes[1].Shutdown(context.Background(), rendezvous.EndLeave, ""); err != nil {
			t.Error(err)
		}
		<-j.done
		refuses(t, j.err, rendezvous.ErrCanceled, "shut down")
		if err := <-get; err == nil {
			t.Error("Get returned a value")
		}
		if w.pending(nodes[1]) {
			t.Error("the control plane holds a join of a node that left")
		}
	})
}

func TestShutdownEndsConnecting(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.setDown(errors.New("connection refused"))
		n := w.nodes(1, 1, 1)[0]
		j := n.join()
		closing := make(chan error, 1)
		go func() { closing <- n.SetClosed(context.Background(), "") }()
		wait(time.Second)
		if err := n.Shutdown(context.Background(), rendezvous.EndLeave, ""); err != nil {
			t.Error(err)
		}
		<-j.done
		refuses(t, j.err, rendezvous.ErrCanceled)
		refuses(t, <-closing, rendezvous.ErrCanceled)
		if j.took != time.Second {
			t.Errorf("took %v", j.took)
		}
	})
}

func TestShutdownWithoutControlPlane(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		form(t, nodes)
		w.setDown(errors.New("no route to host"))
		synctest.Wait()
		began := time.Now()
		err := nodes[1].Shutdown(context.Background(), rendezvous.EndSuccess, "")
		refuses(t, err, rendezvous.ErrTimeout, "leave the run", "host0:29400", "no route to host")
		if took := time.Since(began); took != rendezvous.DefaultLeaseTimeout {
			t.Errorf("took %v", took)
		}
		if !nodes[1].plane.closed {
			t.Error("the plane is still open")
		}
	})
}

func TestSetClosed(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 1, 3)
		form(t, nodes[:2])
		if err := nodes[0].SetClosed(context.Background(), "enough"); err != nil {
			t.Fatal(err)
		}
		if !nodes[0].Closed() {
			t.Error("not closed")
		}
		synctest.Wait()
		if !nodes[1].Closed() || nodes[1].NodesWaiting() != 0 || !strings.Contains(nodes[1].Reason(), "enough") {
			t.Errorf("closed %v, waiting %d, reason %q", nodes[1].Closed(), nodes[1].NodesWaiting(), nodes[1].Reason())
		}
		_, err := nodes[2].Next(context.Background())
		refuses(t, err, rendezvous.ErrClosed, "closed by a", "enough")
	})
}

func TestSetClosedTimesOut(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.setDown(errors.New("connection refused"))
		n := w.nodes(1, 1, 1)[0]
		began := time.Now()
		err := n.SetClosed(context.Background(), "")
		refuses(t, err, rendezvous.ErrTimeout, "could not close the run within 30 s", "host0:29400", "connection refused")
		if took := time.Since(began); took != params.DefaultCloseTimeout {
			t.Errorf("took %v", took)
		}
	})
}

func TestFinish(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		if err := nodes[0].Finish(context.Background()); err != nil || nodes[0].plane.connects != 0 {
			t.Errorf("before the first round: %v, %d connects", err, nodes[0].plane.connects)
		}
		form(t, nodes)
		if err := nodes[0].Finish(context.Background()); err != nil {
			t.Fatal(err)
		}
		if c := nodes[0].plane.lastClaim(); !c.Finished || c.Round != 1 {
			t.Errorf("claim %+v", c)
		}
		_, err := nodes[1].Next(context.Background())
		refuses(t, err, rendezvous.ErrClosed, "finished: a")
	})
}

func TestLongReasonIsCut(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 1, 2)
		form(t, nodes)
		reason := strings.Repeat("é", rendezvous.MaxNameLen)
		if err := nodes[1].Shutdown(context.Background(), rendezvous.EndFailed, reason); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		got := nodes[0].Reason()
		if !strings.HasSuffix(got, "é…") || len(got) > rendezvous.MaxNameLen+200 {
			t.Errorf("%d bytes: %q", len(got), got)
		}
	})
}
