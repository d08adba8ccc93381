package member_test

import (
	"testing"

	"rallypoint/core/rendezvous"
)

// TestWorkersWay: the outcome tells where this node's workers find the store, beside what its
// node advertises, and a way to it ends when the next round is entered and with the member.
func TestWorkersWay(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		for _, n := range nodes {
			n.stores.at = "127.5.6.7"
		}
		for want := uint64(1); want <= 2; want++ {
			joins := []*joining{nodes[0].join(), nodes[1].join()}
			o := round(t, joins...)
			if o.Round != want || o.StoreAddr != "127.5.6.7" || o.AdvertisedAddr != "10.0.0.7" {
				t.Errorf("got %+v", o)
			}
			if a, b := nodes[0].stores.openWays(), nodes[1].stores.openWays(); a+b != 1 {
				t.Errorf("round %d: %d and %d ways are open", want, a, b)
			}
		}
		for _, n := range nodes {
			n.Close()
			if n.stores.openWays() != 0 {
				t.Error("a way is left")
			}
		}
	})
}

// TestNoWay: without a way to the store for its workers a node is in no round.
func TestNoWay(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.nodes(2, 2, 2)
		for _, n := range nodes {
			n.stores.noWay = rendezvous.Errorf(rendezvous.CodeConnection, "cannot listen")
		}
		for _, j := range []*joining{nodes[0].join(), nodes[1].join()} {
			<-j.done
			refuses(t, j.err, rendezvous.ErrConnection, "cannot listen")
		}
	})
}
