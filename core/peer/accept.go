package peer

import (
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// maxWeeded bounds the connections that are weeded out in one go: closing the listener waits
// for that.
const maxWeeded = 256

// Accept returns the next connection of an admitted user to a listener; a nil Check
// returns each one. It closes the others, having told refused of them.
//
// Strangers may connect faster than net.Listener accepts, because it prepares each connection for
// use. Then the kernel's queue is full, and the job's own processes wait. So connections that
// queue after a refused one are accepted and judged as bare descriptors.
func (c *Check) Accept(l net.Listener, refused func(from netip.AddrPort, why error)) (net.Conn, error) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return nil, err
		}
		why := c.Admit(conn)
		if why == nil {
			return conn, nil
		}
		from, _ := conn.RemoteAddr().(*net.TCPAddr)
		refused(canonical(from.AddrPort()), why)
		_ = conn.Close()
		if conn := c.weed(l, refused); conn != nil {
			return conn, nil
		}
	}
}

// weed refuses the connections that wait at a listener of a loopback address, up to one that is
// admitted, which it returns; nil if there is none.
func (c *Check) weed(l net.Listener, refused func(from netip.AddrPort, why error)) net.Conn {
	held, ok := l.(syscall.Conn)
	if !ok || !c.near {
		return nil
	}
	raw, err := held.SyscallConn()
	if err != nil {
		return nil
	}
	var d diag
	defer d.close()
	admitted := -1
	_ = raw.Control(func(listener uintptr) {
		for range maxWeeded {
			fd, peer, err := unix.Accept4(int(listener), unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
			if err != nil { // none waits, or none can be taken: net.Listener tells which
				return
			}
			from := endOf(peer)
			why := c.admitBare(&d, fd, from)
			if why == nil {
				admitted = fd
				return
			}
			refused(from, why)
			unix.Close(fd)
		}
	})
	if admitted < 0 {
		return nil
	}
	d.close() // leaves a descriptor for what follows
	f := os.NewFile(uintptr(admitted), "")
	defer f.Close()
	conn, err := net.FileConn(f)
	if err != nil {
		return nil
	}
	_ = conn.(*net.TCPConn).SetKeepAlive(false) // its peer is on this machine
	return conn
}

func (c *Check) admitBare(d *diag, fd int, from netip.AddrPort) error {
	local, err := unix.Getsockname(fd)
	if err != nil {
		return ErrEnded
	}
	return c.judge(d, endOf(local), from, func() error { return established(fd) }, false)
}

// endOf is an address of the kernel's; the zero AddrPort if it is none of TCP's.
func endOf(a unix.Sockaddr) netip.AddrPort {
	switch a := a.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr).Unmap(), uint16(a.Port))
	}
	return netip.AddrPort{}
}
