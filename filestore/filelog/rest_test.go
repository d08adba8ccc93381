package filelog

import (
	"context"
	"testing"
	"time"

	"rallypoint/internal/lockedfile"
)

// TestRestTime: few nodes do not rest, and no number of nodes makes a reader rest for long.
func TestRestTime(t *testing.T) {
	for nodes, want := range map[int64]time.Duration{
		-1: 0, 0: 0, 8: 0, 9: 6300 * time.Microsecond, 50: 35 * time.Millisecond, 100: 70 * time.Millisecond, 129: longestRest, 1 << 62: longestRest,
	} {
		if got := restTime(nodes); got != want {
			t.Errorf("%d nodes rest for %v, want %v", nodes, got, want)
		}
	}
}

// neverClock is a clock whose timers never fire.
type neverClock struct {
	lockedfile.RealClock
	asked chan time.Duration
}

func (n neverClock) After(d time.Duration) <-chan time.Time {
	n.asked <- d
	return nil
}

// TestRestEnds: a rest ends when this node has appended, when its caller gives up, and when the
// log is closed; it is never longer than what was asked for, nor shorter than half of that.
func TestRestEnds(t *testing.T) {
	clock := neverClock{asked: make(chan time.Duration, 1)}
	for name, end := range map[string]func(l *Log, cancel func()){
		"append": func(l *Log, _ func()) { l.appended <- struct{}{} },
		"cancel": func(_ *Log, cancel func()) { cancel() },
		"close":  func(l *Log, _ func()) { close(l.closing) },
	} {
		l := New(t.TempDir(), "job", &Options{Clock: clock})
		l.SetNodes(1000)
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			l.rest(ctx)
			close(done)
		}()
		if d := <-clock.asked; d < longestRest/2 || d > longestRest {
			t.Errorf("%s: it rests for %v", name, d)
		}
		end(l, cancel)
		<-done
		cancel()
	}
}

// TestAppendersDoNotRest: a node that has appended reads its own entry at once.
func TestAppendersDoNotRest(t *testing.T) {
	l := New(t.TempDir(), "job", &Options{Clock: neverClock{asked: make(chan time.Duration, 1)}})
	l.SetNodes(1000)
	if _, err := l.Open(t.Context()); err != nil {
		t.Fatal(err)
	}
	defer l.Close(t.Context())
	if err := l.Append(t.Context(), [][]byte{[]byte("one")}); err != nil {
		t.Fatal(err)
	}
	l.rest(t.Context())
}
