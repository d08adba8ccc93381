package testkit

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/internal/wake"
)

// Log keeps what is written to it, a line a write, and lets a test wait for lines. The zero
// value is ready for use.
type Log struct {
	mu    sync.Mutex
	lines []string
	read  int // by Next
	once  sync.Once
	more  wake.Signal
}

// NewLog makes a log of all levels, whose lines the test shows if it fails.
func NewLog(t testing.TB) (*slog.Logger, *Log) {
	t.Helper()
	l := &Log{}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("log:\n%s", l)
		}
	})
	return slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{Level: slog.LevelDebug})), l
}

// written is set by each write.
func (l *Log) written() wake.Signal {
	l.once.Do(func() { l.more = wake.New() })
	return l.more
}

func (l *Log) Write(b []byte) (int, error) {
	l.mu.Lock()
	l.lines = append(l.lines, string(b))
	l.mu.Unlock()
	l.written().Set()
	return len(b), nil
}

// All returns what was written.
func (l *Log) All() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.lines)
}

func (l *Log) String() string { return strings.Join(l.All(), "") }

// With returns the lines that contain all of the texts.
func (l *Log) With(texts ...string) (found []string) {
	for _, line := range l.All() {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			found = append(found, line)
		}
	}
	return found
}

// Next waits for a line that it has not returned yet. One goroutine at a time waits.
func (l *Log) Next(t testing.TB) string {
	t.Helper()
	line := l.Await(t, "", l.read+1)[l.read]
	l.read++
	return line
}

// Await waits until the lines that contain text are n, and returns them. One goroutine at a
// time waits.
func (l *Log) Await(t testing.TB, text string, n int) []string {
	t.Helper()
	deadline := time.After(Patience)
	for {
		found := l.With(text)
		if len(found) >= n {
			return found
		}
		select {
		case <-l.written():
		case <-deadline:
			t.Fatalf("%d lines with %q, want %d; log:\n%s", len(found), text, n, l)
		}
	}
}
