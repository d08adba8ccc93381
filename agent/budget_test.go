package agent

import (
	"errors"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/agent/progress"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

func TestAgreeBudget(t *testing.T) {
	ran := func(round uint64, step int64, idle int, last int64) *budget {
		return &budget{Round: round, Step: step, Idle: idle, Ran: true, Recorded: true, Last: last}
	}
	blind := ran(4, 10, 1, 30)
	blind.Recorded = false
	asked := func(b *budget) *budget { b.Asked = true; return b }
	for name, c := range map[string]struct {
		infos []*budget
		want  budget
	}{
		"the first round":             {[]*budget{{Step: noStep, Last: noStep}, {Step: noStep, Last: noStep}}, budget{Step: noStep}},
		"after it":                    {[]*budget{ran(1, noStep, 0, 5), ran(1, noStep, 0, 4)}, budget{Round: 1, Step: 5}},
		"after it, without a step":    {[]*budget{ran(1, noStep, 0, noStep)}, budget{Round: 1, Step: noStep, Idle: 1}},
		"further":                     {[]*budget{ran(4, 10, 2, 9), ran(4, 10, 2, 11)}, budget{Round: 4, Step: 11}},
		"as far":                      {[]*budget{ran(4, 10, 2, 9), ran(4, 10, 2, 10)}, budget{Round: 4, Step: 10, Idle: 3}},
		"less far":                    {[]*budget{ran(4, 10, 2, 8)}, budget{Round: 4, Step: 8, Idle: 3}},
		"a newcomer knows nothing":    {[]*budget{{Step: noStep, Last: noStep}, ran(4, 10, 2, 8)}, budget{Round: 4, Step: 8, Idle: 3}},
		"a spare knows an older one":  {[]*budget{ran(2, 90, 0, 95), ran(4, 10, 2, 11)}, budget{Round: 4, Step: 11}},
		"no workers ran in the round": {[]*budget{{Round: 4, Step: 10, Idle: 2, Last: 10}}, budget{Round: 4, Step: 10, Idle: 2}},
		"steps that are not known":    {[]*budget{blind, ran(4, 10, 1, 9)}, budget{Round: 4, Step: 10, Idle: 1}},
		"a drain ended it":            {[]*budget{asked(ran(4, 10, 1, 9)), asked(ran(4, 10, 1, 10))}, budget{Round: 4, Step: 10, Idle: 1}},
		"a failure beside a drain":    {[]*budget{asked(ran(4, 10, 1, 9)), ran(4, 10, 1, 10), asked(ran(4, 10, 1, 9))}, budget{Round: 4, Step: 10, Idle: 2}},
		"further before a drain":      {[]*budget{asked(ran(4, 10, 1, 11))}, budget{Round: 4, Step: 11}},
		"torch's agents":              {[]*budget{nil, ran(4, 10, 2, 8), nil}, budget{Round: 4, Step: 8, Idle: 3}},
		"ages":                        {[]*budget{{Ages: []float64{9, 2}}, {Ages: []float64{9, 2, 0}}, nil}, budget{Ages: []float64{9, 2, 0}}},
	} {
		if got := agreeBudget(c.infos); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %+v, want %+v", name, got, c.want)
		}
	}
}

// TestBudgetOfAllAgents: all agents of a round that have a budget get the same one.
func TestBudgetOfAllAgents(t *testing.T) {
	s := store.NewMemory(store.NewEngine(store.Limits{}))
	defer s.Close()
	agents := []roleInfo{
		{Role: "r", Rank: 0, LocalWorldSize: 1}, // without the option
		{Role: "r", Rank: 1, LocalWorldSize: 1, Budget: &budget{Round: 1, Step: 5, Ran: true, Recorded: true, Last: 5, Ages: []float64{1}}},
		{Role: "r", Rank: 2, LocalWorldSize: 1, Budget: &budget{Step: noStep, Last: noStep}},
	}
	want := &budget{Round: 1, Step: 5, Idle: 1, Ages: []float64{1}}
	var wg sync.WaitGroup
	for i, a := range agents {
		wg.Go(func() {
			got, err := agreeRanks(t.Context(), s, a, len(agents))
			if err != nil || i > 0 && !reflect.DeepEqual(got.budget, want) || i == 0 && got.budget != nil {
				t.Errorf("agent %d has %+v (%v)", i, got.budget, err)
			}
		})
	}
	wg.Wait()
}

// TestForeignBudget is what another program may have written for agent 0's answer.
func TestForeignBudget(t *testing.T) {
	for _, text := range []string{`""`, "[]", "x", `{"idle": -1}`, `{"idle": 1e99}`} {
		if got, err := parseShare(fmt.Appendf(nil, "[0, 1, 0, 1, 0, 0, %s]", text)); err == nil {
			t.Errorf("%q is %+v", text, got.budget)
		}
	}
	r := &restarts{now: time.Now, spec: &Spec{RestartWindow: time.Hour, MaxRestarts: 3}}
	ages := append(make([]float64, 5000), -1, 3601, math.MaxFloat64)
	if err := r.take(1, &budget{}, &budget{Ages: ages}); err != nil || len(r.recent) != maxWindowRestarts {
		t.Errorf("%d restarts, %v", len(r.recent), err)
	}
	if err := r.take(1, &budget{}, &budget{Ages: []float64{-1, 3601, math.MaxFloat64, 1}}); err != nil || len(r.recent) != 1 {
		t.Errorf("%d restarts, %v", len(r.recent), err)
	}
}

// idle returns the error of a run that makes no progress.
func (h *harness) idle(err error) *NoProgressError {
	h.t.Helper()
	var idle *NoProgressError
	if !errors.As(err, &idle) {
		h.t.Fatalf("the run ended with %v", err)
	}
	if h.rdzv.ending != rendezvous.EndFailed {
		h.t.Errorf("the rendezvous was ended with %v", h.rdzv.ending)
	}
	return idle
}

// TestNoProgress: a job that fails at the same step again and again is stopped, with the
// failure in its report.
func TestNoProgress(t *testing.T) {
	s := newHarness(t, 1, reportStep+"first 42; echo the culprit >&2; echo up >$SAY; exit 7")
	s.spec.MaxRestarts, s.spec.MaxNoProgress = 50, 2
	s.spec.Logs.Redirects = streamsOf(t, "2")
	idle := s.idle(s.run())
	if idle.Rounds != 2 || idle.Step != 42 || s.rdzv.round != 4 {
		t.Errorf("%+v in round %d", idle, s.rdzv.round)
	}
	for range 3 {
		s.hear()
	}
	if text := idle.Error(); text != "no progress: 2 rounds in a row have ended without a higher step than the one before (the last one at step 42); the job is stopped" {
		t.Errorf("got %q", text)
	}
	if text := idle.Report(); !strings.Contains(text, "exitcode  : 7") || !strings.Contains(text, "the culprit") {
		t.Errorf("got %q", text)
	}
}

// TestNoProgressIsKnownToAll: a node ends no job before the others know that it gets nowhere:
// its end would be the failure of a peer for them.
func TestNoProgressIsKnownToAll(t *testing.T) {
	s := newHarness(t, 1, "exit 7")
	s.spec.MaxRestarts, s.spec.MaxNoProgress, s.spec.Identical = 50, 1, true
	s.rdzv.world = 2
	s.start()
	keys, there := s.rdzv.Keys(2), make(chan error, 1)
	go func() { there <- keys.Wait(t.Context(), []string{idleKey}) }()
	select {
	case <-s.done:
		t.Fatalf("it ended before the other node knew: %v", s.err)
	case err := <-there:
		testkit.Check(t, err)
	}
	if n, err := keys.Add(t.Context(), idleKey, 1); n != 2 || err != nil {
		t.Errorf("%d nodes, %v", n, err)
	}
	testkit.Check(t, keys.Set(t.Context(), idleAllKey, []byte("1")))
	if idle := s.idle(s.wait()); idle.Rounds != 1 {
		t.Errorf("%+v", idle)
	}
}

// TestProgressBetweenFailures: higher steps keep the job alive, until its restarts are used.
func TestProgressBetweenFailures(t *testing.T) {
	s := newHarness(t, 1, reportStep+"first $((40 + TORCHELASTIC_RESTART_COUNT)); exit 7")
	s.spec.MaxRestarts, s.spec.MaxNoProgress = 4, 1
	s.failed(s.run())
	if s.rdzv.round != 5 {
		t.Errorf("round %d", s.rdzv.round)
	}
}

// TestRoundsThatDirectivesEnd: what a drain or a scale has ended is no reason to stop, unless a
// worker of it has failed.
func TestRoundsThatDirectivesEnd(t *testing.T) {
	s := newHarness(t, 1, reportStep+"first 42; echo up >$SAY; [ $RALLYPOINT_ROUND = 4 ] || exec sleep 100; exit 7")
	s.spec.MaxRestarts, s.spec.MaxNoProgress = 50, 1
	s.rdzv.resized = map[uint64]bool{2: true, 3: true, 4: true, 5: true}
	s.start()
	for range 3 {
		up := make(chan struct{})
		go func() { // ends with the worker's word
			s.hear()
			close(up)
		}()
		select {
		case <-up:
			s.rdzv.set(func() { s.rdzv.waiting = 1 })
		case <-s.done:
			t.Fatalf("in round %d: %v", s.rdzv.round, s.err)
		}
	}
	if idle := s.idle(s.wait()); idle.Rounds != 1 || s.rdzv.round != 5 {
		t.Errorf("%+v in round %d", idle, s.rdzv.round)
	}
}

// TestNoStepAtAll: a job whose workers fail before their first step.
func TestNoStepAtAll(t *testing.T) {
	s := newHarness(t, 1, "exit 7")
	s.spec.MaxRestarts, s.spec.MaxNoProgress, s.spec.Identical = 50, 3, true
	idle := s.idle(s.run())
	if idle.Rounds != 3 || idle.Step != noStep || s.rdzv.round != 4 || !strings.Contains(idle.Error(), "no worker reported a step; workers report by rallypoint.progress") {
		t.Errorf("%v in round %d", idle, s.rdzv.round)
	}
}

// TestNoProgressWithoutRecords: what cannot be known stops nothing.
func TestNoProgressWithoutRecords(t *testing.T) {
	s := newHarness(t, 1, "exit 7")
	s.spec.Environ = append(s.spec.Environ, progress.EnvDir+"=/dev/null")
	s.spec.MaxRestarts, s.spec.MaxNoProgress = 3, 1
	s.failed(s.run())
	if s.rdzv.round != 4 {
		t.Errorf("round %d", s.rdzv.round)
	}
}

// TestRestartWindow: one restart may be in any hour.
func TestRestartWindow(t *testing.T) {
	s := newHarness(t, 1, "echo $TORCHELASTIC_RESTART_COUNT >$SAY; read go <$GO; exit 7")
	gate := s.goFile()
	s.spec.MaxRestarts, s.spec.RestartWindow = 1, time.Hour
	s.prepare()
	var mu sync.Mutex
	now := time.Now()
	s.agent.restarts.now = func() time.Time {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	s.start()
	pass := func(d time.Duration) {
		mu.Lock()
		defer mu.Unlock()
		now = now.Add(d)
	}
	for restarts, want := range []string{"0", "1", "2"} {
		if got := s.hear(); got != want {
			t.Errorf("restart %s, want %s", got, want)
		}
		if restarts < 2 {
			pass(61 * time.Minute)
		} else {
			pass(59 * time.Minute)
		}
		if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
			t.Fatal(err)
		}
	}
	s.failed(s.wait())
	if r := s.agent.Result(); r.Restarts != 2 {
		t.Errorf("%d restarts", r.Restarts)
	}
}
