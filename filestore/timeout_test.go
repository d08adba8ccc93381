package filestore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
)

// TestTimeoutText: as in core/store.
func TestTimeoutText(t *testing.T) {
	s := mustOpen(t, newPath(t), NeverRemove, nil)
	for name, call := range map[string]func(ctx context.Context) error{
		"get":     func(ctx context.Context) error { _, err := s.Get(ctx, "k/1"); return err },
		"wait":    func(ctx context.Context) error { return s.Wait(ctx, []string{"k/1", "k/2"}) },
		"barrier": func(ctx context.Context) error { return s.Barrier(ctx, "k/1/b", 2) },
		"set":     func(ctx context.Context) error { <-ctx.Done(); return s.Set(ctx, "k/1/s", nil) },
		"prefix":  func(ctx context.Context) error { _, err := store.NewPrefix("k", s).Get(ctx, "1"); return err },
	} {
		for _, d := range []time.Duration{0, 20 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			err := call(ctx)
			cancel()
			if !errors.Is(err, store.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			} else if text := err.Error(); !strings.Contains(text, "timeout") || !strings.Contains(text, "k/1") ||
				strings.Contains(text, "context") || strings.Contains(text, "deadline") {
				t.Errorf("%s: %q", name, text)
			}
		}
	}
}
