// Package background runs functions in goroutines until their caller stops them.
package background

import "context"

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
