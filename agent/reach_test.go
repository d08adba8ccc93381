package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"rallypoint/core/params"
	"rallypoint/core/peer"
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

// TestStoreOutOfReachOnce: one failed try is no warning. It may be one of a process that was
// stopped, and does not know yet that the round is over.
func TestStoreOutOfReachOnce(t *testing.T) {
	s := newHarness(t, 1, "read x < $GO")
	gate := s.goFile()
	log := &testkit.Log{}
	a, err := New(s.spec, "test", s.rdzv, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer far.Close()
	testkit.Check(t, far.SetDeadline(time.Now().Add(30*time.Second)))
	tries := 0
	a.reachAfter = time.Millisecond
	a.dialStore = func(context.Context, string) (net.Conn, error) {
		if tries++; tries == 1 {
			return nil, errors.New("refused")
		}
		return near, nil
	}
	s.agent = a
	s.start()
	if _, err := far.Write([]byte("x")); err != nil { // the second try has it
		t.Fatal(err)
	}
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.wait(); err != nil {
		t.Error(err)
	}
	if text := log.String(); strings.Contains(text, "cannot be reached") {
		t.Error(text)
	}
}

// TestStoreWithinReach: a store that checks whose the connections are finds that of the trial
// open: else it would log another user's.
func TestStoreWithinReach(t *testing.T) {
	l, err := net.ListenTCP("tcp", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s := newHarness(t, 1, "read x < $GO")
	gate := s.goFile()
	s.rdzv.port = l.Addr().(*net.TCPAddr).Port
	s.prepare()
	s.agent.reachAfter = time.Millisecond
	s.start()
	conn, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	if err := conn.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil { // a trial that closes at once does it by then
		t.Fatal(err)
	}
	if n, err := conn.Read(make([]byte, 1)); n != 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("the trial says %d bytes, %v", n, err)
	}
	if err := peer.NewLoopbackCheck(params.LoopbackUsers{}).Admit(conn); err != nil {
		t.Error(err)
	}
	conn.Close()
	if err := os.WriteFile(gate, []byte("go\n"), 0); err != nil {
		t.Fatal(err)
	}
	if err := s.wait(); err != nil {
		t.Error(err)
	}
}
