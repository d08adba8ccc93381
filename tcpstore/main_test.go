package tcpstore

import (
	"bytes"
	"flag"
	"io"
	"log/slog"
	"net"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Schedules of requests and replies: make test-go-long runs 2000.
func init() { _ = flag.Set("rapid.checks", "40") }

// guard ends a test's I/O that hangs. No test expects it to pass.
const guard = 30 * time.Second

// newLog makes a log of the levels that are shown by default.
func newLog() (*testkit.Log, *slog.Logger) {
	l := &testkit.Log{}
	return l, slog.New(slog.NewTextHandler(l, nil))
}

// newServer starts a server on the loopback address and ends it with the test.
func newServer(t testing.TB, opts Options) (*Server, *testkit.Log) {
	t.Helper()
	lines, logger := newLog()
	opts.Logger = logger
	s, err := Listen("127.0.0.1:0", store.NewEngine(store.Limits{}), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s, lines
}

// raw is a connection without a client.
type raw struct {
	*net.TCPConn
	t *testing.T
}

func dialRaw(t *testing.T, s *Server) raw {
	t.Helper()
	return dialWith(t, s, net.Dialer{})
}

func dialWith(t *testing.T, s *Server, d net.Dialer) raw {
	t.Helper()
	conn, err := d.Dial("tcp", s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(guard))
	return raw{conn.(*net.TCPConn), t}
}

// dialHello is dialRaw with the handshake done.
func dialHello(t *testing.T, s *Server) raw {
	t.Helper()
	r := dialRaw(t, s)
	r.exchange(hello, hello[6:])
	return r
}

func (r raw) exchange(sent, want []byte) {
	r.t.Helper()
	if !r.tryExchange(sent, want) {
		r.t.FailNow()
	}
}

// tryExchange is exchange for other goroutines than the test's own.
func (r raw) tryExchange(sent, want []byte) bool {
	r.t.Helper()
	return tryExchange(r.t, r, sent, want)
}

// tryExchange sends, and wants to be answered so.
func tryExchange(t testing.TB, conn io.ReadWriter, sent, want []byte) bool {
	t.Helper()
	if len(sent) > 0 { // writing nothing fails after CloseWrite
		if _, err := conn.Write(sent); err != nil {
			t.Error(err)
			return false
		}
	}
	got := make([]byte, len(want))
	if n, err := io.ReadFull(conn, got); err != nil {
		t.Errorf("after %d of %d bytes: %v", n, len(want), err)
		return false
	}
	if !bytes.Equal(got, want) {
		const show = 100
		t.Errorf("got %x, want %x", got[:min(show, len(got))], want[:min(show, len(want))])
		return false
	}
	return true
}

// expectClosed waits until the server has closed the connection.
func (r raw) expectClosed() {
	r.t.Helper()
	_, err := io.Copy(io.Discard, r)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		r.t.Error("the server has not closed the connection")
	}
}

// Requests, as clients put them together.

func msg(op opcode, fields ...any) []byte {
	b := []byte{byte(op)}
	for _, f := range fields {
		switch f := f.(type) {
		case int:
			b = appendInt(b, f)
		case uint64:
			b = appendInt(b, f)
		case string:
			b = appendText(b, f)
		}
	}
	return b
}

// wireKeys returns the keys that a server holds.
func wireKeys(s *Server) []string {
	h := s.current()
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.engine.Keys()
}
