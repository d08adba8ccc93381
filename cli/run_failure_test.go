package cli

import (
	"strings"
	"testing"
)

// TestLastFailure: while the round after a failure runs, the status says what failed, and how many
// restarts are used.
func TestLastFailure(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	options := elastic(t, "2", "--max-restarts=3")
	script := `[ $RANK$TORCHELASTIC_RESTART_COUNT = 10 ] && { echo "ValueError: bad batch" >&2; exit 3; }
		` + printPlacement
	nodes := []*nodeProcess{h.run(script, options...), h.run(script, options...)}
	h.readRound(2)
	endpoint := strings.TrimPrefix(options[1], "--rdzv-endpoint=")
	_, stdout, _ := execute(t, "status", endpoint)
	text := strings.Join(strings.Fields(stdout), " ")
	for _, part := range []string{"running, round 2", "Last failure: ", " ago, round 1 stops: node ", "failed: worker of rank 1", "exited with code 3", "; restart 1 of 3"} {
		if !strings.Contains(text, part) {
			t.Errorf("the status does not say %q: %s", part, stdout)
		}
	}
	h.finish()
	for _, p := range nodes {
		p.expect(t, 0)
	}
}
