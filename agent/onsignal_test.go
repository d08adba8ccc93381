package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
)

// TestOnSignalNeedsTime: workers that may not save are not asked to.
func TestOnSignalNeedsTime(t *testing.T) {
	s := newHarness(t, 1, "true")
	s.spec.OnSignal = map[unix.Signal]rendezvous.DirectiveKind{unix.SIGTERM: rendezvous.DirectiveDrain}
	if _, err := New(s.spec, "", s.rdzv, discard()); err == nil || !strings.Contains(err.Error(), "it must be greater than 0") {
		t.Error(err)
	}
}

// TestSignalAfterTheRun does nothing, whatever it would have asked for.
func TestSignalAfterTheRun(t *testing.T) {
	s := newHarness(t, 1, "true")
	s.spec.OnSignal = map[unix.Signal]rendezvous.DirectiveKind{unix.SIGTERM: rendezvous.DirectiveStop}
	s.spec.DrainTimeout = time.Hour
	d := newSignalDirector(&node{spec: s.spec})
	d.stop()
	if !d.take(unix.SIGTERM) || d.take(unix.SIGINT) {
		t.Error("it asks for something, or does not take what it is to take")
	}
}

// forgetful is a rendezvous that takes directives and carries none out.
type forgetful struct{ *rounds }

func (forgetful) Direct(context.Context, rendezvous.Direct) error { return nil }

// TestSignalThatIsNotCarriedOut: a node that cannot leave by its directive leaves by the signal.
func TestSignalThatIsNotCarriedOut(t *testing.T) {
	s := newHarness(t, 1, `echo up > $SAY; exec sleep 100`)
	s.spec.Identical, s.spec.DrainTimeout = true, time.Millisecond
	s.spec.OnSignal = map[unix.Signal]rendezvous.DirectiveKind{unix.SIGTERM: rendezvous.DirectiveDrain}
	log := new(logText)
	a, err := New(s.spec, "test", forgetful{s.rdzv}, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.agent, a.signals.after = a, time.Millisecond
	s.start()
	s.hear()
	a.Signal(unix.SIGTERM)
	expectSignal(t, s.wait(), unix.SIGTERM)
	if text := log.String(); !strings.Contains(text, "SIGTERM: drain was not carried out within 2ms") {
		t.Error(text)
	}
}

// TestSignalWhileItIsCarriedOut: workers that are being stopped because of the directive have their
// grace. The signal ends the node if it is still there then, as it does where nothing was carried out.
func TestSignalWhileItIsCarriedOut(t *testing.T) {
	const within, grace = 2 * time.Minute, 30 * time.Second
	for name, c := range map[string]struct {
		stopped time.Duration // when the stop of the workers begins; 0: never
		signal  time.Duration
	}{
		"carried out":     {within, within + grace + 2*afterDeadline},
		"not carried out": {0, within + afterDeadline},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := newSignalDirector(&node{
					spec: Spec{DrainTimeout: within, ShutdownTimeout: grace, OnSignal: map[unix.Signal]rendezvous.DirectiveKind{unix.SIGTERM: rendezvous.DirectiveDrain}},
					rdzv: forgetful{newRounds(1)}, log: discard(), interrupts: newInterrupts(),
				})
				defer d.stop()
				began := time.Now()
				d.running.Store(true)
				d.take(unix.SIGTERM)
				if c.stopped > 0 {
					time.Sleep(c.stopped)
					d.running.Store(false)
				}
				<-d.interrupts.first.Done()
				if after := time.Since(began); after != c.signal {
					t.Errorf("the workers get the signal after %v, want %v", after, c.signal)
				}
			})
		})
	}
}

// TestSignalWithoutWorkers: while no workers run there is nothing to save, and the signal ends
// the agent at once.
func TestSignalWithoutWorkers(t *testing.T) {
	s := newHarness(t, 1, "true")
	s.rdzv.blocked = true
	s.spec.DrainTimeout = time.Hour
	s.spec.OnSignal = map[unix.Signal]rendezvous.DirectiveKind{unix.SIGTERM: rendezvous.DirectiveStop}
	log := new(logText)
	a, err := New(s.spec, "test", forgetful{s.rdzv}, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	s.agent = a
	s.start()
	<-s.rdzv.joining
	a.Signal(unix.SIGTERM)
	expectSignal(t, s.wait(), unix.SIGTERM)
	if text := log.String(); !strings.Contains(text, "the job could not be asked to stop") || !strings.Contains(text, errNotRunning.Error()) {
		t.Error(text)
	}
}
