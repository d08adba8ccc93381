package store

import (
	"context"
	"errors"
	"time"
)

// Errors of calls that wait.
var (
	// ErrTimeout is returned by every call whose context's deadline passed
	// before it was done. The error also matches context.DeadlineExceeded.
	ErrTimeout = errors.New("timeout")

	// ErrClosed is returned by every call on a store after Close, and by the
	// calls that were waiting when Close came.
	ErrClosed = errors.New("store is closed")

	// ErrConnection is returned by stores behind a network when the peer went
	// away in the middle of a call. Whether a mutating call was applied is then
	// unknown; it is not repeated.
	ErrConnection = errors.New("connection to the store was lost")
)

// Errors about what is stored.
var (
	// ErrNotNumber is returned by Add and Barrier when the key holds something
	// that does not begin with a decimal 64-bit number. The value is unchanged.
	ErrNotNumber = errors.New("value is not a number")

	// ErrQueueEmpty is returned by a QueuePop that does not block when the
	// queue has no items.
	ErrQueueEmpty = errors.New("queue is empty")
)

// Errors about sizes.
var (
	// ErrTooLarge is returned when a key, a value, a list of keys or a whole
	// request is larger than the store takes. Nothing was changed.
	ErrTooLarge = errors.New("too large")

	// ErrQuota is returned by a write that would take the store over its Limits.
	// The entry that did not fit is unchanged.
	ErrQuota = errors.New("store is full")

	// ErrArguments is returned by MultiSet when the numbers of keys and values
	// differ. Nothing was changed.
	ErrArguments = errors.New("as many values as keys are needed")
)

// ContextError returns the error of a context that has ended; if it ended by its
// deadline that is ErrTimeout, which also matches context.DeadlineExceeded. It returns
// nil if ctx has not ended. A process that was stopped may get here before the timer of
// the deadline.
func ContextError(ctx context.Context) error {
	err := ctx.Err()
	if deadline, ok := ctx.Deadline(); ok && err == nil && !time.Now().Before(deadline) {
		err = context.DeadlineExceeded
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return deadlineError{}
	}
	return err
}

// deadlineError is ErrTimeout and context.DeadlineExceeded, with the text of the first.
type deadlineError struct{}

func (deadlineError) Error() string   { return ErrTimeout.Error() }
func (deadlineError) Unwrap() []error { return []error{ErrTimeout, context.DeadlineExceeded} }
