package peer

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// socket is the kernel's description of one end of a connection.
type socket struct {
	state uint8
	uid   uint32 // of the process that made it, in this process's user namespace
	inode uint32 // 0: no process has it any more
}

// States of a TCP socket that a process has and that is connected.
const (
	stateEstablished = 1
	stateFinWait1    = 4
	stateFinWait2    = 5
	stateCloseWait   = 8
)

// open reports whether a process has the socket, so that uid is that of its maker: of one
// that no process has, some kernels tell user 0.
func (s socket) open() bool {
	return s.inode != 0 && (s.state == stateEstablished || s.state == stateCloseWait)
}

// held reports whether a process has the socket, which may have ended its sending side.
func (s socket) held() bool {
	return s.inode != 0 && (s.open() || s.state == stateFinWait1 || s.state == stateFinWait2)
}

var (
	// errUnavailable says that the kernel, or a sandbox, does not reveal a socket's user.
	errUnavailable = errors.New("the kernel does not tell of sockets here")
	// errNoSocket tells that there is no such socket.
	errNoSocket = errors.New("there is no such socket")
)

// diagAnswers tells that NETLINK_SOCK_DIAG has found a socket in this process. Until then
// "no such socket" may mean that a module of the kernel is missing.
var diagAnswers atomic.Bool

// lookUp finds the other end of a connection between local, this process's end, and remote. It
// uses d if the kernel answers that.
func lookUp(d *diag, local, remote netip.AddrPort) (socket, error) {
	s, err := d.find(local, remote)
	switch {
	case err == nil:
		diagAnswers.Store(true)
		return s, nil
	case errors.Is(err, errNoSocket) && diagAnswers.Load():
		return socket{}, err
	}
	s, scanned := scanTables(local, remote)
	switch {
	case scanned == nil, errors.Is(scanned, errNoSocket):
		return s, scanned
	case errors.Is(err, errNoSocket):
		return socket{}, err
	}
	return socket{}, fmt.Errorf("%w: neither NETLINK_SOCK_DIAG nor /proc/net/tcp can be used: %w; %w", errUnavailable, err, scanned)
}

// connected returns nil if this end of a connection is connected, even if its peer has closed its
// sending side, else ErrEnded. conn may be a wrapper of the socket's connection.
func connected(conn net.Conn) error {
	for {
		over, ok := conn.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		conn = over.NetConn()
	}
	held, ok := conn.(syscall.Conn)
	if !ok {
		return errors.New("it is not a socket")
	}
	raw, err := held.SyscallConn()
	if err != nil {
		return ErrEnded // it was closed here
	}
	if failed := raw.Control(func(fd uintptr) { err = established(int(fd)) }); failed != nil {
		return ErrEnded
	}
	return err
}

// established is connected for a descriptor.
func established(fd int) error {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	switch {
	case err != nil:
		return fmt.Errorf("%w: TCP_INFO: %w", errUnavailable, err)
	case info.State != stateEstablished && info.State != stateCloseWait:
		return ErrEnded
	}
	return nil
}
