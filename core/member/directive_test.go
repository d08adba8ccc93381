package member_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/rendezvous"
)

func save(id string) rendezvous.Direct {
	return rendezvous.Direct{ID: id, Kind: rendezvous.DirectiveSave, Within: time.Hour, By: "admin", Reason: "why"}
}

// TestDirectiveWakesAll who wait for it, with each change, and is none in a join.
func TestDirectiveWakesAll(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		form(t, nodes)
		none, first := nodes[0].Directive()
		_, second := nodes[0].Directive()
		if none != (rendezvous.DirectiveNotice{}) {
			t.Errorf("none stands: %+v", none)
		}
		w.applyLocked(save("s1"))
		<-first
		<-second
		asked, changed := nodes[0].Directive()
		if asked.ID != "s1" || asked.Round != 1 || asked.Agreed {
			t.Errorf("it was told %+v", asked)
		}
		for i, n := range nodes {
			if err := n.ReportHeld(t.Context(), 1, "s1", int64(7-i)); err != nil {
				t.Error(err)
			}
		}
		<-changed
		agreed, _ := nodes[0].Directive()
		if !agreed.Agreed || agreed.Step != 7 {
			t.Errorf("it was told %+v", agreed)
		}
		back := nodes[0].join()
		synctest.Wait()
		if d, _ := nodes[0].Directive(); d.ID != "s1" || d.Round != 0 || d.Agreed {
			t.Errorf("while it joins: %+v", d)
		}
		round(t, back, nodes[1].join())
		synctest.Wait()
		if d, _ := nodes[0].Directive(); d.Round != 2 || d.Agreed {
			t.Errorf("in the next round: %+v", d)
		}
		if err := nodes[0].ReportSaved(t.Context(), 1, "s1"); !errors.Is(err, rendezvous.ErrRoundOver) {
			t.Errorf("a late report: %v", err)
		}
	})
}

// TestReportsWithoutControlPlane: reports are kept without their caller, and are in the next hello.
func TestReportsWithoutControlPlane(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		form(t, nodes)
		w.applyLocked(save("s1"))
		synctest.Wait()
		w.setDown(errors.New("no route"))
		synctest.Wait()
		for i, n := range nodes {
			if err := n.ReportHeld(t.Context(), 1, "s1", int64(7+i)); rendezvous.CodeOf(err) != rendezvous.CodeConnection {
				t.Errorf("without a way to the control plane: %v", err)
			}
			reports := n.plane.lastClaim().Reports
			if len(reports) != 1 || reports[0] != (rendezvous.DirectiveReport{ID: "s1", Step: int64(7 + i)}) {
				t.Errorf("its hello says %+v", reports)
			}
		}
		w.setDown(nil)
		for _, n := range nodes {
			for {
				d, changed := n.Directive()
				if d.Agreed {
					if d.Step != 8 {
						t.Errorf("it was told %+v", d)
					}
					break
				}
				<-changed
			}
		}
		if err := nodes[0].ReportSaved(t.Context(), 1, "s1"); err != nil {
			t.Error(err)
		}
		if reports := nodes[0].plane.lastClaim().Reports; len(reports) != 2 || !reports[1].Saved {
			t.Errorf("its hello says %+v", reports)
		}
	})
}

// TestDirectGivenUp: the call continues by itself with its arguments: its caller may use the list of
// nodes again.
func TestDirectGivenUp(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 2, 3)
		form(t, nodes)
		w.setDown(errors.New("no route"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		names := []string{nodes[2].plane.p.NodeID}
		err := nodes[0].Direct(ctx, rendezvous.Direct{Kind: rendezvous.DirectiveDrain, Nodes: names, Within: time.Hour})
		if rendezvous.CodeOf(err) != rendezvous.CodeTimeout {
			t.Fatalf("without a way to the control plane: %v", err)
		}
		drained := names[0]
		names[0] = "other"
		w.setDown(nil)
		time.Sleep(time.Second) // of the fake clock: all have reconnected
		synctest.Wait()
		if d := w.m.Status().Directives; len(d) != 1 || d[0].Nodes[0] != drained {
			t.Errorf("the directives that stand: %+v, want a drain of %s", d, drained)
		}
	})
}

// TestRequeued: a member knows of a run that a directive has ended, and of no other.
func TestRequeued(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		form(t, nodes)
		if _, requeued := nodes[0].Requeued(); requeued {
			t.Error("an open run")
		}
		if err := nodes[1].Direct(t.Context(), rendezvous.Direct{Kind: rendezvous.DirectiveStop, Reason: "the maintenance begins"}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		reason, requeued := nodes[0].Requeued()
		if !requeued || !nodes[0].Closed() || nodes[0].NodesWaiting() == 0 {
			t.Errorf("%q, %v", reason, requeued)
		}
		back := nodes[0].join()
		synctest.Wait()
		refuses(t, back.err, rendezvous.ErrClosed, "stopped to be queued again by node")
	})
}
