package agent

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/internal/testkit"
)

// TestEvents reports each step of a run that restarts once and then fails, and what
// is known of it at the end.
func TestEvents(t *testing.T) {
	s := newHarness(t, 2, `[ $LOCAL_RANK = 0 ] && exec sleep 100; exit 3`)
	s.spec.MaxRestarts = 1
	s.spec.Logs.Redirects, _ = logs.ParseStreamSpec("1:3")
	var seen []string
	s.spec.Notify = func(n Event) {
		text := fmt.Sprint(int(n.Kind))
		switch n.Kind {
		case EventStarted:
			text = fmt.Sprintf("start %d of %d", n.Rank, n.World)
		case EventExited:
			text = fmt.Sprintf("exit %d: %d", n.LocalRank, n.ExitCode)
		case EventJoined:
			text = fmt.Sprintf("round %d: %d of %d, restart %d", n.Round, n.GroupRank, n.Groups, n.Restarts)
		case EventEnded:
			text = "end " + n.Text[:strings.Index(n.Text, "FAILED")]
		}
		seen = append(seen, text)
	}
	err := s.run()
	want := "1, round 1: 0 of 1, restart 0, start 0 of 2, start 1 of 2, exit 1: 3, 5, exit 0: -15, 6, " +
		"1, round 2: 0 of 1, restart 1, start 0 of 2, start 1 of 2, exit 1: 3, 5, exit 0: -15, " +
		"end \n============================================================\ntest "
	if got := strings.Join(seen, ", "); got != want {
		t.Errorf("seen\n%s, want\n%s", got, want)
	}
	r := s.agent.Result()
	if r.Err != err || r.Round != 2 || r.Restarts != 1 || r.World != 2 || r.Report != err.Error() {
		t.Errorf("result %+v", r)
	}
	if len(r.Failures) != 2 || r.Failures[r.Root].LocalRank != 1 {
		t.Errorf("failures %+v, root %d", r.Failures, r.Root)
	}
	if len(r.Workers) != 2 || r.Workers[0].ExitCode != -15 || r.Workers[1].ExitCode != 3 || r.Workers[1].Rank != 1 {
		t.Errorf("workers %+v", r.Workers)
	}
	if got, _ := filepath.Match(s.spec.Logs.Dir+"/run_*/attempt_1/1/stderr.log", r.Workers[1].ErrFile); !got || r.Workers[0].OutFile != "" {
		t.Errorf("workers write to %+v", r.Workers)
	}
}

// TestStop gives the workers the grace that it names.
func TestStop(t *testing.T) {
	s := newHarness(t, 1, `trap '' TERM; echo up > $SAY; while :; do sleep 100; done`)
	s.spec.ShutdownTimeout = time.Hour
	s.start()
	s.hear()
	s.agent.Stop(unix.SIGTERM, time.Millisecond)
	var stopped *SignalError
	if err := s.wait(); !errors.As(err, &stopped) || stopped.Signal != unix.SIGTERM {
		t.Errorf("the run ended with %v", err)
	}
	if r := s.agent.Result(); r.Root != -1 || r.Workers[0].ExitCode != -9 {
		t.Errorf("result %+v", r)
	}
}

// TestStopWhileTheWorkersAreStopped: a request without a grace kills the workers at once, also if they are
// being stopped for another reason and have the grace of that.
func TestStopWhileTheWorkersAreStopped(t *testing.T) {
	for _, c := range []struct {
		sig   unix.Signal
		grace time.Duration
	}{{unix.SIGTERM, 0}, {unix.SIGKILL, time.Hour}} {
		s := newHarness(t, 1, "trap 'echo told > $SAY' TERM; echo up > $SAY; while :; do sleep 100 & wait; done")
		s.spec.ShutdownTimeout = time.Hour
		s.start()
		s.hear()
		s.rdzv.set(func() { s.rdzv.waiting = 1 })
		testkit.Equal(t, s.hear(), "told")
		s.agent.Stop(c.sig, c.grace)
		select {
		case <-s.done:
		case <-time.After(testkit.Patience):
			t.Errorf("%v with a grace of %v does not end the workers", c.sig, c.grace)
			s.agent.Stop(unix.SIGKILL, 0)
		}
		expectSignal(t, s.wait(), c.sig)
	}
}

// TestStartError tells which worker could not be started.
func TestStartError(t *testing.T) {
	s := newHarness(t, 2, "")
	s.spec.Argv = []string{"no-such-program"}
	var start *process.StartError
	if err := s.run(); !errors.As(err, &start) || start.LocalRank != 0 || !errors.Is(err, unix.ENOENT) {
		t.Errorf("the run ended with %v", err)
	}
	if r := s.agent.Result(); len(r.Workers) != 0 {
		t.Errorf("result %+v", r)
	}
}
