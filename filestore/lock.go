package filestore

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
)

// A lock is tried for, never waited for in the kernel, where nothing but a signal
// could end the wait. A section under the lock takes microseconds: tries come in
// bursts, to meet a moment between two sections, and the bursts get rare behind a
// holder that hangs. Stock processes wait in the kernel, which does not hand the lock
// over but wakes them to try again: the moment until they do is there for us, too
// (doc.go, "Beside stock writers").
const (
	lockBurst   = 64
	lockWaitMin = 10 * time.Microsecond
	lockWaitMax = 2 * time.Millisecond
)

// flock is the system's; a test puts another in its place.
var flock = unix.Flock

// patience is what can end a wait for the lock. The zero time and a nil channel
// never do.
type patience struct {
	ctx      context.Context
	closing  <-chan struct{}
	deadline time.Time
}

// over returns why the wait has ended, nil if it has not.
func (p patience) over(clock Clock) error {
	select {
	case <-p.closing:
		return store.ErrClosed
	default:
	}
	if err := store.ContextError(p.ctx); err != nil {
		return err
	}
	if !p.deadline.IsZero() && !clock.Now().Before(p.deadline) {
		return store.ErrTimeout
	}
	return nil
}

// pause waits for d, or less if the wait is over.
func (p patience) pause(clock Clock, d time.Duration) {
	select {
	case <-p.closing:
	case <-p.ctx.Done():
	case <-clock.After(d):
	}
}

// lock takes the file's lock, unix.LOCK_SH or unix.LOCK_EX. The error of a wait
// that ended names the process that holds it. Once p is over the lock is not taken any
// more, so that nothing is written that was called off while it waited.
func (f *file) lock(p patience, clock Clock, how int) error {
	wait := lockWaitMin
	for tries := 1; ; tries++ {
		err := ignoringEINTR(func() error { return flock(f.fd, how|unix.LOCK_NB) })
		switch err {
		case nil:
			if err := p.over(clock); err != nil {
				f.unlock()
				return fmt.Errorf("waiting for the file's lock: %w", err)
			}
			return nil
		case unix.EWOULDBLOCK:
		default:
			return lockError(err)
		}
		if tries%lockBurst != 0 {
			runtime.Gosched()
			continue
		}
		if err := p.over(clock); err != nil {
			return fmt.Errorf("waiting for the file's lock, held by %s: %w", f.holder(), err)
		}
		p.pause(clock, wait)
		wait = min(2*wait, lockWaitMax)
	}
}

// unlock gives the lock back. It cannot fail on a descriptor that is open.
func (f *file) unlock() {
	_ = ignoringEINTR(func() error { return flock(f.fd, unix.LOCK_UN) })
}

// tryLock takes the lock if nobody holds it otherwise.
func (f *file) tryLock(how int) (bool, error) {
	switch err := ignoringEINTR(func() error { return flock(f.fd, how|unix.LOCK_NB) }); err {
	case nil:
		return true, nil
	case unix.EWOULDBLOCK:
		return false, nil
	default:
		return false, lockError(err)
	}
}

// lockError is the error of a flock that failed other than by being held.
func lockError(err error) error {
	switch err {
	case unix.ENOLCK, unix.ENOSYS, unix.EOPNOTSUPP, unix.EINVAL:
		return fmt.Errorf("%w: %w", ErrNoLocks, err)
	}
	return fmt.Errorf("flock: %w", err)
}
