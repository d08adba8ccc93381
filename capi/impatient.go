package main

import (
	"context"
	"sync/atomic"
)

// impatient is a context that ends as soon as somebody is going to wait for its end, or
// with its parent: a call made with it does what it can at once, and comes back instead of
// waiting.
type impatient struct {
	context.Context // the parent
	asked           atomic.Bool
}

var ended = func() <-chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Done implements context.Context.
func (i *impatient) Done() <-chan struct{} {
	i.asked.Store(true)
	return ended
}

// Err implements context.Context.
func (i *impatient) Err() error {
	if err := i.Context.Err(); err != nil || !i.asked.Load() {
		return err
	}
	return context.DeadlineExceeded
}
