package cli

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"rallypoint/backend"
	"rallypoint/core/control"
	"rallypoint/core/params"
	"rallypoint/core/training"
	"rallypoint/internal/testkit"
)

// TestStatusOfProgress: what a node carries with its heartbeats is in the status, where the
// nodes meet at a control plane and where they meet in a directory.
func TestStatusOfProgress(t *testing.T) {
	for name, endpoint := range map[string]string{"hosted": "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)), "file": "file://" + t.TempDir()} {
		t.Run(name, func(t *testing.T) {
			p := params.Default()
			p.Endpoint, p.RunID, p.NodeID, p.LocalAddr = endpoint, "run", "gpu17", "127.0.0.1"
			p.Min, p.Max, p.LeaseTimeout, p.ReconnectGrace = 1, 1, 2*time.Second, time.Second
			node, err := backend.Open(p, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer node.Close()
			report := training.Report{Round: 1, Workers: 2, Reporting: 2, Smallest: 41198, Largest: 41200, SinceSlowest: 40 * time.Second, PerStep: 3100 * time.Millisecond, Stalled: "no step for 65 s: rank 3 stands in x.py:1 f",
				Waits: training.NewWaits(4, []float64{0.31, 0.03})}
			node.CarryTraining(func() *training.Report { return &report })
			if _, err := node.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			awaitStatus(t, func(st control.Status) bool { return len(st.Runs) == 1 && st.Runs[0].Progress != nil }, endpoint)
			if _, text, _ := execute(t, "status", endpoint); !strings.Contains(text, "\nProgress: step 41 200 · 3.1 s a step · node gpu17 two steps behind for 4") || !strings.Contains(text, ": stalled, round 1") || !strings.Contains(text, "\nStalled: no step for 65 s: rank 3 stands in x.py:1 f\n") ||
				!strings.Contains(text, "\nSlow: rank 5 (gpu17) slows the job down: it waits for others 3 % of the time, each other rank at least 31 %\n") {
				t.Errorf("got %s", text)
			}
		})
	}
}
