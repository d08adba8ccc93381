package control

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/conformance"
	"rallypoint/core/rendezvous"
	"rallypoint/core/trace"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/testkit"
)

func TestRecordingGoesOnAfterATornLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "history")
	for range 2 {
		rec, err := OpenTraceFile(path, slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		state := rendezvous.New(rendezvous.Config{RunID: "job", Generation: "g", Uptime: -1}).Snapshot()
		rec.Record(trace.Record{At: time.Now(), Run: "job", State: state})
		if err := rec.Close(); err != nil {
			t.Fatal(err)
		}
		rec.Record(trace.Record{At: time.Now(), Run: "job", State: state}) // does nothing
		history, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := history.WriteString(`{"at":`); err != nil {
			t.Fatal(err)
		}
		history.Close()
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	history, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer history.Close()
	if audit, err := conformance.Read(history); err != nil || !audit.Kept() {
		t.Errorf("%v, %s", err, audit)
	}
}

// TestRecordingEnds where it cannot be written or is large enough, with one line.
func TestRecordingEnds(t *testing.T) {
	for _, c := range []struct {
		path, says string
		most       int64
	}{
		{"/dev/full", "no space left on device", 1 << 20},
		{filepath.Join(t.TempDir(), "history"), "the recording is full", 300},
	} {
		var log bytes.Buffer
		rec, err := OpenTraceFile(c.path, slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		rec.most = c.most
		for range 10 {
			rec.Record(trace.Record{At: time.Now(), Run: "job", Event: rendezvous.Recovered{}})
		}
		rec.Flush()
		if lines := strings.Count(log.String(), "\n"); lines != 1 || !strings.Contains(log.String(), c.says) || !strings.Contains(log.String(), c.path) {
			t.Errorf("%s: %s", c.path, log.String())
		}
		if err := rec.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestRecordingOnAHungDisk: the server does not wait for a disk that does not answer. When too many
// records wait, the recording ends with one line.
func TestRecordingOnAHungDisk(t *testing.T) {
	log, lines := testkit.NewLog(t)
	read, write, err := os.Pipe()
	testkit.Check(t, err)
	rec := &TraceFile{log: log, begun: time.Now(), most: maxTraceFile, file: write}
	rec.queue = linequeue.New(&traceWriter{t: rec}, "history")
	for rec.queue.Put(make([]byte, 1<<20)) {
	}
	for rec.queue.Put(make([]byte, 100)) {
	}
	for range 2 {
		rec.Record(trace.Record{At: time.Now(), Run: "job", Event: rendezvous.Recovered{}})
	}
	if said := lines.With("the recording ends here", "its disk does not answer"); len(said) != 1 {
		t.Errorf("it says %s", lines)
	}
	read.Close() // the write that waits fails
	if err := rec.Close(); err != nil || len(lines.All()) != 1 {
		t.Errorf("%v, and it says %s", err, lines)
	}
}

// TestTraceFileOfOthers has something in the place of a recording that others may have put there.
func TestTraceFileOfOthers(t *testing.T) {
	dir := t.TempDir()
	kept := filepath.Join(dir, "kept")
	if err := os.WriteFile(kept, []byte("precious\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for says, plant := range map[string]func(path string) error{
		"the file that the link names": func(path string) error { return os.Symlink(kept, path) },
		"neither a regular file":       func(path string) error { return unix.Mkfifo(path, 0o666) },
		"belongs to user 65533": func(path string) error {
			return errors.Join(os.WriteFile(path, nil, 0o666), os.Chmod(dir, 0o777|os.ModeSticky), os.Chown(path, 65533, -1))
		},
	} {
		path := filepath.Join(dir, "history")
		if err := plant(path); errors.Is(err, os.ErrPermission) {
			continue // not root
		} else if err != nil {
			t.Fatal(err)
		}
		rec, err := OpenTraceFile(path, slog.New(slog.DiscardHandler))
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("expected %q: %v", says, err)
		}
		if err == nil {
			rec.Close()
		}
		_ = os.Remove(path)
	}
	if content, err := os.ReadFile(kept); string(content) != "precious\n" {
		t.Errorf("%q, %v", content, err)
	}
}
