package member_test

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"rallypoint/core/rendezvous"
)

// TestAnnouncedStop is seen by every member of the round once the announcement has
// returned, and by none of the next round.
func TestAnnouncedStop(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(3, 1, 3)
		form(t, nodes)
		if err := nodes[1].AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: 1, Reason: "rank 3 failed"}); err != nil {
			t.Fatal(err)
		}
		want := rendezvous.RoundStop{Round: 1, Rank: 1, Reason: "rank 3 failed"}
		synctest.Wait()
		for _, n := range nodes {
			if got := n.Stopped(1); got != want || n.NodesWaiting() == 0 || !strings.Contains(n.Reason(), "failed: rank 3 failed") {
				t.Errorf("%+v, %d waiting, %q; want %+v", got, n.NodesWaiting(), n.Reason(), want)
			}
			if n.Stopped(2).Round != 0 {
				t.Error("it is the stop of another round, too")
			}
		}
		var joins []*joining
		for _, n := range nodes {
			joins = append(joins, n.join())
		}
		round(t, joins...)
		if err := nodes[0].AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: 1, Reason: "late"}); !errors.Is(err, rendezvous.ErrRoundOver) {
			t.Errorf("a late announcement: %v", err)
		}
		synctest.Wait()
		for _, n := range nodes {
			if got := n.Stopped(2); got.Round != 0 || n.NodesWaiting() > 0 {
				t.Errorf("in the next round: %+v, %d waiting", got, n.NodesWaiting())
			}
		}
	})
}

// TestAnnouncementWithoutControlPlane returns at once, and arrives when the control plane
// is back.
func TestAnnouncementWithoutControlPlane(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		form(t, nodes)
		w.setDown(errors.New("no route"))
		synctest.Wait()
		if err := nodes[0].AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: 1, Reason: "failed"}); rendezvous.CodeOf(err) != rendezvous.CodeConnection || !strings.Contains(err.Error(), "no route") {
			t.Errorf("got %v", err)
		}
		if nodes[1].Stopped(1).Round != 0 {
			t.Error("it is known already")
		}
		w.setDown(nil)
		for nodes[1].Stopped(1).Round == 0 {
			<-nodes[1].Changed()
		}
	})
}
