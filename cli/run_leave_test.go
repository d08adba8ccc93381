package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"rallypoint/core/control"
	"rallypoint/internal/testkit"
)

// failing is printPlacement of a worker that fails once it is told to, in each round anew: where a node leaves before the
// others have agreed on a round, they cannot know what its last failure has cost.
var failing = strings.Replace(printPlacement, "until [ -e finish ]; do sleep 0.2; done; exit 0", "until [ -e fail$RALLYPOINT_ROUND ]; do sleep 0.2; done; exit 13", 1)

// TestLeave: a node whose workers keep failing leaves, a spare takes its rank, and the job continues
// with the restarts that the failures before have cost; also if the node is the job's host, and in a
// directory.
func TestLeave(t *testing.T) {
	host := func(t *testing.T) string { return "127.0.0.1:" + strconv.Itoa(testkit.FreePort(t)) }
	for name, c := range map[string]struct {
		endpoint func(t *testing.T) string
		bad      int // in the order of the nodes' starts
		policy   string
		failures int
		moves    bool // the control plane is then at an address of its own
	}{
		"hosted":     {host, 1, "leave:1/1d", 1, false},
		"host twice": {host, 0, "leave:2/1h", 2, true},
		"directory":  {func(t *testing.T) string { return "file://" + t.TempDir() }, 2, "leave", 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newHarness(t)
			endpoint := c.endpoint(t)
			node := func(i int) *nodeProcess {
				script := printPlacement
				if i == c.bad {
					script = failing
				}
				return h.run(script, "--nnodes=3:3", "--rdzv-endpoint="+endpoint, "--rdzv-id=job", "--max-restarts=3", "--on-failure="+c.policy,
					fmt.Sprintf("--rdzv-conf=node_id=n%d,lease_timeout=5,reconnect_grace=1", i))
			}
			status := func(wanted func(r control.RunStatus) bool) (r control.RunStatus) {
				testkit.Eventually(t, "the status is as wanted", func() bool {
					var st control.Status
					code, text, _ := execute(t, "status", "--json", endpoint) // before there is a host, and while it changes, nothing listens
					if code != 0 || json.Unmarshal([]byte(text), &st) != nil || len(st.Runs) != 1 {
						return false
					}
					r = st.Runs[0]
					return wanted(r)
				})
				return r
			}
			nodes := []*nodeProcess{node(0)}
			status(func(r control.RunStatus) bool { return len(r.Waiting) == 1 }) // it hosts
			nodes = append(nodes, node(1), node(2))
			h.readRound(3)
			rank := -1
			for _, m := range status(func(r control.RunStatus) bool { return len(r.Members) == 3 }).Members {
				if m.Node == fmt.Sprintf("n%d", c.bad) {
					rank = m.Rank
				}
			}
			nodes = append(nodes, node(3))
			status(func(r control.RunStatus) bool { return len(r.Waiting) == 1 })
			all := []placement{{round: 1}}
			for range c.failures {
				testkit.WriteFile(t, filepath.Join(h.dir, fmt.Sprint("fail", all[0].round)), nil)
				all = h.readRound(3)
			}
			if all[0].restarts != c.failures-1 {
				t.Errorf("%d failures have cost %d restarts", c.failures, all[0].restarts)
			}
			nodes[c.bad].expect(t, 94)
			if text := nodes[c.bad].stderr.String(); !strings.Contains(text, "this node leaves the run and is kept out for ") {
				t.Error(text)
			}
			if !c.moves {
				keptOut(t, status(func(r control.RunStatus) bool { return len(r.Drained) == 1 }), endpoint, c.bad, rank)
				again := node(c.bad)
				again.expect(t, 94)
				if text := again.stderr.String(); !strings.Contains(text, "left it as unfit") {
					t.Error(text)
				}
			}
			h.finish()
			for i, n := range nodes {
				if i != c.bad {
					n.expect(t, 0)
				}
			}
		})
	}
}

// keptOut asserts that a node is out, that the status says why, and that the spare has its rank.
func keptOut(t *testing.T, r control.RunStatus, endpoint string, bad, rank int) {
	t.Helper()
	if d := r.Drained[0]; d.Node != fmt.Sprintf("n%d", bad) || d.Cause != "failures" || !strings.Contains(d.Reason, "exited with code 13") {
		t.Errorf("kept out: %+v", d)
	}
	for _, m := range r.Members {
		if m.Node == "n3" && m.Rank != rank {
			t.Errorf("the spare has rank %d, the node that left had %d", m.Rank, rank)
		}
	}
	if _, text, _ := execute(t, "status", endpoint); !strings.Contains(text, fmt.Sprintf("\nDrained: n%d, which left as unfit: ", bad)) {
		t.Error(text)
	}
}

// TestFailingScriptEnds: nodes do not leave one after the other because of a script that fails on
// each of them. One leaves, for free, and one restart is left.
func TestFailingScriptEnds(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "2:4", "--max-restarts=1", "--on-failure=leave:1", "--rdzv-id=job")
	options[2] = strings.Replace(options[2], "last_call_timeout=0.1", "last_call_timeout=5", 1)
	var nodes []*nodeProcess
	for range 4 {
		nodes = append(nodes, h.run(`echo $RALLYPOINT_ROUND > $SAY; [ $RANK != 1 ] || { sleep 0.3; exit 13; }; sleep 100`, options...))
	}
	codes := map[int]int{}
	for _, n := range nodes {
		codes[n.end()]++
	}
	if codes[94] != 1 || codes[1] != 3 {
		t.Errorf("exit codes: %v", codes)
	}
	last := 0
	testkit.Must(h.pipe.WriteString("end\n"))(t)
	for line := h.readLine(); line != "end"; line = h.readLine() {
		last = max(last, atoi(t, line))
	}
	if last > 3 {
		t.Errorf("the job has ended after %d rounds", last)
	}
}
