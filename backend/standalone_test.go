package backend_test

import (
	"testing"
	"time"

	"rallypoint/backend"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

func openStandalone(t *testing.T) *member.Member {
	p := params.Default()
	p.RunID = "job"
	node, err := backend.OpenStandalone(p, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = node.Close() })
	if _, err := node.Next(t.Context()); err != nil {
		t.Fatal(err)
	}
	return node.(*member.Member)
}

// awaitDirective waits until the node sees a directive for which until is true.
func awaitDirective(t *testing.T, m *member.Member, until func(rendezvous.DirectiveNotice) bool) rendezvous.DirectiveNotice {
	t.Helper()
	for {
		n, changed := m.Directive()
		if until(n) {
			return n
		}
		select {
		case <-changed:
		case <-t.Context().Done():
			t.Fatalf("stays at %+v", n)
		}
	}
}

// TestStandaloneRounds: each round of a job of one node has a number and an empty store of its own.
func TestStandaloneRounds(t *testing.T) {
	m := openStandalone(t)
	for round := uint64(2); round < 300; round++ { // past a snapshot of the log
		if err := m.AnnounceStop(t.Context(), rendezvous.AnnounceStop{Round: round - 1, Reason: "exited with code 3"}); err != nil {
			t.Fatal(err)
		}
		o, err := m.Next(t.Context())
		if err != nil || o.Round != round || o.World != 1 || o.Rank != 0 || o.StoreAddr != "127.0.0.1" || o.StorePort == 0 {
			t.Fatalf("%+v, %v", o, err)
		}
	}
	if err := m.Shutdown(t.Context(), rendezvous.EndSuccess, ""); err != nil {
		t.Error(err)
	}
}

// TestStandaloneDirectives: a save is agreed where the workers are held; a drain ends the job, to be
// queued again.
func TestStandaloneDirectives(t *testing.T) {
	m := openStandalone(t)
	for _, kind := range []rendezvous.DirectiveKind{rendezvous.DirectiveSave, rendezvous.DirectiveDrain} {
		if err := m.Direct(t.Context(), rendezvous.Direct{Kind: kind, Within: time.Hour, Reason: "SIGUSR1"}); err != nil {
			t.Fatal(err)
		}
		n := awaitDirective(t, m, func(n rendezvous.DirectiveNotice) bool { return n.Kind == kind && n.ID != "" })
		if err := m.ReportHeld(t.Context(), 1, n.ID, 7); err != nil {
			t.Error(err)
		}
		if a := awaitDirective(t, m, func(n rendezvous.DirectiveNotice) bool { return n.Agreed }); a.Step != 7 || a.ID != n.ID {
			t.Errorf("%+v", a)
		}
		_ = m.ReportSaved(t.Context(), 1, n.ID)
		if kind == rendezvous.DirectiveSave {
			awaitDirective(t, m, func(n rendezvous.DirectiveNotice) bool { return n.ID == "" })
		}
	}
	for !m.Closed() {
		<-m.Changed()
	}
	reason, requeued := m.Requeued()
	if _, err := m.Next(t.Context()); !requeued || m.NodesWaiting() == 0 || rendezvous.CodeOf(err) != rendezvous.CodeClosed {
		t.Errorf("%v, %q, %v", requeued, reason, err)
	}
}

// TestStandaloneScale: a job of one node has no other size.
func TestStandaloneScale(t *testing.T) {
	m := openStandalone(t)
	if err := m.Direct(t.Context(), rendezvous.Direct{Kind: rendezvous.DirectiveScale, Target: 2, Within: time.Minute}); rendezvous.CodeOf(err) != rendezvous.CodeInvalid {
		t.Error(err)
	}
}
