package wire

import (
	"context"
	"errors"
	"io"
	"math"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/core/store"
)

// SetUserTimeout makes the kernel break a connection whose peer has not
// acknowledged sent data for d: a silent partition ends as a broken connection.
// Connections other than TCP are left alone.
func SetUserTimeout(conn net.Conn, d time.Duration) {
	withDescriptor(conn, func(fd int) {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(min(max(d.Milliseconds(), 1), math.MaxInt32)))
	})
}

// Unread returns how many received bytes wait to be read.
func Unread(conn net.Conn) int { return queued(conn, unix.TIOCINQ) }

// Untaken returns how many sent bytes the peer has not acknowledged yet.
func Untaken(conn net.Conn) int { return queued(conn, unix.TIOCOUTQ) }

// Acked returns how many sent bytes the peer has acknowledged so far; 0 if the kernel does not tell.
func Acked(conn net.Conn) (bytes uint64) {
	withDescriptor(conn, func(fd int) {
		if info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO); err == nil {
			bytes = info.Bytes_acked
		}
	})
	return bytes
}

// EndedByPeer reports whether the peer has ended a connection. Earlier data may still wait to be
// read, but no more will come.
func EndedByPeer(conn net.Conn) (ended bool) {
	withDescriptor(conn, func(fd int) {
		look := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		if n, err := unix.Poll(look, 0); n == 1 && err == nil {
			ended = look[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
		}
	})
	return ended
}

func queued(conn net.Conn, which uint) (bytes int) {
	withDescriptor(conn, func(fd int) {
		if n, err := unix.IoctlGetInt(fd, which); err == nil {
			bytes = n
		}
	})
	return bytes
}

// PeekFirst waits for the first byte of a connection and leaves it there. It returns an error at
// the connection's end or deadline, and for a connection that is not a socket.
func PeekFirst(conn net.Conn) (byte, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return 0, errors.ErrUnsupported
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return 0, err
	}
	var first [1]byte
	var n int
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		for {
			n, _, failed = unix.Recvfrom(int(fd), first[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
			if failed != unix.EINTR {
				return failed != unix.EAGAIN
			}
		}
	})
	if err = errors.Join(err, failed); err == nil && n == 0 {
		err = io.EOF
	}
	return first[0], err
}

// withDescriptor calls f with the connection's descriptor, if it has one.
func withDescriptor(conn net.Conn, f func(fd int)) {
	for {
		over, ok := conn.(interface{ NetConn() net.Conn }) // TLS
		if !ok {
			break
		}
		conn = over.NetConn()
	}
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Control(func(fd uintptr) { f(int(fd)) })
}

// AddrOf returns the address of a connection's end without its zone, which means
// nothing to other machines; "" if it is no TCP address.
func AddrOf(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return ""
	}
	addr, ok := netip.AddrFromSlice(tcp.IP)
	if !ok {
		return ""
	}
	return addr.Unmap().String()
}

// NoKeepAlive leaves out the kernel's keep-alive, which costs each connection four
// calls on either side: leases and TCP_USER_TIMEOUT find a dead peer sooner.
const NoKeepAlive = -1

// sendAgainSteadily makes the kernel resend unacknowledged data six times at a constant interval
// before it begins to double the interval. Otherwise a few losses in a row, on a lossy network,
// would keep a node silent for longer than its lease. Linux does so for connections with little
// data in flight, such as these, if their congestion control reacts to losses. Reno, which every
// kernel has and every user may choose, does; BBR does not. It is the Control of a dialer, and of
// a listener, whose connections inherit the option. On a system without it nothing changes.
func sendAgainSteadily(_, _ string, socket syscall.RawConn) error {
	return socket.Control(func(fd uintptr) {
		_ = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
		_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_THIN_LINEAR_TIMEOUTS, 1)
	})
}

// Resolve returns the addresses of a name.
func Resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
}

// Dial connects to a control plane at "host:port".
func Dial(ctx context.Context, addr string) (net.Conn, error) {
	d := net.Dialer{KeepAlive: NoKeepAlive, Control: sendAgainSteadily}
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, store.PlainNetError(err)
	}
	return NewConn(conn), nil
}

// Listen opens a listener for a control plane on an address such as "127.0.0.1:29400"; an
// empty host is the wildcard. Its queue of connections that wait to be accepted is
// as long as the system allows (net.core.somaxconn).
func Listen(ctx context.Context, address string) (net.Listener, error) {
	config := ListenConfig()
	return config.Listen(ctx, "tcp", address)
}

// ListenConfig returns the options of a control plane's listener.
func ListenConfig() net.ListenConfig {
	config := net.ListenConfig{KeepAlive: NoKeepAlive, Control: sendAgainSteadily}
	config.SetMultipathTCP(false) // nodes are plain TCP
	return config
}
