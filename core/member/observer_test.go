package member_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestLostMemberIsAnnouncedUntilNext(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 1, 3)
		form(t, nodes)
		for _, n := range nodes {
			n.log.take()
		}
		w.lose(nodes[2])
		if err := nodes[2].Close(); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for _, n := range nodes[:2] {
			if n.NodesWaiting() == 0 || !strings.Contains(n.Reason(), "lost: c") {
				t.Errorf("waiting %d, reason %q", n.NodesWaiting(), n.Reason())
			}
			if got := n.log.take(); len(got) != 1 || !strings.HasPrefix(got[0], "the round is over: lost: c") {
				t.Errorf("lines %q", got)
			}
		}
		select {
		case <-nodes[0].Changed():
		default:
			t.Error("Changed says nothing of the loss")
		}
		first := nodes[0].join()
		synctest.Wait()
		if nodes[0].NodesWaiting() != 0 {
			t.Error("a node that rejoins is still told to")
		}
		if nodes[1].NodesWaiting() == 0 {
			t.Error("the notice went away before the node rejoined")
		}
		round(t, first, nodes[1].join())
		for _, n := range nodes[:2] {
			if n.NodesWaiting() != 0 || n.Reason() != "" {
				t.Errorf("in the new round: waiting %d, reason %q", n.NodesWaiting(), n.Reason())
			}
		}
	})
}

// An update that was on its way when the node asked to join is about the round it
// left; one that comes after the outcome is about the new round.
func TestNoticesAroundAnOutcome(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 1, 3)
		form(t, nodes)
		release := nodes[0].plane.hold()
		w.lose(nodes[2]) // announced to a, which does not see it yet
		if err := nodes[2].Close(); err != nil {
			t.Fatal(err)
		}
		first, second := nodes[0].join(), nodes[1].join()
		<-second.done
		w.lose(nodes[1]) // of the new round
		release()
		<-first.done
		if first.err != nil || first.outcome.World != 2 {
			t.Fatalf("got %+v, %v", first.outcome, first.err)
		}
		synctest.Wait()
		if nodes[0].NodesWaiting() == 0 || !strings.Contains(nodes[0].Reason(), "lost: b") {
			t.Errorf("the loss behind the outcome was forgotten: waiting %d, reason %q", nodes[0].NodesWaiting(), nodes[0].Reason())
		}
	})
}

func TestLateNoticeDoesNotRestartTheNewRound(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 1, 3)
		form(t, nodes)
		release := nodes[0].plane.hold()
		w.lose(nodes[2])
		if err := nodes[2].Close(); err != nil {
			t.Fatal(err)
		}
		first, second := nodes[0].join(), nodes[1].join()
		<-second.done
		release()
		<-first.done
		if waiting := nodes[0].NodesWaiting(); waiting != 0 {
			t.Errorf("waiting %d right after Next", waiting)
		}
		synctest.Wait()
		if waiting := nodes[0].NodesWaiting(); waiting != 0 {
			t.Errorf("waiting %d in the new round", waiting)
		}
	})
}

func TestLosingTheControlPlane(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		form(t, nodes)
		nodes[0].log.take()
		w.setDown(errors.New("connection reset"))
		wait(450 * time.Millisecond)
		if nodes[0].NodesWaiting() != 0 || nodes[0].Closed() {
			t.Errorf("waiting %d, closed %v", nodes[0].NodesWaiting(), nodes[0].Closed())
		}
		w.setDown(nil)
		wait(50 * time.Millisecond)
		want := []string{
			"lost the control plane at host0:29400, trying to reach it again: connection reset",
			"reached the control plane again after 0.5 s",
		}
		if got := nodes[0].log.take(); !slices.Equal(got, want) {
			t.Errorf("lines %q; want %q", got, want)
		}
	})
}

func TestDroppedNodeHasToRejoin(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 1, 2)
		form(t, nodes)
		nodes[0].log.take()
		w.lose(nodes[0])
		synctest.Wait()
		if nodes[0].NodesWaiting() == 0 || !strings.Contains(nodes[0].Reason(), "dropped") {
			t.Errorf("waiting %d, reason %q", nodes[0].NodesWaiting(), nodes[0].Reason())
		}
		wait(time.Second) // back under a new session
		if nodes[0].NodesWaiting() == 0 {
			t.Error("coming back is taken for rejoining")
		}
		if got := nodes[0].log.take(); len(got) != 1 || !strings.HasPrefix(got[0], "this node was taken out of the run") {
			t.Errorf("lines %q", got)
		}
		first := nodes[0].join()
		synctest.Wait()
		if o := round(t, first, nodes[1].join()); o.Round != 2 {
			t.Errorf("got %+v", o)
		}
		if nodes[0].NodesWaiting() != 0 {
			t.Error("told to rejoin after rejoining")
		}
	})
}
