package cli

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// TestSegmentsFollowTheTopology has eight nodes in four racks, in segments of two. The round
// waits for the rack that lacks a node, and logs that. Each segment is in one rack. When a node
// is killed, the spare of its rack takes its rank. All others keep theirs, and the spare of
// another rack waits.
func TestSegmentsFollowTheTopology(t *testing.T) {
	for name, endpoint := range map[string]func(t *testing.T) string{
		"hosted":    func(t *testing.T) string { return "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)) },
		"directory": func(t *testing.T) string { return "file://" + t.TempDir() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			endpoint := endpoint(t)
			node := func(id string, rack int) *nodeProcess {
				return h.run(printPlacement, "--nnodes=8", "--segment=2", fmt.Sprint("--topology=rack", rack), "--rdzv-endpoint="+endpoint, "--rdzv-id=job",
					"--rdzv-conf=lease_timeout=5,reconnect_grace=1,node_id="+id)
			}
			status := func(wanted func(r control.RunStatus) bool) (r control.RunStatus) {
				testkit.Eventually(t, "the status is as wanted", func() bool {
					var st control.Status
					code, text, _ := execute(t, "status", "--json", endpoint)
					if code != 0 || json.Unmarshal([]byte(text), &st) != nil || len(st.Runs) != 1 {
						return false
					}
					r = st.Runs[0]
					return wanted(r)
				})
				return r
			}
			ranks := func() map[string]int {
				ranks, racks := map[string]int{}, map[int]string{}
				for _, m := range status(func(r control.RunStatus) bool { return len(r.Members) == 8 && r.Counts.Running == 8 }).Members {
					ranks[m.Node] = m.Rank
					if rack := racks[m.Rank/2]; rack != "" && rack != m.Topology {
						t.Errorf("ranks %d and %d are in %s and %s", m.Rank/2*2, m.Rank/2*2+1, rack, m.Topology)
					}
					racks[m.Rank/2] = m.Topology
				}
				return ranks
			}

			var nodes []*nodeProcess
			for i := range 7 { // in turn: racks 0 to 3, then 0 to 2
				nodes = append(nodes, node(fmt.Sprint("n", i), i%4))
				if i == 0 {
					status(func(r control.RunStatus) bool { return len(r.Waiting) == 1 }) // it hosts
				}
			}
			r := status(func(r control.RunStatus) bool { return len(r.Waiting) == 7 })
			if want := "6 of at least 8 nodes are here in whole segments of 2, 1 more needed: rack3 has 1 of 2"; r.NotStarted != want || r.Nodes.Segment != 2 || r.Missing.Min != 1 {
				t.Errorf("%q, %+v, want %q", r.NotStarted, r.Nodes, want)
			}
			nodes = append(nodes, node("n7", 3))
			h.readRound(8)
			before := ranks()
			spares := []*nodeProcess{node("other", 0)}
			status(func(r control.RunStatus) bool { return len(r.Waiting) == 1 })
			spares = append(spares, node("same", 2))
			status(func(r control.RunStatus) bool { return len(r.Waiting) == 2 })

			testkit.Check(t, nodes[6].Process.Kill()) // of rack 2
			nodes[6].expect(t, -int(syscall.SIGKILL))
			h.readRound(8)
			after := ranks()
			before["same"] = before["n6"]
			delete(before, "n6")
			if fmt.Sprint(after) != fmt.Sprint(before) {
				t.Errorf("ranks %v, want %v", after, before)
			}
			if _, text, _ := execute(t, "status", endpoint); !strings.Contains(text, "TOPOLOGY") || strings.Count(text, "rack2") < 2 {
				t.Error(text)
			}
			h.finish()
			for i, n := range append(nodes, spares...) {
				if i != 6 {
					n.expect(t, 0)
				}
			}
		})
	}
}
