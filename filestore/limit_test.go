package filestore

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
)

// TestSparseFile has more to read than there is time for: a file that somebody has made a TB
// long, all of it zeros, which are records without key and value.
func TestSparseFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "store")
	s, err := Open(t.Context(), path, NeverRemove, &Options{CloseTimeout: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, 1<<40); err != nil {
		t.Skip("no sparse files: ", err)
	}
	late := func() context.Context {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	if _, err := s.Get(late(), "key"); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("get: %v", err)
	}
	interrupted, interrupt := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, interrupt)
	if err := s.Set(interrupted, "key", nil); !errors.Is(err, context.Canceled) {
		t.Errorf("set: %v", err)
	}
	if err := s.Close(); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("close: %v", err)
	}
	if _, err := Open(late(), path, NeverRemove, nil); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("open: %v", err)
	}
}

// TestFileOfOthers opens files that other users can write to.
func TestFileOfOthers(t *testing.T) {
	for _, test := range []struct {
		mode  os.FileMode
		owner int
		warns bool
	}{
		{0o644, os.Geteuid(), false},
		{0o664, os.Geteuid(), false},
		{0o666, os.Geteuid(), true},
		{0o644, 65533, true},
		{0o666, 65533, true},
	} {
		path := filepath.Join(t.TempDir(), "store")
		if err := errors.Join(os.WriteFile(path, nil, 0o600), os.Chmod(path, test.mode)); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(path, test.owner, -1); err != nil {
			continue // not root
		}
		var log strings.Builder
		s, err := Open(t.Context(), path, NeverRemove, &Options{Log: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if warns := strings.Contains(log.String(), "other users can change"); warns != test.warns {
			t.Errorf("mode %o of user %d: %q", test.mode, test.owner, &log)
		}
	}
}
