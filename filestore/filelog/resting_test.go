package filelog

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/changewatch"
	"rallypoint/internal/lockedfile"
	"rallypoint/internal/testkit"
)

// standingClock stands until it is moved; waits by it take no time, and are counted.
type standingClock struct {
	now   atomic.Pointer[time.Time]
	waits atomic.Int64
}

func newStandingClock() *standingClock {
	c := &standingClock{}
	c.move(0)
	return c
}

func (s *standingClock) move(by time.Duration) {
	now := time.Now()
	if last := s.now.Load(); last != nil {
		now = last.Add(by)
	}
	s.now.Store(&now)
}

func (s *standingClock) Now() time.Time { return *s.now.Load() }

func (s *standingClock) After(time.Duration) <-chan time.Time {
	s.waits.Add(1)
	return time.After(time.Millisecond)
}

// countSharedLocks counts the shared locks that are asked for from then on.
func countSharedLocks(t *testing.T) *atomic.Int64 {
	locks, flock := &atomic.Int64{}, lockedfile.Flock
	lockedfile.Flock = func(fd, how int) error {
		if how&^unix.LOCK_NB == unix.LOCK_SH {
			locks.Add(1)
		}
		return flock(fd, how)
	}
	t.Cleanup(func() { lockedfile.Flock = flock })
	return locks
}

// A node that is stopped while it holds the log's lock stops the run. One that only waits
// for news holds it for a moment each second, not at each look.
func TestLogAtRestLocksSeldom(t *testing.T) {
	const looks = 50
	clock := newStandingClock()
	dir := t.TempDir()
	reader, writer := openLog(t, dir, &Options{Remote: true, Clock: clock}), openLog(t, dir, nil)
	appendTexts(t, writer, "1")
	readTexts(t, reader, 0, 1)

	locks := countSharedLocks(t)
	rest := func(most int64) {
		t.Helper()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		locks.Store(0)
		from := clock.waits.Load()
		ended := make(chan error)
		go func() {
			_, err := reader.Next(ctx, 1)
			ended <- err
		}()
		testkit.Eventually(t, "it looks for news", func() bool { return clock.waits.Load() >= from+looks })
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if n := locks.Load(); n > most {
			t.Errorf("%d locks in %d looks that found nothing, want %d at most", n, looks, most)
		}
	}
	rest(0)
	clock.move(changewatch.RecheckInterval)
	rest(1) // whatever the file system says of the file without a lock
	appendTexts(t, writer, "2")
	if got := readTexts(t, reader, 1, 1); got[0] != "2" {
		t.Errorf("got %q", got)
	}
	testkit.Check(t, writer.Close(testkit.Within(t, logPatience)))
}

// The same of a watcher, which looks when it is asked to.
func TestWatchAtRestLocksSeldom(t *testing.T) {
	dir := t.TempDir()
	l, f := openLog(t, dir, nil), watch(t, dir)
	appendTexts(t, l, "1")
	f.want(0, 1)
	clock := newStandingClock()
	w := f.f.(*watcher)
	w.l.local, w.l.options.Clock = false, clock
	w.l.reader.locked = clock.Now()
	locks := countSharedLocks(t)
	for range 20 {
		f.want(0, 1)
	}
	if n := locks.Load(); n > 0 {
		t.Errorf("%d locks in 20 looks that found nothing", n)
	}
	clock.move(changewatch.RecheckInterval)
	f.want(0, 1)
	f.want(0, 1)
	if n := locks.Load(); n != 1 {
		t.Errorf("%d locks after a second", n)
	}
	appendTexts(t, l, "2")
	f.want(0, 2)
}
