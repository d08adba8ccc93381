package cli

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"rallypoint/internal/testkit"
)

// TestOtherDescriptors that the launcher was started with are not the workers', as
// with torchrun: a lock or the end of a pipe would be held for as long as they run.
func TestOtherDescriptors(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	p := &nodeProcess{Cmd: exec.Command(os.Args[0], "run", "--standalone", "--no-python", "--no-macros", "sh", "-c",
		"[ -e /proc/$PPID/fd/3 ] && [ ! -e /proc/$$/fd/3 ]; echo $? > $SAY")}
	p.Dir = h.dir
	p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "SAY=" + h.dir + "/say", "TMPDIR=" + h.dir}
	lock, err := os.Create(h.dir + "/lock")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Close() }()
	p.ExtraFiles = []*os.File{lock}
	p.Stderr = &p.stderr
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	if got := h.readLine(); got != "0" {
		t.Error("a worker has the launcher's descriptor 3")
	}
	if code := p.end(); code != 0 {
		t.Errorf("it ended with %d:\n%s", code, p.stderr.String())
	}
}

// TestFewDescriptors: two nodes of 16 workers start where a process may have 70 descriptors,
// some 25 of them a test's own. A worker costs its agent two, for its end and its stderr; with
// a third they would not start.
func TestFewDescriptors(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	port := testkit.FreePort(t)
	var nodes []*nodeProcess
	for range 2 {
		p := &nodeProcess{Cmd: exec.Command("sh", "-c", `ulimit -n 70 && exec "$0" "$@"`, os.Args[0], "run", "--nnodes=2", "--nproc-per-node=16", "--max-restarts=1",
			"--rdzv-id=job", "--rdzv-conf=join_timeout=20", fmt.Sprintf("--rdzv-endpoint=127.0.0.1:%d", port), "--no-python", "--no-macros", "sh", "-c",
			"[ -s $RALLYPOINT_PROGRESS_FILE ] && exit $((1 - TORCHELASTIC_RESTART_COUNT))")}
		p.Dir = h.dir
		p.Env = []string{testkit.EndAtOnce, asCommand + "=1", "PATH=" + os.Getenv("PATH"), "TMPDIR=" + h.dir}
		p.Stderr = &p.stderr
		if err := p.Start(); err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, p)
	}
	for _, p := range nodes {
		if code := p.end(); code != 0 {
			t.Errorf("a node ended with %d:\n%s", code, p.stderr.String())
		}
		if log := p.stderr.String(); strings.Contains(log, "too many open files") || strings.Contains(log, "cannot") {
			t.Errorf("a node had too few descriptors:\n%s", log)
		}
	}
}
