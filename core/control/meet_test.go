package control

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

func TestTwoClientsMeet(t *testing.T) {
	endpoint := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t))
	a := connected(t, controltest.Params(endpoint, 2), controltest.NewObserver())
	b := connected(t, controltest.Params(endpoint, 2), controltest.NewObserver())
	if !a.Hosting() || b.Hosting() {
		t.Errorf("hosting: %v, %v; want the first only", a.Hosting(), b.Hosting())
	}
	if a.SeenAddr() != "127.0.0.1" {
		t.Errorf("seen as %q", a.SeenAddr())
	}
	ca, cb := a.Start(controltest.Join()), b.Start(controltest.Join())
	oa, ob := controltest.Outcome(t, ca), controltest.Outcome(t, cb)
	if oa.Rank+ob.Rank != 1 || oa.World != 2 || oa.Round != 1 || oa.Generation != ob.Generation {
		t.Errorf("outcomes %+v and %+v", oa, ob)
	}
	if oa.HostRank != oa.Rank {
		t.Errorf("host rank %d, want %d", oa.HostRank, oa.Rank)
	}
}

// TestManyClientsMeet has a few hundred nodes start at once: one of them hosts,
// all get their own rank.
func TestManyClientsMeet(t *testing.T) {
	meet(t, fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t)), 200)
}

// TestTwoRaceToHost has two processes of one machine start together, again and
// again: one listens, the other finds it.
func TestTwoRaceToHost(t *testing.T) {
	for range 30 {
		endpoint := fmt.Sprintf("localhost:%d", testkit.FreePort(t))
		meet(t, endpoint, 2)
	}
}

// meet lets n clients meet at an endpoint.
func meet(tb testing.TB, endpoint string, n int) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*testkit.Patience)
	defer cancel()
	clients := make([]*client.Client, n)
	outcomes := make([]rendezvous.Outcome, n)
	var wg sync.WaitGroup
	for i := range n {
		p := controltest.Params(endpoint, n)
		clients[i] = client.New(p, controltest.NewObserver(), nil, startHost)
		wg.Go(func() {
			err := clients[i].Connect(ctx)
			if err == nil {
				outcomes[i], err = controltest.AwaitOutcome(ctx, clients[i].Start(controltest.Join()))
			}
			if err != nil {
				tb.Error(err)
			}
		})
	}
	wg.Wait()
	if b, ok := tb.(*testing.B); ok {
		b.StopTimer()
		defer b.StartTimer()
	}
	ranks, hosts := map[int]bool{}, 0
	for i, o := range outcomes {
		ranks[o.Rank] = true
		if o.World != n || o.Round != 1 {
			tb.Fatalf("outcome %+v", o)
		}
		if clients[i].Hosting() {
			hosts++
		}
	}
	if len(ranks) != n || hosts != 1 {
		tb.Errorf("%d ranks and %d hosts of %d nodes", len(ranks), hosts, n)
	}
	canceled, stop := context.WithCancel(ctx)
	stop()
	for _, c := range clients {
		wg.Go(func() { c.Close(canceled) })
	}
	wg.Wait()
}

// BenchmarkMeet is the time in which all nodes of a job, started at once in one
// process, find the control plane and complete a round.
func BenchmarkMeet(b *testing.B) {
	for _, n := range []int{2, 100, 1000, 4000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			for b.Loop() {
				b.StopTimer()
				endpoint := fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(b))
				b.StartTimer()
				meet(b, endpoint, n)
			}
		})
	}
}
