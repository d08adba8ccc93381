package control

import (
	"sync"
	"time"
)

// Clock is the time that a Server lives by. Now must be monotonic.
type Clock interface {
	Now() time.Time
	// AfterFunc calls f once, in a goroutine of its own or of the clock's driver,
	// after d has passed, unless Stop is called before.
	AfterFunc(d time.Duration, f func()) Stopper
}

// Stopper stops a function that AfterFunc has scheduled. It reports false if the function has run
// or is running.
type Stopper = interface{ Stop() bool }

// RealClock is the machine's clock.
type RealClock struct{}

// Now returns the current time with its monotonic reading.
func (RealClock) Now() time.Time { return time.Now() }

// AfterFunc is time.AfterFunc.
func (RealClock) AfterFunc(d time.Duration, f func()) Stopper { return time.AfterFunc(d, f) }

// shutdownGate admits callbacks of timers until it is closed; close waits for those
// inside.
type shutdownGate struct {
	mu     sync.Mutex
	closed bool
	inside sync.WaitGroup
}

func (s *shutdownGate) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.inside.Add(1)
	return true
}

func (s *shutdownGate) leave() { s.inside.Done() }

func (s *shutdownGate) close() {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	s.inside.Wait()
}
