// Package background runs functions in goroutines until their caller stops them.
package background

import (
	"context"
	"time"
)

// Run runs f in a goroutine. stop ends f's context, which also ends with parent, and waits until f
// has returned; it may be called again.
func Run(parent context.Context, f func(ctx context.Context)) (stop func()) {
	ctx, cancel := context.WithCancel(parent)
	done := make(chan struct{})
	go func() { // ends with stop
		defer close(done)
		f(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// Within runs f, which a file system or a reader may hold up for ever, and reports whether it
// returned within a time. If it did not, it continues in its goroutine, and nothing that it uses
// may be touched.
func Within(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() { // ends with f
		defer close(done)
		f()
	}()
	late := time.NewTimer(d)
	defer late.Stop()
	select {
	case <-done:
		return true
	case <-late.C:
		return false
	}
}
