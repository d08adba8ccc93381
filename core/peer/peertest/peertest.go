// Package peertest connects as another user. Only tests import it.
package peertest

import (
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Stranger is a user id that no test machine has.
const Stranger = 1234567

// NeedRoot skips a test that takes another user's part, which only root can.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can connect as another user")
	}
}

// Dial connects to a TCP address as the user uid, to the IPv6 form of an IPv4 address by a
// socket of IPv6, which net.Dial does not; the test closes the connection. The
// thread that makes the socket has the user's rights, and ends with it.
func Dial(t testing.TB, uid int, addr string) net.Conn {
	t.Helper()
	return DialPort(t, uid, 0, addr)
}

// DialPort is Dial from a port of 127.0.0.1, which others may bind, too; 0: any port.
func DialPort(t testing.TB, uid, port int, addr string) net.Conn {
	t.Helper()
	if uid != os.Geteuid() {
		NeedRoot(t)
	}
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		fd  int
		err error
	}
	done := make(chan result)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		fd, err := dialOnThread(uid, port, to)
		done <- result{fd, err}
	}()
	r := <-done
	if r.err != nil {
		t.Fatalf("connecting to %s as user %d: %v", addr, uid, r.err)
	}
	f := os.NewFile(uintptr(r.fd), "user "+strconv.Itoa(uid))
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return conn
}

func dialOnThread(uid, port int, to netip.AddrPort) (fd int, err error) {
	if err := become(uid); err != nil {
		return -1, err
	}
	family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()})
	if to.Addr().Is4() {
		family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err = unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if port != 0 {
		err = bindPort(fd, port)
	}
	if err == nil {
		err = unix.Connect(fd, sa)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Strike is a user's attack on a listener at a TCP address of IPv4: he connects from each of some
// ports, sends a text and resets, round and round until the test or stop ends. struck counts the
// connections. The thread that does so has the user's rights, and ends with it.
func Strike(t testing.TB, uid int, addr string, ports []int, text string) (struck func() int64, stop func()) {
	t.Helper()
	NeedRoot(t)
	to, err := netip.ParseAddrPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	var count atomic.Int64
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		if err := become(uid); err != nil {
			t.Error(err)
			return
		}
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			if fd, err := DialFrom(ports[i%len(ports)], to); err == nil {
				_, _ = unix.Write(fd, []byte(text))
				Reset(fd)
				count.Add(1)
			}
		}
	})
	stop = sync.OnceFunc(func() {
		close(done)
		wg.Wait()
	})
	t.Cleanup(stop)
	return count.Load, stop
}

// DialFrom connects as this user, at once or not at all, from a port of 127.0.0.1 to an address of
// IPv4. The caller closes the descriptor.
func DialFrom(port int, to netip.AddrPort) (fd int, err error) {
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err = bindPort(fd, port); err == nil {
		if err = unix.Connect(fd, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}); err == unix.EINPROGRESS {
			state, failed := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
			if failed == nil && state.State == 1 { // the handshake is done within the call, at a loopback address
				err = nil
			}
		}
	}
	if err != nil {
		Reset(fd)
		return -1, err
	}
	return fd, nil
}

// bindPort binds a socket to a port of 127.0.0.1 that others may have bound.
func bindPort(fd, port int) error {
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return err
	}
	return unix.Bind(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}})
}

// Reset closes a connection so that its ends are free at once.
func Reset(fd int) {
	_ = unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	_ = unix.Close(fd)
}

// become gives this thread a user's rights.
func become(uid int) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return errno
	}
	return nil
}

// Accept listens on a TCP address of IPv4 as the user uid, accepts what comes and says nothing
// to it, until the test ends.
func Accept(t testing.TB, uid int, addr string) {
	t.Helper()
	l := Listen(t, uid, addr)
	var accepting sync.WaitGroup
	accepting.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			defer conn.Close()
		}
	})
	t.Cleanup(func() {
		l.Close()
		accepting.Wait()
	})
}

// Listen is a listener on a TCP address of IPv4 whose connections are the user uid's. The test
// ends what it accepts from.
func Listen(t testing.TB, uid int, addr string) net.Listener {
	t.Helper()
	NeedRoot(t)
	at, err := netip.ParseAddrPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{conns: make(chan net.Conn), done: make(chan struct{})}
	listening := make(chan error)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the thread ends with this goroutine
		l.fd, err = listenOnThread(uid, at)
		listening <- err
		if err == nil {
			l.serve()
		}
	}()
	if err := <-listening; err != nil {
		t.Fatalf("listening on %s as user %d: %v", addr, uid, err)
	}
	t.Cleanup(func() {
		l.Close()
		<-ended
	})
	return l
}

type listener struct {
	fd    int
	conns chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func (l *listener) serve() {
	defer unix.Close(l.fd)
	for {
		fd, _, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC)
		if err != nil {
			return
		}
		f := os.NewFile(uintptr(fd), "accepted")
		conn, err := net.FileConn(f)
		f.Close()
		if err != nil {
			return
		}
		select {
		case l.conns <- conn:
		case <-l.done:
			conn.Close()
			return
		}
	}
}

func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *listener) Close() error {
	l.once.Do(func() {
		close(l.done)
		_ = unix.Shutdown(l.fd, unix.SHUT_RDWR)
	})
	return nil
}

func (l *listener) Addr() net.Addr {
	sa, err := unix.Getsockname(l.fd)
	at, ok := sa.(*unix.SockaddrInet4)
	if err != nil || !ok {
		return &net.TCPAddr{}
	}
	return net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.AddrFrom4(at.Addr), uint16(at.Port)))
}

func listenOnThread(uid int, at netip.AddrPort) (fd int, err error) {
	if err := become(uid); err != nil {
		return -1, err
	}
	fd, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	err = unix.Bind(fd, &unix.SockaddrInet4{Port: int(at.Port()), Addr: at.Addr().As4()})
	if err == nil {
		err = unix.Listen(fd, unix.SOMAXCONN)
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
