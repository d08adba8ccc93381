package forward

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"

	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/tcpstore"
)

// Address returns the loopback address at which the workers of each node find the store of
// a name: 127.a.b.c, the same on all nodes, and another one for each round, so that a late
// worker of the last round does not reach the next one's store.
func Address(name secret.StoreName) netip.Addr {
	sum := sha256.Sum256(fmt.Appendf(nil, "rallypoint store\x00%d\x00%s\x00%d\x00%s\x00%d",
		len(name.Run), name.Run, len(name.Generation), name.Generation, name.Round))
	// Neither 127.0.x.y, where other programs listen, nor 127.255.255.255, where none can.
	return netip.AddrFrom4([4]byte{127, 1 + sum[0]%254, sum[1], 1 + sum[2]%254})
}

// Dialer dials to a store, without its TLS.
func Dialer() *net.Dialer {
	d := &net.Dialer{KeepAliveConfig: tcpstore.KeepAlive}
	d.SetMultipathTCP(false)
	return d
}

// Bind listens on port at a loopback address; where another program has that, on another
// port, which is logged, and where this machine has no such address, on ::1. Further processes
// of this user may bind the same.
func Bind(addr netip.Addr, port int, log *slog.Logger) (net.Listener, error) {
	wanted := netip.AddrPortFrom(addr, uint16(port))
	l, err := bind(wanted)
	if errors.Is(err, syscall.EADDRNOTAVAIL) || errors.Is(err, syscall.EAFNOSUPPORT) {
		addr = netip.IPv6Loopback()
		l, err = bind(netip.AddrPortFrom(addr, uint16(port)))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		if l, err = bind(netip.AddrPortFrom(addr, 0)); err == nil {
			log.Warn(fmt.Sprintf("port %d is taken on this node: its workers find their store at %s, where MASTER_PORT is another than on the other nodes; "+
				"programs that tell each other the port fail", port, l.Addr()), "wanted", wanted.String())
		}
	}
	if err != nil {
		return nil, rendezvous.Errorf(rendezvous.CodeConnection, "cannot listen on %s for this node's workers: %v", wanted, store.PlainNetError(err))
	}
	return l, nil
}

func bind(addr netip.AddrPort) (net.Listener, error) {
	config := net.ListenConfig{KeepAliveConfig: tcpstore.KeepAlive}
	if addr.Port() != 0 {
		config.Control = func(_, _ string, c syscall.RawConn) error { return Share(c) }
	}
	config.SetMultipathTCP(false) // clients are plain TCP
	return config.Listen(context.Background(), "tcp", addr.String())
}

// Share lets further sockets of this user that do the same listen on a socket's port.
func Share(c syscall.RawConn) error {
	var failed error
	err := c.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) })
	return errors.Join(err, failed)
}

// isFinal reports whether a store refuses this node for a reason that is not temporary.
func isFinal(err error) bool { return rendezvous.CodeOf(err) == rendezvous.CodeAuth }
