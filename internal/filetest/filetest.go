// Package filetest holds what the tests of stores and logs in files share: file systems
// that several machines see, and their faults.
package filetest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/testkit"
)

// envElsewhere, as FOLDER=OTHER, says that OTHER shows the same files as FOLDER, by
// another mount of the file system, as another machine's would. Other processes of the
// tests then go by that one (testdata/two-mounts).
const envElsewhere = "RALLYPOINT_TEST_ELSEWHERE"

// Elsewhere is the path by which other processes find a file.
func Elsewhere(path string) string {
	here, there, ok := strings.Cut(os.Getenv(envElsewhere), "=")
	if rest, below := strings.CutPrefix(path, here+"/"); ok && below {
		return there + "/" + rest
	}
	return path
}

// AtFIFO calls with the path of a FIFO that has a writer, and then none: neither has an end.
// The test ends if the call waits for one.
func AtFIFO(t testing.TB, call func(path string)) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	testkit.Check(t, unix.Mkfifo(path, 0o600))
	writer := testkit.Must(os.OpenFile(path, os.O_RDWR, 0))(t)
	for _, open := range []bool{true, false} {
		done := make(chan struct{})
		go func() {
			defer close(done)
			call(path)
		}()
		select {
		case <-done:
		case <-time.After(10 * time.Second):
			t.Fatalf("it waits for a FIFO; writer: %v", open)
		}
		_ = writer.Close()
	}
}
