package tcpstore

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// takeOver returns a descriptor for the socket of nc and closes nc, which takes
// the socket out of the Go runtime's poller: two pollers would double the cost of
// each event. It is a duplicate, for that is the only way to get it out of there,
// and it may fail for want of a descriptor: nc is still open then.
func takeOver(nc net.Conn) (fd int, err error) {
	sc, ok := nc.(syscall.Conn)
	if !ok {
		return -1, errors.ErrUnsupported
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	var failed error
	err = raw.Control(func(old uintptr) {
		fd, failed = unix.FcntlInt(old, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err = errors.Join(err, failed); err != nil {
		return -1, err
	}
	nc.Close()
	return fd, nil
}

// peerOf returns the address of the other end, as it is shown in logs.
func peerOf(nc net.Conn) netip.AddrPort {
	addr, ok := nc.RemoteAddr().(*net.TCPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	peer := addr.AddrPort()
	return netip.AddrPortFrom(peer.Addr().Unmap(), peer.Port())
}

// receive reads what has arrived. It and send never block, which is why they do
// without what the runtime does around a system call that may: that costs as much
// as the rest of a small request, apart from the kernel.
func receive(fd int32, b []byte) (int, syscall.Errno) {
	return transfer(unix.SYS_RECVFROM, fd, b, unix.MSG_DONTWAIT)
}

// send writes as much as there is room for. MSG_NOSIGNAL is there because a
// library cannot rely on its process ignoring SIGPIPE.
func send(fd int32, b []byte) (int, syscall.Errno) {
	return transfer(unix.SYS_SENDTO, fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
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

func transfer(call uintptr, fd int32, b []byte, flags uintptr) (int, syscall.Errno) {
	for {
		n, _, errno := syscall.RawSyscall6(call, uintptr(fd),
			uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), flags, 0, 0)
		if errno != unix.EINTR {
			return int(n), errno
		}
	}
}
