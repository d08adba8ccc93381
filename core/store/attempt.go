package store

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Attempt is the context of a call that is made in two goes, for a caller that must be back
// soon. In the first, made with the Attempt, a Store does what it can at once. It waits for
// nothing but the answer of its server, and its turn to ask, and for these no longer than
// Until, blocking the thread. If that is not enough the call fails, having done nothing or
// having left an exchange with its server half done. The second go is the same call made
// again with the context that Rest returns: it takes up what was left, and waits as calls do.
//
// An Attempt serves one call. Calls that change the store and then wait (Barrier) cannot be
// attempted: they would do the first part twice.
type Attempt struct {
	context.Context // of both goes

	patience time.Duration
	until    time.Time   // once somebody has asked
	tried    atomic.Bool // somebody wanted to wait for the end of the context
	left     any
}

// NewAttempt returns an Attempt at a call that ends with parent, whose first go may wait for
// its server for about as long as patience.
func NewAttempt(parent context.Context, patience time.Duration) *Attempt {
	return &Attempt{Context: parent, patience: patience}
}

var ended = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done implements context.Context. The context ends as soon as somebody is going to wait for
// its end.
func (a *Attempt) Done() <-chan struct{} {
	a.tried.Store(true)
	return ended
}

// Err implements context.Context.
func (a *Attempt) Err() error {
	if err := a.Context.Err(); err != nil || !a.tried.Load() {
		return err
	}
	return context.DeadlineExceeded
}

// HasTime returns the error of a context that has ended, before something that may take long:
// it asks for Done, by which an Attempt ends here.
func HasTime(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ContextError(ctx)
	default:
		return nil
	}
}

// Until returns until when the first go may wait for a server: from the first time that it
// is asked, for most stores have nothing to wait for. It is for the goroutine of the call.
func (a *Attempt) Until() time.Time {
	if a.until.IsZero() {
		a.until = time.Now().Add(a.patience)
		if deadline, ok := a.Context.Deadline(); ok && deadline.Before(a.until) {
			a.until = deadline
		}
	}
	return a.until
}

// Leave is for a Store that ends the first go with an exchange half done, of which it keeps
// what the second needs. It returns the error of the first.
func (a *Attempt) Leave(what any) error {
	a.tried.Store(true)
	a.left = what
	return ContextError(a)
}

// Rest returns the context for the second go, nil if there is nothing left to be done. err is
// what the first has come to. The second go must be made: others may wait for what was left.
func (a *Attempt) Rest(err error) context.Context {
	switch {
	case a.left != nil:
		return &rest{a.Context, a.left}
	case a.tried.Load() && errors.Is(err, ErrTimeout):
		return a.Context
	}
	return nil
}

// rest is the context of a second go that takes something up.
type rest struct {
	context.Context
	left any
}

// TakeLeft returns what the first go of the call has left behind, once; nil if ctx is of no
// second go.
func TakeLeft(ctx context.Context) any {
	r, ok := ctx.(*rest)
	if !ok {
		return nil
	}
	left := r.left
	r.left = nil
	return left
}
