package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
)

// requeuing is a rendezvous whose run is ended by a directive, of which the agent learns when
// its worker has failed already.
type requeuing struct {
	*rounds
	after int64 // so many looks that find it running; -1: it continues
	looks atomic.Int64
}

func (r *requeuing) Requeued() (reason string, requeued bool) {
	if looks := r.looks.Add(1); r.after < 0 || looks <= r.after {
		return "", false
	}
	return "stopped to be queued again by admin carol", true
}

func (r *requeuing) Closed() bool { return r.after >= 0 && r.looks.Load() >= r.after }

// TestFailureBesideRequeue: how the run has ended decides, whatever worker fails then: the
// node of the failure ends as the others do, also if the directive is carried out while it
// waits for the cause of its failure. A failure in a run that continues is one.
func TestFailureBesideRequeue(t *testing.T) {
	for name, c := range map[string]struct {
		after    int64
		restarts int
		says     string
	}{
		"before the failure":                {0, 0, "the failure is not counted, because the run had already ended: "},
		"before the failure, restarts left": {0, 3, "the failure is not counted, because the run had already ended: "},
		"while the node waits for news":     {1, 0, "the failure is not counted, because the run has ended meanwhile: "},
		"never":                             {-1, 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, 1, "exit 7")
			s.spec.Identical, s.spec.MaxRestarts = true, c.restarts
			if c.after > 0 {
				s.rdzv.world, s.spec.LostNodeTimeout = 2, time.Hour
			}
			log := new(logText)
			a, err := New(s.spec, "test", &requeuing{rounds: s.rdzv, after: c.after}, slog.New(slog.NewTextHandler(log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			s.agent = a
			err = s.run()
			var requeued *RequeueError
			if errors.As(err, &requeued) != (c.after >= 0) || !strings.Contains(log.String(), c.says) {
				t.Errorf("it ended with %v; %s", err, log)
			}
			if c.after < 0 {
				s.failed(err)
				return
			}
			if s.rdzv.ending != rendezvous.EndLeave || !errors.Is(err, rendezvous.ErrClosed) || !strings.Contains(err.Error(), "by admin carol") {
				t.Errorf("it left by %v: %v", s.rdzv.ending, err)
			}
		})
	}
}

// endsMeanwhile is a rendezvous whose run a directive ends just before this node's goodbye
// arrives: nothing told the node before.
type endsMeanwhile struct {
	*rounds
	requeued atomic.Bool
}

func (e *endsMeanwhile) Shutdown(ctx context.Context, ending rendezvous.Ending, reason string) error {
	e.requeued.Store(true)
	return e.rounds.Shutdown(ctx, ending, reason)
}

func (e *endsMeanwhile) Requeued() (reason string, requeued bool) {
	return "asked for by admin carol", e.requeued.Load()
}

// TestRequeueBeforeTheGoodbye: the first to end the run decides for every node. One whose
// goodbye comes after a directive has ended the run ends as the others do, whatever it would
// have ended by, and also where its workers have succeeded: others' had not. One that was not
// needed has nothing to queue again.
func TestRequeueBeforeTheGoodbye(t *testing.T) {
	for name, c := range map[string]struct {
		prepare  func(*harness)
		requeued bool
	}{
		"a worker failed":             {func(s *harness) { s.spec.Argv = []string{"false"} }, true},
		"no worker could be started":  {func(s *harness) { s.spec.Argv = []string{"/there/is/none"} }, true},
		"no progress":                 {func(s *harness) { s.spec.Argv = []string{"false"}; s.spec.MaxRestarts, s.spec.MaxNoProgress = 9, 1 }, true},
		"another node ended the run":  {func(s *harness) { s.rdzv.refusal = rendezvous.ErrClosed }, true},
		"a signal":                    {func(s *harness) { s.rdzv.blocked = true }, true},
		"its workers have succeeded":  {func(*harness) {}, true},
		"this node was not necessary": {func(s *harness) { s.rdzv.refusal = rendezvous.ErrGraceful }, false},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, 1, "exit 0")
			s.spec.Identical = true
			c.prepare(s)
			log := new(logText)
			a, err := New(s.spec, "test", &endsMeanwhile{rounds: s.rdzv}, slog.New(slog.NewTextHandler(log, nil)))
			if err != nil {
				t.Fatal(err)
			}
			s.agent = a
			s.start()
			if s.rdzv.blocked {
				<-s.rdzv.joining
				a.Signal(unix.SIGTERM)
			}
			err = s.wait()
			if !c.requeued {
				if err != nil {
					t.Errorf("it ended with %v", err)
				}
				return
			}
			if !errors.As(err, new(*RequeueError)) || errors.As(err, new(*FailedError)) || !strings.Contains(err.Error(), "by admin carol") {
				t.Errorf("it ended with %v", err)
			}
			if !strings.Contains(log.String(), "does not count, because the run had already ended") {
				t.Errorf("the log says %s", log)
			}
			if r := a.Result(); r.Err != err || len(r.Failures) > 0 {
				t.Errorf("the result is %+v", r)
			}
		})
	}
}
