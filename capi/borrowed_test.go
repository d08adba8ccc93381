package main

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"rallypoint/backend"
	"rallypoint/core/rendezvous"
	"rallypoint/core/training"
	"rallypoint/internal/wake"
)

// able is a node that can do whatever an agent may ask of one.
type able struct {
	backend.Node
	called string
	err    error
}

func (a *able) note(format string, args ...any) error {
	a.called = fmt.Sprintf(format, args...)
	return a.err
}

func (a *able) AnnounceStop(_ context.Context, round uint64, leaving bool, reason string) error {
	return a.note("stop %d %v %s", round, leaving, reason)
}

func (a *able) Stopped(round uint64) rendezvous.RoundStop { return rendezvous.RoundStop{Round: round} }

func (a *able) MinNodes() int { return 2 }

func (a *able) Directive() (rendezvous.DirectiveNotice, <-chan struct{}) {
	return rendezvous.DirectiveNotice{ID: "d1"}, make(chan struct{})
}

func (a *able) ReportHeld(_ context.Context, round uint64, id string, step int64) error {
	return a.note("held %d %s %d", round, id, step)
}

func (a *able) ReportSaved(_ context.Context, round uint64, id string) error {
	return a.note("saved %d %s", round, id)
}

func (a *able) Direct(_ context.Context, d rendezvous.Direct) error { return a.note("direct %s", d.ID) }
func (a *able) Requeued() (string, bool)                            { return "by carol", true }

func (a *able) CarryTraining(report func() *training.Report) { a.called = fmt.Sprint(report().Round) }

// TestBorrowedForwards: an agent that has a program's member asks that for all that it can do,
// and gets its errors.
func TestBorrowedForwards(t *testing.T) {
	n := &able{err: errors.New("from the node")}
	b := borrowed{n, wake.New()}
	ctx := t.Context()
	for want, call := range map[string]func() error{
		"stop 3 true why": func() error { return b.AnnounceStop(ctx, 3, true, "why") },
		"held 3 d1 41":    func() error { return b.ReportHeld(ctx, 3, "d1", 41) },
		"saved 3 d1":      func() error { return b.ReportSaved(ctx, 3, "d1") },
		"direct d2":       func() error { return b.Direct(ctx, rendezvous.Direct{ID: "d2"}) },
	} {
		if err := call(); err != n.err || n.called != want {
			t.Errorf("%s: %v, it called %q", want, err, n.called)
		}
	}
	if s := b.Stopped(3); s.Round != 3 {
		t.Errorf("the stop is %+v", s)
	}
	if n := b.MinNodes(); n != 2 {
		t.Errorf("at least %d nodes", n)
	}
	if d, changed := b.Directive(); d.ID != "d1" || changed == nil {
		t.Errorf("the directive is %+v, %v", d, changed)
	}
	if reason, requeued := b.Requeued(); !requeued || reason != "by carol" {
		t.Errorf("requeued: %v, %q", requeued, reason)
	}
	b.CarryTraining(func() *training.Report { return &training.Report{Round: 9} })
	if n.called != "9" {
		t.Errorf("it carries %q", n.called)
	}
	b.changed.Set()
	<-b.Changed()
}

// TestBorrowedOfPlainNode: a node of a kind that can do none of it is no obstacle, and an agent
// does not wait for what never comes; only giving a directive is an error.
func TestBorrowedOfPlainNode(t *testing.T) {
	b := borrowed{struct{ backend.Node }{}, wake.New()}
	ctx := t.Context()
	b.CarryTraining(nil)
	if err := errors.Join(b.AnnounceStop(ctx, 1, true, ""), b.ReportHeld(ctx, 1, "d", 1), b.ReportSaved(ctx, 1, "d")); err != nil {
		t.Error(err)
	}
	if s := b.Stopped(1); s != (rendezvous.RoundStop{}) {
		t.Errorf("the stop is %+v", s)
	}
	if n := b.MinNodes(); n != 0 {
		t.Errorf("at least %d nodes", n)
	}
	if d, changed := b.Directive(); d.ID != "" || changed != nil {
		t.Errorf("the directive is %+v, %v", d, changed)
	}
	if _, requeued := b.Requeued(); requeued {
		t.Error("it is to be queued again")
	}
	if err := b.Direct(ctx, rendezvous.Direct{}); rendezvous.CodeOf(err) != rendezvous.CodeInvalid {
		t.Errorf("a directive: %v", err)
	}
}
