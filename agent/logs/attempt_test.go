package logs

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOnlyFilesAreTailed: what a worker left in the place of a file does not hold the
// attempt up.
func TestOnlyFilesAreTailed(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0) // with a writer and without: neither has an end
	if err != nil {
		t.Fatal(err)
	}
	for _, open := range []bool{true, false} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			if text := lastOfFile(path); text != nil {
				t.Errorf("the last lines of a FIFO: %q", text)
			}
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("waits for a FIFO; writer: %v", open)
		}
		_ = writer.Close()
	}
}

// TestJobPrefix: a short run id stays, but for what separates folders.
func TestJobPrefix(t *testing.T) {
	if got := jobPrefix("a/b"); got != "a_b_" {
		t.Errorf("a short run id became %q", got)
	}
}
