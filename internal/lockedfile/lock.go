package lockedfile

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/backoff"
)

// A lock is tried for, never waited for in the kernel, where nothing but a signal could end the
// wait. A section under the lock takes microseconds: tries come in bursts, to meet a moment
// between two sections, and the bursts get rare while a holder hangs. Stock processes wait in the
// kernel, which does not hand the lock over but wakes them to try again: the moment until they do
// holds for us, too (package filestore, "Beside stock writers").
//
// lockBurst is the number of tries in a burst.
//
// Where many processes want the lock at one time, most tries are refused, and each costs the
// processors, or a server of files, as much as one that succeeds: short bursts, far apart.
const (
	lockBurst   = 64
	lockWaitMin = 10 * time.Microsecond
	lockWaitMax = 2 * time.Millisecond

	crowd            = 16 // more waiters than these are one
	crowdLockBurst   = 4
	crowdLockWaitMin = time.Millisecond
	crowdLockWaitMax = 30 * time.Millisecond
)

// Flock is flock(2). Tests replace it.
var Flock = unix.Flock

// WaitLimit is what can end a wait for a lock. The zero time and a nil channel
// never do.
type WaitLimit struct {
	Ctx      context.Context
	Closing  <-chan struct{}
	Deadline time.Time
	Waiters  int // how many processes may want the lock at one time; 0: not known, and few
}

// pace returns the number of tries in a burst, and the pauses between bursts: the first, which
// doubles, and the longest.
func (w WaitLimit) pace() (burst int, first, longest time.Duration) {
	if w.Waiters > crowd {
		return crowdLockBurst, crowdLockWaitMin, crowdLockWaitMax
	}
	return lockBurst, lockWaitMin, lockWaitMax
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
	burst, wait, longest := p.pace()
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
		if tries%burst != 0 {
			runtime.Gosched()
			continue
		}
		if err := p.Err(clock); err != nil {
			return fmt.Errorf("waiting for the file's lock, held by %s: %w", f.LockHolder(), err)
		}
		pause := wait
		if p.Waiters > crowd {
			pause = wait/2 + backoff.Below(wait/2) // not all at one time again
		}
		p.sleep(clock, pause)
		wait = min(2*wait, longest)
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
