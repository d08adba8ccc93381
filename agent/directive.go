package agent

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/process"
	"rallypoint/agent/progress"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/background"
	"rallypoint/internal/backoff"
)

// errNotRunning is why no directive is given while there are no workers to save.
var errNotRunning error = rendezvous.Errorf(rendezvous.CodeInvalid, "no workers of this node run")

const (
	directiveTick  = 20 * time.Millisecond              // between two looks at the workers' answers
	holdPatience   = progress.HoldLimit - 3*time.Second // for an agreement; more than a control plane waits for nodes
	reportPatience = time.Second                        // for the answer to a report, which continues in the background
)

// directives hands directives to the workers of one attempt. Its fields are those of the
// goroutine that follow starts.
type directives struct {
	rdzv    Rendezvous
	records *progress.Tracker
	signal  unix.Signal // to a worker that has a directive; 0: none
	round   uint64
	workers []*directedWorker
	log     *slog.Logger

	departure *departure    // by which the workers leave the round; like a directive that no one gave
	patience  time.Duration // with which workers are held
	ending    func() bool   // the attempt is over: its workers are about to be stopped

	number uint64     // of the last one
	asked  *directive // on whose step the nodes agree; nil: none
	agreed []*directive
	given  map[string]bool // ids of all that were agreed in this attempt: no worker gets one twice
}

// directive is one that is being delivered to the workers.
type directive struct {
	rendezvous.DirectiveNotice
	number   uint64
	deadline time.Time // as far as this node knows: from when it heard of it

	held      time.Time // of the asked one: since when the workers are held; zero: not yet
	released  bool      // they are not held any more, without an agreement
	saved     bool      // that all workers have saved was reported
	announced bool      // that all workers have it was logged
}

// directedWorker is what one worker has been told.
type directedWorker struct {
	process *process.Process
	pending []*directive // agreed and not taken, in their order; the first one is in the record
	armed   bool         // the record has the first of pending
	able    bool         // the worker has shown that it knows directives
	taken   []*directive
	shown   *directive // in the record and the file; nil: none
	saved   uint64     // the largest number of a directive for which it has saved
	refused bool       // that it cannot get one was logged
}

// followDirectives hands directives to the workers of an attempt until the function that it
// returns is called, which lets go those that are held.
func followDirectives(t *attempt, departure *departure) (stop func()) {
	f := &directives{rdzv: t.rdzv, records: t.progress, signal: t.spec.DirectiveSignal, round: t.assignment.Round, log: t.log, patience: t.holdPatience, number: t.directed, departure: departure, given: make(map[string]bool), ending: func() bool { return t.rdzv.NodesWaiting() > 0 }}
	for _, p := range t.workers.Procs {
		f.workers = append(f.workers, &directedWorker{process: p})
	}
	end := background.Run(context.Background(), f.follow)
	return func() {
		end()
		t.directed = f.number
	}
}

func (di *directives) follow(ctx context.Context) {
	defer di.departure.tasks.Wait()
	defer di.letGo()
	for ctx.Err() == nil {
		notice, changed := di.rdzv.Directive()
		if departure, begun := di.departure.notice(); begun {
			notice = departure
		}
		di.take(notice)
		di.look(ctx)
		di.hold(ctx)
		di.drop(notice.ID)
		var tick <-chan time.Time
		if di.asked != nil || len(di.agreed) > 0 {
			tick = time.After(directiveTick)
		}
		select {
		case <-changed:
		case <-di.departure.news:
		case <-tick:
		case <-ctx.Done():
		}
	}
}

// take applies the nodes' state of a directive.
func (di *directives) take(n rendezvous.DirectiveNotice) {
	if di.asked != nil && (di.asked.ID != n.ID || n.Round != di.round) {
		di.letGo()
	}
	if n.ID == "" || n.Round != di.round || di.given[n.ID] {
		return
	}
	if di.asked == nil {
		di.number++
		di.asked = &directive{number: di.number, deadline: time.Now().Add(n.Within)}
	}
	di.asked.DirectiveNotice = n
	if !n.Agreed {
		return
	}
	d := di.asked
	di.asked = nil
	di.agreed = append(di.agreed, d)
	di.given[d.ID] = true
	for _, w := range di.workers {
		w.pending = append(w.pending, d)
	}
}

// letGo ends the hold of a directive that was taken back.
func (di *directives) letGo() {
	if di.asked != nil {
		di.forget(di.asked)
		di.asked = nil
	}
}

// look reads the workers' answers and gives them the agreed directives.
func (di *directives) look(ctx context.Context) {
	for _, w := range di.workers {
		if len(di.agreed) == 0 || w.process.HasExited() {
			continue
		}
		answer, err := di.records.Answer(w.process.Local)
		di.learn(w, answer)
		if len(w.pending) > 0 && !w.armed {
			di.arm(w, answer, err)
		}
	}
	for _, d := range di.agreed {
		if d.ID == departureID {
			continue
		}
		if !d.announced && di.all(func(w *directedWorker) bool { return slices.Contains(w.taken, d) }) {
			d.announced = true
			di.log.Info(fmt.Sprintf("directive %s: delivered to the workers of this node%s", d.ID, atStep(d.Step)))
		}
		if !d.saved && di.all(func(w *directedWorker) bool { return w.saved >= d.number }) { // or for a later one, which is at no earlier step
			d.saved = true
			di.log.Info(fmt.Sprintf("directive %s: the workers of this node have saved", d.ID))
			di.report(ctx, d.ID, "that its workers have saved", func(ctx context.Context) error { return di.rdzv.ReportSaved(ctx, di.round, d.ID) })
		}
	}
}

func atStep(step int64) string {
	if step < 0 {
		return ""
	}
	return fmt.Sprintf(", at step %d", step)
}

func (di *directives) learn(w *directedWorker, answer progress.Answer) {
	w.able = w.able || answer.Holds || answer.Number > 0
	if answer.State == progress.StateSaved && answer.Number <= di.number {
		w.saved = max(w.saved, answer.Number)
	}
	if len(w.pending) > 0 && w.armed && answer.Number == w.pending[0].number && answer.State >= progress.StateTaken {
		di.taken(w)
	}
}

// taken notes that a worker has its first pending directive.
func (di *directives) taken(w *directedWorker) {
	d := w.pending[0]
	w.pending, w.armed, w.taken = w.pending[1:], false, append(w.taken, d)
	if d.ID == departureID {
		di.departure.t.endWorld(w.process.Local)
		return
	}
	if di.signal != 0 {
		w.process.Signal(di.signal)
	}
}

// arm puts the first pending directive into a worker's record: first its file, which the
// worker reads when it finds the directive there.
func (di *directives) arm(w *directedWorker, answer progress.Answer, err error) {
	d, local := w.pending[0], w.process.Local
	if err == nil {
		if d.ID != departureID { // which is no concern of the worker's script
			if failed := di.records.WriteDirective(local, d.file()); failed != nil {
				di.refuse(w, fmt.Sprintf("directive %s: the worker of local rank %d sees the request, but not its author and reason: %v", d.ID, local, failed))
			}
		}
		err = di.records.Release(local, d.ask(), max(d.Step, 0))
		w.shown = d
	}
	w.armed = err == nil
	if err != nil {
		di.refuse(w, fmt.Sprintf("directive %s: only a signal can notify the worker of local rank %d: %v", d.ID, local, err))
	}
	if err != nil || !answer.Holds || answer.Step < 0 {
		di.taken(w) // the worker may never report a step at which to give it the directive
	}
}

func (di *directives) refuse(w *directedWorker, text string) {
	if !w.refused {
		w.refused = true
		di.log.Warn(text)
	}
}

// all reports whether something holds for each running worker that knows directives, of
// which there is one at least.
func (di *directives) all(holds func(*directedWorker) bool) bool {
	found := false
	for _, w := range di.workers {
		if w.process.HasExited() || !w.able {
			continue
		}
		if !holds(w) {
			return false
		}
		found = true
	}
	return found
}

// hold holds the workers for the asked directive, and reports at which step, once they have
// all taken the ones before it.
func (di *directives) hold(ctx context.Context) {
	d := di.asked
	switch {
	case d == nil || d.released:
		return
	case !d.held.IsZero():
		if patience := min(di.patience, d.Within); time.Since(d.held) > patience {
			d.released = true
			di.forget(d)
			if d.ID == departureID {
				di.departure.setAgreed(-1)
			}
			di.log.Warn(fmt.Sprintf("directive %s: the nodes have not agreed on a step within %v; the workers of this node continue", d.ID, patience))
		}
		return
	}
	for _, w := range di.workers {
		if len(w.pending) > 0 && !w.process.HasExited() {
			return
		}
	}
	d.held = time.Now()
	for _, w := range di.workers {
		answer, err := di.records.Answer(w.process.Local)
		di.learn(w, answer) // before its answer to this one replaces it
		// A worker that has not opened its record yet waits once it does.
		if err == nil && !w.process.HasExited() {
			_ = di.records.Hold(w.process.Local, d.ask())
			w.shown = d
		}
	}
	if !backoff.Sleep(ctx, progress.SettleTime) {
		return
	}
	step := di.heldAt(d.number)
	if d.ID == departureID {
		di.departure.agree(ctx, step)
		return
	}
	di.report(ctx, d.ID, "at which step its workers are held", func(ctx context.Context) error { return di.rdzv.ReportHeld(ctx, di.round, d.ID, step) })
}

// heldAt is the first step at which all workers that are held can get a directive: of one
// that waits already its step, else one past its last report; -1 if none reports steps.
func (di *directives) heldAt(number uint64) int64 {
	step := int64(-1)
	for _, w := range di.workers {
		answer, err := di.records.Answer(w.process.Local)
		switch {
		case err != nil, !answer.Holds, answer.Step < 0, w.process.HasExited():
		case answer.Number == number && answer.State == progress.StateHeld, answer.Step == math.MaxInt64:
			step = max(step, answer.Step)
		default:
			step = max(step, answer.Step+1)
		}
	}
	return step
}

// report tells the other nodes something; a call that takes long continues in the background.
func (di *directives) report(ctx context.Context, id, what string, tell func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, reportPatience)
	defer cancel()
	if err := tell(ctx); err != nil {
		di.log.Info(fmt.Sprintf("directive %s: the other nodes could not be told yet %s: %v", id, what, err))
	}
}

// drop forgets the agreed directives that are over: their deadline has passed, or all workers
// have them and the nodes have none, or have another one after all have saved. A directive that
// ends the attempt stays in effect until the workers exit, because they would have to repeat what
// they trained after it.
func (di *directives) drop(standing string) {
	if di.ending() {
		return
	}
	now := time.Now()
	di.agreed = slices.DeleteFunc(di.agreed, func(d *directive) bool {
		over := now.After(d.deadline) || !di.awaited(d) && d.ID != standing && (standing == "" || d.saved)
		if over {
			di.forget(d)
		}
		return over
	})
}

func (di *directives) awaited(d *directive) bool {
	return slices.ContainsFunc(di.workers, func(w *directedWorker) bool { return !w.process.HasExited() && slices.Contains(w.pending, d) })
}

// forget takes a directive that is over back from each worker whose record does not hold another
// one.
func (di *directives) forget(d *directive) {
	for _, w := range di.workers {
		if i := slices.Index(w.pending, d); i >= 0 {
			w.armed = w.armed && i > 0
			w.pending = slices.Delete(w.pending, i, i+1)
		}
		if w.shown == d {
			w.shown = nil
			_ = di.records.Clear(w.process.Local)
			_ = di.records.WriteDirective(w.process.Local, nil)
		}
	}
}

func (d *directive) ask() progress.Asked {
	return progress.Asked{Number: d.number, Kind: int(d.Kind), Named: d.Named}
}

func (d *directive) file() *progress.Directive {
	file := &progress.Directive{
		Number: d.number, ID: d.ID, Kind: d.Kind.String(), Named: d.Named, Target: d.Target, By: d.By, Reason: d.Reason, Text: d.Text,
	}
	if d.Step >= 0 {
		file.Step = &d.Step
	}
	if d.Within > 0 {
		at := float64(d.deadline.UnixMilli()) / 1000
		file.Deadline = &at
	}
	return file
}
