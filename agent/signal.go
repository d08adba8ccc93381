package agent

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// SignalError ends a run because the agent was sent a signal.
type SignalError struct {
	Signal unix.Signal
	Pid    int // of the agent
}

func (e *SignalError) Error() string {
	return "Process " + strconv.Itoa(e.Pid) + " got signal: " + strconv.Itoa(int(e.Signal))
}

// Programs that end a job may send its signal twice at once: timeout(1) to its child and then
// to the group, an init that signals the group, a scheduler to the step and to the batch
// script. Such signals are one request. Only a person at a terminal means something by a
// second one soon after, and a person needs a moment for it.
const (
	oneRequest = 5 * time.Second
	byHand     = 300 * time.Millisecond
)

// interrupts counts the requests to end the agent.
type interrupts struct {
	now      func() time.Time
	terminal func() bool // signals come from the keyboard of a terminal

	first   context.Context    // ends with the first
	second  context.Context    // ends with another request: do not wait for anything
	forced  context.Context    // ends with a request that leaves the workers no time: kill them
	noticed context.CancelFunc // ends first
	hurry   context.CancelFunc // ends second
	force   context.CancelFunc // ends forced

	mu     sync.Mutex
	signal unix.Signal   // the first
	at     time.Time     // of the first
	grace  time.Duration // before SIGKILL, of the first
}

func newInterrupts() interrupts {
	first, noticed := context.WithCancel(context.Background())
	second, hurry := context.WithCancel(context.Background())
	forced, force := context.WithCancel(second)
	return interrupts{now: time.Now, terminal: inForeground, first: first, noticed: noticed, second: second, hurry: hurry, forced: forced, force: force}
}

// until returns a context that ends with a request, or after the limit if that is not 0.
func until(request context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	if limit > 0 {
		return context.WithTimeout(request, limit)
	}
	return context.WithCancel(request)
}

// untilInterrupt returns a context that ends with the first signal, or after the
// limit if that is not 0.
func (n *node) untilInterrupt(limit time.Duration) (context.Context, context.CancelFunc) {
	return until(n.interrupts.first, limit)
}

// untilImpatient returns a context that ends with the second signal or after the
// limit.
func (n *node) untilImpatient(limit time.Duration) (context.Context, context.CancelFunc) {
	return until(n.interrupts.second, limit)
}

// request asks the agent to end; see Agent.Stop.
func (i *interrupts) request(sig unix.Signal, grace time.Duration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	switch {
	case i.signal == 0:
		i.signal, i.at, i.grace = sig, i.now(), grace
		i.noticed()
		if noTime(sig, grace) { // nor for a stop that has begun before
			i.force()
		}
	case i.forces(sig, grace):
		i.hurry()
	}
}

// forces reports whether a request after the first one kills the workers.
func (i *interrupts) forces(sig unix.Signal, grace time.Duration) bool {
	passed := i.now().Sub(i.at)
	return noTime(sig, grace) || passed >= oneRequest ||
		sig == unix.SIGINT && i.signal == unix.SIGINT && passed >= byHand && i.terminal()
}

// noTime reports whether a request gives the workers no time to end.
func noTime(sig unix.Signal, grace time.Duration) bool { return sig == unix.SIGKILL || grace == 0 }

// impatience says how to end workers before their grace is over; "" if it is
// too short for that.
func (i *interrupts) impatience() string {
	switch {
	case i.signal == unix.SIGINT && i.grace > byHand && i.terminal():
		return fmt.Sprintf(" (they have %v; press Ctrl-C again to kill them at once)", i.grace)
	case i.grace > oneRequest:
		return fmt.Sprintf(" (they have %v; another signal in %v or later kills them at once)", i.grace, oneRequest)
	}
	return ""
}

// inForeground tells whether this process gets what is typed at its terminal.
func inForeground() bool {
	fd, err := unix.Open("/dev/tty", unix.O_RDONLY|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer func() { _ = unix.Close(fd) }()
	group, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

// interrupted returns the error that the first signal ends the run with; nil if
// none came.
func (n *node) interrupted() error {
	i := &n.interrupts
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.signal == 0 {
		return nil
	}
	return &SignalError{i.signal, os.Getpid()}
}
