package tcpstore

import (
	"bytes"
	"net"
	"strings"
	"sync"
	"testing"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

func TestListenAddresses(t *testing.T) {
	for addr, want := range map[string]string{
		":0":          "[::]:",
		"[::]:0":      "[::]:",
		"0.0.0.0:0":   "0.0.0.0:",
		"127.0.0.1:0": "127.0.0.1:",
	} {
		s, err := Listen(addr, store.NewEngine(store.Limits{}), Options{})
		if err != nil {
			t.Errorf("%s: %v", addr, err)
			continue
		}
		if got := s.Addr().String(); !strings.HasPrefix(got, want) {
			t.Errorf("%s listens on %s", addr, got)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, addr := range []string{"localhost:0", "no-such-host:1", "127.0.0.1", "127.0.0.1:99999", "x"} {
		if s, err := Listen(addr, store.NewEngine(store.Limits{}), Options{}); err == nil {
			t.Errorf("%s listens on %s", addr, s.Addr())
			s.Close()
		}
	}
}

func TestDualStack(t *testing.T) {
	s, err := Listen(":0", store.NewEngine(store.Limits{}), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	_, port, _ := net.SplitHostPort(s.Addr().String())
	for _, host := range []string{"127.0.0.1", "::1"} {
		conn, err := net.Dial("tcp", net.JoinHostPort(host, port))
		if err != nil {
			t.Errorf("%s: %v", host, err)
			continue
		}
		conn.Close()
	}
}

// TestBadPeers: each is closed with one line, and the others continue. The bad ones
// are different hosts, of which each is logged.
func TestBadPeers(t *testing.T) {
	s, lines := newServer(t, Options{})
	good, waiting := dialHello(t, s), dialHello(t, s)
	silent := dialRaw(t, s)
	half := dialRaw(t, s)
	half.exchange(append(hello, msg(opSet, "/half", 1000)...), hello[6:])
	if _, err := waiting.Write(msg(opWait, 1, "/end")); err != nil {
		t.Fatal(err)
	}

	host := byte(2)
	for name, c := range map[string]struct{ sent, words string }{
		"garbage":         {"\xff\xfe garbage", "torch 2.2 and newer"},
		"http":            {"GET / HTTP/1.1\r\n\r\n", "torch 2.2 and newer"},
		"torch 2.1":       {string(msg(0, "/k", "v")), "torch 2.2 and newer"},
		"huge length":     {string(append(hello, msg(opSet, uint64(1)<<63)...)), "9223372036854775808 bytes"},
		"huge count":      {string(append(hello, msg(opWait, uint64(1)<<63)...)), "9223372036854775808 keys"},
		"unknown":         {string(append(hello, 0x13)), "0x13"},
		"add to text":     {string(append(hello, append(msg(opSet, "/t", "x"), msg(opAdd, "/t", 1)...)...)), "not a number"},
		"second validate": {string(append(hello, hello...)), "VALIDATE on a validated"},
	} {
		t.Run(name, func(t *testing.T) {
			bad := dialWith(t, s, net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, host)}})
			host++
			bad.Write([]byte(c.sent))
			bad.expectClosed()
			line := lines.Next(t)
			if !strings.Contains(line, c.words) || !strings.Contains(line, "peer="+bad.LocalAddr().String()) {
				t.Errorf("the line is %s", line)
			}
			good.exchange(appendPing(nil, 5), []byte{5, 0, 0, 0})
		})
	}

	cut := dialRaw(t, s)
	cut.Write(append(hello, msg(opSet, "/half", 1000)...))
	cut.CloseWrite()
	cut.expectClosed()
	if line := lines.Next(t); !strings.Contains(line, "inside a message") {
		t.Errorf("the line is %s", line)
	}

	half.exchange(append(make([]byte, 1000), msg(opAppend, "/end", "v")[0:]...), nil)
	half.Close()
	waiting.exchange(nil, []byte{0})
	silent.exchange(hello, hello[6:])
	if n := len(lines.With("level=WARN")); n != 9 {
		t.Errorf("%d lines for 9 bad peers", n)
	}
	stats := s.Stats()
	if stats.Refused["dialect"] != 3 || stats.Refused["too_large"] != 2 || stats.Refused["not_a_number"] != 1 ||
		stats.Refused["opcode"] != 2 || stats.Refused["truncated"] != 1 {
		t.Errorf("refused: %v", stats.Refused)
	}
}

// TestReplyOverLimit: a reply larger than the bound ends the connection.
func TestReplyOverLimit(t *testing.T) {
	s, lines := newServer(t, Options{MaxUnsent: 1 << 20})
	bad := dialHello(t, s)
	value := strings.Repeat("v", 300<<10)
	bad.exchange(msg(opSet, "/k", value), nil)
	bad.exchange(msg(opGet, "/k"), msg(0, value)[1:])
	bad.exchange(append(appendPing(nil, 9), msg(opMultiGet, 4, "/k", "/k", "/k", "/k")...), []byte{9, 0, 0, 0})
	bad.expectClosed()
	if line := lines.Next(t); !strings.Contains(line, "MULTI_GET") || !strings.Contains(line, "reason=unsent_replies") {
		t.Errorf("the line is %s", line)
	}
}

// TestCloseEndsSlowReader: Close does not wait for peers.
func TestCloseEndsSlowReader(t *testing.T) {
	s, _ := newServer(t, Options{})
	slow, waiting := dialHello(t, s), dialHello(t, s)
	waiting.exchange(append(msg(opWait, 1, "/x"), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	slow.exchange(msg(opSet, "/k", strings.Repeat("v", 1<<20)), nil)
	slow.exchange(bytes.Repeat(msg(opGet, "/k"), 100), nil)
	testkit.Eventually(t, "the server has begun to write", func() bool { return s.Stats().BytesOut > 1<<20 })
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	waiting.expectClosed()
	slow.expectClosed()
	if s.Stats().Connections != 0 || s.Stats().Waiters != 0 {
		t.Errorf("%d connections, %d waiters", s.Stats().Connections, s.Stats().Waiters)
	}
}

func TestDisconnectWithdrawsWaits(t *testing.T) {
	s, _ := newServer(t, Options{})
	gone := dialHello(t, s)
	gone.exchange(append(msg(opWait, 2, "/x", "/y"), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	if n := s.Stats().Waiters; n != 1 {
		t.Fatalf("%d waiters", n)
	}
	gone.Close()
	testkit.Eventually(t, "no waiters, no connections", func() bool { return s.Stats().Waiters == 0 && s.Stats().Connections == 0 })
}

// TestWakeMany: one write answers the waits of many connections.
func TestWakeMany(t *testing.T) {
	s, _ := newServer(t, Options{})
	var waiting []raw
	for range 200 {
		r := dialHello(t, s)
		r.exchange(append(msg(opWait, 1, "/x"), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
		waiting = append(waiting, r)
	}
	waiting[0].exchange(msg(opSet, "/x", ""), []byte{0})
	for _, r := range waiting[1:] {
		r.exchange(nil, []byte{0})
	}
}

func TestSwapEngine(t *testing.T) {
	s, _ := newServer(t, Options{})
	old, oldWaiting := dialHello(t, s), dialHello(t, s)
	old.exchange(msg(opSet, "/k", "old"), nil)
	oldWaiting.exchange(append(msg(opWait, 1, "/w"), appendPing(nil, 1)...), []byte{1, 0, 0, 0})

	s.SwapEngine(store.NewEngine(store.Limits{}))
	fresh := dialHello(t, s)
	fresh.exchange(msg(opCheck, 1, "/k"), []byte{1})
	fresh.exchange(msg(opSet, "/w", "new"), nil)
	fresh.exchange(appendPing(nil, 2), []byte{2, 0, 0, 0})
	old.exchange(msg(opGet, "/k"), msg(0, "old")[1:])
	old.exchange(msg(opCheck, 1, "/w"), []byte{1})
	old.exchange(msg(opSet, "/w", ""), nil)
	oldWaiting.exchange(nil, []byte{0})
	if stats := s.Stats(); stats.Keys != 1 || stats.Bytes != 5 || s.Stats().Connections != 3 {
		t.Errorf("keys %d, bytes %d, connections %d", stats.Keys, stats.Bytes, s.Stats().Connections)
	}
}

func TestNormalizeOption(t *testing.T) {
	s, _ := newServer(t, Options{NormalizeAttemptKeys: true})
	a, b := dialHello(t, s), dialHello(t, s)
	a.exchange(msg(opAdd, "//worker/attempt_0/n", 1), msg(0, 1)[1:])
	b.exchange(msg(opAdd, "//worker/attempt_1/n", 1), msg(0, 2)[1:])
}

func TestStats(t *testing.T) {
	s, _ := newServer(t, Options{})
	a := dialHello(t, s)
	a.exchange(append(msg(opSet, "/k", "v"), msg(opGet, "/k")...), msg(0, "v")[1:])
	a.Close()
	testkit.Eventually(t, "closed", func() bool { return s.Stats().Connections == 0 })
	stats := s.Stats()
	if stats.Accepted != 1 || stats.Connections != 0 || stats.BytesOut != 4+9 || stats.BytesIn != 10+20+11 ||
		stats.Ops["VALIDATE"] != 1 || stats.Ops["PING"] != 1 || stats.Ops["SET"] != 1 || stats.Ops["GET"] != 1 ||
		stats.Ops["BARRIER"] != 0 || len(stats.Ops) != numOpcodes || len(stats.Refused) != int(numReasons) {
		t.Errorf("%+v", stats)
	}
}

// brokenListener fails a few times before it accepts.
type brokenListener struct {
	net.Listener
	mu    sync.Mutex
	fails int
}

func (b *brokenListener) Accept() (net.Conn, error) {
	b.mu.Lock()
	fail := b.fails > 0
	b.fails--
	b.mu.Unlock()
	if fail {
		return nil, &net.OpError{Op: "accept", Err: net.UnknownNetworkError("out of descriptors")}
	}
	return b.Listener.Accept()
}

func TestAcceptGoesOnAfterErrors(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines, logger := newLog()
	s := Serve(&brokenListener{Listener: inner, fails: 2}, store.NewEngine(store.Limits{}), Options{Logger: logger})
	defer s.Close()
	dialHello(t, s)
	if line := lines.Next(t); !strings.Contains(line, "cannot accept") {
		t.Errorf("the line is %s", line)
	}
	inner.Close()
	if line := lines.Next(t); !strings.Contains(line, "closed from outside") {
		t.Errorf("the line is %s", line)
	}
}
