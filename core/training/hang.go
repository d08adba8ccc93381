package training

import (
	"cmp"
	"slices"
	"time"
)

// The limits after which a job that makes no step is taken for hung, see HangDetector.
const (
	leastSilence  = time.Minute
	beforeSteps   = 10 * time.Minute // until the second step of a round: the first ones compile and load
	beforeHistory = 30 * time.Minute // until the job has a gap to compare with
	medianFactor  = 10
	largestFactor = 3
	gapsKept      = 20

	// A look that comes later than that adds no silence: an observer that was suspended, stopped
	// or starved has missed what happened meanwhile, and the workers may have been stopped with
	// it.
	longestLook = 5 * time.Second

	looksInTimeout = 20
)

// HangDetector decides from looks at the workers' steps when a job is suspected to hang: no step
// of any worker for ten times the median of the last gaps between steps, three times the largest
// gap of the job, and a minute, whichever is longest. A job that has never reported a step is
// suspected only if some of its workers have ended. The zero value is ready; it belongs to one
// goroutine.
type HangDetector struct {
	// Timeout takes the place of what gaps tell; 0: they do.
	Timeout time.Duration
	// Ended says that some workers of the round have succeeded while others run: if no step was ever
	// reported, these are suspected when they do nothing any more.
	Ended bool

	looked  time.Time     // zero: not yet in this round
	silent  time.Duration // since the last step or announced stretch, or since the round began, as far as it was seen
	moves   int           // looks of the round that saw steps, up to 2
	steps   int64         // that they saw
	stepped bool          // the job has reported a step
	gaps    []time.Duration
	largest time.Duration
}

// Begin begins a round. It keeps what it has learned of the job.
func (d *HangDetector) Begin(now time.Time) {
	d.looked, d.silent, d.moves, d.steps, d.Ended = now, 0, 0, 0, false
}

// Look takes how many steps were made since the last look, and whether there was another sign of life:
// the workers have announced that they make none at present, or work although they never make any.
// Call it at least every other second.
func (d *HangDetector) Look(now time.Time, made int64, sign bool) {
	passed := now.Sub(d.looked)
	if passed > 0 && passed <= longestLook {
		d.silent += passed
	}
	if sign {
		d.silent = 0
	}
	d.looked = now
	if made == 0 {
		return
	}
	d.steps += made
	switch {
	case d.moves == 2:
		d.learn(d.silent)
	case d.steps < enoughSteps:
	case d.moves == 1 && quick(d.silent):
		d.learn(d.silent)
	case d.moves == 0 && quick(passed):
		d.learn(passed)
	}
	d.moves, d.stepped, d.silent = min(d.moves+1, 2), true, 0
}

// enoughSteps are as many as show a gap that is not the one between the first two, which is no measure.
// Several steps between two looks show only that each gap is shorter than the time between these: such
// a time is taken if it is quick.
const enoughSteps = 3

// quick reports whether a gap leaves the limit at its least.
func quick(gap time.Duration) bool { return gap >= 0 && medianFactor*gap <= leastSilence }

func (d *HangDetector) learn(gap time.Duration) {
	if len(d.gaps) == gapsKept {
		d.gaps = slices.Delete(d.gaps, 0, 1)
	}
	d.gaps = append(d.gaps, gap)
	d.largest = max(d.largest, gap)
}

// Silent is for how long there was no sign of life.
func (d *HangDetector) Silent() time.Duration { return d.silent }

// Stepped reports whether the job has ever reported a step.
func (d *HangDetector) Stepped() bool { return d.stepped }

// Limit is the silence from which the job is suspected; 0: it is not, however long that takes.
func (d *HangDetector) Limit() time.Duration {
	switch {
	case !d.stepped && !d.Ended:
		return 0
	case !d.stepped:
		return cmp.Or(d.Timeout, beforeSteps)
	case d.Timeout == 0 && len(d.gaps) == 0:
		return beforeHistory
	}
	limit := d.Timeout
	if limit == 0 {
		sorted := slices.Sorted(slices.Values(d.gaps))
		limit = max(medianFactor*sorted[len(sorted)/2], largestFactor*d.largest, leastSilence)
	}
	if d.moves < 2 && d.steps < enoughSteps {
		limit = max(limit, beforeSteps)
	}
	return limit
}

// LookAgain is in which time at most to look again: when the job is suspected if nothing changes, and
// so often that a timeout is exceeded by its twentieth; 0: any.
func (d *HangDetector) LookAgain() time.Duration {
	switch left := max(0, d.Limit()-d.silent); {
	case d.Timeout == 0:
		return left
	case left == 0:
		return d.Timeout / looksInTimeout
	default:
		return min(left, d.Timeout/looksInTimeout)
	}
}
