package control

import (
	"net"
	"strings"
	"testing"
	"time"
)

// TestRefusalsAreLoggedOnce has one peer try again and again.
func TestRefusalsAreLoggedOnce(t *testing.T) {
	s := newFakeServer(t, Config{})
	try := func() {
		n := dialNode(t, s.addr)
		n.write([]byte{0})
		n.awaitEnd()
	}
	const tries = 5
	for range tries {
		try()
	}
	s.awaitRefused(t, refusedTCPStore, tries)
	if lines := s.log.await(t, "PyTorch TCPStore client", 1); len(lines) != 1 {
		t.Errorf("%d lines, want 1: %v", len(lines), lines)
	}
	s.clock.Advance(repeatAfter)
	try()
	lines := s.log.await(t, "PyTorch TCPStore client", 2)
	wantParts(t, lines[1], "again=4")
}

func (s *fakeServer) awaitRefused(t *testing.T, why refusal, n uint64) {
	t.Helper()
	ctx := testContext(t)
	for s.meters.refused[why].Load() < n {
		if ctx.Err() != nil {
			t.Fatalf("%d were refused as %s, want %d", s.meters.refused[why].Load(), refusalNames[why], n)
		}
	}
}

func TestRepeatsAreBounded(t *testing.T) {
	var r repeats
	now := time.Unix(1e9, 0)
	for i := range 3 * maxRepeats {
		from := &net.TCPAddr{IP: net.IPv4(10, 0, byte(i>>8), byte(i))}
		if logged, _ := r.ask(now, from, refusedTLS, ""); !logged {
			t.Fatalf("the first one of %s is not logged", from)
		}
		if logged, _ := r.ask(now, from, refusedTLS, ""); logged {
			t.Fatalf("the second one of %s is logged", from)
		}
		if logged, _ := r.ask(now, from, refusedTLS, "another node"); !logged {
			t.Fatal("another node is not logged")
		}
		if len(r.seen) > maxRepeats {
			t.Fatalf("%d are remembered", len(r.seen))
		}
	}
}

// TestLogNamesTheRunOnce checks the lines of a server of many runs, and of one
// run whose logger names it already.
func TestLogNamesTheRunOnce(t *testing.T) {
	for _, only := range []string{"", "run"} {
		log, lines := newLog(t)
		if only != "" {
			log = log.With("run", only)
		}
		_, addr := testServer(t, Config{RunID: only, Log: log})
		n := dialNode(t, addr)
		n.enter(testHello("a", "s1", testParams("", 1)))
		n.ask(1, join())
		n.wantReply(1)
		n.conn.Close()
		for _, text := range []string{"round 1 is complete", "connection broke"} {
			line := lines.await(t, text, 1)[0]
			wantParts(t, line, "run=run")
			if strings.Count(line, "run=") != 1 {
				t.Errorf("only %q: %s", only, line)
			}
		}
	}
}
