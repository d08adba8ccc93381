package filestore

import (
	"context"
	"testing"

	"rallypoint/core/store/storetest"
)

func TestOperations(t *testing.T) {
	storetest.Operations(t, mustOpen(t, newPath(t), NeverRemove, nil), "efcount/") // torch's number of open stores
}

func TestTimeoutText(t *testing.T) {
	s := mustOpen(t, newPath(t), NeverRemove, nil)
	storetest.TimeoutText(t, s, map[string]func(context.Context) error{
		"set": func(ctx context.Context) error { <-ctx.Done(); return s.Set(ctx, "k/1/s", nil) },
	})
}
