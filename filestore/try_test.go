package filestore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
)

// TestTryDoBehindTheLock: while another process holds the lock a write is pending and does
// nothing, and a read of what is known is done.
func TestTryDoBehindTheLock(t *testing.T) {
	ctx := t.Context()
	path := filepath.Join(t.TempDir(), "store")
	s, err := Open(ctx, path, NeverRemove, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Set(ctx, "k", []byte("v")); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := unix.Flock(int(other.Fd()), unix.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	reply, pending, err := s.TryDo(ctx, store.Request{Op: store.OpGet, Keys: []string{"k"}}, 0)
	if pending != nil || err != nil || string(reply.Values[0]) != "v" {
		t.Errorf("get: %v", err)
	}
	add := store.Request{Op: store.OpAdd, Keys: []string{"n"}, Number: 1}
	_, pending, err = s.TryDo(ctx, add, 0)
	if pending == nil || err != nil {
		t.Fatalf("add: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := pending(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("add with a context that has ended: %v", err)
	}
	_, pending, err = s.TryDo(ctx, add, 0)
	if pending == nil || err != nil {
		t.Fatalf("add: %v", err)
	}
	if err := unix.Flock(int(other.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if reply, err := pending(ctx); reply.Number != 1 || err != nil {
		t.Errorf("add that was pending: %d, %v", reply.Number, err)
	}
}
