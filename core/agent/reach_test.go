package agent

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// logWatch is a log that reports the first line with a text.
type logWatch struct {
	text string
	once sync.Once
	seen chan string
}

func (n *logWatch) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte(n.text)) {
		n.once.Do(func() { n.seen <- string(line) })
	}
	return len(line), nil
}

// TestStoreOutOfReach: an address that no worker can connect to is named while the workers
// run.
func TestStoreOutOfReach(t *testing.T) {
	s := newStage(t, 1, "echo up > $SAY; read x < $GO")
	gate := s.goFile()
	n := &logWatch{text: "127.0.0.1:1", seen: make(chan string, 1)}
	a, err := New(s.spec, "test", s.rdzv, slog.New(slog.NewTextHandler(n, nil)))
	if err != nil {
		t.Fatal(err)
	}
	a.reachAfter = time.Millisecond
	s.agent = a
	s.start()
	s.hear()
	if line := <-n.seen; !strings.Contains(line, "cannot be reached from this node") || !strings.Contains(line, "advertise_addr") {
		t.Error(line)
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.wait(); err != nil {
		t.Error(err)
	}
}
