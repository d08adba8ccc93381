package cli

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"rallypoint/internal/testkit"
)

// TestLastFailure: while the round after a failure runs, the status says what failed, and how many
// restarts are used.
func TestLastFailure(t *testing.T) {
	for n := 1; n <= 2; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			testLastFailure(t, n, elastic(t, fmt.Sprint(n), "--max-restarts=3"))
		})
	}
	t.Run("directory", func(t *testing.T) { // a node reports it
		t.Parallel()
		options := elastic(t, "2", "--max-restarts=3", "--rdzv-id=job")
		options[1] = "--rdzv-endpoint=file://" + t.TempDir()
		testLastFailure(t, 2, options)
	})
}

func testLastFailure(t *testing.T, n int, options []string) {
	h := newHarness(t)
	script := `[ $((RANK + 1))$TORCHELASTIC_RESTART_COUNT = ${WORLD_SIZE}0 ] && { echo "ValueError: bad batch" >&2; exit 3; }
		` + printPlacement
	var nodes []*nodeProcess
	for range n {
		nodes = append(nodes, h.run(script, options...))
	}
	h.readRound(n)
	endpoint := strings.TrimPrefix(options[1], "--rdzv-endpoint=")
	var stdout, text string
	testkit.Eventually(t, "the last failure is in the status", func() bool {
		_, stdout, _ = execute(t, "status", endpoint)
		text = strings.Join(strings.Fields(stdout), " ")
		return strings.Contains(text, "Last failure: ")
	})
	for _, part := range []string{"running, round 2", "Last failure: ", " ago, round 1 stops: ", fmt.Sprintf("worker of rank %d", n-1), "exited with code 3", "; restart 1 of 3"} {
		if !strings.Contains(text, part) {
			t.Errorf("the status does not say %q: %s", part, stdout)
		}
	}
	h.finish()
	for _, p := range nodes {
		p.expect(t, 0)
	}
}

// TestSucceededInAFailedJob: a node whose workers have succeeded exits with 0, as under torchrun.
func TestSucceededInAFailedJob(t *testing.T) {
	for restarts := range 2 { // the one that is left is of no use: a node has finished
		t.Run(fmt.Sprint(restarts), func(t *testing.T) {
			t.Parallel()
			testSucceededInAFailedJob(t, fmt.Sprintf("--max-restarts=%d", restarts), false)
		})
	}
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		testSucceededInAFailedJob(t, "--max-restarts=0", true)
	})
}

// testSucceededInAFailedJob ends the other node's worker with an error, or kills its agent.
func testSucceededInAFailedJob(t *testing.T, restarts string, kill bool) {
	t.Helper()
	h := newHarness(t)
	options := elastic(t, "2", restarts)
	gate := h.dir + "/gate"
	testkit.Check(t, syscall.Mkfifo(gate, 0o600))
	script := `[ $RANK = 0 ] && exit 0; read go < ` + gate + `; exit 3`
	nodes := map[int]*nodeProcess{}
	for rank := range 2 {
		nodes[rank] = h.run(script, append(options, fmt.Sprintf("--node-rank=%d", rank))...)
	}
	testkit.Eventually(t, "the first node's workers have succeeded", func() bool {
		_, stdout, _ := execute(t, "status", strings.TrimPrefix(options[1], "--rdzv-endpoint="))
		return strings.Contains(stdout, "finished")
	})
	if kill {
		nodes[1].kill(t, syscall.SIGKILL)
		nodes[1].end()
	} else {
		testkit.WriteFile(t, gate, []byte("go\n"))
		nodes[1].expect(t, 1)
	}
	nodes[0].expect(t, 0)
	if said := nodes[0].stderr.String(); !strings.Contains(said, "The workers of this node succeeded, but the run failed: ") {
		t.Errorf("the node that succeeded does not say that the run failed:\n%s", said)
	}
}

// TestFlightRecordsAreNamed: those of this attempt alone, also of a rank that the agent has stopped.
func TestFlightRecordsAreNamed(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	prefix := t.TempDir() + "/trace_rank_"
	h.env = []string{"TORCH_FR_DUMP_TEMP_FILE=" + prefix}
	script := "[ $RANK = 2 ] && exec sleep 100; echo x >" + prefix + "$RANK; [ $RANK = 0 ] && exec sleep 100; until [ -s " + prefix + "0 ]; do :; done; exit 3"
	p := h.run(script, "--standalone", "--nproc-per-node=3")
	p.expect(t, 1)
	want := "kept the last collectives of 2 ranks of this node: " + prefix + "0, " + prefix + "1\n"
	if text := p.stderr.String(); !strings.Contains(text, want) {
		t.Errorf("%q is missing: %s", want, text)
	}
}
