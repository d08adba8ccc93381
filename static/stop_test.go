package static

import (
	"errors"
	"strings"
	"testing"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"

	"rallypoint/internal/testkit"
)

// TestAnnouncedStop: the nodes of a static job stop together; the first announcement of a
// round counts, and it says nothing about the next.
func TestAnnouncedStop(t *testing.T) {
	port := testkit.FreePort(t)
	nodes := []*Static{newNode(t, staticParams(port, 2, 0)), newNode(t, staticParams(port, 2, 1))}
	form := func() {
		a, b := next(t, nodes[0]), next(t, nodes[1])
		if x, y := <-a, <-b; x.err != nil || y.err != nil {
			t.Fatal(x.err, y.err)
		}
	}
	form()
	if err := nodes[0].AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: 1, Leaving: true, Reason: "leaves"}); err != nil || nodes[1].NodesWaiting() > 0 {
		t.Errorf("a node that leaves: %v", err)
	}
	if err := nodes[1].AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: 1, Reason: "rank 3 failed"}); err != nil {
		t.Fatal(err)
	}
	if err := nodes[0].AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: 1, Reason: "later"}); err != nil {
		t.Fatal(err)
	}
	want := rendezvous.RoundStop{Round: 1, Rank: 1, Reason: "rank 3 failed"}
	for rank, s := range nodes {
		<-s.Changed()
		if got := s.Stopped(1); got != want || s.NodesWaiting() == 0 || s.Closed() || s.Reason() != "node 1 failed: rank 3 failed" {
			t.Errorf("node %d: %+v, %d waiting, %q", rank, got, s.NodesWaiting(), s.Reason())
		}
	}
	form()
	if err := nodes[1].AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: 1, Reason: "late"}); !errors.Is(err, rendezvous.ErrRoundOver) {
		t.Errorf("a late announcement: %v", err)
	}
	for _, s := range nodes {
		if s.Stopped(2).Round != 0 || s.Stopped(1).Round != 0 || s.NodesWaiting() > 0 {
			t.Errorf("in the next round: %+v, %d waiting", s.Stopped(2), s.NodesWaiting())
		}
	}
}

// TestFailureBehindStop: a node that announced a stop and then gives up ends the run for
// those that stop, and for those that wait for the next round already.
func TestFailureBehindStop(t *testing.T) {
	port := testkit.FreePort(t)
	nodes := []*Static{newNode(t, staticParams(port, 3, 0)), newNode(t, staticParams(port, 3, 1)), newNode(t, staticParams(port, 3, 2))}
	var joins []<-chan answer
	for _, s := range nodes {
		joins = append(joins, next(t, s))
	}
	for _, join := range joins {
		if a := <-join; a.err != nil {
			t.Fatal(a.err)
		}
	}
	if err := nodes[1].AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: 1, Reason: "rank 3 failed"}); err != nil {
		t.Fatal(err)
	}
	<-nodes[0].Changed()
	<-nodes[2].Changed()
	early := next(t, nodes[2])
	if err := nodes[1].Shutdown(t.Context(), rendezvous.EndFailed, "rank 3 failed for good"); err != nil {
		t.Fatal(err)
	}
	<-nodes[0].Changed()
	late := next(t, nodes[0])
	if !nodes[0].Closed() || nodes[0].Reason() != "rank 3 failed for good" {
		t.Errorf("closed %v, %q", nodes[0].Closed(), nodes[0].Reason())
	}
	for _, join := range []<-chan answer{early, late} {
		if a := <-join; !errors.Is(a.err, rendezvous.ErrClosed) || !strings.Contains(a.err.Error(), "rank 3 failed for good") {
			t.Errorf("got %+v", a)
		}
	}
	for _, s := range []*Static{nodes[2], nodes[0]} {
		if err := s.Shutdown(t.Context(), rendezvous.EndLeave, ""); err != nil {
			t.Error(err)
		}
	}
}

// TestDirectiveIsRefused by a text that says why, and where it would not be.
func TestDirectiveIsRefused(t *testing.T) {
	d := rendezvous.Direct{Kind: rendezvous.DirectiveSave, Within: time.Minute}
	p := params.Default()
	p.RunID = "job"
	err := (&Static{p: p}).Direct(t.Context(), d)
	if rendezvous.CodeOf(err) != rendezvous.CodeInvalid || !strings.Contains(err.Error(), `run "job": there is no save here`) || !strings.Contains(err.Error(), "file:///DIR") {
		t.Error(err)
	}
}
