package etcdserver

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// HeldPort is a free port of 127.0.0.1 that no other process is given while it is held:
// its socket is bound, but does not listen. Linux lets a program that binds with
// SO_REUSEADDR, as every Go listener does, take the port over meanwhile.
type HeldPort struct {
	Number int
	socket int
}

// HoldPort holds a free port, until Release.
func HoldPort() (*HeldPort, error) {
	socket, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	p := &HeldPort{socket: socket}
	if err := p.bind(); err != nil {
		p.Release()
		return nil, fmt.Errorf("holding a free port of 127.0.0.1: %w", err)
	}
	return p, nil
}

func (h *HeldPort) bind() error {
	if err := unix.SetsockoptInt(h.socket, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	if err := unix.Bind(h.socket, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return os.NewSyscallError("bind", err)
	}
	name, err := unix.Getsockname(h.socket)
	if err != nil {
		return os.NewSyscallError("getsockname", err)
	}
	h.Number = name.(*unix.SockaddrInet4).Port
	return nil
}

// Release gives the port up; releasing again does nothing.
func (h *HeldPort) Release() {
	if h.socket >= 0 {
		_ = unix.Close(h.socket)
		h.socket = -1
	}
}
