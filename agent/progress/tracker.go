package progress

import (
	"fmt"
	"log/slog"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/training"
)

// How often records are sampled, which is the precision of the times of changes. While no step
// changes for minutes, the intervals grow in proportion to that time, so an agent whose workers
// report none hardly wakes. They do not grow while a script loads, so that of steps that are quick
// more than the last one is seen.
const (
	SampleInterval = 500 * time.Millisecond
	longestSample  = 2 * time.Second
	quietPart      = 240
)

// Tracker follows the workers of one node through the rounds of its run. It is safe for
// concurrent use; its lock is held while records are read, which does not block. A nil Tracker
// has nothing to report.
type Tracker struct {
	// WaitWindow is how long workers are watched before it is known how much they wait, see
	// NoteWaits. It is set before the first round.
	WaitWindow time.Duration

	log    *slog.Logger
	now    func() time.Time
	uptime func() time.Duration // CLOCK_MONOTONIC, by which workers say until when they are busy

	mu        sync.Mutex
	folder    folder // without a path: none
	attempts  int
	records   []*record             // of the running attempt; nil: there are none
	round     *round                // of the last attempt; nil before the first
	lost      [causes]time.Duration // sums of gaps
	before    time.Time             // when a step changed last in an earlier round; zero: none did
	directed  map[int]bool          // local ranks of the running attempt that have a directive
	stalled   string                // see SetStalled
	suspect   string                // see SetSuspect
	failure   training.Failure      // see SetFailure
	failureAt time.Time
}

// round is the state of one attempt.
type round struct {
	number   uint64
	cause    Cause
	workers  []worker
	recorded bool // each worker has a record that can be read
	begun    time.Time
	first    time.Time // when a step was first reported; zero: none was
	changed  time.Time // when one changed last
	made     int64     // steps of the worker that made most, summed up over the samples
	gap      time.Duration
	highest  int64 // of all steps that were reported; noStep: none was
	speed    speed
	waits    waits
}

// worker is the state of one worker's steps.
type worker struct {
	step    int64
	counted bool // step is how many its optimizers have made
	changed time.Time
	busy    time.Duration // until then, by uptime, it has announced to make no step
	gone    bool          // it has failed, and the others run on
}

func uptime() time.Duration {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano())
}

// NewTracker makes the folder of a run's records. If it cannot, it logs that and workers get no
// record.
func NewTracker(environ []string, log *slog.Logger) *Tracker {
	t := &Tracker{log: log, now: time.Now, uptime: uptime, WaitWindow: waitWindow}
	folder, err := newFolder(environ)
	if err != nil {
		log.Warn(unavailable(err))
		return t
	}
	t.folder = folder
	return t
}

// Folder is where the records lie; "" if there are none.
func (t *Tracker) Folder() string {
	return t.folder.path
}

// Close removes all records. The last report stays.
func (t *Tracker) Close() {
	t.End()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.folder.path != "" {
		if err := t.folder.remove(); err != nil {
			t.log.Warn("cannot remove the folder of the workers' progress records: " + err.Error())
		}
	}
}

// Begin makes the records of the workers of a round. cause is why the round does not continue the one
// before. It ends the previous round.
func (t *Tracker) Begin(number uint64, workers int, cause Cause) {
	t.End()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.directed, t.stalled = make(map[int]bool), ""
	t.round = &round{number: number, cause: cause, begun: t.now(), workers: make([]worker, workers), highest: noStep}
	for i := range t.round.workers {
		t.round.workers[i].step = noStep
	}
	if t.folder.path == "" {
		return
	}
	t.attempts++
	records, err := newRecords(t.folder.path, t.attempts, workers)
	if err != nil {
		t.log.Warn(unavailable(err))
		return
	}
	t.records, t.round.recorded = records, true
}

// Continue begins a round in which the workers of the last attempt run on, but for some, which are
// started anew: these get new records.
func (t *Tracker) Continue(number uint64, cause Cause, renewed []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sampleLocked()
	was := t.round
	if was.changed.After(t.before) {
		t.before = was.changed
	}
	t.directed, t.stalled = make(map[int]bool), ""
	t.round = &round{number: number, cause: cause, begun: t.now(), workers: slices.Clone(was.workers), recorded: was.recorded, highest: noStep}
	for _, local := range renewed {
		t.round.workers[local] = worker{step: noStep}
	}
	if t.records == nil {
		return
	}
	for _, r := range t.records { // a directive of the round before
		_ = r.clear()
		_ = os.Remove(directivePath(r))
	}
	t.attempts++
	for _, local := range renewed {
		next, err := newRecord(recordPath(t.folder.path, t.attempts, local))
		if err != nil {
			t.log.Warn(unavailable(err))
			t.records[local].refused, t.round.recorded = err, false
			continue
		}
		removeRecords(t.records[local : local+1])
		t.records[local] = next
	}
}

// End takes a last sample of the running attempt and removes its records.
func (t *Tracker) End() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sampleLocked()
	removeRecords(t.records)
	t.records = nil
	if t.round != nil && t.round.changed.After(t.before) {
		t.before = t.round.changed
	}
}

// Sample reads the workers' records, and says when to do it again.
func (t *Tracker) Sample() (again time.Duration) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sampleLocked()
	r := t.round
	if r == nil {
		return longestSample
	}
	quiet := t.now().Sub(r.begun)
	if r.changed.After(r.begun) {
		quiet = t.now().Sub(r.changed)
	}
	return max(SampleInterval, min(quiet/quietPart, longestSample))
}

func (t *Tracker) sampleLocked() {
	now, made := t.now(), int64(0)
	for local, r := range t.records {
		known := r.refused != nil
		said, err := r.read()
		step, counted := said.at()
		if err != nil && !known {
			t.round.recorded = false
			t.log.Warn(fmt.Sprintf("the progress record of local rank %d is no longer read: %v (%s)", local, err, r.file.Path()))
		}
		w := &t.round.workers[local]
		w.busy = time.Duration(min(said.knows>>busyShift, maxBusy)) * time.Millisecond
		if err == nil && (step != w.step || counted != w.counted) {
			if w.counted && !counted {
				t.round.speed = speed{}
			}
			made = max(made, w.advance(step, counted))
			w.step, w.counted, w.changed = step, counted, now
			t.changed(w, now)
		}
	}
	if made > 0 {
		t.round.made += made
	}
	if t.round != nil && t.round.changed.Equal(now) {
		if _, largest, reporting := t.round.steps(); reporting > 0 {
			t.round.speed.add(largest, now)
		}
	}
}

// advance is how many steps a worker has made when it is at another one: a count begins at 0, and a
// step that is reported first, or is smaller than the one before, is one.
func (w *worker) advance(step int64, counted bool) int64 {
	before := w.step
	if counted && before == noStep {
		before = 0
	}
	if before == noStep || counted != w.counted && w.step != noStep {
		return 1
	}
	return max(step-before, 1)
}

func (t *Tracker) changed(w *worker, now time.Time) {
	r := t.round
	if r.first.IsZero() && w.step != noStep {
		r.first = now
		if !t.before.IsZero() {
			r.gap = now.Sub(t.before)
			t.lost[r.cause] += r.gap
		}
	}
	r.changed = now
	if !w.counted { // a count begins again with each attempt
		r.highest = max(r.highest, w.step)
	}
}

// Gone records that a worker has failed while the others of the attempt run on: its last report
// says nothing of them.
func (t *Tracker) Gone(local int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.round != nil && local < len(t.round.workers) {
		t.sampleLocked()
		t.round.workers[local].gone = true
		delete(t.directed, local)
	}
}

func (r *round) failed() (n int) {
	for _, w := range r.workers {
		if w.gone {
			n++
		}
	}
	return n
}

// counted reports whether no worker has reported a step, so that those of optimizers count.
func (r *round) counted() bool {
	return !slices.ContainsFunc(r.workers, func(w worker) bool { return w.step != noStep && !w.counted && !w.gone })
}

// steps returns the smallest and the largest step, and of how many workers.
func (r *round) steps() (smallest, largest int64, reporting int) {
	counted := r.counted()
	for _, w := range r.workers {
		if w.step == noStep || w.counted != counted || w.gone {
			continue
		}
		if reporting == 0 {
			smallest, largest = w.step, w.step
		}
		smallest, largest = min(smallest, w.step), max(largest, w.step)
		reporting++
	}
	return smallest, largest, reporting
}

// Report samples the records and returns the workers' progress, after the attempt their last one.
// It returns nil if there is nothing to report: no step in the last attempt, no worker that
// failed while others continue, no hang, no remark on the node, and no failure to pass on.
func (t *Tracker) Report() *training.Report {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sampleLocked()
	r := t.round
	if r == nil {
		return nil
	}
	smallest, largest, reporting := r.steps()
	now := t.now()
	failed, failure := r.failed(), t.failure
	if failure.Round > 0 {
		failure.Age = now.Sub(t.failureAt)
	}
	if reporting == 0 {
		if t.stalled == "" && failed == 0 && t.suspect == "" && failure.Round == 0 {
			return nil
		}
		return &training.Report{Round: r.number, Workers: len(r.workers), Stalled: t.stalled, Failed: failed, Suspect: t.suspect, Failure: failure}
	}
	var moved time.Time // when the first of the slowest came to where they are
	counted := r.counted()
	for _, w := range r.workers {
		if !w.gone && w.step == smallest && w.counted == counted && (moved.IsZero() || w.changed.Before(moved)) {
			moved = w.changed
		}
	}
	report := &training.Report{
		Round: r.number, Workers: len(r.workers), Reporting: reporting, Smallest: smallest, Largest: largest,
		SinceFirst: now.Sub(r.first), SinceChange: now.Sub(r.changed), SinceSlowest: now.Sub(moved),
		PerStep: r.speed.perStep(), Gap: r.gap, Stalled: t.stalled, Counted: counted, Failed: failed, Suspect: t.suspect, Failure: failure,
	}
	if t.stalled == "" {
		report.Waits = training.NewWaits(r.waits.base, r.waits.shares)
	}
	return report
}

// SetStalled makes a sentence a part of the reports of this attempt: the job makes no step any
// more; "": it does again.
func (t *Tracker) SetStalled(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stalled = text
}

// SetFailure adds the last failure, and its age, to later reports. A failure of round 0 stands
// for none.
func (t *Tracker) SetFailure(f training.Failure, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failure, t.failureAt = f, at
}

// SetSuspect makes a sentence a part of the reports of this node: a check finds it unfit, and it
// stays; "": that is over.
func (t *Tracker) SetSuspect(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.suspect = text
}

// maxBusy limits a worker's value to the range of time.Duration.
const maxBusy = uint64(math.MaxInt64 / time.Millisecond)

// Pulse tells when a step changed last in this attempt, as far as samples have seen it, zero if
// none has, how many steps they have seen, and whether workers make none at present and mean to: they
// have a directive, or have announced it.
func (t *Tracker) Pulse() (changed time.Time, made int64, announced bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.round == nil {
		return time.Time{}, 0, false
	}
	now := t.uptime()
	busy := func(w worker) bool { return now < w.busy && !w.gone }
	return t.round.changed, t.round.made, len(t.directed) > 0 || slices.ContainsFunc(t.round.workers, busy)
}

// Stepping reports whether the workers of this attempt have made a step, and have not announced that they make
// none at present.
func (t *Tracker) Stepping() bool {
	changed, _, announced := t.Pulse()
	return !changed.IsZero() && !announced
}

// A job stands still after this long without a step, and this many times the duration of a step.
const (
	LeastStandstill = 3 * time.Second
	stillSteps      = 10
)

// Standstill is for how long no worker of this attempt has made a step, if that is longer than
// steps take; else 0, as for workers that report none or have announced that they make none.
func (t *Tracker) Standstill() time.Duration {
	changed, _, announced := t.Pulse()
	if changed.IsZero() || announced {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sampleLocked()
	still := t.now().Sub(t.round.changed)
	if still <= max(LeastStandstill, stillSteps*t.round.speed.perStep()) {
		return 0
	}
	return still
}

// FirstStep is the round of the last attempt, and when a sample found its first step; zero: none has.
func (t *Tracker) FirstStep() (number uint64, at time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.round == nil {
		return 0, time.Time{}
	}
	return t.round.number, t.round.first
}

// Steps are the last steps of the workers that have reported one, by local rank. Those of optimizers
// are left out: ranks with different ones have different counts at one step.
func (t *Tracker) Steps() map[int]int64 {
	steps := make(map[int]int64)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sampleLocked()
	if t.round != nil {
		for local, w := range t.round.workers {
			if w.step != noStep && !w.counted && !w.gone {
				steps[local] = w.step
			}
		}
	}
	return steps
}

// Highest is the highest step that a worker reported in the last attempt, and the number of
// that round, 0 before the first. recorded is false if the step cannot be known; it is -1 if
// none was reported.
func (t *Tracker) Highest() (number uint64, step int64, recorded bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sampleLocked()
	if t.round == nil {
		return 0, noStep, false
	}
	return t.round.number, t.round.highest, t.round.recorded
}

// Lost is the time between the last change of each round and the first of the next, by the
// cause of the next.
func (t *Tracker) Lost(cause Cause) time.Duration {
	if t == nil {
		return 0
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lost[cause]
}

// Cause is why a node has begun another round.
type Cause int

// The causes.
const (
	CauseStart   Cause = iota // there was none before
	CauseFailure              // a worker of this node failed
	CauseRegroup              // the nodes had to regroup
	causes
)

// CauseNames are the causes as metrics name them.
var CauseNames = [causes]string{"start", "worker_failed", "regroup"}

// speed measures the time of a step over the last changes.
type speed struct {
	at [16]struct {
		step int64
		time time.Time
	}
	n int // of all that were added since the last reset
}

// add takes a step of the node. Steps that go back begin again.
func (s *speed) add(step int64, now time.Time) {
	if s.n > 0 {
		switch last := s.at[(s.n-1)%len(s.at)]; {
		case step == last.step:
			return
		case step < last.step:
			s.n = 0
		}
	}
	i := s.n % len(s.at)
	s.at[i].step, s.at[i].time = step, now
	s.n++
}

// perStep is 0 until it is known.
func (s *speed) perStep() time.Duration {
	if s.n < 2 {
		return 0
	}
	first, last := s.at[max(0, s.n-len(s.at))%len(s.at)], s.at[(s.n-1)%len(s.at)]
	return time.Duration(float64(last.time.Sub(first.time)) / float64(last.step-first.step))
}
