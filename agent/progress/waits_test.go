package progress

import (
	"slices"
	"testing"
	"time"

	"rallypoint/core/training"
)

// TestWaits: how much workers wait is known after two windows with enough steps, of the last two;
// moments without a step that are meant, a hang and a new round do not count.
func TestWaits(t *testing.T) {
	r := newRig(t)
	up := time.Hour
	r.uptime = func() time.Duration { return up }
	var paths []string
	step := int64(0)
	look := func(n int, waiting ...bool) { // a look a second, each with a step
		for range n {
			step++
			store(t, paths[0], step)
			r.after(time.Second)
			r.NoteWaits(4, waiting)
		}
	}
	want := func(want ...float64) {
		t.Helper()
		base, shares := r.Waits()
		if !slices.Equal(shares, want) || want != nil && base != 4 {
			t.Errorf("got %v from rank %d on, want %v", shares, base, want)
		}
		if got := r.Report(); got != nil && got.Waits != training.NewWaits(base, want) {
			t.Errorf("the report has %+v", got.Waits)
		}
	}
	r.NoteWaits(4, []bool{true, false}) // before the first round
	want()
	paths = begin(r.Tracker, 1, 2, CauseStart)
	r.NoteWaits(4, []bool{true, false}) // before the first step
	look(61, true, false)
	want()
	look(60, true, false)
	want()
	look(1, true, false)
	want(1, 0)
	look(61, false, false)
	want(0.5, 0)
	look(61, true, true)
	want(0.5, 0.5)

	// A meant pause, and then steps that are rare: the window takes until there are enough.
	storeAt(t, paths[1], offsetKnows, uint64(up.Milliseconds()+1)<<busyShift)
	look(61, false, false)
	storeAt(t, paths[1], offsetKnows, 0)
	want(0.5, 0.5)
	look(1, true, false)
	for range 200 {
		r.after(time.Second)
		r.NoteWaits(4, []bool{true, false})
	}
	look(9, true, false)
	want(0.5, 0.5)
	look(1, true, false)
	_, shares := r.Waits()
	if shares[0] != 1 || shares[1] <= 0.2 || shares[1] >= 0.25 {
		t.Errorf("got %v", shares)
	}

	r.SetStalled("no step")
	if got := r.Report().Waits; got.Known {
		t.Errorf("a report of a hang has %+v", got)
	}
	r.SetStalled("")
	r.ForgetWaits()
	want()
	look(122, true, false)
	want(1, 0)
	paths = begin(r.Tracker, 2, 2, CauseFailure)
	want()
}
