// Package register elects the leader of a run's control plane by a register with compare-and-set that
// the site has: a key of an etcd, a file under a lock, a user's get_state and set_state.
//
// The register has one record (Record): who leads, in which term, a beat, and the facts that the next
// leader needs. Only the leader writes it, at each change of its facts and each quarter of a lease. What
// its nodes are told from then on waits until the register has taken the facts. Another process writes
// the next term if the leader has left, if its process is proven dead, or if the beat has not changed for a
// lease of the other's own clock. Compare-and-set alone decides which one leads: a clock that goes wrong
// costs a change of leader, and never makes two.
//
// core decides, without I/O, goroutine or clock. Elector drives it.
package register

import (
	"context"
	"time"
)

// Register is one value, shared by all nodes of a run, with compare-and-set
// (docs/spec/rendezvous.md R80). A token identifies the value that was stored when the token was
// returned; nil stands for no value. Tokens are opaque, and an unknown one counts as old.
//
// Methods may block and return soon after ctx has ended; they are called by
// several goroutines at once. Nobody changes values that were handed in or out.
type Register interface {
	// GetState returns the stored value and its token; nil if there is none.
	GetState(ctx context.Context) (state, token []byte, err error)

	// SetState stores state if token identifies the stored value, or is nil and there is none. It
	// returns the value that is stored afterwards, its token, and whether this call has stored
	// it. After an error that is unknown.
	SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error)
}

// Watcher is a Register that tells of changes.
type Watcher interface {
	Register
	// Watch calls changed with each value that is stored while it runs, none older than one that any method
	// has returned before, until ctx or the watch ends. nil stands for no value.
	Watch(ctx context.Context, changed func(state, token []byte)) error
}

// Clocked is a Register whose own clock ends a value that nobody renews.
type Clocked interface {
	Register
	// SetFor is SetState for the last value of a run, which is gone after a time; 0: at once.
	SetFor(ctx context.Context, state, token []byte, after time.Duration) (now, nowToken []byte, ok bool, err error)
	// Age returns how long ago the value was stored that was read last; 0 if that is not known.
	Age(ctx context.Context) (time.Duration, error)
}

// store is SetState, or, of a register with a clock, SetFor for a value that ends after a time; below 0: it does not.
func store(ctx context.Context, reg Register, state, token []byte, after time.Duration) (now, nowToken []byte, ok bool, err error) {
	if c, clocked := reg.(Clocked); clocked && after >= 0 {
		return c.SetFor(ctx, state, token, after)
	}
	return reg.SetState(ctx, state, token)
}

// Unreachable is an error of a Register that has itself tried for long enough to reach its
// place. A node that has not reached it once fails with it at once; afterwards the operation
// is repeated, as after other errors that may pass.
type Unreachable struct{ Err error }

func (u *Unreachable) Error() string { return u.Err.Error() }
func (u *Unreachable) Unwrap() error { return u.Err }
