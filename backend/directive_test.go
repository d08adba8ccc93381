package backend

import (
	"context"
	"net"
	"testing"
	"time"

	"rallypoint/agent"
	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
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
		testDrain(t, &run{t, at(endpoint)}, func(ctx context.Context, ev rendezvous.Event) error {
			_, err := Admin{Place: endpoint, RunID: "job", By: "carol", Timeout: patience}.Ask(ctx, ev)
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

// TestDrainedIsRefused until it is undrained.
func TestDrainedIsRefused(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := control.Start(control.Config{}, l)
	t.Cleanup(func() { s.Close() })
	addr := l.Addr().String()
	r := &run{t, at(addr)}
	nodes := []*member.Member{r.node("n0", 2, 2), r.node("n1", 2, 2)}
	round(t, nodes...)
	drain := func(run, id, node string, within time.Duration) (string, error) {
		return client.Ask(t.Context(), addr, nil, run, rendezvous.Direct{
			ID: id, Kind: rendezvous.DirectiveDrain, Nodes: []string{node}, Within: within, By: "carol", Reason: "why",
		})
	}
	if _, err := drain("job", "d1", "n1", 0); err != nil {
		t.Fatal(err)
	}
	told(t, nodes[0], "drained by admin carol")
	nodes[1].Close()
	back := join(t.Context(), r.node("n1", 2, 2))
	<-back.done
	if rendezvous.CodeOf(back.err) != rendezvous.CodeGraceful {
		t.Errorf("the drained node: %v", back.err)
	}
	if _, err := client.Ask(t.Context(), addr, nil, "job", rendezvous.Undrain{Node: "n1", By: "carol", Reason: "it is back"}); err != nil {
		t.Fatal(err)
	}
	round(t, nodes[0], r.node("n1", 2, 2))

	for name, f := range map[string]func() (string, error){
		"an unknown node": func() (string, error) {
			return drain("job", "d2", "n7", 0)
		},
		"an unknown run": func() (string, error) {
			return drain("other", "d2", "n0", 0)
		},
		"a deadline in the past": func() (string, error) {
			return drain("job", "d2", "n0", -1)
		},
		"an unknown directive": func() (string, error) {
			return client.Ask(t.Context(), addr, nil, "job", rendezvous.CancelDirective{ID: "d7", By: "carol", Reason: "why"})
		},
		"a node that is not drained": func() (string, error) {
			return client.Ask(t.Context(), addr, nil, "job", rendezvous.Undrain{Node: "n0", By: "carol", Reason: "why"})
		},
	} {
		if done, err := f(); rendezvous.CodeOf(err) != rendezvous.CodeInvalid {
			t.Errorf("%s: %q, %v", name, done, err)
		}
	}
}
