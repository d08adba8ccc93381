package lockedfile

import "time"

// Clock is the time by which locks are waited for. Now must be monotonic.
type Clock interface {
	Now() time.Time
	// After returns a channel that is sent to once, d from now.
	After(d time.Duration) <-chan time.Time
}

// RealClock is the machine's clock.
type RealClock struct{}

// Now implements Clock.
func (RealClock) Now() time.Time { return time.Now() }

// After implements Clock.
func (RealClock) After(d time.Duration) <-chan time.Time { return time.After(d) }
