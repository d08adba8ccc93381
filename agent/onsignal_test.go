package agent

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
)

// undirected is a Rendezvous whose nodes cannot be given directives.
type undirected struct{ Rendezvous }

// TestOnSignalNeedsDirectives: a signal that could never ask for anything is a mistake.
func TestOnSignalNeedsDirectives(t *testing.T) {
	spec := newHarness(t, 1, "true").spec
	spec.OnSignal = map[unix.Signal]rendezvous.DirectiveKind{unix.SIGTERM: rendezvous.DirectiveDrain}
	for within, want := range map[time.Duration]string{0: "it must be greater than 0", time.Second: "cannot agree on a step"} {
		spec.DrainTimeout = within
		if _, err := New(spec, "", undirected{}, slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("with %v to save: %v", within, err)
		}
	}
}

// TestSignalAfterTheRun does nothing, whatever it would have asked for.
func TestSignalAfterTheRun(t *testing.T) {
	s := newHarness(t, 1, "true")
	s.spec.OnSignal = map[unix.Signal]rendezvous.DirectiveKind{unix.SIGTERM: rendezvous.DirectiveStop}
	s.spec.DrainTimeout = time.Hour
	d := newSignalDirector(&Agent{spec: s.spec})
	d.stop()
	if !d.take(unix.SIGTERM) || d.take(unix.SIGINT) {
		t.Error("it asks for something, or does not take what it is to take")
	}
}
