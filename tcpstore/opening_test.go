package tcpstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/secret"
	"rallypoint/internal/testkit"
)

// TestSlowHandshakes: hundreds that begin and say no more, and dozens that have made the
// handshake, cost little, hold up neither those that are served nor those that come, and are
// closed after their time.
func TestSlowHandshakes(t *testing.T) {
	b := newBesetServer(t)
	before := heapInUse()
	const silent, idle = 300, 30
	for range silent {
		b.dialPlain(t, []byte{tlsByte, 3})
	}
	for range idle {
		dialHandshake(t, b.Server)
	}
	if n := heapInUse() - before; n > 20<<20 {
		t.Errorf("%d bytes for those that say nothing", n)
	}
	for range 10 {
		r := dialTLSHello(t, b.Server, b.token)
		r.exchange(appendPing(nil, 7), []byte{7, 0, 0, 0})
	}
	if n := b.openings.places.Taken(); n < idle {
		t.Logf("only %d were there still", n)
	}
	b.awaitRefused(t, reasonSilent, silent+idle)
	b.lines.Await(t, "it did not prove that it knows the token within 5s", 1)
	testkit.Eventually(t, "nothing is left", func() bool { return b.openings.places.Taken() == 0 && len(b.openings.begun) == 0 })
}

// TestHandshakesWait: when as many handshakes have begun as may, others wait for one to end.
func TestHandshakesWait(t *testing.T) {
	b := newBesetServer(t)
	var begun []rawTLS
	for i := range maxHandshakes {
		begun = append(begun, b.dialHandshakeFrom(t, fmt.Sprintf("127.0.1.%d", 1+i/8)))
	}
	opened := make(chan bool, 1)
	r := b.dialPlain(t, nil)
	client := tls.Client(r, secret.ClientTLS())
	go func() { opened <- client.Handshake() == nil }()
	testkit.Eventually(t, "it waits", func() bool { return b.openings.places.Taken() >= 1 })
	begun[0].below.Close()
	if !<-opened {
		t.Error("it did not get its turn")
	}
	for _, r := range begun {
		r.below.Close()
	}
}

// dialHandshakeFrom is dialHandshake from an address of this machine.
func (b *besetServer) dialHandshakeFrom(t *testing.T, from string) rawTLS {
	t.Helper()
	dialer := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(from)}}
	conn := testkit.Must(dialer.Dial("tcp", b.Addr().String()))(t).(*net.TCPConn)
	t.Cleanup(func() { conn.Close() })
	conn.SetDeadline(time.Now().Add(guard))
	r := rawTLS{tls.Client(conn, secret.ClientTLS()), conn, t}
	testkit.Check(t, r.Handshake())
	return r
}

// TestHandshakesOfOneSource: one that continues for ever takes neither all handshakes nor all
// places before them.
func TestHandshakesOfOneSource(t *testing.T) {
	o := newOpenings(Secure{}, nil)
	o.places = secret.NewPlaces(maxOpenings) // whatever this process's limit is
	address := func(i int) net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, byte(i)), Port: 1} }
	late, cancel := context.WithCancel(context.Background())
	cancel()
	var ends []func()
	begin := func(who int) {
		t.Helper()
		end, ok := o.begin(context.Background(), address(who))
		if !ok {
			t.Fatal("it does not get its turn")
		}
		ends = append(ends, end)
	}
	held := 0
	for o.places.Take(address(1)) {
		held++
	}
	if want := maxOpenings - maxOpenings/4; held != want {
		t.Errorf("one source has %d places, want %d", held, want)
	}
	for range maxCrowd {
		begin(1)
	}
	if _, ok := o.begin(late, address(1)); ok {
		t.Error("it has all handshakes")
	}
	for i := range maxHandshakes - maxCrowd {
		if !o.places.Take(address(2 + i/8)) {
			t.Fatal("there is no place for another source")
		}
		begin(2 + i/8)
	}
	if _, ok := o.begin(late, address(99)); ok {
		t.Error("more have begun than may")
	}
	for _, end := range ends {
		end()
	}
	if len(o.begun)+len(o.crowd) > 0 {
		t.Errorf("%d and %d are held", len(o.begun), len(o.crowd))
	}
}

// fill takes places as if so many strangers of machines of their own were there; empty gives
// them back.
func (o *openings) fill(t *testing.T, n int) (empty func()) {
	t.Helper()
	address := func(i int) net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, byte(i>>8), byte(i)), Port: 1} }
	for i := range n {
		if !o.places.Take(address(i)) {
			t.Fatalf("there are %d places, want %d", i, n)
		}
	}
	return func() {
		for i := range n {
			o.places.Give(address(i))
		}
	}
}

// TestManyOpenings: more than may be on their way are closed, the newest.
func TestManyOpenings(t *testing.T) {
	b := newBesetServer(t)
	empty := b.openings.fill(t, mostOpenings())
	wantClosed(t, b.dialPlain(t, []byte{tlsByte}))
	b.awaitRefused(t, reasonCrowd, 1)
	empty()
	dialTLSHello(t, b.Server, b.token)
}

// TestOpeningsLeaveDescriptors: strangers take a quarter of the descriptors at most.
func TestOpeningsLeaveDescriptors(t *testing.T) {
	var old unix.Rlimit
	testkit.Check(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	if old.Cur < 1024 {
		t.Skip("this process has few descriptors")
	}
	testkit.Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 400, Max: old.Max}))
	b := newBesetServer(t)
	testkit.Check(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old)) // the strangers are in this process, too
	empty := b.openings.fill(t, 100)
	for range 10 {
		wantClosed(t, b.dialPlain(t, []byte{tlsByte}))
	}
	b.awaitRefused(t, reasonCrowd, 10)
	empty()
}

// TestCloseDuringOpenings: Close waits for no peer, whatever it has said.
func TestCloseDuringOpenings(t *testing.T) {
	for range 5 {
		s, lines := newSecureServer(t, Options{})
		token := openToken(t, goodKey)
		var wg sync.WaitGroup
		for range 20 {
			conn := testkit.Must(net.Dial("tcp", s.Addr().String()))(t)
			defer conn.Close()
			conn.Write([]byte{tlsByte})
			dialHandshake(t, s)
			wg.Go(func() {
				conn, err := net.Dial("tcp", s.Addr().String())
				if err != nil {
					return
				}
				defer conn.Close()
				secret.DialStore(context.Background(), conn, token, thisRound, secret.PurposeStore)
			})
		}
		testkit.Check(t, s.Close())
		wg.Wait()
		if n := s.openings.places.Taken(); n != 0 || s.Stats().Connections != 0 {
			t.Errorf("%d are on their way, %d open", n, s.Stats().Connections)
		}
		if len(lines.With("WARN")) > 0 {
			t.Errorf("%s", lines)
		}
	}
}

// fdConn is a socket outside of the runtime's poller, which needs no descriptor more.
type fdConn struct {
	net.Conn // none
	fd       int
}

func (f fdConn) Read(b []byte) (int, error) {
	n, err := unix.Read(f.fd, b)
	if n == 0 && err == nil {
		err = io.EOF
	}
	return max(n, 0), err
}
func (f fdConn) Write(b []byte) (int, error)   { return len(b), sendAll(f.fd, b) }
func (f fdConn) SetDeadline(_ time.Time) error { return nil }
func (f fdConn) RemoteAddr() net.Addr          { return &net.TCPAddr{} }

// TestTLSOutOfDescriptors: connections that come meanwhile wait, also those that have proven
// themselves.
func TestTLSOutOfDescriptors(t *testing.T) {
	s, lines := newSecureServer(t, Options{})
	token := openToken(t, goodKey)
	token.Keys()
	good := dialTLSHello(t, s, token)
	addr := &unix.SockaddrInet4{Port: s.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}
	var clients []int
	for range 10 {
		fd := testkit.Must(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))(t)
		defer unix.Close(fd)
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: int64(guard / time.Second)})
		clients = append(clients, fd)
	}
	restore := limitDescriptors(t)
	var wg sync.WaitGroup
	for _, fd := range clients {
		testkit.Check(t, unix.Connect(fd, addr))
		wg.Go(func() {
			r, err := secret.DialStore(context.Background(), fdConn{fd: fd}, token, thisRound, secret.PurposeStore)
			if err != nil {
				t.Error(err)
				return
			}
			rawTLS{r, nil, t}.tryExchange(hello, hello[6:])
		})
	}
	lines.Await(t, "cannot accept connections", 1)
	good.exchange(appendPing(nil, 7), []byte{7, 0, 0, 0})
	restore()
	wg.Wait()
	if len(lines.With("connection closed")) > 0 {
		t.Errorf("%s", lines)
	}
}

// TestCloseEndsAlsoAccept: that the server closes what it also accepts from is no error of the
// listener, whichever of the two ends first.
func TestCloseEndsAlsoAccept(t *testing.T) {
	for range 100 {
		s, lines := newSecureServer(t, Options{})
		s.AlsoAccept(testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t), nil)
		testkit.Check(t, s.Close())
		if len(lines.With("ERROR")) > 0 {
			t.Fatalf("%s", lines)
		}
	}
}

// TestAlsoAccept: the workers of this machine are served in plain by a listener of their own,
// whom its check lets in, on the same engine.
func TestAlsoAccept(t *testing.T) {
	s, lines := newSecureServer(t, Options{})
	secured := dialTLSHello(t, s, openToken(t, goodKey))
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	var mu sync.Mutex
	var refusing error
	stop := s.AlsoAccept(l, func(l net.Listener, refused func(netip.AddrPort, error)) (net.Conn, error) {
		for {
			conn, err := l.Accept()
			mu.Lock()
			why := refusing
			mu.Unlock()
			if err != nil || why == nil {
				return conn, err
			}
			refused(peerOf(conn), why)
			conn.Close()
		}
	})
	dial := func() raw {
		conn := testkit.Must(net.Dial("tcp", l.Addr().String()))(t)
		t.Cleanup(func() { conn.Close() })
		conn.SetDeadline(time.Now().Add(guard))
		return raw{conn.(*net.TCPConn), t}
	}
	near := dial()
	near.exchange(hello, hello[6:])
	near.exchange(append(msg(opWait, 1, "/x"), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	secured.exchange(append(msg(opSet, "/x", "v"), appendPing(nil, 1)...), []byte{1, 0, 0, 0})
	near.exchange(msg(opGet, "/x"), append([]byte{replyStopWaiting}, msg(0, "v")[1:]...))

	mu.Lock()
	refusing = fmt.Errorf("another user")
	mu.Unlock()
	other := dial()
	other.Write(hello)
	other.expectClosed()
	if line := lines.Next(t); !strings.Contains(line, "another user") || !strings.Contains(line, "reason=other_user") || !strings.Contains(line, "listen="+l.Addr().String()) {
		t.Errorf("the line is %s", line)
	}
	stop()
	stop()
	if conn, err := net.Dial("tcp", l.Addr().String()); err == nil {
		conn.Close()
		t.Error("it is accepted still")
	}
	near.exchange(appendPing(nil, 7), []byte{7, 0, 0, 0})
	l = testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	stop = s.AlsoAccept(l, nil)
	dial().exchange(hello, hello[6:])
	testkit.Check(t, s.Close())
	stop()
	l = testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	s.AlsoAccept(l, nil)()
	if len(lines.With("WARN")) != 1 || len(lines.With("ERROR")) != 0 {
		t.Errorf("%s", lines)
	}
	runtime.KeepAlive(secured)
}
