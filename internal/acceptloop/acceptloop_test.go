package acceptloop

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/internal/testkit"
)

// TestFailuresAreLoggedOnce fails after each connection, as at the limit of descriptors, then
// succeeds for long, and fails again.
func TestFailuresAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log, lines := testkit.NewLog(t)
		ctx, cancel := context.WithCancel(t.Context())
		calls := 0
		err := Run(ctx, log, "connections", func() error {
			switch calls++; {
			case calls == 200:
				cancel()
			case calls < 100 && calls%2 == 0, calls == 150:
				return errors.New("too many open files")
			case calls >= 100:
				time.Sleep(time.Second)
			}
			return ctx.Err()
		})
		if err != nil {
			t.Errorf("the end of its context: %v", err)
		}
		if failed, again := lines.With("cannot accept connections"), lines.With("connections are accepted again"); len(failed) != 2 || len(again) != 2 {
			t.Errorf("%d failures and %d ends of them were logged: %q", len(failed), len(again), lines.All())
		}
	})
}

func TestListenerClosed(t *testing.T) {
	log, _ := testkit.NewLog(t)
	if err := Run(t.Context(), log, "connections", func() error { return net.ErrClosed }); !errors.Is(err, net.ErrClosed) {
		t.Errorf("the listener was closed: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Run(ended, log, "connections", func() error { return net.ErrClosed }); err != nil {
		t.Errorf("it was closed after the end of the context: %v", err)
	}
}
