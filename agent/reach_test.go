package agent

import (
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// TestStoreOutOfReach: an address that no worker can connect to is named while the workers
// run.
func TestStoreOutOfReach(t *testing.T) {
	s := newHarness(t, 1, "echo up > $SAY; read x < $GO")
	gate := s.goFile()
	log := &testkit.Log{}
	a, err := New(s.spec, "test", s.rdzv, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	a.reachAfter = time.Millisecond
	s.agent = a
	s.start()
	s.hear()
	if line := log.Await(t, "127.0.0.1:1", 1)[0]; !strings.Contains(line, "cannot be reached from this node") || !strings.Contains(line, "advertise_addr") {
		t.Error(line)
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.wait(); err != nil {
		t.Error(err)
	}
}
