package main

import (
	"context"
	"sync"
	"time"
)

// deadline is context.WithDeadline for calls that seldom wait: its timer is made at the
// first Done, for which a call that is answered at once never asks.
type deadline struct {
	context.Context // the parent
	at              time.Time

	mu       sync.Mutex
	finished bool
	inner    context.Context // nil until the first Done
	cancel   context.CancelFunc
}

// Deadline implements context.Context.
func (d *deadline) Deadline() (time.Time, bool) {
	if at, ok := d.Context.Deadline(); ok && at.Before(d.at) {
		return at, true
	}
	return d.at, true
}

// Done implements context.Context.
func (d *deadline) Done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.inner == nil {
		d.inner, d.cancel = context.WithDeadline(d.Context, d.at)
		if d.finished {
			d.cancel()
		}
	}
	return d.inner.Done()
}

// Err implements context.Context.
func (d *deadline) Err() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.inner != nil:
		return d.inner.Err()
	case d.finished:
		return context.Canceled
	case d.Context.Err() != nil:
		return d.Context.Err()
	case !time.Now().Before(d.at):
		return context.DeadlineExceeded
	}
	return nil
}

// AfterFunc is what package context asks of a parent that is none of its own: without
// it, each context derived from this one would cost a goroutine.
func (d *deadline) AfterFunc(f func()) (stop func() bool) {
	d.Done()
	return context.AfterFunc(d.inner, f)
}

// finish ends the context; to be called when the call is over.
func (d *deadline) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.finished = true
	if d.cancel != nil {
		d.cancel()
	}
}
