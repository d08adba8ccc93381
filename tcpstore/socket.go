package tcpstore

import (
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

func peerOf(nc net.Conn) netip.AddrPort {
	addr, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	peer := addr.AddrPort()
	return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
}

// maxVectors bounds the pieces of one write.
const maxVectors = 64

// sendSegments is send for the first of several pieces, as one.
func sendSegments(fd int32, segments []segment) (int, syscall.Errno) {
	var vectors [maxVectors]unix.Iovec
	n := 0
	for i := range segments[:min(len(segments), maxVectors)] {
		if b := segments[i].bytes; len(b) > 0 {
			vectors[n].Base = unsafe.SliceData(b)
			vectors[n].SetLen(len(b))
			n++
		}
	}
	header := unix.Msghdr{Iov: &vectors[0]}
	header.SetIovlen(n)
	for {
		sent, _, errno := syscall.RawSyscall6(unix.SYS_SENDMSG, uintptr(fd), uintptr(unsafe.Pointer(&header)),
			unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0, 0)
		if errno != unix.EINTR {
			return int(sent), errno
		}
	}
}

// awaitReadable waits on this thread until fd has something to read, an end or an error to
// show, or until the given time.
func awaitReadable(fd int, until time.Time) {
	for {
		left := time.Until(until)
		if left <= 0 {
			return
		}
		timeout := unix.NsecToTimespec(int64(left))
		if _, err := unix.Ppoll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, &timeout, nil); err != unix.EINTR {
			return
		}
	}
}
