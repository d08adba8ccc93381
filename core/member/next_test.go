package member_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/wording"
)

func TestNextFormsARound(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 3, 3)
		if c := nodes[0].plane.connects; c != 0 {
			t.Errorf("%d connects before the first Next", c)
		}
		o := form(t, nodes)
		if o.Round != 1 || o.StoreAddr != "10.0.0.7" || o.StorePort != 40000 {
			t.Errorf("got %+v", o)
		}
		for i, n := range nodes {
			want := []string{"begun"}
			if i > 0 {
				want = []string{"closed"}
			}
			if got := n.stores.states(); !slices.Equal(got, want) {
				t.Errorf("node %d: stores %v; want %v", i, got, want)
			}
			claim := rendezvous.LastRound{Generation: "g1", Round: 1, Rank: i, World: 3, HostRank: -1, Store: "10.0.0.7:40000"}
			if got := n.plane.lastClaim(); !reflect.DeepEqual(got, claim) {
				t.Errorf("node %d: claim %+v; want %+v", i, got, claim)
			}
			line := fmt.Sprintf("round 1: rank %d of 3, store at 10.0.0.7:40000", i)
			if got := n.log.take(); !slices.Equal(got, []string{line}) {
				t.Errorf("node %d: lines %q; want only %q", i, got, line)
			}
			if n.NodesWaiting() != 0 || n.Closed() || n.Reason() != "" {
				t.Errorf("node %d: waiting %d, closed %v, reason %q", i, n.NodesWaiting(), n.Closed(), n.Reason())
			}
		}
	})
}

func TestRoundStoreLivesUntilTheNextOutcome(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 1, 2)
		form(t, nodes)
		first := nodes[0].join()
		synctest.Wait()
		if got := nodes[0].stores.states(); !slices.Equal(got, []string{"begun", "waiting"}) {
			t.Errorf("while the next round forms: %v", got)
		}
		o := round(t, first, nodes[1].join())
		if got := nodes[0].stores.states(); !slices.Equal(got, []string{"closed", "begun"}) {
			t.Errorf("after it is complete: %v", got)
		}
		if o.Round != 2 || o.StorePort != 40001 {
			t.Errorf("got %+v", o)
		}
		if got := nodes[1].stores.states(); !slices.Equal(got, []string{"closed", "closed"}) {
			t.Errorf("of the other node: %v", got)
		}
	})
}

func TestNextTimesOut(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 4)
		j := nodes[0].join()
		<-j.done
		refuses(t, j.err, rendezvous.ErrTimeout,
			`run "job"`, "node a, ", "first round", "host0:29400", "1 of 4 nodes here (at least 2 needed)",
			"600 s of 600 s", "here: a", "missing: 3", "join_timeout")
		if j.took != 600*time.Second {
			t.Errorf("took %v", j.took)
		}
		if w.pending(nodes[0]) {
			t.Error("the join was not withdrawn")
		}
		if got := nodes[0].stores.states(); !slices.Equal(got, []string{"closed"}) {
			t.Errorf("stores %v", got)
		}
		// The member is as good as new.
		o := round(t, nodes[0].join(), nodes[1].join())
		if o.Round != 1 {
			t.Errorf("got %+v", o)
		}
	})
}

func TestNextNamesTheRoundItFollows(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		form(t, nodes)
		w.lose(nodes[1])
		if err := nodes[1].Close(); err != nil {
			t.Fatal(err)
		}
		j := nodes[0].join()
		<-j.done
		refuses(t, j.err, rendezvous.ErrTimeout, "the round after round 1", "1 of 2 nodes here", "lost from round 1: b")
	})
}

func TestNextWithoutControlPlane(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.setDown(errors.New("connection refused"))
		n := w.nodes(1, 1, 1)[0]
		j := n.join()
		wait(12 * time.Second)
		want := []string{
			"waiting for the control plane at host0:29400, 1 s of 600 s: connection refused",
			"waiting for the control plane at host0:29400, 11 s of 600 s: connection refused",
		}
		if got := n.log.take(); !slices.Equal(got, want) {
			t.Errorf("lines %q; want %q", got, want)
		}
		<-j.done
		refuses(t, j.err, rendezvous.ErrConnection, `run "job", node a, waiting for its first round, 600 s of 600 s (join_timeout): no control plane found: connection refused`)
		if len(n.stores.states()) != 0 {
			t.Error("a store was opened")
		}
		w.setDown(nil)
		round(t, n.join())
	})
}

func TestNextPassesRefusals(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		a := w.node(nodeParams("a", 2, 2))
		j := a.join()
		synctest.Wait()
		_, err := w.node(nodeParams("b", 1, 3)).Next(context.Background())
		refuses(t, err, rendezvous.ErrMismatch, "nnodes=1:3", "nnodes=2,")
		j.cancel()
		<-j.done
	})
}

func TestNextIsOneAtATime(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		j := nodes[0].join()
		synctest.Wait()
		_, err := nodes[0].Next(context.Background())
		refuses(t, err, rendezvous.ErrInvalid)
		round(t, j, nodes[1].join())
	})
}

func TestProgressLines(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 3, 3)
		j := nodes[0].join()
		wait(500 * time.Millisecond)
		if got := nodes[0].log.take(); len(got) != 0 {
			t.Errorf("lines in the first second: %q", got)
		}
		wait(4500 * time.Millisecond)
		want := []string{"1 of 3 nodes here, 1 s of 600 s; here: a; missing: 2"}
		if got := nodes[0].log.take(); !slices.Equal(got, want) {
			t.Errorf("after 5 s: %q; want %q", got, want)
		}
		j2 := nodes[1].join()
		wait(0)
		want = []string{"2 of 3 nodes here, 5 s of 600 s; here: a, b; missing: 1"}
		if got := nodes[0].log.take(); !slices.Equal(got, want) {
			t.Errorf("at a change: %q; want %q", got, want)
		}
		j2.cancel()
		<-j2.done
		wait(0)
		if got := nodes[0].log.take(); len(got) != 0 {
			t.Errorf("a second line at once: %q", got)
		}
		wait(time.Second)
		want = []string{"1 of 3 nodes here, 6 s of 600 s; here: a; missing: 2"}
		if got := nodes[0].log.take(); !slices.Equal(got, want) {
			t.Errorf("a second later: %q; want %q", got, want)
		}
		wait(25 * time.Second)
		want = []string{
			"1 of 3 nodes here, 16 s of 600 s; here: a; missing: 2",
			"1 of 3 nodes here, 26 s of 600 s; here: a; missing: 2",
		}
		if got := nodes[0].log.take(); !slices.Equal(got, want) {
			t.Errorf("without a change: %q; want %q", got, want)
		}
		j.cancel()
		<-j.done
	})
}

// TestTimesAreNoChange: a text that tells for how long something lasts is no news each second.
func TestTimesAreNoChange(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		n := w.nodes(1, 2, 2)[0]
		j := n.join()
		wait(time.Second)
		n.log.take()
		for s := range 35 {
			n.plane.observer.Progressed(rendezvous.Progress{Headline: "the control plane waits for its voters", Detail: fmt.Sprintf("b silent for %s, tried for %v", wording.Seconds(time.Duration(s)*time.Second), time.Duration(s)*999*time.Millisecond)})
			wait(time.Second)
		}
		if got := n.log.take(); len(got) != 4 {
			t.Errorf("%d lines in 35 s: %q", len(got), got)
		}
		j.cancel()
		<-j.done
	})
}

func TestCancelWithdraws(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		n := w.nodes(1, 2, 2)[0]
		j := n.join()
		wait(3 * time.Second)
		j.cancel()
		<-j.done
		refuses(t, j.err, rendezvous.ErrCanceled, "withdrawn", "1 of 2 nodes here", "3 s of 600 s")
		if j.took != 3*time.Second {
			t.Errorf("took %v", j.took)
		}
		if w.pending(n) {
			t.Error("the join was not withdrawn")
		}
	})
}

func TestDeadlineOfTheCallerIsATimeout(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_, err := w.nodes(1, 2, 2)[0].Next(ctx)
		refuses(t, err, rendezvous.ErrTimeout, "5 s of 600 s")
	})
}

// A withdrawal is a request: the outcome that was on its way stands (guarantee 1).
func TestWithdrawLosesAgainstTheOutcome(t *testing.T) {
	for _, late := range []string{"cancel", "timeout"} {
		t.Run(late, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				nodes := w.nodes(2, 2, 2)
				j := nodes[0].join()
				if late == "timeout" {
					wait(params.DefaultJoinTimeout - time.Second)
				} else {
					wait(time.Second)
				}
				release := nodes[0].plane.hold()
				other := nodes[1].join()
				<-other.done
				if late == "timeout" {
					wait(time.Second)
				} else {
					j.cancel()
				}
				synctest.Wait()
				if j.ended() {
					t.Fatal("Next did not wait for the answer to its withdrawal")
				}
				release()
				if o := round(t, j, other); o.Round != 1 {
					t.Errorf("got %+v", o)
				}
			})
		})
	}
}

func TestHungControlPlaneDoesNotHoldUpACaller(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		n := w.nodes(1, 2, 2)[0]
		j := n.join()
		wait(time.Second)
		release := n.plane.hold()
		j.cancel()
		<-j.done
		refuses(t, j.err, rendezvous.ErrCanceled)
		if j.took > 5*time.Second {
			t.Errorf("took %v", j.took)
		}
		release()
	})
}

func TestLostControlPlaneDoesNotHoldUpACaller(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		n := w.nodes(1, 2, 2)[0]
		j := n.join()
		wait(time.Second)
		w.setDown(errors.New("connection reset"))
		synctest.Wait()
		j.cancel()
		<-j.done
		refuses(t, j.err, rendezvous.ErrCanceled, "waiting for the control plane", "connection reset")
		if j.took != time.Second {
			t.Errorf("took %v", j.took)
		}
	})
}

func TestSpareWaitsWithoutLimit(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(4, 2, 2)
		form(t, nodes[:2])
		spare := nodes[2].join()
		wait(3 * params.DefaultJoinTimeout)
		if spare.ended() {
			t.Fatalf("the spare gave up: %v", spare.err)
		}
		got := nodes[2].log.take()
		want := []string{
			"this node runs nothing, since it is a spare: round 1 runs with 2 of 2 nodes; spare until a place falls free: c. " +
				"A job of its own needs its own run id (--rdzv-id), and a free endpoint if a node of a job hosts this one",
			"round 1 runs with 2 of 2 nodes, 1 s, no limit; spare until a place falls free: c",
		}
		if !slices.Equal(got[:2], want) {
			t.Errorf("lines %q; want %q", got[:2], want)
		}
		if slices.Contains(got[2:], want[0]) {
			t.Errorf("it says more than once that it runs nothing: %q", got)
		}
		if nodes[0].NodesWaiting() != 0 {
			t.Error("a spare makes the others regroup")
		}
		// Both members go: the spare becomes a candidate, and its time begins.
		w.lose(nodes[0])
		w.lose(nodes[1])
		for _, n := range nodes[:2] {
			if err := n.Close(); err != nil {
				t.Fatal(err)
			}
		}
		wait(params.DefaultJoinTimeout - time.Second)
		if spare.ended() {
			t.Fatalf("the candidate gave up early: %v", spare.err)
		}
		wait(2 * time.Second)
		if !spare.ended() {
			t.Fatal("the candidate has no limit")
		}
		refuses(t, spare.err, rendezvous.ErrTimeout, "1 of 2 nodes here", "600 s of 600 s")
	})
}

// The time allowed can be over before the first progress comes.
func TestSpareThatWasNotToldYet(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		form(t, nodes)
		w.mu.Lock()
		w.mute = true
		w.mu.Unlock()
		p := nodeParams("c", 2, 2)
		p.JoinTimeout = 10 * time.Millisecond
		spare := w.node(p).join()
		wait(time.Hour)
		if spare.ended() {
			t.Fatalf("the spare gave up: %v", spare.err)
		}
		w.lose(nodes[1])
		if err := nodes[1].Close(); err != nil {
			t.Fatal(err)
		}
		if o := round(t, nodes[0].join(), spare); o.Round != 2 {
			t.Errorf("got %+v", o)
		}
	})
}

// The control plane is lost just after the node has learnt from it that it is a spare.
func TestSpareThatIsToldLastHasALimit(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		form(t, w.nodes(2, 2, 2))
		w.mu.Lock()
		w.mute = true
		w.mu.Unlock()
		p := nodeParams("c", 2, 2)
		p.JoinTimeout = 10 * time.Millisecond
		n, joins := w.node(p), 0
		n.plane.starts = func(ev rendezvous.Event) {
			if _, is := ev.(rendezvous.Join); !is {
				return
			}
			if joins++; joins == 2 {
				w.mu.Lock()
				n.plane.broken = true
				w.mu.Unlock()
				n.plane.observer.ConnectionChanged(errors.New("no route to host"))
			}
		}
		spare := n.join()
		wait(time.Hour)
		if !spare.ended() {
			t.Fatal("it waits without a limit")
		}
		refuses(t, spare.err, rendezvous.ErrTimeout, "no route to host")
	})
}

func TestSpareTakesAFreePlace(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 2, 2)
		form(t, nodes[:2])
		spare := nodes[2].join()
		wait(2 * params.DefaultJoinTimeout)
		w.lose(nodes[1])
		if err := nodes[1].Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if nodes[0].NodesWaiting() == 0 {
			t.Error("the loss of a member was not announced")
		}
		if o := round(t, nodes[0].join(), spare); o.Round != 2 {
			t.Errorf("got %+v", o)
		}
	})
}

func TestSpareWithoutControlPlaneHasALimit(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 1, 1)
		form(t, nodes[:1])
		spare := nodes[1].join()
		wait(2 * params.DefaultJoinTimeout)
		w.setDown(errors.New("no route to host"))
		<-spare.done
		refuses(t, spare.err, rendezvous.ErrTimeout, "no route to host", "600 s of 600 s")
		if spare.took != 3*params.DefaultJoinTimeout {
			t.Errorf("took %v", spare.took)
		}
	})
}

func TestSpareLearnsTheEnd(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 1, 1)
		form(t, nodes[:1])
		spare := nodes[1].join()
		wait(time.Second)
		if err := nodes[0].Shutdown(context.Background(), rendezvous.EndSuccess, "done"); err != nil {
			t.Fatal(err)
		}
		<-spare.done
		refuses(t, spare.err, rendezvous.ErrGraceful)
	})
}

func TestDroppedWhileJoiningJoinsAgain(t *testing.T) {
	for _, failCalls := range []bool{false, true} {
		t.Run(fmt.Sprintf("failCalls=%v", failCalls), func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				nodes := w.nodes(2, 2, 2)
				nodes[0].plane.failCalls = failCalls
				j := nodes[0].join()
				wait(100 * time.Millisecond)
				w.lose(nodes[0])
				wait(5 * time.Second)
				if j.ended() || !w.pending(nodes[0]) {
					t.Fatalf("ended %v (%v), pending %v", j.ended(), j.err, w.pending(nodes[0]))
				}
				round(t, j, nodes[1].join())
				if nodes[0].NodesWaiting() != 0 {
					t.Error("the member of a new round is to rejoin")
				}
			})
		})
	}
}

func TestShortOutageDoesNotDisturbAJoin(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		j := nodes[0].join()
		wait(10 * time.Millisecond)
		w.setDown(errors.New("connection reset"))
		wait(500 * time.Millisecond)
		w.setDown(nil)
		o := round(t, j, nodes[1].join())
		if o.Round != 1 || len(nodes[0].stores.states()) != 1 {
			t.Errorf("got %+v, stores %v", o, nodes[0].stores.states())
		}
	})
}

func TestNextWithoutStore(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		n := w.nodes(1, 1, 1)[0]
		n.stores.fail = rendezvous.Errorf(rendezvous.CodeConnection, "port 29500 is taken")
		_, err := n.Next(context.Background())
		refuses(t, err, rendezvous.ErrConnection, "port 29500 is taken")
	})
}
