package peer

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// routedHere reports whether the kernel treats an address as this machine's own. The addresses of
// its interfaces are not enough: a route may make a whole network local, for example that of a
// load balancer, and then any user may connect from each address in it.
func routedHere(a netip.Addr) (bool, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return false, fmt.Errorf("NETLINK_ROUTE: %w", err)
	}
	defer unix.Close(fd)
	var buf [netlinkBuffer]byte
	reply, err := exchange(fd, routeRequest(a), buf[:])
	if err != nil {
		return false, fmt.Errorf("NETLINK_ROUTE: %w", err)
	}
	return parseRouteReply(reply)
}

func routeRequest(a netip.Addr) []byte {
	const attributeLen = 4 // the head of an attribute
	order, bits := binary.NativeEndian, a.BitLen()
	size := unix.SizeofNlMsghdr + unix.SizeofRtMsg + attributeLen + bits/8
	b := make([]byte, 0, size)
	b = order.AppendUint32(b, uint32(size))
	b = order.AppendUint16(b, unix.RTM_GETROUTE)
	b = order.AppendUint16(b, unix.NLM_F_REQUEST)
	b = order.AppendUint32(b, 0)                                         // sequence number: it is the only question
	b = order.AppendUint32(b, 0)                                         // port id: the kernel knows it
	b = append(b, familyOf(a), byte(bits), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0) // struct rtmsg
	b = order.AppendUint16(b, uint16(attributeLen+bits/8))
	b = order.AppendUint16(b, unix.RTA_DST)
	return append(b, a.AsSlice()...)
}

// parseRouteReply reports whether the answer is a route to this machine. Where there is no route an
// address is not this machine's.
func parseRouteReply(b []byte) (bool, error) {
	const typeAt = 7 // in struct rtmsg
	order := binary.NativeEndian
	if len(b) < unix.SizeofNlMsghdr+errorReplyLen {
		return false, errShortReply
	}
	kind, body := order.Uint16(b[4:]), b[unix.SizeofNlMsghdr:]
	switch {
	case kind == unix.NLMSG_ERROR:
		errno := syscall.Errno(-int32(order.Uint32(body)))
		if errors.Is(errno, unix.ENETUNREACH) || errors.Is(errno, unix.EHOSTUNREACH) {
			return false, nil
		}
		return false, errno
	case kind != unix.RTM_NEWROUTE:
		return false, fmt.Errorf("an answer of kind %d", kind)
	case len(body) < unix.SizeofRtMsg:
		return false, errShortReply
	}
	return body[typeAt] == unix.RTN_LOCAL, nil
}
