package agent

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

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

// TestLongRunID: a run id may be longer than a file's name.
func TestLongRunID(t *testing.T) {
	folders := map[string]bool{}
	for _, id := range []string{strings.Repeat("x", 512), strings.Repeat("x", 511) + "y", strings.Repeat("é", 256), strings.Repeat("/", 512)} {
		s := newStage(t, 1, "exit 0")
		s.spec.RunID = id
		if err := s.run(); err != nil {
			t.Fatal(err)
		}
		made, err := os.ReadDir(s.spec.Logs.Dir)
		if err != nil || len(made) != 1 || !utf8.ValidString(made[0].Name()) {
			t.Fatalf("%v, %v", made, err)
		}
		folders[strings.TrimSuffix(made[0].Name(), made[0].Name()[len(made[0].Name())-uniqueLen:])] = true
	}
	if len(folders) != 4 {
		t.Errorf("the folders begin with %v", folders)
	}
	if got := jobPrefix("a/b"); got != "a_b_" {
		t.Errorf("a short run id became %q", got)
	}
}

// TestNoFolderForLogs: a system without a folder for temporary files runs workers all the
// same, unless files were asked for; what they leave behind is found.
func TestNoFolderForLogs(t *testing.T) {
	s := newStage(t, 1, `setsid sh -c 'echo $$ > $SAY; exec sleep 100' & read go < $GO; echo "at: $TORCHELASTIC_ERROR_FILE" >&2; exit 3`)
	s.spec.Logs = LogSpec{TempDir: filepath.Join(t.TempDir(), "not", "there")}
	s.spec.ShutdownTimeout = 0
	gate := filepath.Join(t.TempDir(), "go")
	if err := unix.Mkfifo(gate, 0o600); err != nil {
		t.Fatal(err)
	}
	s.spec.Environ = append(s.spec.Environ, "GO="+gate)
	stderr, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	s.spec.Stderr = stderr
	s.start()
	pids := s.hearPids(1)
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	failures := s.failed(s.wait())
	if len(failures) != 1 || failures[0].ExitCode != 3 || string(failures[0].Stderr) != "at: \n" {
		t.Errorf("failures %+v", failures)
	}
	for _, pid := range pids {
		if stat, ok := readStat(pid); ok && stat.state != 'Z' {
			t.Errorf("process %d is still there, in state %c", pid, stat.state)
		}
	}

	s = newStage(t, 1, "exit 0")
	s.spec.Logs = LogSpec{TempDir: filepath.Join(t.TempDir(), "not", "there"), Redirects: AllRanks(StdErr)}
	start := new(StartError)
	if err := s.run(); !errors.As(err, &start) || !strings.Contains(err.Error(), "TMPDIR") {
		t.Errorf("files that were asked for: %v", err)
	}
}
