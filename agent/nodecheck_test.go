package agent

import (
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
