package tcpstore

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
	"rallypoint/internal/linequeue"
	"rallypoint/internal/testkit"
)

// heapInUse returns how much memory is in use, without garbage.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// eachLoops runs a test with one and with several loops.
func eachLoops(t *testing.T, test func(t *testing.T, loops int)) {
	for _, loops := range []int{1, 3} {
		t.Run(fmt.Sprint(loops, " loops"), func(t *testing.T) { test(t, loops) })
	}
}

// TestManyConnections: each of a thousand does some of everything, in pieces of
// its own length, and in the end they wait for each other.
func TestManyConnections(t *testing.T) {
	eachLoops(t, func(t *testing.T, loops int) {
		const n = 1000
		s, lines := newServer(t, Options{Loops: loops})
		peers := make([]raw, n)
		for i := range peers {
			peers[i] = dialHello(t, s)
		}
		large := strings.Repeat("v", 100<<10)
		var wg sync.WaitGroup
		for i, r := range peers {
			wg.Go(func() {
				key := fmt.Sprint("/key/", i)
				r.pieces(msg(opSet, key, "value"), 1+i%7)
				r.tryExchange(msg(opGet, key), msg(0, "value")[1:])
				r.tryExchange(msg(opCompareSet, key, "value", "other"), msg(0, "other")[1:])
				r.tryExchange(bytes.Repeat(msg(opCheck, 1, key), 10), make([]byte, 10))
				r.tryExchange(msg(opMultiGet, 2, key, "/none"), msg(0, "other", "")[1:])
				if i%50 == 0 {
					r.pieces(append(msg(opSet, key, large), msg(opGet, key)...), 1000+i)
					r.tryExchange(nil, msg(0, large)[1:])
				}
				r.tryExchange(msg(opBarrier, "/all", n), []byte{0})
			})
		}
		wg.Wait()
		stats := s.Stats()
		if stats.Keys != n+1 || stats.Waiters != 0 || stats.Connections != n || stats.Accepted != n ||
			stats.Ops["BARRIER"] != n || stats.Ops["CHECK"] != 10*n {
			t.Errorf("%+v", stats)
		}
		if len(lines.With("WARN")) > 0 {
			t.Error("a client was refused")
		}
	})
}

// pieces sends b in pieces of n bytes.
func (r raw) pieces(b []byte, n int) {
	r.t.Helper()
	for len(b) > 0 {
		n := min(n, len(b))
		if _, err := r.Write(b[:n]); err != nil {
			r.t.Error(err)
			return
		}
		b = b[n:]
	}
}

// TestWakeAcrossLoops: one write answers the waits on all loops, again and again.
func TestWakeAcrossLoops(t *testing.T) {
	eachLoops(t, func(t *testing.T, loops int) {
		s, _ := newServer(t, Options{Loops: loops})
		writer := dialHello(t, s)
		waiting := make([]raw, 100)
		for i := range waiting {
			waiting[i] = dialHello(t, s)
		}
		for round := range 20 {
			key := fmt.Sprint("/", round)
			for _, r := range waiting {
				r.exchange(append(msg(opWait, 1, key), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
			}
			writer.exchange(msg(opSet, key, ""), nil)
			for _, r := range waiting {
				r.exchange(nil, []byte{0})
			}
		}
	})
}

// TestManyWaitsOfOneConnection: replies that others cause come in one piece, even
// if they do not fit into what a connection at rest has for them.
func TestManyWaitsOfOneConnection(t *testing.T) {
	s, _ := newServer(t, Options{})
	writer, waiting := dialHello(t, s), dialHello(t, s)
	waiting.exchange(append(bytes.Repeat(msg(opWait, 1, "/x"), 100), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	writer.exchange(msg(opSet, "/x", ""), nil)
	waiting.exchange(nil, make([]byte, 100))
	waiting.exchange(msg(opSet, "/y", "v"), nil)
	waiting.exchange(append(msg(opWait, 1, "/z"), msg(opSet, "/z", "")...), []byte{0})
}

// TestLongPipeline: requests that fill several reads, and whose replies fill several
// writes, are all answered without anything more arriving.
func TestLongPipeline(t *testing.T) {
	s, _ := newServer(t, Options{})
	r := dialHello(t, s)
	value := strings.Repeat("v", 100)
	r.exchange(append(msg(opSet, "/k", value), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	const gets = 30000
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		r.Write(bytes.Repeat(msg(opGet, "/k"), gets))
	}()
	r.exchange(nil, bytes.Repeat(msg(0, value)[1:], gets))
	<-sent
}

// TestSlowReaders: peers that pipeline and do not read are not served on, cost
// little memory and hold up no others; when they read they get all their replies,
// even if they have ended their own stream.
func TestSlowReaders(t *testing.T) {
	s, lines := newServer(t, Options{})
	good := dialHello(t, s)
	value := strings.Repeat("v", 1<<20)
	good.exchange(append(msg(opSet, "/k", value), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	const gets = 15
	before := heapInUse()
	var slow []raw
	for i := range 10 {
		r := dialHello(t, s)
		r.SetReadBuffer(64 << 10)
		r.exchange(bytes.Repeat(msg(opGet, "/k"), gets), nil)
		if i%2 == 0 {
			r.CloseWrite()
		}
		slow = append(slow, r)
	}
	for i := range 100 {
		good.exchange(appendPing(nil, uint32(i)), []byte{byte(i), 0, 0, 0})
	}
	if n := (heapInUse() - before) / int64(len(slow)); n > 3<<20 {
		t.Errorf("%d bytes wait for each peer that does not read", n)
	}
	for i, r := range slow {
		reply := msg(0, value)[1:]
		for range gets {
			r.exchange(nil, reply)
		}
		if i%2 == 0 {
			r.expectClosed()
		}
	}
	if len(lines.With("WARN")) > 0 {
		t.Error("a client was refused")
	}
}

// TestReplyWaitsForSlowReader: replies that others cause meanwhile come after those that are
// unsent.
func TestReplyWaitsForSlowReader(t *testing.T) {
	s, _ := newServer(t, Options{})
	good, slow := dialHello(t, s), dialHello(t, s)
	value := strings.Repeat("v", MaxValueBytes)
	good.exchange(append(msg(opSet, "/k", value), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	sent := s.Stats().BytesOut
	slow.exchange(append(msg(opWait, 1, "/x"), msg(opGet, "/k")...), nil)
	testkit.Eventually(t, "the reply has begun", func() bool { return s.Stats().BytesOut > sent+1000 })
	good.exchange(append(msg(opSet, "/x", ""), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	slow.exchange(nil, msg(0, value)[1:])
	slow.exchange(nil, []byte{0})
}

// narrow accepts connections with little room for what is sent.
type narrow struct{ net.Listener }

func (n narrow) Accept() (net.Conn, error) {
	conn, err := n.Listener.Accept()
	if err == nil {
		conn.(*net.TCPConn).SetWriteBuffer(4 << 10)
	}
	return conn, err
}

// dialNarrow is dialRaw with little room for what arrives, from the handshake on.
func dialNarrow(t *testing.T, s *Server, bytes int) raw {
	t.Helper()
	return dialWith(t, s, net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
		return c.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, bytes) })
	}})
}

// TestLastWords: a refused peer gets the replies to its earlier requests if it
// reads them, and is closed if it does not.
func TestLastWords(t *testing.T) {
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines, logger := newLog()
	s := Serve(narrow{inner}, store.NewEngine(store.Limits{}), Options{Logger: logger})
	defer s.Close()
	value := strings.Repeat("v", pauseUnsent-100)
	reads, silent := dialNarrow(t, s, 1), dialNarrow(t, s, 1)
	for i, r := range []raw{silent, reads} {
		r.exchange(hello, hello[6:])
		r.exchange(msg(opSet, "/k", value), nil)
		r.exchange(append(msg(opGet, "/k"), 0xff), nil)
		testkit.Eventually(t, "refused", func() bool { return s.Stats().Refused["opcode"] == uint64(i+1) })
	}
	if line := lines.Next(t); !strings.Contains(line, "0xff") {
		t.Errorf("the line is %s", line)
	}
	reads.exchange(nil, msg(0, value)[1:])
	reads.expectClosed()
	testkit.Eventually(t, "closed", func() bool { return s.Stats().Connections == 0 })
	if n, _ := io.Copy(io.Discard, silent); n >= int64(len(value)) {
		t.Errorf("the one that did not read has got %d bytes", n)
	}
}

// stuck is a log that blocks its writers until it is closed.
type stuck chan struct{}

func (s stuck) Write(b []byte) (int, error) { <-s; return len(b), nil }

// TestLogDoesNotHoldUp: others are served while a line cannot be written, by the queue that all
// logs have.
func TestLogDoesNotHoldUp(t *testing.T) {
	log := make(stuck)
	s, err := Listen("127.0.0.1:0", store.NewEngine(store.Limits{}),
		Options{Logger: slog.New(slog.NewTextHandler(linequeue.New(log, "stderr"), nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	defer close(log)
	good, bad := dialHello(t, s), dialHello(t, s)
	bad.exchange([]byte{0xff}, nil)
	bad.expectClosed()
	good.exchange(appendPing(nil, 7), []byte{7, 0, 0, 0})
}

// TestCloseDuringTraffic: Close returns while all are busy, and nothing is left.
func TestCloseDuringTraffic(t *testing.T) {
	eachLoops(t, func(t *testing.T, loops int) {
		s, _ := newServer(t, Options{Loops: loops})
		var wg sync.WaitGroup
		for i := range 50 {
			r := dialHello(t, s)
			request := append(msg(opSet, "/k", fmt.Sprint(i)), msg(opWait, 2, "/k", "/never")...)
			request = append(request, msg(opCancelWait)...)
			wg.Go(func() {
				reply := make([]byte, 1)
				for {
					if _, err := r.Write(request); err != nil {
						return
					}
					if _, err := io.ReadFull(r, reply); err != nil {
						return
					}
				}
			})
		}
		for range 4 { // others come and go meanwhile
			wg.Go(func() {
				for {
					conn, err := net.Dial("tcp", s.Addr().String())
					if err != nil {
						return
					}
					conn.Write(hello)
					conn.(*net.TCPConn).SetLinger(0) // or ports run out
					conn.Close()
				}
			})
		}
		testkit.Eventually(t, "busy", func() bool { return s.Stats().Ops["SET"] > 5000 })
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		wg.Wait()
		if stats := s.Stats(); stats.Connections != 0 || stats.Waiters != 0 {
			t.Errorf("%d connections, %d waiters", stats.Connections, stats.Waiters)
		}
	})
}

// TestIdleServerSleeps: without news no loop runs, whatever its connections are
// in the middle of.
func TestIdleServerSleeps(t *testing.T) {
	eachLoops(t, func(t *testing.T, loops int) {
		s, _ := newServer(t, Options{Loops: loops})
		for i := range 20 {
			r := dialHello(t, s)
			switch i % 4 {
			case 1:
				r.exchange(msg(opWait, 1, "/never"), nil)
			case 2:
				r.exchange(msg(opSet, "/k", 1000), nil) // the rest never comes
			case 3:
				r.exchange(msg(opSet, "/large", strings.Repeat("v", 8<<20)), nil)
				r.exchange(msg(opGet, "/large"), nil) // never read
			}
		}
		turns := func() (n uint64) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, l := range s.loops {
				n += l.turns.Load()
			}
			return n
		}
		quiet := func() bool {
			before := turns()
			time.Sleep(20 * time.Millisecond)
			return turns() == before
		}
		testkit.Eventually(t, "quiet", quiet)
		before := turns()
		for range 5 {
			quiet()
		}
		// The kernel may have something to tell even so, such as a larger window.
		if n := turns() - before; n > 10 {
			t.Errorf("%d iterations without any news", n)
		}
		dialHello(t, s) // and it wakes up again
	})
}

// TestServerDoesNotAllocate: not for requests, once it has run for a while.
func TestServerDoesNotAllocate(t *testing.T) {
	s, _ := newServer(t, Options{})
	a := dialHello(t, s)
	value := strings.Repeat("v", 64<<10)
	for _, c := range []struct {
		name       string
		sent, want []byte
	}{
		{"set and get", append(msg(opSet, "/k", "value"), msg(opGet, "/k")...), msg(0, "value")[1:]},
		{"large set and get", append(msg(opSet, "/large", value), msg(opGet, "/large")...), msg(0, value)[1:]},
		{"multi_get", msg(opMultiGet, 2, "/k", "/k"), msg(0, "value", "value")[1:]},
		{"check", msg(opCheck, 3, "/k", "/k", "/large"), []byte{0}},
		{"wait", msg(opWait, 2, "/k", "/large"), []byte{0}},
		{"add", append(msg(opSet, "/n", "1"), msg(opAdd, "/n", 1)...), msg(0, 2)[1:]},
	} {
		got := make([]byte, len(c.want))
		exchange := func() {
			a.Write(c.sent)
			io.ReadFull(a.TCPConn, got)
		}
		for range 100 {
			exchange()
		}
		if n := testing.AllocsPerRun(200, exchange); n >= 1 || !bytes.Equal(got, c.want) {
			t.Errorf("%s: %v allocations, or a wrong reply", c.name, n)
		}
	}
}

// TestConnectionIsSmall: what a silent connection costs the server, apart from
// the kernel's memory.
func TestConnectionIsSmall(t *testing.T) {
	const n = 1000
	s, _ := newServer(t, Options{})
	peers := make([]raw, n)
	for i := range peers {
		peers[i] = dialRaw(t, s)
	}
	testkit.Eventually(t, "all are there", func() bool { return s.Stats().Connections == n })
	before := heapInUse()
	for _, r := range peers {
		r.exchange(hello, hello[6:])
		r.exchange(append(msg(opSet, "/k", strings.Repeat("v", 10<<10)), msg(opCheck, 1, "/k")...), []byte{0})
	}
	if each := (heapInUse() - before) / n; each > 500 {
		t.Errorf("%d bytes are left of a connection's requests", each)
	}
}

// TestSwapEngineAcrossLoops: connections on the same loops, but not on the same
// engine, do not meet.
func TestSwapEngineAcrossLoops(t *testing.T) {
	s, _ := newServer(t, Options{Loops: 2})
	var groups [2][]raw
	for i := range groups {
		for range 10 {
			groups[i] = append(groups[i], dialHello(t, s))
		}
		s.SwapEngine(store.NewEngine(store.Limits{}))
	}
	for i, group := range groups {
		for _, r := range group[1:] {
			r.exchange(append(msg(opWait, 1, "/x"), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
		}
		group[0].exchange(append(msg(opSet, "/x", fmt.Sprint(i)), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
		for _, r := range group[1:] {
			r.exchange(msg(opGet, "/x"), append([]byte{0}, msg(0, fmt.Sprint(i))[1:]...))
		}
	}
}
