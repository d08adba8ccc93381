package cli

import (
	"fmt"
	"strings"
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
