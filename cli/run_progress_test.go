package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// failAtOneStep is a job of two workers that get to the same step each time, where one fails.
const failAtOneStep = `printf '\007\0\0\0\0\0\0\0' | dd of="$RALLYPOINT_PROGRESS_FILE" bs=1 seek=16 conv=notrunc 2>/dev/null
	[ $RANK = 1 ] && { sleep 0.1; echo the culprit >&2; exit 3; }
	trap 'exit 0' TERM; while :; do sleep 0.02; done`

// TestNoProgressOfTwoNodes: both nodes end with the same code and say why, also the one
// whose workers never failed. Nothing is left behind.
func TestNoProgressOfTwoNodes(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	records := t.TempDir()
	h.env = append(h.env, "RALLYPOINT_PROGRESS_DIR="+records)
	options := elastic(t, "2", "--max-restarts=20/1h", "--max-no-progress=2")
	nodes := []*nodeProcess{h.run(failAtOneStep, options...), h.run(failAtOneStep, options...)}
	for _, p := range nodes {
		p.expect(t, 93)
		for _, part := range []string{
			"no progress: 2 rounds in a row have ended without a higher step than the one before (the last one at step 7); the job is stopped",
			"exitcode  : 3", "the culprit",
		} {
			if !strings.Contains(p.stderr.String(), part) {
				t.Errorf("it does not say %q:\n%s", part, p.stderr.String())
			}
		}
	}
	if left, _ := os.ReadDir(records); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// TestKilledAgentLeavesNoRecords: the process that watches the agent removes them.
func TestKilledAgentLeavesNoRecords(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	records := t.TempDir()
	h.env = append(h.env, "RALLYPOINT_PROGRESS_DIR="+records)
	p := h.run(`echo $RALLYPOINT_PROGRESS_FILE >$SAY; exec sleep 100`, "--standalone")
	path := h.readLine()
	if filepath.Dir(filepath.Dir(path)) != records {
		t.Errorf("the record is %s", path)
	}
	if err := p.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.end()
	testkit.Eventually(t, "no record is left", func() bool {
		left, err := os.ReadDir(records)
		return err == nil && len(left) == 0
	})
}
