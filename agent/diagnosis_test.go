package agent

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"unicode/utf8"

	"golang.org/x/sys/unix"

	"rallypoint/agent/failure"
	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

// TestOOMInReport marks the victim, and not one that the agent itself killed; the other nodes are
// told the same.
func TestOOMInReport(t *testing.T) {
	root := t.TempDir()
	events := filepath.Join(root, "proc/vmstat")
	if err := os.MkdirAll(filepath.Dir(events), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(events, []byte("oom_kill 0\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	s := newHarness(t, 2, `[ $RANK = 1 ] && trap '' TERM && echo up > $SAY && while :; do sleep 100; done
		read up < $SAY; echo oom_kill 1 > $EVENTS; kill -KILL $$`)
	s.spec.Environ = append(s.spec.Environ, "EVENTS="+events)
	s.spec.ShutdownTimeout = 0
	a, err := New(s.spec, "test", s.rdzv, discard())
	if err != nil {
		t.Fatal(err)
	}
	a.oom = process.NewOOMCounter(root)
	failures := s.failed(a.Run(t.Context()))
	if len(failures) != 2 || !failures[0].OOM || failures[1].OOM ||
		!strings.HasSuffix(failures[0].Message, "(out of memory: the kernel killed a process of this machine since the workers started)") ||
		!strings.HasSuffix(failures[0].Summary(), "was killed because memory ran out") {
		t.Errorf("failures %+v", failures)
	}
	if said := s.rdzv.announced; len(said) != 1 || !strings.HasSuffix(said[0], "was killed because memory ran out") {
		t.Errorf("the other nodes are told %q", said)
	}
}

// TestOOMDecidedOnce: what the kernel kills after a worker has ended does not change the worker's cause
// between what the other nodes are told and the report.
func TestOOMDecidedOnce(t *testing.T) {
	root := t.TempDir()
	events := filepath.Join(root, "proc/vmstat")
	if err := os.MkdirAll(filepath.Dir(events), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(events, []byte("oom_kill 0\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	s := newHarness(t, 2, `[ $RANK = 1 ] && trap 'echo oom_kill 1 > $EVENTS; exit 0' TERM && echo up > $SAY && while :; do sleep 0.01; done
		read up < $SAY; kill -KILL $$`)
	s.spec.Environ = append(s.spec.Environ, "EVENTS="+events)
	a, err := New(s.spec, "test", s.rdzv, discard())
	if err != nil {
		t.Fatal(err)
	}
	a.oom = process.NewOOMCounter(root)
	failures := s.failed(a.Run(t.Context()))
	const want = "was ended by signal 9 (SIGKILL)"
	if len(failures) != 1 || !strings.HasSuffix(failures[0].Summary(), want) || strings.Contains(failures[0].Message, "memory") {
		t.Errorf("failures %+v", failures)
	}
	if said := s.rdzv.announced; len(said) != 1 || !strings.HasSuffix(said[0], want) {
		t.Errorf("the other nodes are told %q", said)
	}
}

// TestUnguardedScript is started once: its processes run it again, whenever it is started.
func TestUnguardedScript(t *testing.T) {
	s := newHarness(t, 1, `echo x >> $STARTS; echo "        An attempt has been made to start a new process before the" >&2; exit 1`)
	starts := filepath.Join(t.TempDir(), "starts")
	out, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	s.spec.Environ, s.spec.MaxRestarts, s.spec.Stderr = append(s.spec.Environ, "STARTS="+starts), 3, out
	err = s.run()
	s.failed(err)
	const next, cause = "not started again", "__main__"
	if text, _ := os.ReadFile(starts); string(text) != "x\n" || strings.Count(err.Error(), cause) != 1 || !strings.Contains(err.Error(), next) {
		t.Errorf("%d starts; report:\n%v", len(text)/2, err)
	}
	if said := s.rdzv.announced; len(said) != 1 || !strings.Contains(said[0], cause) || strings.Contains(said[0], "restart") {
		t.Errorf("the other nodes are told %q", said)
	}
}

// TestStderrInReport shows what the root cause said last, wherever its stderr went
// (issue: no decorator needed).
func TestStderrInReport(t *testing.T) {
	for _, streams := range []string{"0", "2"} {
		s := newHarness(t, 1, `i=0; while [ $i -lt 60 ]; do echo line $i >&2; i=$((i+1)); done; exit 3`)
		s.spec.Logs.Redirects = streamsOf(t, streams)
		out, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
		if err != nil {
			t.Fatal(err)
		}
		defer out.Close()
		s.spec.Stderr = out
		err = s.run()
		s.failed(err)
		const end = "\n  stderr    : (the last 50 lines)\n    line 10\n    line 11\n"
		if text := err.Error(); !strings.Contains(text, end) || strings.Contains(text, "line 9\n") || !strings.Contains(text, "\n    line 59\n  next ") {
			t.Errorf("report:\n%s", text)
		}
		passed, _ := os.ReadFile(out.Name())
		if got := strings.Count(string(passed), "\n"); (got == 60) != (streams == "0") {
			t.Errorf("%d lines were passed on", got)
		}
	}
}

// TestStderrIsTerminal for the workers if it is one for the agent, and its end is in
// the report all the same.
func TestStderrIsTerminal(t *testing.T) {
	screen, terminal, _ := newTerminal(t)
	s := newHarness(t, 1, "[ -t 2 ] && echo $(stty size <&2) >&2; exit 3")
	s.spec.Stderr = terminal
	err := s.run()
	s.failed(err)
	if text := err.Error(); !strings.Contains(text, "\n  stderr    :\n    11 77\n  next ") {
		t.Errorf("report:\n%s", text)
	}
	shows(t, screen, "11 77")
}

// TestTerminalIsResized and the workers' terminals follow: at once if the agent gets the signal,
// else when a worker has written something.
func TestTerminalIsResized(t *testing.T) {
	for name, script := range map[string]string{
		"told":     `echo $(stty size <&2) >&2; until [ "$(stty size <&2)" = "12 78" ]; do sleep 0.01; done; echo seen >&2`,
		"not told": `echo $(stty size <&2) >&2; until [ -e "$SAY.go" ]; do sleep 0.01; done; echo drawn >&2; until [ "$(stty size <&2)" = "12 78" ]; do sleep 0.01; done; echo seen >&2`,
	} {
		t.Run(name, func(t *testing.T) {
			screen, terminal, resize := newTerminal(t)
			s := newHarness(t, 1, script)
			s.spec.Stderr = terminal
			s.start()
			shows(t, screen, "11 77")
			resize()
			if name == "told" {
				s.agent.Resized()
			} else {
				say := strings.TrimPrefix(s.spec.Environ[1], "SAY=")
				if err := os.WriteFile(say+".go", nil, 0o600); err != nil {
					t.Fatal(err)
				}
				shows(t, screen, "drawn")
			}
			shows(t, screen, "seen")
			if err := s.wait(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestLongRunID: a run id may be longer than a file's name.
func TestLongRunID(t *testing.T) {
	folders := map[string]bool{}
	for _, id := range []string{strings.Repeat("x", 512), strings.Repeat("x", 511) + "y", strings.Repeat("é", 256), strings.Repeat("/", 512)} {
		s := newHarness(t, 1, "exit 0")
		s.spec.RunID = id
		if err := s.run(); err != nil {
			t.Fatal(err)
		}
		made, err := os.ReadDir(s.spec.Logs.Dir)
		if err != nil || len(made) != 1 || !utf8.ValidString(made[0].Name()) {
			t.Fatalf("%v, %v", made, err)
		}
		folders[strings.TrimSuffix(made[0].Name(), made[0].Name()[len(made[0].Name())-8:])] = true
	}
	if len(folders) != 4 {
		t.Errorf("the folders begin with %v", folders)
	}
}

// TestNoFolderForLogs: a system without a folder for temporary files runs workers all the
// same, unless files were asked for; what they leave behind is found.
func TestNoFolderForLogs(t *testing.T) {
	s := newHarness(t, 1, `setsid sh -c 'echo $$ > $SAY; exec sleep 100' & read go < $GO; echo "at: $TORCHELASTIC_ERROR_FILE" >&2; exit 3`)
	s.spec.Logs = logs.Spec{TempDir: filepath.Join(t.TempDir(), "not", "there")}
	s.spec.ShutdownTimeout = 0
	gate := filepath.Join(t.TempDir(), "go")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	s.spec.Environ = append(s.spec.Environ, "GO="+gate)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	s.spec.Stderr = stderr
	s.start()
	pids := s.hearPids(1)
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	failures := s.failed(s.wait())
	if len(failures) != 1 || failures[0].ExitCode != 3 || string(failures[0].Stderr) != "at: \n" {
		t.Errorf("failures %+v", failures)
	}
	for _, pid := range pids {
		if state, ok := processState(pid); ok && state != 'Z' {
			t.Errorf("process %d is still there, in state %c", pid, state)
		}
	}

	s = newHarness(t, 1, "exit 0")
	s.spec.Logs = logs.Spec{TempDir: filepath.Join(t.TempDir(), "not", "there"), Redirects: streamsOf(t, "2")}
	start := new(process.StartError)
	if err := s.run(); !errors.As(err, &start) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("files that were asked for: %v", err)
	}
}

// TestStuck gives up on a node whose worker does not leave uninterruptible sleep,
// without a restart.
func TestStuck(t *testing.T) {
	s := newHarness(t, 2, "echo up > $SAY; exec sleep 100")
	s.spec.MaxRestarts = 3
	s.spec.Environ = append(s.spec.Environ, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0.05")
	a, err := New(s.spec, "test", s.rdzv, discard())
	if err != nil {
		t.Fatal(err)
	}
	a.sleepDetector.State = func(pid int) (byte, bool) { return 'D', true }
	failures := s.failed(a.Run(t.Context()))
	if root := failures[failure.RootCause(failures)]; !strings.HasPrefix(root.Message, "The worker has been in uninterruptible sleep (state D) for 50ms. ") ||
		root.Terminated || s.rdzv.round != 1 {
		t.Errorf("round %d, failures %+v", s.rdzv.round, failures)
	}
}

// elastic is a rendezvous of which min nodes are enough.
type elastic struct {
	*announcing
	min int
}

func (e *elastic) MinNodes() int { return e.min }

// TestStuckNodeLeaves: a node that cannot stop a worker leaves the run to the others if these are
// enough and a restart is left; else it ends the run. The others are told which, before the
// worker gets a signal.
func TestStuckNodeLeaves(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, min, restarts int
		leaves               bool
	}{
		"the others are enough": {3, 2, 1, true},
		"too few":               {3, 3, 1, false},
		"nodes are fixed":       {3, 0, 1, false},
		"no restart is left":    {3, 2, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, 1, "echo up > $SAY; exec sleep 100")
			s.spec.MaxRestarts = c.restarts
			s.spec.Environ = append(s.spec.Environ, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0.05")
			r := &elastic{newAnnouncing(c.nodes), c.min}
			var left bool
			var reason string
			r.announced = func(leaving bool, why string) error { left, reason = leaving, why; return nil }
			s.rdzv, s.spec.Identical = r.rounds, true
			a, err := New(s.spec, "test", r, discard())
			if err != nil {
				t.Fatal(err)
			}
			a.sleepDetector.State = func(int) (byte, bool) { return 'D', true }
			if err := a.Run(t.Context()); !errors.As(err, new(*FailedError)) {
				t.Errorf("the run ended with %v", err)
			}
			want := rendezvous.EndFailed
			if c.leaves {
				want = rendezvous.EndLeave
			}
			if left != c.leaves || s.rdzv.ending != want {
				t.Errorf("it announced that it leaves: %v, and ended by %v", left, s.rdzv.ending)
			}
			if !strings.HasSuffix(reason, "was in uninterruptible sleep (state D) for too long") {
				t.Errorf("the others were told: %q", reason)
			}
		})
	}
}

// TestStuckWhileStopped: a node that stops its workers for another node's failure, and finds that
// one of them is stuck, does not wait for it and starts no worker beside it. It leaves the run to
// the others if they are enough.
func TestStuckWhileStopped(t *testing.T) {
	for name, c := range map[string]struct {
		nodes, restarts int
		ending          rendezvous.Ending
	}{
		"the others are enough": {3, 1, rendezvous.EndLeave},
		"no restart is left":    {3, 0, rendezvous.EndLeave}, // what ended the round was no failure of this node
		"too few":               {2, 1, rendezvous.EndFailed},
	} {
		t.Run(name, func(t *testing.T) {
			s, r, a := newStuck(t, c.nodes)
			a.spec.MaxRestarts = c.restarts
			var asleep atomic.Bool
			a.sleepDetector.State = func(int) (byte, bool) {
				if asleep.Load() {
					return 'D', true
				}
				return 'S', true
			}
			s.start()
			s.hear()
			r.tell(rendezvous.RoundStop{Rank: 1, Reason: "a worker of the other node failed"})
			s.hear() // its worker is told to end
			asleep.Store(true)
			if err := s.wait(); !errors.As(err, new(*FailedError)) || !strings.Contains(err.Error(), "in uninterruptible sleep (state D) for 50ms. ") {
				t.Errorf("the run ended with %v", err)
			}
			if s.rdzv.round != 1 || s.rdzv.ending != c.ending {
				t.Errorf("it has reached round %d, and ended by %v", s.rdzv.round, s.rdzv.ending)
			}
		})
	}
}

// newStuck is a node of several, at least 2, whose worker ignores SIGTERM and tells of it.
func newStuck(t *testing.T, nodes int) (*harness, *elastic, *Agent) {
	t.Helper()
	s := newHarness(t, 1, "trap 'echo told > $SAY' TERM; echo $$ > $SAY; while :; do sleep 100 & wait; done")
	s.spec.Environ = append(s.spec.Environ, "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT=0.05")
	r := &elastic{newAnnouncing(nodes), 2}
	s.rdzv, s.spec.Identical = r.rounds, true
	a, err := New(s.spec, "test", r, discard())
	if err != nil {
		t.Fatal(err)
	}
	s.agent = a
	return s, r, a
}

// TestFrozenWorker is TestStuckWhileStopped with a worker that really outlives SIGKILL: one in a
// frozen group of version 1, if this machine has these.
func TestFrozenWorker(t *testing.T) {
	group, err := os.MkdirTemp("/sys/fs/cgroup/freezer", "rallypoint-test-")
	if err != nil {
		t.Skip("no group of version 1 can be frozen here: ", err)
	}
	write := func(file, text string) {
		t.Helper()
		testkit.Check(t, os.WriteFile(filepath.Join(group, file), []byte(text), 0))
	}
	s, r, a := newStuck(t, 3)
	a.spec.MaxRestarts = 3
	s.start()
	pid := s.hearPids(1)[0]
	t.Cleanup(func() {
		write("freezer.state", "THAWED")
		_ = unix.Kill(pid, unix.SIGKILL)
		_, _ = unix.Wait4(pid, nil, 0, nil)
		for os.Remove(group) != nil {
			runtime.Gosched()
		}
	})
	write("cgroup.procs", strconv.Itoa(pid))
	write("freezer.state", "FROZEN")
	r.tell(rendezvous.RoundStop{Rank: 1, Reason: "a worker of the other node failed"})
	if err := s.wait(); !errors.As(err, new(*FailedError)) {
		t.Errorf("the run ended with %v", err)
	}
	if state, ok := processState(pid); !ok || state != 'D' {
		t.Errorf("the frozen worker is in state %c", state)
	}
	if s.rdzv.round != 1 || s.rdzv.ending != rendezvous.EndLeave {
		t.Errorf("it has reached round %d, and ended by %v", s.rdzv.round, s.rdzv.ending)
	}
}
