package lockedfile

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
)

// A lock is tried for, never waited for in the kernel, where nothing but a signal could end the
// wait. A section under the lock takes microseconds: tries come in bursts, to meet a moment
// between two sections, and the bursts get rare while a holder hangs. Stock processes wait in the
// kernel, which does not hand the lock over but wakes them to try again: the moment until they do
// holds for us, too (package filestore, "Beside stock writers").
const (
	lockBurst   = 64 // tries
	lockWaitMin = 10 * time.Microsecond
	lockWaitMax = 2 * time.Millisecond
)

// Flock is flock(2). Tests replace it.
var Flock = unix.Flock

// WaitLimit is what can end a wait for a lock. The zero time and a nil channel
// never do.
type WaitLimit struct {
	Ctx      context.Context
	Closing  <-chan struct{}
	Deadline time.Time
}

// Err returns why the wait has ended, nil if it has not.
func (w WaitLimit) Err(clock Clock) error {
	select {
	case <-w.Closing:
		return store.ErrClosed
	default:
	}
	if err := store.ContextError(w.Ctx); err != nil {
		return err
	}
	if !w.Deadline.IsZero() && !clock.Now().Before(w.Deadline) {
		return store.ErrTimeout
	}
	return nil
}

// sleep returns after d, or when the wait has ended.
func (w WaitLimit) sleep(clock Clock, d time.Duration) {
	select {
	case <-w.Closing:
	case <-w.Ctx.Done():
	case <-clock.After(d):
	}
}

// Lock takes the file's lock, unix.LOCK_SH or unix.LOCK_EX. The error of a wait
// that ended names the process that holds it. Once p is over the lock is not taken any
// more, so that nothing is written that was called off while it waited.
func (f *File) Lock(p WaitLimit, clock Clock, how int) error {
	wait := lockWaitMin
	for tries := 1; ; tries++ {
		free, err := f.TryLock(how)
		if err != nil {
			return err
		}
		if free {
			if err := p.Err(clock); err != nil {
				f.Unlock()
				return fmt.Errorf("waiting for the file's lock: %w", err)
			}
			return nil
		}
		if tries%lockBurst != 0 {
			runtime.Gosched()
			continue
		}
		if err := p.Err(clock); err != nil {
			return fmt.Errorf("waiting for the file's lock, held by %s: %w", f.LockHolder(), err)
		}
		p.sleep(clock, wait)
		wait = min(2*wait, lockWaitMax)
	}
}

// Unlock gives the lock back. It cannot fail on a descriptor that is open.
func (f *File) Unlock() {
	_ = IgnoringEINTR(func() error { return Flock(f.fd, unix.LOCK_UN) })
}

// TryLock takes the lock, and reports false if another descriptor holds it.
func (f *File) TryLock(how int) (bool, error) {
	switch err := IgnoringEINTR(func() error { return Flock(f.fd, how|unix.LOCK_NB) }); err {
	case nil:
		return true, nil
	case unix.EWOULDBLOCK:
		return false, nil
	case unix.ENOLCK, unix.ENOSYS, unix.EOPNOTSUPP, unix.EINVAL:
		return false, fmt.Errorf("%w: %w", ErrNoLocks, err)
	default:
		return false, fmt.Errorf("flock: %w", err)
	}
}
