package agent

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestOnlyFilesAreRead: what a worker left in the place of a file does not hold the
// report of its failure up.
func TestOnlyFilesAreRead(t *testing.T) {
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
			var f Failure
			if err := f.readErrorFile(path); err == nil {
				t.Error("a FIFO is an error file")
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

// TestLargeErrorFile is not read.
func TestLargeErrorFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "error.json")
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(path, maxErrorFile+1); err != nil {
		t.Fatal(err)
	}
	var f Failure
	if err := f.readErrorFile(path); err == nil || !strings.Contains(err.Error(), "more than") {
		t.Errorf("it is read: %v", err)
	}
}
