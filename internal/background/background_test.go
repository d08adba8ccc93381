package background

import (
	"context"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestRun: stop ends the context and returns after the function, each time that it is called.
func TestRun(t *testing.T) {
	ended := false
	stop := Run(t.Context(), func(ctx context.Context) {
		<-ctx.Done()
		ended = true
	})
	for range 2 {
		if stop(); !ended {
			t.Fatal("stop did not wait")
		}
	}
}

// TestRunEndsWithItsParent: a function learns that its parent has ended, before stop is called.
func TestRunEndsWithItsParent(t *testing.T) {
	parent, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	stop := Run(parent, func(ctx context.Context) {
		defer close(ended)
		<-ctx.Done()
	})
	defer stop()
	cancel()
	<-ended
}
