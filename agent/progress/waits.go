package progress

import (
	"slices"
	"time"
)

// A share of waits is of the last two windows. One takes a minute and ten steps at least, since a
// shorter one would show a moment and not the job.
const (
	waitWindow = time.Minute
	waitSteps  = 10
)

// waits is how often the workers of an attempt were seen to wait for other ranks.
type waits struct {
	base         int // the rank of the first worker
	window, last waitCount
	shares       []float64 // of the time, by local rank; nil: not known yet
}

// waitCount counts the samples of one window.
type waitCount struct {
	begun   time.Time
	looks   int
	waiting []int     // of the looks, by local rank
	changed time.Time // of a step, as it was seen last
	steps   int       // that were seen to change
}

// NoteWaits takes which workers wait for other ranks at this moment, by local rank; base is the
// rank of the first. The caller calls it some times a second, at irregular intervals. Moments at
// which workers make no step and mean to do not count.
func (t *Tracker) NoteWaits(base int, waiting []bool) {
	if !t.Stepping() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	changed := t.round.changed
	w, now := &t.round.waits, t.now()
	w.base = base
	c := &w.window
	if c.looks == 0 {
		*c = waitCount{begun: now, waiting: make([]int, len(waiting)), changed: changed}
	}
	c.looks++
	for local, is := range waiting {
		if is {
			c.waiting[local]++
		}
	}
	if changed.After(c.changed) {
		c.changed = changed
		c.steps++
	}
	if now.Sub(c.begun) < t.WaitWindow || c.steps < waitSteps {
		return
	}
	if w.last.looks > 0 {
		w.shares = make([]float64, len(waiting))
		for local := range waiting {
			w.shares[local] = float64(c.waiting[local]+w.last.waiting[local]) / float64(c.looks+w.last.looks)
		}
	}
	w.last, w.window = *c, waitCount{}
}

// ForgetWaits drops the samples that NoteWaits took.
func (t *Tracker) ForgetWaits() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.round != nil {
		t.round.waits = waits{}
	}
}

// Waits returns the share of time for which each worker of the last attempt, from rank base on,
// waits for other ranks; none if it is not known.
func (t *Tracker) Waits() (base int, shares []float64) {
	if t == nil {
		return 0, nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.round == nil {
		return 0, nil
	}
	return t.round.waits.base, slices.Clone(t.round.waits.shares)
}
