package cli

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"rallypoint/internal/testkit"
)

// writeStep reports a step.
const writeStep = `printf '\007\0\0\0\0\0\0\0' | dd of="$RALLYPOINT_PROGRESS_FILE" bs=1 seek=16 conv=notrunc 2>/dev/null
	`

// failAtOneStep is a job of two workers that get to the same step each time, where one fails.
const failAtOneStep = writeStep + `[ $RANK = 1 ] && { sleep 0.1; echo the culprit >&2; exit 3; }
	trap 'exit 0' TERM; while :; do sleep 0.1; done`

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

// TestLeftRecordsAreRemoved: those of an agent that was killed together with the process that
// watches it are removed by the next agent, and those of one that is stopped are not.
func TestLeftRecordsAreRemoved(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	records := t.TempDir()
	h.env = append(h.env, "RALLYPOINT_PROGRESS_DIR="+records)
	start := func() (p *nodeProcess, folder string) {
		p = h.run(`echo $RALLYPOINT_PROGRESS_FILE >$SAY; trap 'exit 0' TERM; while :; do sleep 0.1; done`, "--standalone")
		return p, filepath.Dir(h.readLine())
	}
	killed, left := start()
	stopped, kept := start()
	stopped.kill(t, syscall.SIGSTOP)
	killed.kill(t, syscall.SIGSTOP) // else it replaces the guard
	testkit.Check(t, syscall.Kill(guardOf(t, killed.Process.Pid), syscall.SIGKILL))
	killed.kill(t, syscall.SIGKILL)
	killed.end()
	if _, err := os.Stat(left); err != nil {
		t.Errorf("there is nothing to remove: %v", err)
	}
	h.run("exit 0", "--standalone").expect(t, 0)
	if found := testkit.Must(os.ReadDir(records))(t); len(found) != 1 || filepath.Join(records, found[0].Name()) != kept {
		t.Errorf("there are %v, of which %s is to be removed and %s is not", found, left, kept)
	}
	stopped.kill(t, syscall.SIGCONT)
	stopped.kill(t, syscall.SIGTERM)
	stopped.end()
	if found := testkit.Must(os.ReadDir(records))(t); len(found) != 0 {
		t.Errorf("left behind: %v", found)
	}
}

// guardOf finds the process that watches an agent.
func guardOf(t *testing.T, agent int) int {
	t.Helper()
	paths := testkit.Must(filepath.Glob("/proc/[0-9]*/cmdline"))(t)
	for _, path := range paths {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		command, _ := os.ReadFile(path)
		stat, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "stat"))
		_, state, _ := strings.Cut(string(stat), ") ")
		if fields := strings.Fields(state); strings.Contains(string(command), "rallypoint-guard") && len(fields) > 1 && fields[1] == strconv.Itoa(agent) {
			return pid
		}
	}
	t.Fatalf("no process watches agent %d", agent)
	return 0
}
