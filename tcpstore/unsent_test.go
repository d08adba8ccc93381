package tcpstore

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// put sets a key and waits until that has been done.
func (r raw) put(key, value string) {
	r.t.Helper()
	r.exchange(append(msg(opSet, key, value), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
}

// cramped accepts connections for which the kernel keeps little.
type cramped struct{ net.Listener }

func (c cramped) Accept() (net.Conn, error) {
	conn, err := c.Listener.Accept()
	if err == nil {
		conn.(*net.TCPConn).SetWriteBuffer(32 << 10)
	}
	return conn, err
}

func newCrampedServer(t *testing.T, opts Options) (*Server, *testkit.Log) {
	t.Helper()
	inner, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	lines, logger := newLog()
	opts.Logger = logger
	s := Serve(cramped{inner}, store.NewEngine(store.Limits{}), opts)
	t.Cleanup(func() { s.Close() })
	return s, lines
}

// deaf returns n connections that have sent a request and do not read.
func deaf(t *testing.T, s *Server, n int, request []byte) (all []raw) {
	t.Helper()
	for range n {
		r := dialNarrow(t, s, 32<<10)
		r.exchange(hello, hello[6:])
		r.exchange(request, nil)
		all = append(all, r)
	}
	return all
}

// awaitOps waits until so many requests have been carried out.
func awaitOps(t *testing.T, s *Server, op opcode, n int) {
	t.Helper()
	testkit.Eventually(t, fmt.Sprint(n, " ", op), func() bool { return s.Stats().Ops[op.String()] >= uint64(n) })
}

// TestUnsentValuesAreShared: a slow reader costs no copy of the value, and gets the
// one that it asked for, whatever has become of it.
func TestUnsentValuesAreShared(t *testing.T) {
	eachLoops(t, func(t *testing.T, loops int) {
		const readers, size = 40, 1 << 20
		s, lines := newCrampedServer(t, Options{Loops: loops})
		good := dialHello(t, s)
		old := strings.Repeat("o", size)
		good.put("/k", old)
		before := heapInUse()
		all := deaf(t, s, readers, msg(opMultiGet, 3, "/k", "/none", "/k"))
		awaitOps(t, s, opMultiGet, readers)
		if n := heapInUse() - before; n > 4*size {
			t.Errorf("%d bytes are held for %d replies with a value of %d", n, readers, size)
		}
		good.put("/k", strings.Repeat("n", size))
		good.exchange(msg(opAppend, "/k", "more"), nil)
		good.exchange(msg(opDelete, "/k"), msg(0, 1)[1:])
		want := msg(0, old, "", old)[1:]
		for _, r := range all {
			r.exchange(nil, want)
		}
		if len(lines.With("WARN")) > 0 {
			t.Error("a reader was refused")
		}
	})
}

// TestUnsentSumIsBounded: replies that share nothing wait for room, without an end for
// any peer, and all get theirs in the end.
func TestUnsentSumIsBounded(t *testing.T) {
	for name, setUp := range map[string]func(good raw) (request []byte, size int64){
		"multi_get": func(good raw) ([]byte, int64) {
			fields := []any{100}
			for i := range 100 {
				key := fmt.Sprint("/", i)
				good.put(key, strings.Repeat("v", shareFrom-1))
				fields = append(fields, key)
			}
			return msg(opMultiGet, fields...), 100 * (8 + shareFrom - 1)
		},
		"list_keys": func(good raw) ([]byte, int64) {
			for i := range 200 {
				good.put(strings.Repeat("k", 8000)+fmt.Sprint(100+i), "")
			}
			return msg(opListKeys), 8 + 200*8011
		},
	} {
		t.Run(name, func(t *testing.T) {
			const readers, limit = 30, 5 << 20
			s, lines := newCrampedServer(t, Options{MaxUnsentSum: limit, SlowAfter: time.Hour})
			good := dialHello(t, s)
			request, size := setUp(good)
			before := heapInUse()
			all := deaf(t, s, readers, request)
			for i := range 100 { // small requests continue meanwhile
				key := fmt.Sprint("/small/", i%5)
				good.exchange(append(msg(opSet, key, "v"), msg(opGet, key)...), msg(0, "v")[1:])
			}
			if n := heapInUse() - before; n > 2*limit {
				t.Errorf("%d bytes are held, the limit is %d", n, limit)
			}
			for i, r := range all {
				if n, err := io.CopyN(io.Discard, r, size); err != nil {
					t.Fatalf("reader %d got %d bytes: %v", i, n, err)
				}
			}
			if len(lines.With("WARN")) > 0 {
				t.Error("a reader was refused")
			}
		})
	}
}

// TestSlowReadersAreCutOff: when the memory is taken by peers that do not read, they are
// closed for the sake of one that does; a value that each of them has alone counts.
func TestSlowReadersAreCutOff(t *testing.T) {
	const size, limit = 1 << 20, 4 << 20
	s, lines := newCrampedServer(t, Options{MaxUnsentSum: limit, SlowAfter: 50 * time.Millisecond})
	good := dialHello(t, s)
	before := heapInUse()
	for i := range 10 {
		value := strings.Repeat(fmt.Sprint(i), size)
		good.put("/k", value)
		r := deaf(t, s, 1, msg(opGet, "/k"))[0]
		if i%2 == 0 { // ends its stream
			r.CloseWrite()
		}
		awaitOps(t, s, opGet, i+1)
	}
	if n := heapInUse() - before; n > limit+3*size {
		t.Errorf("%d bytes are held, the limit is %d", n, limit)
	}
	good.exchange(msg(opGet, "/k"), msg(0, strings.Repeat("9", size))[1:])
	if n := s.Stats().Refused["slow_reader"]; n == 0 || n > 10 {
		t.Errorf("%d were cut off", n)
	}
	if len(lines.With("WARN", "has not read", "others wait")) == 0 {
		t.Error("the log does not say so")
	}
}

// TestTricklingReadersAreCutOff: a client with many unsent bytes has to read many.
func TestTricklingReadersAreCutOff(t *testing.T) {
	const size = 8 << 20
	s, _ := newCrampedServer(t, Options{MaxUnsentSum: size, SlowAfter: 300 * time.Millisecond})
	good := dialHello(t, s)
	value := strings.Repeat("v", size)
	good.put("/a", value)
	good.put("/b", value)
	r := deaf(t, s, 1, msg(opGet, "/a"))[0]
	awaitOps(t, s, opGet, 1)
	read := make(chan int64)
	go func() {
		all := int64(0)
		for tick := time.Tick(100 * time.Millisecond); ; <-tick {
			n, err := io.CopyN(io.Discard, r, 80<<10)
			if all += n; err != nil {
				read <- all
				return
			}
		}
	}()
	good.exchange(msg(opGet, "/b"), msg(0, value)[1:])
	if n := <-read; n >= size {
		t.Errorf("it has got all %d bytes", n)
	}
}

// TestManyWaitForRoom: a large reply gets its room although smaller ones, for which there
// always is some, are asked for all the time.
func TestManyWaitForRoom(t *testing.T) {
	const size, limit = 1 << 20, 4 << 20
	s, lines := newCrampedServer(t, Options{MaxUnsentSum: limit, SlowAfter: time.Second})
	good := dialHello(t, s)
	large := strings.Repeat("l", limit-size)
	good.put("/large", large)
	var readers []raw
	another := func() {
		good.put("/k", strings.Repeat("v", size))
		readers = append(readers, deaf(t, s, 1, msg(opGet, "/k"))[0])
		good.put("/small", "v") // the request before it has been looked at
	}
	for range 2 {
		another()
	}
	waits, done := dialHello(t, s), make(chan struct{})
	waits.exchange(msg(opGet, "/large"), nil)
	good.put("/small", "v")
	go func() {
		defer close(done)
		waits.exchange(nil, msg(0, large)[1:])
	}()
	for end := time.Now().Add(20 * time.Second); ; {
		another()
		readers[0].SetReadBuffer(4 * size)
		if _, err := io.CopyN(io.Discard, readers[0], 8+size); err != nil {
			t.Fatal(err)
		}
		readers[0].Close()
		readers = readers[1:]
		select {
		case <-done:
			if len(lines.With("WARN")) > 0 {
				t.Error("a reader was refused")
			}
			return
		default:
			if time.Now().After(end) {
				t.Fatalf("%d others have come first", s.Stats().Ops[opGet.String()])
			}
		}
	}
}

// TestStarvedNormalizedRequest: a request that waits for room is the same when it is carried
// out later.
func TestStarvedNormalizedRequest(t *testing.T) {
	s, _ := newCrampedServer(t, Options{MaxUnsentSum: 1 << 20, SlowAfter: time.Hour, NormalizeAttemptKeys: true})
	good := dialHello(t, s)
	value := strings.Repeat("v", 1<<20)
	for _, key := range []string{"/a", "/worker/attempt_0/k"} {
		good.put(key, value)
	}
	first := deaf(t, s, 1, msg(opGet, "/a"))[0]
	awaitOps(t, s, opGet, 1)
	request := msg(opMultiGet, 2, "/worker/attempt_123/k", "/worker/attempt_7/k")
	waits := dialHello(t, s)
	waits.exchange(append(appendPing(nil, 2), append(request, appendPing(nil, 3)...)...), []byte{2, 0, 0, 0})
	good.exchange(appendPing(nil, 1), []byte{1, 0, 0, 0})
	if n := s.Stats().Ops["MULTI_GET"]; n != 0 {
		t.Fatal("there was room")
	}
	first.exchange(nil, msg(0, value)[1:])
	waits.exchange(nil, append(msg(0, value, value)[1:], 3, 0, 0, 0))
}

// TestStarvedPeersThatLeave give nothing away.
func TestStarvedPeersThatLeave(t *testing.T) {
	s, _ := newCrampedServer(t, Options{MaxUnsentSum: 1 << 20, SlowAfter: time.Hour})
	good := dialHello(t, s)
	value := strings.Repeat("v", 1<<20)
	good.put("/a", value)
	good.put("/b", value)
	first := deaf(t, s, 1, msg(opGet, "/a"))[0]
	awaitOps(t, s, opGet, 1)
	for _, r := range deaf(t, s, 10, msg(opGet, "/b")) {
		r.SetLinger(0)
		r.Close()
	}
	first.Close()
	good.exchange(msg(opGet, "/b"), msg(0, value)[1:])
	testkit.Eventually(t, "they are gone", func() bool { return s.Stats().Connections == 1 })
	good.exchange(bytes.Repeat(msg(opGet, "/a"), 3), bytes.Repeat(msg(0, value)[1:], 3))
	l := s.loops[0]
	s.Close()
	if b := &l.budget; b.held != 0 || len(b.shared) > 0 {
		t.Errorf("%d bytes and %d values are held, for no reply", b.held, len(b.shared))
	}
}

// TestWaitsOfAllAreBounded: many peers, each with few waits, cannot take the memory, and
// what they have is free again when they go.
func TestWaitsOfAllAreBounded(t *testing.T) {
	const limit = 4 << 20
	s, lines := newServer(t, Options{MaxWaitBytes: limit})
	good := dialHello(t, s)
	before := heapInUse()
	var all []raw
	for i := range 30 {
		fields := []any{2000}
		for n := range 2000 {
			fields = append(fields, fmt.Sprintf("/%d/%d/%0100d", i, n, 0))
		}
		r := dialHello(t, s)
		r.exchange(msg(opWait, fields...), nil)
		all = append(all, r)
		awaitOps(t, s, opWait, i+1)
	}
	if n := heapInUse() - before; n > 3*limit {
		t.Errorf("%d bytes are held, the limit is %d", n, limit)
	}
	if n := s.Stats().Refused["too_many_waits"]; n < 10 || n >= 30 {
		t.Errorf("%d were refused", n)
	}
	if len(lines.With("WARN", "waits of all connections")) == 0 {
		t.Error("the log does not say so")
	}
	for _, r := range all {
		r.Close()
	}
	testkit.Eventually(t, "all are gone", func() bool { return s.Stats().Connections == 1 })
	good.exchange(append(msg(opWait, 1, "/x"), msg(opSet, "/x", "")...), []byte{0})
	h := s.current()
	h.mu.Lock()
	defer h.mu.Unlock()
	if n := h.engine.WaitBytes(); n != 0 {
		t.Errorf("%d bytes are counted for no wait", n)
	}
}
