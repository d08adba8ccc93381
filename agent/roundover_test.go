package agent

import (
	"context"
	"testing"
	"time"

	"rallypoint/agent/process"
	"rallypoint/agent/telemetry"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// late is a rendezvous of which one round is over before this node could exchange
// ranks in it: the others have taken it for lost meanwhile.
type late struct {
	*rounds
	over uint64
}

func (l late) Keys(round uint64) store.Store {
	if round == l.over {
		return over{l.rounds.Keys(round)}
	}
	return l.rounds.Keys(round)
}

// over is the store of a round that is over.
type over struct{ store.Store }

func (over) Set(context.Context, string, []byte) error {
	return rendezvous.Errorf(rendezvous.CodeRoundOver, "the round is over")
}

// TestRoundOverBeforeRanks regroups, and does not fail: nothing is wrong here.
func TestRoundOverBeforeRanks(t *testing.T) {
	s := newHarness(t, 1, "exit 0")
	a, err := New(s.spec, "test", late{s.rdzv, 1}, discard())
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Run(t.Context()); err != nil || s.rdzv.round != 2 {
		t.Errorf("the run ended with %v in round %d", err, s.rdzv.round)
	}
}

// TestChargeBeforeARoundThatIsOver: a restart counts, in a window, too, although the round in which the
// agents would have agreed on it is over before.
func TestChargeBeforeARoundThatIsOver(t *testing.T) {
	for _, window := range []time.Duration{0, time.Hour} {
		s := newHarness(t, 1, "exit 7")
		s.spec.MaxRestarts, s.spec.RestartWindow = 1, window
		a, err := New(s.spec, "test", late{s.rdzv, 2}, discard())
		testkit.Check(t, err)
		s.agent = a
		s.failed(s.run())
		if r := a.Result(); r.Round != 3 || r.Restarts != 1 {
			t.Errorf("in a window of %v: %d restarts, the last in round %d", window, r.Restarts, r.Round)
		}
	}
}

// onStart is told of the workers of each attempt before the agent looks at them.
type onStart func(workers []*process.Process)

func (f onStart) Take(_ telemetry.State, message telemetry.Message) {
	if m, ok := message.(telemetry.WorkersStarted); ok {
		f(m.Workers)
	}
}

// TestRoundOverWhenAllHaveSucceeded: workers that have succeeded are not started again for a node that comes
// or is lost at that moment.
func TestRoundOverWhenAllHaveSucceeded(t *testing.T) {
	s := newHarness(t, 2, "exit 0")
	s.prepare()
	s.agent.bus = telemetry.NewBus(&telemetry.Run{Log: discard()}, s.agent.status, onStart(func(workers []*process.Process) {
		for _, p := range workers {
			testkit.Eventually(t, "the worker has ended", p.HasExited)
		}
		s.rdzv.set(func() { s.rdzv.waiting = int(2 - s.rdzv.round) })
	}))
	if err := s.run(); err != nil || s.rdzv.round != 1 || s.rdzv.ending != rendezvous.EndSuccess {
		t.Errorf("the run ended with %v in round %d, and the rendezvous with %v", err, s.rdzv.round, s.rdzv.ending)
	}
}
