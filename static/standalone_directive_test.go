package static

import (
	"log/slog"
	"testing"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

func standalone(t *testing.T) *Standalone {
	p := params.Default()
	p.RunID = "job"
	s := NewStandalone(p, slog.New(slog.DiscardHandler))
	t.Cleanup(func() { _ = s.Shutdown(t.Context(), rendezvous.EndLeave, "") })
	if _, err := s.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSecondDirectiveOfOneNode: one that ends the job takes the place of a save, and a save adds
// nothing to it; another one like it brings its deadline nearer.
func TestSecondDirectiveOfOneNode(t *testing.T) {
	s := standalone(t)
	give := func(kind rendezvous.DirectiveKind, within time.Duration) rendezvous.DirectiveNotice {
		t.Helper()
		if err := s.Direct(t.Context(), rendezvous.Direct{Kind: kind, Within: within, Reason: "SIGUSR1"}); err != nil {
			t.Fatal(err)
		}
		n, _ := s.Directive()
		return n
	}
	save := give(rendezvous.DirectiveSave, time.Hour)
	if again := give(rendezvous.DirectiveSave, 2*time.Hour); again != save {
		t.Errorf("a second save: %+v", again)
	}
	drain := give(rendezvous.DirectiveDrain, time.Hour)
	if drain.ID == save.ID || drain.Kind != rendezvous.DirectiveDrain {
		t.Errorf("a drain after a save: %+v", drain)
	}
	_ = s.ReportHeld(t.Context(), 1, drain.ID, 7)
	if n := give(rendezvous.DirectiveSave, time.Minute); n.ID != drain.ID || n.Within != time.Hour {
		t.Errorf("a save after a drain: %+v", n)
	}
	if n := give(rendezvous.DirectiveStop, time.Minute); n.ID != drain.ID || n.Within != time.Minute || n.Step != 7 {
		t.Errorf("a stop after a drain: %+v", n)
	}
}

// TestDirectivesOfOneNode: a save and then a stop are agreed where the workers are held; the
// stop ends the job, to be queued again.
func TestDirectivesOfOneNode(t *testing.T) {
	s := standalone(t)
	for _, kind := range []rendezvous.DirectiveKind{rendezvous.DirectiveSave, rendezvous.DirectiveDrain} {
		if err := s.Direct(t.Context(), rendezvous.Direct{Kind: kind, Within: time.Hour, Reason: "SIGUSR1"}); err != nil {
			t.Fatal(err)
		}
		want := kind.String() + ", asked for by this node: SIGUSR1"
		n, changed := s.Directive()
		if n.ID == "" || n.Round != 1 || n.Agreed || n.Text != want || s.NodesWaiting() > 0 {
			t.Fatalf("%+v", n)
		}
		_ = s.ReportHeld(t.Context(), 2, n.ID, 5) // of another round
		_ = s.ReportHeld(t.Context(), 1, n.ID, 7)
		_ = s.ReportHeld(t.Context(), 1, n.ID, 8)
		<-changed
		if a, _ := s.Directive(); !a.Agreed || a.Step != 7 || a.ID != n.ID {
			t.Errorf("%+v", a)
		}
		_ = s.ReportSaved(t.Context(), 1, "another")
		_ = s.ReportSaved(t.Context(), 1, n.ID)
	}
	if n, _ := s.Directive(); n.ID != "" {
		t.Errorf("%+v", n)
	}
	<-s.Changed()
	reason, requeued := s.Requeued()
	if _, err := s.Next(t.Context()); !requeued || reason != "asked for by this node: SIGUSR1" || s.NodesWaiting() == 0 || !s.Closed() || rendezvous.CodeOf(err) != rendezvous.CodeClosed {
		t.Errorf("%v, %q, %v", requeued, reason, err)
	}
	if err := s.Direct(t.Context(), rendezvous.Direct{Kind: rendezvous.DirectiveSave}); rendezvous.CodeOf(err) != rendezvous.CodeClosed {
		t.Error(err)
	}
}

// TestDirectiveOfOneNodeAtItsDeadline is carried out, whatever the workers do; the next round
// agrees again before it.
func TestDirectiveOfOneNodeAtItsDeadline(t *testing.T) {
	s := standalone(t)
	if err := s.Direct(t.Context(), rendezvous.Direct{ID: "d1", Kind: rendezvous.DirectiveStop, Within: 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	_ = s.ReportHeld(t.Context(), 1, "d1", 7)
	if _, err := s.Next(t.Context()); err == nil {
		if n, _ := s.Directive(); n.ID == "d1" && (n.Round != 2 || n.Agreed) {
			t.Errorf("%+v", n)
		}
	}
	<-s.Changed()
	if _, requeued := s.Requeued(); !requeued {
		t.Error("the job goes on")
	}
}

// TestDirectivesThatOneNodeHasNot leave nothing behind.
func TestDirectivesThatOneNodeHasNot(t *testing.T) {
	s := standalone(t)
	if err := s.Direct(t.Context(), rendezvous.Direct{Kind: rendezvous.DirectiveScale, Target: 2}); rendezvous.CodeOf(err) != rendezvous.CodeInvalid {
		t.Error(err)
	}
	if n, _ := s.Directive(); n.ID != "" {
		t.Errorf("%+v", n)
	}
}
