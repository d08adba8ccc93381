package backend

import (
	"context"
	"net"
	"testing"
	"time"

	"rallypoint/agent"
	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestDrain: a drained node leaves at the deadline and exits with 0, and a spare takes its place
// without a restart. The node is refused when it comes back, until it is undrained.
func TestDrain(t *testing.T) {
	t.Run("hosted", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		s := control.Start(control.Config{}, l)
		t.Cleanup(func() { s.Close() })
		addr := l.Addr().String()
		testDrain(t, &run{t, at(addr)}, func(ctx context.Context, ev rendezvous.Event) error {
			_, err := client.Ask(ctx, addr, nil, "job", ev)
			return err
		})
	})
	t.Run("file", func(t *testing.T) {
		endpoint := "file://" + t.TempDir()
		place := testkit.Must(Locate(endpoint))(t)
		testDrain(t, &run{t, at(endpoint)}, func(ctx context.Context, ev rendezvous.Event) error {
			_, err := Admin{At: place, RunID: "job", By: "carol", Timeout: patience}.Ask(ctx, ev)
			return err
		})
	})
}

func testDrain(t *testing.T, r *run, ask func(context.Context, rendezvous.Event) error) {
	j := newJob(t)
	for _, name := range []string{"n0", "n1"} {
		j.start(r.node(name, 2, 2), 0, again+stopped)
	}
	j.want("0.0 up 0", "0.1 up 0", "1.0 up 0", "1.1 up 0")
	var spare agent.Rendezvous = r.node("n2", 2, 2)
	j.start(spare, 0, again+stopped)
	drain := rendezvous.Direct{
		ID: "d1", Kind: rendezvous.DirectiveDrain, Nodes: []string{"n1"}, Within: 50 * time.Millisecond, By: "carol", Reason: "its disk",
	}
	if err := ask(t.Context(), drain); err != nil {
		t.Fatal(err)
	}
	j.want("0.0 TERM", "0.0 up 0", "0.1 TERM", "0.1 up 0", "1.0 TERM", "1.1 TERM", "2.0 up 0", "2.1 up 0")
	for node := range j.agents {
		if err := j.wait(node); err != nil {
			t.Errorf("node %d: %v", node, err)
		}
	}
	if !j.agents[1].Result().Spare {
		t.Error("the drained node did not end as one that is not needed")
	}
}
