package agent

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rallypoint/agent/failure"
	"rallypoint/internal/testkit"
)

// pythonWorkers makes workers of a program of Python whose agent can ask for their stacks: they
// are warm, or the program has them answer.
func pythonWorkers(t *testing.T, workers int, warm bool, program string) *harness {
	t.Helper()
	python, err := exec.LookPath("python3")
	if err != nil {
		t.Skip(err)
	}
	register, err := filepath.Abs("../python/rallypoint/_launch/stacks.py")
	testkit.Check(t, err)
	if !warm {
		program = fmt.Sprintf("exec(open(%q).read())\nregister()\n", register) + program
	}
	script := filepath.Join(t.TempDir(), "train.py")
	testkit.WriteFile(t, script, []byte("import os, signal, sys, time\n"+program))
	s := newHarness(t, workers, "")
	s.spec.Argv, s.spec.Warm, s.spec.Subreaper = []string{python, script}, warm, warm
	return s
}

// TestLastStackOfKilledWorker: a worker that does not end within its grace leaves in the log
// and in the report where it was.
func TestLastStackOfKilledWorker(t *testing.T) {
	for name, warm := range map[string]bool{"cold": false, "warm": true} {
		t.Run(name, func(t *testing.T) { lastStackOfKilledWorker(t, warm) })
	}
}

func lastStackOfKilledWorker(t *testing.T, warm bool) {
	s := pythonWorkers(t, 2, warm, `
def stuck():
    open(os.environ["SAY"], "w").write("up\n")
    while True:
        signal.pause()
if os.environ["RANK"] == "1":
    open(os.environ["GO"]).read()
    sys.exit(1)
signal.signal(signal.SIGTERM, lambda *_: None)
stuck()
`)
	gate := s.goFile()
	s.spec.ShutdownTimeout = 50 * time.Millisecond
	s.rdzv.world, s.spec.Identical = 2, true // another node is told of the failure meanwhile
	var log bytes.Buffer
	a, err := New(s.spec, "test", s.rdzv, slog.New(slog.NewTextHandler(&log, nil)))
	testkit.Check(t, err)
	s.agent = a
	s.start()
	testkit.Equal(t, s.hear(), "up")
	testkit.WriteFile(t, gate, nil)
	var failed *FailedError
	if err := s.wait(); !errors.As(err, &failed) {
		t.Fatal(err)
	}
	for _, f := range failed.Failures {
		if has := strings.Contains(f.Stack, "> stuck  "); has != (f.Rank == 0) {
			t.Errorf("rank %d: %q", f.Rank, f.Stack)
		}
	}
	report := failure.Report("test", failed.Failures, "")
	if !strings.Contains(report, "last stack: (it did not end within its grace)\n    > stuck  ") {
		t.Error(report)
	}
	if !strings.Contains(log.String(), "where the workers are that have not ended within 50ms:") || !strings.Contains(log.String(), "stuck") {
		t.Error(log.String())
	}
	if forked := strings.Contains(log.String(), "forked from a template"); forked != warm {
		t.Errorf("forked: %v\n%s", forked, log.String())
	}
}
