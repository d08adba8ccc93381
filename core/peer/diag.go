package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// Layout of the messages of sock_diag(7): struct inet_diag_req_v2 and struct
// inet_diag_msg of linux/inet_diag.h. Numbers are in the byte order of the machine, ports
// and addresses in that of the network.
const (
	diagRequestLen = 56
	diagReplyLen   = 72
	errorReplyLen  = 4

	// netlinkBuffer has room for the answer to a question about one socket or route.
	netlinkBuffer = 4 << 10
)

// diag asks questions by one NETLINK_SOCK_DIAG socket, which the first of them opens. The zero
// value is ready; its user closes it.
type diag struct {
	open bool
	fd   int
	seq  uint32 // of the last question
}

func (d *diag) close() {
	if d.open {
		unix.Close(d.fd)
	}
	d.open = false
}

// find asks the kernel for the socket that is bound to remote and connected to local.
func (d *diag) find(local, remote netip.AddrPort) (socket, error) {
	if !d.open {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_SOCK_DIAG)
		if err != nil {
			return socket{}, fmt.Errorf("NETLINK_SOCK_DIAG: %w", err)
		}
		d.open, d.fd = true, fd
	}
	d.seq++
	var buf [netlinkBuffer]byte
	reply, err := exchange(d.fd, diagRequest(d.seq, local, remote), buf[:])
	if err != nil {
		return socket{}, fmt.Errorf("NETLINK_SOCK_DIAG: %w", err)
	}
	return parseDiagReply(reply, d.seq, local, remote)
}

// exchange asks the kernel by a netlink socket, and returns its answer in buf. The kernel answers
// within the call that asks, so that nothing here waits.
func exchange(fd int, request, buf []byte) ([]byte, error) {
	if err := unix.Sendto(fd, request, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return nil, err
	}
	n, from, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
	for errors.Is(err, unix.EINTR) {
		n, from, err = unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
	}
	if err != nil {
		return nil, err
	}
	if kernel, ok := from.(*unix.SockaddrNetlink); !ok || kernel.Pid != 0 {
		return nil, errors.New("the answer is not the kernel's")
	}
	return buf[:n], nil
}

func diagRequest(seq uint32, local, remote netip.AddrPort) []byte {
	b := make([]byte, 0, unix.SizeofNlMsghdr+diagRequestLen)
	order := binary.NativeEndian
	b = order.AppendUint32(b, unix.SizeofNlMsghdr+diagRequestLen)
	b = order.AppendUint16(b, unix.SOCK_DIAG_BY_FAMILY)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST)
	b = order.AppendUint32(b, seq)
	b = order.AppendUint32(b, 0) // port id: the kernel knows it
	b = append(b, familyOf(local.Addr()), unix.IPPROTO_TCP, 0, 0)
	b = order.AppendUint32(b, math.MaxUint32) // states
	b = binary.BigEndian.AppendUint16(b, remote.Port())
	b = binary.BigEndian.AppendUint16(b, local.Port())
	b = append(b, addressField(remote.Addr())...)
	b = append(b, addressField(local.Addr())...)
	b = order.AppendUint32(b, interfaceOf(remote.Addr()))
	return order.AppendUint64(b, uint64(math.MaxUint64)) // cookie: none
}

// interfaceOf is the number of the interface that a link-local address belongs to, 0 of
// others.
func interfaceOf(a netip.Addr) uint32 {
	if a.Zone() == "" {
		return 0
	}
	if i, err := net.InterfaceByName(a.Zone()); err == nil {
		return uint32(i.Index)
	}
	return 0
}

func familyOf(a netip.Addr) byte {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

// addressField is an address in the 16 bytes that it has in a message.
func addressField(a netip.Addr) []byte {
	var field [16]byte
	copy(field[:], a.AsSlice())
	return field[:]
}

// parseDiagReply reads the answer to a question about one socket, which has to be the one that
// was asked for.
func parseDiagReply(b []byte, seq uint32, local, remote netip.AddrPort) (socket, error) {
	order := binary.NativeEndian
	if len(b) < unix.SizeofNlMsghdr {
		return socket{}, errShortReply
	}
	size := order.Uint32(b)
	if uint64(size) > uint64(len(b)) || size < unix.SizeofNlMsghdr {
		return socket{}, errShortReply
	}
	kind, body := order.Uint16(b[4:]), b[unix.SizeofNlMsghdr:size]
	switch {
	case order.Uint32(b[8:]) != seq:
		return socket{}, errors.New("NETLINK_SOCK_DIAG: the answer to another question")
	case kind == unix.NLMSG_ERROR && len(body) >= errorReplyLen:
		errno := syscall.Errno(-int32(order.Uint32(body)))
		if errno == unix.ENOENT {
			return socket{}, errNoSocket
		}
		return socket{}, fmt.Errorf("NETLINK_SOCK_DIAG: %w", errno)
	case kind != unix.SOCK_DIAG_BY_FAMILY:
		return socket{}, fmt.Errorf("NETLINK_SOCK_DIAG: an answer of kind %d", kind)
	case len(body) < diagReplyLen:
		return socket{}, errShortReply
	}
	ends := [2]netip.AddrPort{
		netip.AddrPortFrom(addressOf(body[0], body[8:24]), binary.BigEndian.Uint16(body[4:])),
		netip.AddrPortFrom(addressOf(body[0], body[24:40]), binary.BigEndian.Uint16(body[6:])),
	}
	if ends[0] != withoutZone(remote) || ends[1] != withoutZone(local) {
		return socket{}, errNoSocket // a listener at the other end's address, for instance
	}
	return socket{state: body[1], uid: order.Uint32(body[64:]), inode: order.Uint32(body[68:])}, nil
}

var errShortReply = errors.New("NETLINK_SOCK_DIAG: an answer that is too short")

func addressOf(family byte, field []byte) netip.Addr {
	if family == unix.AF_INET {
		return netip.AddrFrom4([4]byte(field[:4]))
	}
	return netip.AddrFrom16([16]byte(field)).Unmap()
}

func withoutZone(a netip.AddrPort) netip.AddrPort {
	return netip.AddrPortFrom(a.Addr().WithZone(""), a.Port())
}
