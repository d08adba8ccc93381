package eventloop

import (
	"errors"
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TakeOver returns a descriptor for the socket of nc and closes nc, which takes
// the socket out of the Go runtime's poller: two pollers would double the cost of
// each event. It is a duplicate, for that is the only way to get it out of there,
// and it may fail for want of a descriptor: nc is still open then.
func TakeOver(nc net.Conn) (fd int, err error) {
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

// Receive reads what has arrived. It and Send never block, which is why they do
// without what the runtime does around a system call that may: that costs as much
// as the rest of a small request, apart from the kernel.
func Receive(fd int32, b []byte) (int, syscall.Errno) {
	return transfer(unix.SYS_RECVFROM, fd, b, unix.MSG_DONTWAIT)
}

// Send writes as much as there is room for. MSG_NOSIGNAL is needed because a library cannot rely
// on its process ignoring SIGPIPE.
func Send(fd int32, b []byte) (int, syscall.Errno) {
	return transfer(unix.SYS_SENDTO, fd, b, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
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
