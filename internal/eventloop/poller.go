// Package eventloop has the event loop of stores and forwarders, its poller, sockets that never
// block, and TLS over what a loop has received.
package eventloop

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxEvents is how many events are taken at a time. It bounds the work of one
// iteration, while asking already costs next to nothing a request from 64 on.
const maxEvents = 256

// Poller tells which descriptors can be read or written. Only Wake may be called
// by others than the one that waits.
//
// Events are edge-triggered: each is reported once, and a descriptor is registered
// once for all that it may need. That saves the kernel from looking at each
// connection twice for a request, and an epoll_ctl whenever a peer reads slowly.
//
// Its epoll descriptor is itself watched by the poller of the Go runtime: sleeping parks
// the goroutine. An epoll_wait that blocks would hold a thread for each loop; the
// runtime's monitor would take the processor away from it, and it would have to get it
// back. That costs more than looking twice: with one or eight connections about a tenth
// of a request.
type Poller struct {
	file   *os.File // epoll
	raw    syscall.RawConn
	epoll  uintptr
	wakeFD int       // an eventfd, by which other goroutines end a wait
	until  time.Time // the deadline of file

	look   func(uintptr) bool // kept, so that waiting allocates nothing
	events [maxEvents]unix.EpollEvent
	n      int
	errno  syscall.Errno
}

// NewPoller makes a poller; the caller closes it.
func NewPoller() (*Poller, error) {
	fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("epoll_create1: %w", err)
	}
	bell, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("eventfd: %w", err)
	}
	unix.SetNonblock(fd, true) // or NewFile does not hand it to the runtime's poller
	p := &Poller{file: os.NewFile(uintptr(fd), "epoll"), epoll: uintptr(fd), wakeFD: bell}
	p.look = p.lookOnce
	p.raw, err = p.file.SyscallConn()
	if err := errors.Join(err, p.file.SetReadDeadline(p.until), p.Add(bell)); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// Add registers a descriptor. EPOLLRDHUP is needed because an end of the stream that arrives
// together with data makes no event of its own.
func (p *Poller) Add(fd int) error {
	event := unix.EpollEvent{
		Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET,
		Fd:     int32(fd),
	}
	if err := unix.EpollCtl(int(p.epoll), unix.EPOLL_CTL_ADD, fd, &event); err != nil {
		return fmt.Errorf("epoll_ctl: %w", err)
	}
	return nil
}

// remove takes out a descriptor that is going to be closed. Closing it is not
// enough if a process that was forked meanwhile has the same socket open.
func (p *Poller) remove(fd int) {
	unix.EpollCtl(int(p.epoll), unix.EPOLL_CTL_DEL, fd, nil)
}

// Wait returns the events there are, which are good until the next call. If there
// are none it waits for some, unless it is not to sleep; at most until the time
// given, if that is not zero.
func (p *Poller) Wait(sleep bool, until time.Time) ([]unix.EpollEvent, error) {
	if sleep {
		if until != p.until {
			p.until = until
			p.file.SetReadDeadline(until)
		}
		err := p.raw.Read(p.look) // looks before it parks, unless the time is over
		if sleep = !errors.Is(err, os.ErrDeadlineExceeded); sleep && err != nil {
			return nil, fmt.Errorf("waiting for events: %w", err)
		}
	}
	if !sleep {
		p.lookOnce(p.epoll)
	}
	if p.errno != 0 && p.errno != unix.EINTR {
		return nil, fmt.Errorf("epoll_pwait: %w", p.errno)
	}
	return p.events[:p.n], nil
}

// lookOnce takes the events there are and reports whether there are any.
func (p *Poller) lookOnce(epoll uintptr) bool {
	n, _, errno := syscall.RawSyscall6(unix.SYS_EPOLL_PWAIT, epoll,
		uintptr(unsafe.Pointer(&p.events)), maxEvents, 0, 0, 0)
	p.n, p.errno = int(n), errno
	if errno != 0 {
		p.n = 0
	}
	return n > 0
}

func (p *Poller) woke(event *unix.EpollEvent) bool { return int(event.Fd) == p.wakeFD }

// wake ends a wait, now or the next. The count is never read: each write is an
// edge of its own.
func (p *Poller) wake() {
	var one [8]byte
	binary.NativeEndian.PutUint64(one[:], 1)
	for {
		if _, err := unix.Write(p.wakeFD, one[:]); !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// Close closes the descriptors of a poller that is not used any more.
func (p *Poller) Close() {
	p.file.Close()
	unix.Close(p.wakeFD)
}
