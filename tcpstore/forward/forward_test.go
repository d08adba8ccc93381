package forward

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/core/peer/peertest"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/eventloop"
	"rallypoint/internal/testkit"
	"rallypoint/tcpstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// guard ends a test's I/O that hangs. No test expects it to pass.
const guard = 30 * time.Second

var name = secret.StoreName{Run: "job", Generation: "g", Round: 3}

// far is a store that a forwarder leads to: each connection goes to serve.
type far struct {
	t      *testing.T
	l      net.Listener
	config *tls.Config // nil: plain
	serve  func(Conn)
	wg     sync.WaitGroup

	mu    sync.Mutex
	ports []int // as they were dialed
	err   error // of dialing, if it must fail
}

func newFar(t *testing.T, secured bool, serve func(Conn)) *far {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &far{t: t, l: l, serve: serve}
	if secured {
		if s.config, err = secret.ServerTLS(); err != nil {
			t.Fatal(err)
		}
	}
	s.wg.Go(func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, syscall.EMFILE) { // in a test that leaves none for a moment
				continue
			}
			if err != nil {
				return
			}
			_ = c.SetDeadline(time.Now().Add(guard))
			s.wg.Go(func() {
				defer c.Close()
				conn := c.(Conn)
				if s.config != nil {
					secured := tls.Server(c, s.config)
					if secured.Handshake() != nil {
						return
					}
					conn = secured
				}
				serve(conn)
			})
		}
	})
	t.Cleanup(func() { l.Close(); s.wg.Wait() })
	return s
}

func (f *far) dial(ctx context.Context, port int) (Conn, error) {
	f.mu.Lock()
	f.ports = append(f.ports, port)
	err := f.err
	f.mu.Unlock()
	if err != nil {
		return nil, err
	}
	c, err := Dialer().DialContext(ctx, "tcp", f.l.Addr().String())
	if err != nil {
		return nil, err
	}
	if f.config == nil {
		return c.(Conn), nil
	}
	return overTLS(ctx, c)
}

// dialTLS is dial for a store that makes its handshakes itself.
func (f *far) dialTLS(ctx context.Context, _ int) (Conn, error) {
	c, err := Dialer().DialContext(ctx, "tcp", f.l.Addr().String())
	if err != nil {
		return nil, err
	}
	return overTLS(ctx, c)
}

// overTLS makes the handshake of a connection as secret.DialStore does.
func overTLS(ctx context.Context, c net.Conn) (Conn, error) {
	conn := tls.Client(overConn{eventloop.NewRecords(c)}, secret.ClientTLS())
	if err := conn.HandshakeContext(ctx); err != nil {
		c.Close()
		return nil, err
	}
	return conn, nil
}

// overConn is a layer between TLS and the socket, as secret.OpenTLS has one.
type overConn struct{ net.Conn }

func (o overConn) NetConn() net.Conn { return o.Conn }

// fail has dialing fail from now on, or with nil succeed.
func (f *far) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// dialed are the ports that were dialed so far.
func (f *far) dialed() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.ports)
}

// newForwarder starts one that leads to s, and ends it with the test.
func newForwarder(t *testing.T, s *far, set ...func(*Options)) (*Forwarder, *testkit.Log) {
	t.Helper()
	log, lines := testkit.NewLog(t)
	opts := Options{Dial: s.dial, Store: "store:1", Log: log}
	for _, f := range set {
		f(&opts)
	}
	f, err := Listen(Address(name), 0, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f, lines
}

// worker connects to a forwarder.
func worker(t *testing.T, addr netip.AddrPort) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr.String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	_ = c.SetDeadline(time.Now().Add(guard))
	return c.(*net.TCPConn)
}

func echo(c Conn) {
	_, _ = io.Copy(c, c)
	_ = c.CloseWrite()
}

// both runs a test with a plain connection to the store and with a TLS one.
func both(t *testing.T, f func(t *testing.T, secured bool)) {
	t.Run("plain", func(t *testing.T) { f(t, false) })
	t.Run("tls", func(t *testing.T) { f(t, true) })
}

func wantReset(t *testing.T, what string, c net.Conn) {
	t.Helper()
	if n, err := c.Read(make([]byte, 1)); n > 0 || !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%s: %d bytes, %v; want a reset", what, n, err)
	}
}

// wantNoConnection connects where there is no store: the connection is reset, perhaps before
// the worker knows that it has one.
func wantNoConnection(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	wantNoConnectionBehind(t, addr, "validate")
}

// wantNoConnectionBehind is wantNoConnection for a worker that says this first. A close behind
// unread bytes would be a reset, too.
func wantNoConnectionBehind(t *testing.T, addr netip.AddrPort, first string) {
	t.Helper()
	c, err := net.Dial("tcp", addr.String())
	if err == nil {
		defer c.Close()
		_ = c.SetDeadline(time.Now().Add(guard))
		if _, err = io.WriteString(c, first); err == nil { // or the kernel has told of the reset
			_, err = c.Read(make([]byte, 1))
		}
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("without a store: %v; want a reset", err)
	}
}

// TestForwarderCarries sends values of sizes around each buffer there and back, by several
// connections at once, half-closes, and finds every byte.
func TestForwarderCarries(t *testing.T) {
	both(t, func(t *testing.T, secured bool) {
		f, _ := newForwarder(t, newFar(t, secured, echo))
		if a := f.Addr(); a.Addr() != Address(name) {
			t.Errorf("it listens at %s", a)
		}
		var wg sync.WaitGroup
		for i := range 8 {
			c := worker(t, f.Addr())
			wg.Go(func() {
				var sent bytes.Buffer
				for _, size := range []int{1, 511, 1023, 1024, 5000, 16<<10 - 1, 16 << 10, 16<<10 + 1, carried - 1, carried, carried + 1, 200 << 10} {
					part := make([]byte, size+i)
					_, _ = rand.Read(part)
					sent.Write(part)
					got := make(chan error, 1)
					back := make([]byte, len(part))
					go func() {
						_, err := io.ReadFull(c, back)
						got <- err
					}()
					if _, err := c.Write(part); err != nil {
						t.Error(err)
					}
					if err := <-got; err != nil || !bytes.Equal(back, part) {
						t.Errorf("%d bytes came back otherwise: %v", len(part), err)
						return
					}
				}
				_ = c.CloseWrite()
				if rest, err := io.ReadAll(c); err != nil || len(rest) > 0 {
					t.Errorf("at the end: %d bytes, %v", len(rest), err)
				}
			})
		}
		wg.Wait()
		testkit.Eventually(t, "the links have ended", func() bool { return f.open() == 0 })
	})
}

// open is how many connections are carried.
func (f *Forwarder) open() int {
	f.carrier.mu.Lock()
	defer f.carrier.mu.Unlock()
	return len(f.carrier.links)
}

// TestForwarderHalfClose has either end say that it is done while the other continues.
func TestForwarderHalfClose(t *testing.T) {
	both(t, func(t *testing.T, secured bool) {
		heard := make(chan string, 1)
		f, _ := newForwarder(t, newFar(t, secured, func(c Conn) {
			all, _ := io.ReadAll(c) // to the worker's half-close
			heard <- string(all)
			_, _ = io.WriteString(c, "reply")
			_ = c.CloseWrite()
		}))
		c := worker(t, f.Addr())
		_, _ = io.WriteString(c, "question")
		_ = c.CloseWrite()
		if all, err := io.ReadAll(c); string(all) != "reply" || err != nil || <-heard != "question" {
			t.Errorf("the worker got %q, %v", all, err)
		}

		f, _ = newForwarder(t, newFar(t, secured, func(c Conn) {
			_, _ = io.WriteString(c, "done")
			_ = c.CloseWrite()
			all, _ := io.ReadAll(c)
			heard <- string(all)
		}))
		c = worker(t, f.Addr())
		if all, err := io.ReadAll(c); string(all) != "done" || err != nil {
			t.Errorf("the worker got %q, %v", all, err)
		}
		_, _ = io.WriteString(c, "I am not")
		c.Close()
		if got := <-heard; got != "I am not" {
			t.Errorf("the store got %q behind its half-close", got)
		}
	})
}

// TestForwarderResets: a connection without a store is reset before a byte comes, one whose
// store breaks off, too, and one that the worker breaks off is reset for the store.
func TestForwarderResets(t *testing.T) {
	both(t, func(t *testing.T, secured bool) {
		ended := make(chan error, 1)
		s := newFar(t, secured, func(c Conn) {
			b := make([]byte, 1)
			_, _ = io.ReadFull(c, b)
			if b[0] == 'x' { // as a process that is killed
				closeRaw(c)
				return
			}
			_, _ = c.Write(b)
			_, err := c.Read(b)
			ended <- err
		})
		f, lines := newForwarder(t, s)
		s.fail(errors.New("no store yet"))
		wantNoConnection(t, f.Addr())
		wantNoConnectionBehind(t, f.Addr(), "")
		if f.Err() == nil || len(lines.With("no store yet")) > 0 {
			t.Errorf("%v; a store that is late is worth no line yet: %s", f.Err(), lines)
		}
		s.fail(nil)

		c := worker(t, f.Addr())
		_, _ = io.WriteString(c, "x")
		wantReset(t, "a store that has broken off", c)

		c = worker(t, f.Addr())
		_, _ = io.WriteString(c, "y")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		closeRaw(c)
		if err := <-ended; !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("the store's end of a worker that broke off: %v", err)
		}
		if f.Err() != nil {
			t.Error(f.Err())
		}
		testkit.Eventually(t, "the links have ended", func() bool { return f.open() == 0 })
	})
}

// TestForwarderTrouble: a store that does not know the token is a line at once, and the
// first success after it another.
func TestForwarderTrouble(t *testing.T) {
	s := newFar(t, false, echo)
	f, lines := newForwarder(t, s, func(o *Options) { o.Hint = "; do this" })
	s.fail(rendezvous.Errorf(rendezvous.CodeAuth, "authentication failed: other token"))
	for range 3 {
		wantNoConnection(t, f.Addr())
	}
	if got := lines.With("store:1", "other token", "; do this"); len(got) != 1 {
		t.Errorf("it logs %q", lines)
	}
	s.fail(nil)
	c := worker(t, f.Addr())
	_, _ = io.WriteString(c, "x")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	lines.Await(t, "reached again", 1)
}

// TestForwarderCloses ends one with connections at rest, under way, and not there yet.
func TestForwarderCloses(t *testing.T) {
	both(t, func(t *testing.T, secured bool) {
		before := testkit.Descriptors(t)
		started := make(chan struct{}, 2)
		s := newFar(t, secured, func(c Conn) {
			started <- struct{}{}
			for { // never reads
				if _, err := c.Write(make([]byte, 1<<20)); err != nil {
					return
				}
			}
		})
		f, _ := newForwarder(t, s)
		stuck, full := worker(t, f.Addr()), worker(t, f.Addr())
		<-started
		<-started
		full.SetWriteDeadline(time.Now().Add(guard))
		blocked := testkit.Go(func() error {
			_, err := full.Write(make([]byte, 64<<20))
			return err
		})
		dialing := make(chan struct{})
		slow, _ := newForwarder(t, s, func(o *Options) {
			o.Dial = func(ctx context.Context, _ int) (Conn, error) {
				close(dialing)
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		early := worker(t, slow.Addr())
		<-dialing
		for _, f := range []*Forwarder{f, slow} {
			if err := errors.Join(f.Close(), f.Close()); err != nil {
				t.Error(err)
			}
			if _, err := net.Dial("tcp", f.Addr().String()); err == nil {
				t.Error("a closed forwarder listens")
			}
		}
		wantReset(t, "a connection that waits", early)
		if err := <-blocked; err == nil {
			t.Error("a worker goes on writing")
		}
		_, _ = io.Copy(io.Discard, stuck) // ends
		for _, c := range []net.Conn{stuck, full, early} {
			c.Close()
		}
		s.l.Close()
		s.wg.Wait()
		testkit.Eventually(t, "all descriptors are closed", func() bool { return testkit.Descriptors(t) <= before })
	})
}

// TestForwarderOutOfDescriptors: connections wait while there are none left, and are served
// then.
func TestForwarderOutOfDescriptors(t *testing.T) {
	f, lines := newForwarder(t, newFar(t, false, echo))
	c := worker(t, f.Addr()) // its own descriptor is opened before
	var old syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old) }()
	testkit.Eventually(t, "the first is carried", func() bool { return f.open() == 1 })
	_, _ = io.WriteString(c, "x")
	_, _ = io.ReadFull(c, make([]byte, 1))
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	tight := syscall.Rlimit{Cur: uint64(fd + 1), Max: old.Max}
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &tight); err != nil {
		t.Fatal(err)
	}
	a := f.Addr()
	err = syscall.Connect(fd, &syscall.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()})
	if err == nil {
		lines.Await(t, "cannot accept connections", 1)
	}
	if restored := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old); restored != nil || err != nil {
		t.Fatal(restored, err)
	}
	late := os.NewFile(uintptr(fd), "late")
	defer late.Close()
	if _, err := late.WriteString("y"); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(late, make([]byte, 1)); err != nil {
		t.Error(err)
	}
}

// admitting accepts the connections that admit has no error for.
func admitting(admit func(net.Conn) error) tcpstore.Accept {
	return func(l net.Listener, refused func(netip.AddrPort, error)) (net.Conn, error) {
		for {
			c, err := l.Accept()
			if err != nil {
				return nil, err
			}
			why := admit(c)
			if why == nil {
				return c, nil
			}
			refused(c.RemoteAddr().(*net.TCPAddr).AddrPort(), why)
			c.Close()
		}
	}
}

// TestOtherUser: another user's connection is closed before a byte is carried, by the main
// port and by one beside it, and the worker of this user does not notice.
func TestOtherUser(t *testing.T) {
	peertest.NeedRoot(t)
	s := newFar(t, false, echo)
	var refused Refusals
	f, lines := newForwarder(t, s, func(o *Options) {
		o.Accept, o.Refusals = peer.NewLoopbackCheck(params.LoopbackUsers{}).Accept, &refused
	})
	side := testkit.FreePort(t)
	if !f.Beside(side) {
		t.Fatalf("port %d is taken", side)
	}
	c := worker(t, f.Addr())
	for range 3 {
		for _, port := range []int{int(f.Addr().Port()), side} {
			stranger := peertest.Dial(t, peertest.Stranger, net.JoinHostPort(f.Addr().Addr().String(), strconv.Itoa(port)))
			_, _ = io.WriteString(stranger, "x")
			_ = stranger.SetDeadline(time.Now().Add(guard))
			if n, err := stranger.Read(make([]byte, 1)); n > 0 || err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("port %d: %d bytes, %v; want a closed connection", port, n, err)
			}
		}
	}
	if refused.Counts()["other_user"] != 6 || len(lines.With("another user's", "allow_uid="+strconv.Itoa(peertest.Stranger))) != 1 {
		t.Errorf("%v refused, logged %s", refused.Counts(), lines)
	}
	_, _ = io.WriteString(c, "x")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Error(err)
	}
	if ports := s.dialed(); len(ports) != 1 {
		t.Errorf("ports %v were dialed", ports)
	}
}

// TestBeside leads another port to the same port of the store's node.
func TestBeside(t *testing.T) {
	s := newFar(t, false, echo)
	f, _ := newForwarder(t, s)
	taken, err := net.Listen("tcp", netip.AddrPortFrom(f.Addr().Addr(), 0).String())
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if f.Beside(taken.Addr().(*net.TCPAddr).Port) {
		t.Error("it forwards a port that another listener has")
	}
	port := testkit.FreePort(t)
	if !f.Beside(port) {
		t.Fatal("it does not forward a free port")
	}
	c := worker(t, netip.AddrPortFrom(f.Addr().Addr(), uint16(port)))
	_, _ = io.WriteString(c, "x")
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil || !slices.Equal(s.dialed(), []int{port}) {
		t.Errorf("%v, ports %v", err, s.dialed())
	}
	f.Close()
	if f.Beside(testkit.FreePort(t)); len(f.listeners) > 0 {
		t.Error("a closed forwarder listens")
	}
}

// TestPortTaken: where another program has the port the workers get another; a further node of
// this user shares it.
func TestPortTaken(t *testing.T) {
	s := newFar(t, false, echo)
	f, _ := newForwarder(t, s)
	log, lines := testkit.NewLog(t)
	opts := Options{Dial: s.dial, Log: log}
	second, err := Listen(f.Addr().Addr(), int(f.Addr().Port()), opts)
	if err != nil || second.Addr() == f.Addr() {
		t.Fatalf("beside a port that was bound alone: %v", err)
	}
	defer second.Close()
	lines.Await(t, "is taken on this node", 1)
	port := testkit.FreePort(t)
	var both [2]*Forwarder
	for i := range both {
		if both[i], err = Listen(f.Addr().Addr(), port, opts); err != nil || int(both[i].Addr().Port()) != port {
			t.Fatalf("node %d: %v at %v", i, err, both[i].Addr())
		}
		defer both[i].Close()
	}
	for range 20 { // the kernel chooses
		c := worker(t, both[0].Addr())
		_, _ = io.WriteString(c, "x")
		if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	if len(lines.All()) != 1 {
		t.Errorf("logged %s", lines)
	}
}

// TestAddress: every release has to find the same.
func TestAddress(t *testing.T) {
	if got := Address(name).String(); got != "127.56.67.11" {
		t.Errorf("the address is %s: nodes of several releases do not agree on it", got)
	}
	seen := map[netip.Addr]bool{}
	for _, n := range []secret.StoreName{name, {Run: "job", Generation: "g", Round: 4}, {Run: "job", Generation: "h", Round: 3}, {Run: "jo", Generation: "bg", Round: 3}, {}} {
		a := Address(n)
		if b := a.As4(); !a.IsLoopback() || b[1] == 0 || b[1] == 255 || b[3] == 0 || b[3] == 255 || seen[a] {
			t.Errorf("%v is at %s", n, a)
		}
		seen[a] = true
	}
}
