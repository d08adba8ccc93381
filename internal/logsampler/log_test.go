package logsampler

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// hand is a clock that a test turns, with one timer at most: that of the window's end.
type hand struct{ *testkit.Clock }

func newHand() hand { return hand{testkit.NewClock()} }

func (h hand) after(d time.Duration, f func()) (stop func() bool) {
	if h.Timers() > 0 {
		panic("two windows at one time")
	}
	return h.AfterFunc(d, f).Stop
}

// turn ends the window; false if there is none.
func (h hand) turn() bool {
	running := h.Timers() > 0
	h.Advance(Window)
	return running
}

func TestOnePeerTriesOnAndOn(t *testing.T) {
	h := newHand()
	var told []Summary
	l := New(h.after, func(s Summary) { told = append(told, s) })
	lines := 0
	for range 3 {
		for range 100 {
			if l.Note("silent", "10.0.0.1") {
				lines++
			}
		}
		h.turn()
	}
	want := []Summary{{"silent", 99, "10.0.0.1"}, {"silent", 100, "10.0.0.1"}, {"silent", 100, "10.0.0.1"}}
	if lines != 1 || !slices.Equal(told, want) {
		t.Errorf("%d lines at once, %v; want 1, %v", lines, told, want)
	}
	if !h.turn() || h.turn() {
		t.Error("after a window in which nothing is refused there must be no other")
	}
	if !l.Note("silent", "10.0.0.1") {
		t.Error("who was quiet for a window is not logged at once")
	}
	l.Close()
	if h.turn() {
		t.Error("the clock runs on after Close")
	}
	l.Close()
	if !l.Note("silent", "10.0.0.1") {
		t.Error("after Close no sum would tell of it")
	}
}

// TestLinesAreFewAndAddUp holds any sequence of refusals against what is promised.
func TestLinesAreFewAndAddUp(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		reasons := rapid.IntRange(1, 4).Draw(t, "reasons")
		peers := rapid.SampledFrom([]int{1, 5, 1000}).Draw(t, "peers")
		h := newHand()
		noted, told, lines := map[string]int{}, map[string]int{}, map[string]int{}
		l := New(h.after, func(s Summary) {
			told[s.Reason] += s.Count
			lines[s.Reason]++
		})
		limit := func() {
			for reason, n := range lines {
				if n > MaxAtOnce+1 {
					t.Fatalf("%d lines about %s in a window", n, reason)
				}
			}
			for reason, a := range l.accounts {
				if len(a.known) > maxKnown {
					t.Fatalf("%d peers are remembered for %s", len(a.known), reason)
				}
			}
			clear(lines)
		}
		for range rapid.IntRange(0, 60).Draw(t, "windows") {
			for range rapid.IntRange(0, 50).Draw(t, "refusals") {
				reason := fmt.Sprint("reason", rapid.IntRange(1, reasons).Draw(t, "reason"))
				noted[reason]++
				if l.Note(reason, fmt.Sprint("peer", rapid.IntRange(1, peers).Draw(t, "peer"))) {
					told[reason]++
					lines[reason]++
				}
			}
			h.turn()
			limit()
		}
		l.Close()
		for reason, n := range noted {
			if told[reason] != n {
				t.Fatalf("%d refusals for %s are logged, want %d", told[reason], reason, n)
			}
		}
	})
}

// TestCloseDuringAWindowsEnd has both at once, with the machine's clock.
func TestCloseDuringAWindowsEnd(t *testing.T) {
	for range 200 {
		var mu sync.Mutex
		told := 0
		l := New(func(_ time.Duration, f func()) func() bool { return time.AfterFunc(time.Microsecond, f).Stop }, func(s Summary) {
			mu.Lock()
			told += s.Count
			mu.Unlock()
		})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for range 50 {
					if l.Note("r", "p") {
						mu.Lock()
						told++
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		l.Close()
		if told != 200 {
			t.Fatalf("%d are logged, want 200", told)
		}
	}
}
