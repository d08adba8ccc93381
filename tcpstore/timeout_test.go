package tcpstore

import (
	"context"
	"testing"

	"rallypoint/core/store/storetest"
)

func TestTimeoutText(t *testing.T) {
	server, _ := newServer(t, Options{})
	s := newClient(t, server)
	storetest.TimeoutText(t, s, map[string]func(context.Context) error{
		"set": func(ctx context.Context) error { <-ctx.Done(); return s.Set(ctx, "k/1/s", nil) },
	})
}
