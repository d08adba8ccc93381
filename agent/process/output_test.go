package process

import (
	"context"
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// TestOutput: a program's output is returned; one that does not end is killed with its
// context. Neither is left behind.
func TestOutput(t *testing.T) {
	f := NewForker(nil)
	defer f.Close()
	env := []string{"PATH=" + os.Getenv("PATH")}
	text, err := f.Output(t.Context(), []string{"sh", "-c", "echo said; echo unseen >&2; exit 3"}, env)
	if err != nil || string(text) != "said\n" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := f.Output(t.Context(), []string{"no such program"}, env); !errors.Is(err, unix.ENOENT) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.Output(ctx, []string{"sh", "-c", "sleep 1000 & sleep 1000"}, env); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error(err)
	}
	if len(f.known)+len(f.kept) > 0 {
		t.Errorf("left behind: %v %v", f.known, f.kept)
	}
}
