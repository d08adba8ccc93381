package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

func TestRunSucceeds(t *testing.T) {
	s := newHarness(t, 2, "exit 0")
	if err := s.run(); err != nil {
		t.Error(err)
	}
	if s.rdzv.ending != rendezvous.EndSuccess {
		t.Errorf("the rendezvous was ended with %v", s.rdzv.ending)
	}
}

// TestRestartBudget runs workers that always fail: n restarts are n+1 attempts.
func TestRestartBudget(t *testing.T) {
	for _, n := range []int{0, 1, 3} {
		s := newHarness(t, 1, "echo $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS; exit 3")
		s.spec.MaxRestarts = n
		s.spec.Logs.Redirects = streamsOf(t, "1")
		failures := s.failed(s.run())
		if len(failures) != 1 || failures[0].ExitCode != 3 || failures[0].Terminated {
			t.Errorf("failures %+v", failures)
		}
		var want []string
		for i := range n + 1 {
			want = append(want, fmt.Sprintf("attempt_%d/0/stdout.log=%q", i, fmt.Sprintf("%d/%d\n", i, n)))
		}
		if got := s.logFiles(); got != strings.Join(want, " ") {
			t.Errorf("%d restarts: %s", n, got)
		}
	}
}

func TestRestartSucceeds(t *testing.T) {
	s := newHarness(t, 2, "[ $TORCHELASTIC_RESTART_COUNT = 1 ] && exit 0; [ $RANK = 1 ] && exit 1; exec sleep 100")
	s.spec.MaxRestarts = 1
	if err := s.run(); err != nil {
		t.Error(err)
	}
}

// TestRegroup restarts the workers without a charge, and keeps their logs.
func TestRegroup(t *testing.T) {
	s := newHarness(t, 1, "echo $RALLYPOINT_ROUND $TORCHELASTIC_RESTART_COUNT; echo up > $SAY; [ $RALLYPOINT_ROUND = 3 ] || exec sleep 100")
	s.spec.Logs.Redirects = streamsOf(t, "1")
	s.start()
	for range 2 {
		s.hear()
		s.rdzv.set(func() { s.rdzv.waiting = 1 })
	}
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	const want = `attempt_0/0/stdout.log="1 0\n" attempt_0.1/0/stdout.log="2 0\n" attempt_0.2/0/stdout.log="3 0\n"`
	if got := s.logFiles(); got != want {
		t.Errorf("log files %s", got)
	}
}

// TestRegroupByEvent comes at once, however long the monitor interval is.
func TestRegroupByEvent(t *testing.T) {
	s := newHarness(t, 1, "echo up > $SAY; [ $RALLYPOINT_ROUND = 2 ] || exec sleep 100")
	s.spec.MonitorInterval = time.Hour
	s.start()
	s.hear()
	s.rdzv.set(func() { s.rdzv.waiting = 1 })
	if err := s.wait(); err != nil || s.rdzv.round != 2 {
		t.Errorf("the run ended with %v in round %d", err, s.rdzv.round)
	}
}

// TestTearDown lists who fails by the agent's signal, but not as the cause, and
// not who ends well by it.
func TestTearDown(t *testing.T) {
	s := newHarness(t, 3, `case $RANK in
		0) echo up > $SAY; exec sleep 100;;
		1) trap 'exit 0' TERM; echo up > $SAY; while :; do sleep 0.1; done;;
		2) read go < $GO; exit 7;;
	esac`)
	goFile := s.goFile()
	s.start()
	s.hear()
	s.hear()
	if err := os.WriteFile(goFile, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	failures := s.failed(s.wait())
	if len(failures) != 2 || failures[0].Rank != 2 || failures[0].ExitCode != 7 || failures[1].Rank != 0 ||
		failures[1].ExitCode != -int(unix.SIGTERM) || !failures[1].Terminated {
		t.Errorf("failures %+v", failures)
	}
	if root := (&FailedError{Failures: failures}).Root(); root.Rank != 2 {
		t.Errorf("the cause is %+v", root)
	}
}

// TestGraceEverywhere kills after ShutdownTimeout also when a worker failed.
// A stopped process is killed, too.
func TestGraceEverywhere(t *testing.T) {
	s := newHarness(t, 3, `case $RANK in
		0) trap '' TERM; echo up > $SAY; while :; do sleep 100; done;;
		1) echo $$ > $SAY; kill -STOP $$;;
		2) read a < $SAY; read b < $SAY
			[ "$a" = up ] && p=$b || p=$a
			until grep -q ') T ' /proc/$p/stat; do :; done
			exit 1;;
	esac`)
	s.spec.ShutdownTimeout = 50 * time.Millisecond
	failures := s.failed(s.run())
	if len(failures) != 3 || failures[0].Rank != 2 {
		t.Fatalf("failures %+v", failures)
	}
	for _, f := range failures[1:] {
		if f.ExitCode != -int(unix.SIGKILL) || !f.Terminated {
			t.Errorf("%+v", f)
		}
	}
}

func expectSignal(t *testing.T, err error, want unix.Signal) {
	t.Helper()
	var stopped *SignalError
	if !errors.As(err, &stopped) || stopped.Signal != want {
		t.Errorf("the run ended with %v", err)
	}
}

// TestSignal passes the same signal on and waits for the workers.
func TestSignal(t *testing.T) {
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1} {
		s := newHarness(t, 1, "trap 'echo got > $SAY; exit 0' "+strings.TrimPrefix(process.SignalName(sig), "SIG")+"; echo up > $SAY; while :; do sleep 0.1; done")
		s.start()
		s.hear()
		s.agent.Signal(sig)
		expectSignal(t, s.wait(), sig)
		if got := s.hear(); got != "got" {
			t.Errorf("%v: the worker said %q", sig, got)
		}
		if s.rdzv.ending != rendezvous.EndLeave {
			t.Errorf("the rendezvous was ended with %v", s.rdzv.ending)
		}
	}
}

// steer puts a test's clock and terminal in the place of the agent's.
func (h *harness) steer(terminal bool) *testkit.Clock {
	c := testkit.NewClock()
	h.agent.interrupts.now, h.agent.interrupts.terminal = c.Now, func() bool { return terminal }
	return c
}

// TestImpatientSignals: a later signal kills stubborn workers at once; more do
// no harm, and no worker is left.
func TestImpatientSignals(t *testing.T) {
	for _, c := range []struct {
		first, then unix.Signal
		after       time.Duration
		terminal    bool
		grace       time.Duration
		n           int
	}{
		{unix.SIGTERM, unix.SIGTERM, oneRequest, false, time.Hour, 1},
		{unix.SIGTERM, unix.SIGTERM, oneRequest, false, time.Hour, 2},
		{unix.SIGINT, unix.SIGTERM, oneRequest, false, time.Hour, 1},
		{unix.SIGINT, unix.SIGINT, byHand, true, time.Hour, 1},
		{unix.SIGTERM, unix.SIGKILL, 0, false, time.Hour, 1},
		{unix.SIGTERM, unix.SIGTERM, 0, false, 0, 1},
	} {
		s := newHarness(t, 2, "trap '' TERM INT; echo $$ > $SAY; while :; do sleep 100; done")
		s.spec.ShutdownTimeout = time.Hour
		s.prepare()
		clock := s.steer(c.terminal)
		s.start()
		pids := s.hearPids(2)
		s.agent.Signal(c.first)
		clock.Advance(c.after)
		for range c.n {
			s.agent.Stop(c.then, c.grace)
		}
		expectSignal(t, s.wait(), c.first)
		expectGone(t, pids)
	}
}

// TestOneRequest: a signal that comes twice in a moment is one request, so that the
// workers have their grace.
func TestOneRequest(t *testing.T) {
	for _, c := range []struct {
		then     unix.Signal
		after    time.Duration
		terminal bool
	}{
		{unix.SIGTERM, 0, false},
		{unix.SIGTERM, oneRequest - 1, true},
		{unix.SIGHUP, 0, false},
		{unix.SIGINT, byHand, true}, // the first was none from the keyboard
	} {
		s := newHarness(t, 1, "trap 'echo got > $SAY; read x < $GO; echo saved > $SAY; exit 0' TERM; echo up > $SAY; while :; do sleep 0.1; done")
		gate := s.goFile()
		s.spec.ShutdownTimeout = time.Hour
		s.prepare()
		clock := s.steer(c.terminal)
		s.start()
		s.hear()
		s.agent.Signal(unix.SIGTERM)
		clock.Advance(c.after)
		for range 3 {
			s.agent.Signal(c.then)
		}
		if got := s.hear(); got != "got" {
			t.Fatalf("the worker said %q", got)
		}
		if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
		if got := s.hear(); got != "saved" {
			t.Errorf("the worker said %q", got)
		}
		expectSignal(t, s.wait(), unix.SIGTERM)
	}
}

// TestSignalWhileJoining withdraws.
func TestSignalWhileJoining(t *testing.T) {
	s := newHarness(t, 1, "exit 0")
	s.rdzv.blocked = true
	s.start()
	<-s.rdzv.joining
	s.agent.Signal(unix.SIGINT)
	expectSignal(t, s.wait(), unix.SIGINT)
}

// TestContextIsSignal takes the end of the context as SIGTERM; a restart that is
// left changes nothing.
func TestContextIsSignal(t *testing.T) {
	s := newHarness(t, 1, "echo up > $SAY; exec sleep 100")
	s.spec.MaxRestarts = 3
	a, err := New(s.spec, "test", s.rdzv, discard())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		s.hear()
		cancel()
	}()
	expectSignal(t, a.Run(ctx), unix.SIGTERM)
}

func TestNotNeeded(t *testing.T) {
	s := newHarness(t, 1, "exit 1")
	s.rdzv.refusal = rendezvous.Errorf(rendezvous.CodeGraceful, "the run ended")
	if err := s.run(); err != nil {
		t.Errorf("a spare ends with %v (W10)", err)
	}
}

func TestRendezvousFails(t *testing.T) {
	s := newHarness(t, 1, "exit 1")
	s.rdzv.refusal = rendezvous.Errorf(rendezvous.CodeTimeout, "no node came")
	if err := s.run(); !errors.Is(err, rendezvous.ErrTimeout) || s.rdzv.ending != rendezvous.EndLeave {
		t.Errorf("error %v, ending %v", err, s.rdzv.ending)
	}
}

// TestShutdownFails hides neither the workers' failure nor their success.
func TestShutdownFails(t *testing.T) {
	for _, code := range []string{"0", "3"} {
		s := newHarness(t, 1, "exit "+code)
		s.rdzv.stubborn = errors.New("the rendezvous cannot be ended")
		err := s.run()
		if code == "0" && err != nil {
			t.Errorf("the run ended with %v", err)
		}
		if code == "3" {
			if failures := s.failed(err); len(failures) != 1 || failures[0].ExitCode != 3 {
				t.Errorf("failures %+v", failures)
			}
		}
	}
}

func TestProgramIsMissing(t *testing.T) {
	s := newHarness(t, 1, "")
	s.spec.Argv = []string{"./does-not-exist"}
	err := s.run()
	if !errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), "local rank 0") {
		t.Errorf("error %v", err)
	}
}

// TestRestartDelay doubles, up to a limit.
func TestRestartDelay(t *testing.T) {
	for _, c := range []struct {
		first  time.Duration
		before int
		want   time.Duration
	}{
		{0, 5, 0}, {time.Second, 0, time.Second}, {time.Second, 3, 8 * time.Second}, {time.Second, 1 << 30, maxRestartDelay},
		{time.Hour, 2, time.Hour},
	} {
		if got := restartDelay(c.first, c.before); got != c.want {
			t.Errorf("%v after %d: %v", c.first, c.before, got)
		}
	}
}
