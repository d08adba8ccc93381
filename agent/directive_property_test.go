package agent

import (
	"context"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"pgregory.net/rapid"

	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/core/rendezvous"
)

// agreeing is a random history of what the nodes say of directives, and of what the workers of
// one node do meanwhile.
type agreeing struct {
	Rendezvous // for the methods that directives do not call

	t       *rapid.T
	f       *directives
	notice  rendezvous.DirectiveNotice
	ids     int
	steps   map[string]int64 // of those that were agreed, in this round: there is no second one
	held    int64            // what this node said of the asked one; -1 before
	workers []*scripted
}

// scripted is a worker that does one thing after the other, and never blocks.
type scripted struct {
	*puppet
	step  int64
	waits bool // in the report of its step
	took  map[string]int64
}

func (a *agreeing) Directive() (rendezvous.DirectiveNotice, <-chan struct{}) { return a.notice, nil }
func (a *agreeing) ReportSaved(context.Context, uint64, string) error        { return nil }
func (a *agreeing) ReportHeld(_ context.Context, _ uint64, id string, step int64) error {
	if id == a.notice.ID {
		a.held = step
	}
	return nil
}

// report has a worker report a step, or continue in a report in which it is held.
func (a *agreeing) report(w *scripted, step int64) {
	w.set(40, 1)
	w.step = step
	w.set(16, uint64(step))
	if w.waits = w.mem[24] == 1; w.waits {
		w.set(32, w.word(24)&^0xff|1)
		return
	}
	about := w.word(24) &^ 0xff
	if w.mem[24] != 2 || w.word(32) == about|2 || w.word(32) == about|3 || step < int64(w.word(48)) {
		return
	}
	w.set(32, about|2)
	id := w.file().ID
	if before, again := w.took[id]; again {
		a.t.Fatalf("a worker got %s at step %d, and again at %d", id, before, step)
	}
	if step < a.steps[id] {
		a.t.Fatalf("a worker got %s at step %d, agreed was %d", id, step, a.steps[id])
	}
	w.took[id] = step
}

// settle has the agent do what it does at each look, and workers that are no longer held continue.
func (a *agreeing) settle() {
	a.f.take(a.notice)
	a.f.look(a.t.Context())
	a.f.hold(a.t.Context())
	a.f.drop(a.notice.ID)
	asked := a.notice.ID != "" && a.notice.Round == a.f.round && !a.notice.Agreed
	for _, w := range a.workers {
		if w.mem[24] == 1 && !asked {
			a.t.Fatalf("a worker is held, and the nodes say %+v", a.notice)
		}
		if w.waits && w.mem[24] != 1 {
			a.report(w, w.step)
		}
	}
}

func (a *agreeing) say(n rendezvous.DirectiveNotice) {
	a.notice = n
	a.settle()
}

func (a *agreeing) worker(t *rapid.T) *scripted {
	return rapid.SampledFrom(a.workers).Draw(t, "worker")
}

// TestNoDirectiveTwice: no worker gets a directive of an id twice in a round, nor before the
// step on which the nodes have agreed, whatever they say in which order, and none is held
// while they ask nothing.
func TestNoDirectiveTwice(t *testing.T) {
	dir := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		records := progress.NewTracker([]string{progress.EnvDir + "=" + dir}, slog.New(slog.DiscardHandler))
		defer records.Close()
		s := &agreeing{t: rt, steps: make(map[string]int64)}
		s.f = &directives{
			rdzv: s, records: records, round: 1, log: slog.New(slog.DiscardHandler), patience: time.Hour,
			ending: func() bool { return false }, given: make(map[string]bool),
		}
		records.Begin(1, 2, progress.CauseStart)
		for local := range 2 {
			w := &scripted{puppet: newPuppet(t, records.Path(local)), step: 4, took: make(map[string]int64)}
			s.workers = append(s.workers, w)
			s.f.workers = append(s.f.workers, &directedWorker{process: &process.Process{Local: local}})
			s.report(w, w.step)
		}
		agreed := func(id string) rendezvous.DirectiveNotice {
			return rendezvous.DirectiveNotice{ID: id, Kind: rendezvous.DirectiveSave, Round: 1, Within: time.Hour, Agreed: true, Step: s.steps[id]}
		}
		step := func(t *rapid.T) {
			if w := s.worker(t); !w.waits {
				s.report(w, w.step+1)
			}
			s.settle()
		}
		rt.Repeat(map[string]func(*rapid.T){
			"ask": func(t *rapid.T) {
				s.ids++
				s.held = -1
				s.say(rendezvous.DirectiveNotice{ID: fmt.Sprint("d", s.ids), Kind: rendezvous.DirectiveSave, Round: 1, Within: time.Hour})
			},
			"agree": func(t *rapid.T) {
				if _, before := s.steps[s.notice.ID]; before || s.notice.ID == "" || s.held < 0 {
					t.Skip("not all have answered, or it was agreed before")
				}
				s.steps[s.notice.ID] = max(s.held, int64(rapid.IntRange(0, 12).Draw(t, "another node's")))
				s.say(agreed(s.notice.ID))
			},
			"show one that stands": func(t *rapid.T) {
				if len(s.steps) == 0 {
					t.Skip("none was agreed")
				}
				s.say(agreed(fmt.Sprint("d", rapid.IntRange(1, s.ids).Filter(func(i int) bool { _, is := s.steps[fmt.Sprint("d", i)]; return is }).Draw(t, "which"))))
			},
			"nothing stands": func(*rapid.T) { s.say(rendezvous.DirectiveNotice{}) },
			"another round":  func(*rapid.T) { s.say(rendezvous.DirectiveNotice{ID: s.notice.ID, Round: 0}) },
			"a deadline passes": func(t *rapid.T) {
				if len(s.f.agreed) == 0 {
					t.Skip("none is agreed")
				}
				rapid.SampledFrom(s.f.agreed).Draw(t, "which").deadline = time.Now().Add(-time.Second)
				s.settle()
			},
			"save": func(t *rapid.T) {
				if w := s.worker(t); w.state() == 2 {
					w.save()
				}
				s.settle()
			},
			"step": step, "step 2": step, "step 3": step,
		})
	})
}
