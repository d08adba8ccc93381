package agent

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// TestCheckThatCannotStart: where a check cannot be started while the workers run, as on a machine that
// has no room for another process, the workers run on.
func TestCheckThatCannotStart(t *testing.T) {
	s := newHarness(t, 1, "echo up > $SAY; exec sleep 100")
	s.spec.Checks = []string{"#" + strings.Repeat("x", 1<<17)} // more than an argument may have
	s.spec.CheckEvery, s.spec.CheckTimeout, s.spec.CheckAway, s.spec.DrainTimeout = time.Millisecond, time.Hour, time.Hour, time.Hour
	logger, log := testkit.NewLog(t)
	a, err := New(s.spec, "test", s.rdzv, logger)
	testkit.Check(t, err)
	s.agent = a
	s.start()
	s.hear()
	const says = "the checks of this node do not run"
	log.Await(t, says, len(log.With(says))+2)
	a.Signal(unix.SIGTERM)
	expectSignal(t, s.wait(), unix.SIGTERM)
}

// TestCheckAcrossARestart: what a check finds that began beside workers which have been replaced meanwhile
// does not count, since their stop may be the cause; what the next one finds does.
func TestCheckAcrossARestart(t *testing.T) {
	s := newHarness(t, 1, "echo up $$ > $SAY; exec sleep 100")
	gate := s.goFile()
	s.spec.Checks = []string{`[ $RALLYPOINT_CHECK = running ] || exit 0; echo check > $SAY; read x < $GO; exit 1`}
	s.spec.CheckEvery, s.spec.CheckTimeout, s.spec.CheckAway, s.spec.DrainTimeout, s.spec.MaxRestarts = time.Millisecond, time.Hour, time.Hour, time.Hour, 1
	logger, log := testkit.NewLog(t)
	a, err := New(s.spec, "test", s.rdzv, logger)
	testkit.Check(t, err)
	s.agent = a
	s.start()
	worker := 0
	for range 2 { // the worker and the check, in any order
		if pid, ok := strings.CutPrefix(s.hear(), "up "); ok {
			worker = testkit.Must(strconv.Atoi(pid))(t)
		}
	}
	testkit.Check(t, unix.Kill(worker, unix.SIGKILL))
	if up := s.hear(); !strings.HasPrefix(up, "up ") {
		t.Fatal(up)
	}
	for found := range 2 {
		testkit.WriteFile(t, gate, []byte("\n"))
		testkit.Equal(t, s.hear(), "check") // the next one
		testkit.Equal(t, len(log.With("a check found this node unfit")), found)
	}
	a.Signal(unix.SIGTERM)
	expectSignal(t, s.wait(), unix.SIGTERM)
}
