package testkit

import (
	"fmt"
	"sync"
	"testing"
	"time"
	"unsafe"

	"rallypoint/internal/wake"
)

// Clock is a time that a test moves. It is every Clock of the product.
type Clock struct {
	mu     sync.Mutex
	now    time.Time
	timers map[*timer]struct{}
	seq    int
	more   wake.Signal // set by each new timer
}

type timer struct {
	clock *Clock
	due   time.Time
	seq   int
	f     func()
}

// NewClock makes a clock that stands still. Its times have a monotonic reading, as those of time.Now.
func NewClock() *Clock {
	return &Clock{now: withMonotonic(time.Unix(1e9, 0)), timers: map[*timer]struct{}{}, more: wake.New()}
}

// Now returns the time that the test has set.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// AfterFunc calls f in the test's goroutine when the clock has moved by d.
func (c *Clock) AfterFunc(d time.Duration, f func()) interface{ Stop() bool } {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seq++
	t := &timer{c, c.now.Add(max(d, 0)), c.seq, f}
	c.timers[t] = struct{}{}
	c.more.Set()
	return t
}

// After returns a channel that is sent to when the clock has moved by d.
func (c *Clock) After(d time.Duration) <-chan time.Time {
	fired := make(chan time.Time, 1)
	c.AfterFunc(d, func() { fired <- c.Now() })
	return fired
}

func (t *timer) Stop() bool {
	t.clock.mu.Lock()
	defer t.clock.mu.Unlock()
	_, running := t.clock.timers[t]
	delete(t.clock.timers, t)
	return running
}

// Advance moves the clock by d and calls what falls due, each at its own time.
func (c *Clock) Advance(d time.Duration) {
	end := c.Now().Add(d)
	for c.fireNext(end, false) {
	}
	c.mu.Lock()
	c.now = end
	c.mu.Unlock()
}

// Jump moves the clock by d at once, as if the process had been stopped, and
// then calls what has fallen due.
func (c *Clock) Jump(d time.Duration) {
	c.mu.Lock()
	c.now = c.now.Add(d)
	end := c.now
	c.mu.Unlock()
	for c.fireNext(end, true) {
	}
}

// Timers returns how many timers run.
func (c *Clock) Timers() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.timers)
}

// AwaitTimers waits until n timers run or more, and returns how long the next one has to go.
// One goroutine at a time waits.
func (c *Clock) AwaitTimers(t testing.TB, n int) time.Duration {
	t.Helper()
	deadline := time.After(Patience)
	for {
		c.mu.Lock()
		running, next := len(c.timers), c.nextLocked()
		if next != nil && running >= n {
			defer c.mu.Unlock()
			return next.due.Sub(c.now)
		}
		c.mu.Unlock()
		select {
		case <-c.more:
		case <-deadline:
			t.Fatalf("%d timers run, want %d", running, n)
		}
	}
}

func (c *Clock) nextLocked() (next *timer) {
	for t := range c.timers {
		if next == nil || t.due.Before(next.due) || t.due.Equal(next.due) && t.seq < next.seq {
			next = t
		}
	}
	return next
}

func (c *Clock) fireNext(end time.Time, late bool) bool {
	c.mu.Lock()
	next := c.nextLocked()
	if next == nil || next.due.After(end) {
		c.mu.Unlock()
		return false
	}
	delete(c.timers, next)
	if !late {
		c.now = next.due
	}
	c.mu.Unlock()
	next.f()
	return true
}

// SetWall sets the wall clock forward by whole seconds, or back, as a person or NTP does. No time
// passes by it.
func (c *Clock) SetWall(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = ShiftWall(c.now, by)
}

// timeFields are those of a time.Time with a monotonic reading: a flag, 33 bits of seconds since 1885
// and 30 of nanoseconds; the monotonic nanoseconds.
type timeFields struct {
	wall uint64
	ext  int64
	loc  *time.Location
}

const (
	monotonicFlag = 1 << 63
	since1885     = 2682288000 // to 1970, in seconds
)

// ShiftWall returns a time with the monotonic reading of t and another time of day: what time.Now
// returns after the wall clock was set forward by whole seconds, or back.
func ShiftWall(t time.Time, by time.Duration) time.Time {
	shifted := t
	(*timeFields)(unsafe.Pointer(&shifted)).wall += uint64(by/time.Second) << 30
	if shifted.Sub(t) != 0 || shifted.Unix()-t.Unix() != int64(by/time.Second) {
		panic(fmt.Sprintf("%v with another time of day is %v: this Go has another time.Time", t, shifted))
	}
	return shifted
}

// withMonotonic returns a time of whole seconds with a monotonic reading.
func withMonotonic(t time.Time) time.Time {
	with := time.Unix(0, 0)
	f := (*timeFields)(unsafe.Pointer(&with))
	f.wall, f.ext = monotonicFlag|uint64(t.Unix()+since1885)<<30, int64(time.Hour)
	if !with.Equal(t) || with == t {
		panic(fmt.Sprintf("%v with a monotonic reading is %v: this Go has another time.Time", t, with))
	}
	return with
}
