package store

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"
)

// TestTimeoutText: a call that ran out of time says so in the word that torch's stores
// have, with the keys, and without the words of Go's contexts.
func TestTimeoutText(t *testing.T) {
	l := NewMemory(NewEngine(Limits{}))
	for name, call := range map[string]func(ctx context.Context) error{
		"get":       func(ctx context.Context) error { _, err := l.Get(ctx, "k/1"); return err },
		"multi_get": func(ctx context.Context) error { _, err := l.MultiGet(ctx, []string{"k/1"}); return err },
		"wait":      func(ctx context.Context) error { return l.Wait(ctx, []string{"k/1", "k/2"}) },
		"queue_pop": func(ctx context.Context) error { _, err := l.QueuePop(ctx, "k/1", true); return err },
		"barrier":   func(ctx context.Context) error { return l.Barrier(ctx, "k/1/b", 2) },
		"prefix":    func(ctx context.Context) error { _, err := NewPrefix("k", l).Get(ctx, "1"); return err },
	} {
		for _, d := range []time.Duration{0, time.Millisecond} {
			ctx, cancel := context.WithTimeout(t.Context(), d)
			err := call(ctx)
			cancel()
			if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: %v", name, err)
			} else if text := err.Error(); !strings.Contains(text, "timeout") || !strings.Contains(text, "k/1") ||
				strings.Contains(text, "context") || strings.Contains(text, "deadline") {
				t.Errorf("%s: %q", name, text)
			}
		}
	}
}
