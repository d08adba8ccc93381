// Package process starts the workers of one node, waits for their end, and stops them with
// everything that they have started.
package process

import (
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rallypoint/internal/wake"
)

// Process is one worker. Its fields are set at start and, once HasExited, at its end; it
// stays a zombie until it is reaped, so that its pid and process group cannot be given to
// another process in the meantime.
type Process struct {
	Local int
	Pid   int
	pidfd *os.File // nil: the kernel has none

	exited chan struct{}
	Code   int  // exit code, or minus the signal; -1 if it is lost
	Lost   bool // another thread of this process has waited for it
	At     time.Time

	Stopped atomic.Bool // the agent had sent it a signal before it ended; set before the signal, which may be its end
	Fault   string      // why the agent counts it as failed, whatever ended it; "" for no such reason
	Stuck   bool        // it is in uninterruptible sleep, where no signal ends it: it is not waited for
	Memory  string      // that the kernel had killed it for memory when it ended, as the agent found; "" if not
	reaped  bool
}

// watch waits for the end of the process and calls ended then. It returns
// without a call if unwatch was called before.
func (p *Process) watch(ended func(*Process)) {
	var code int
	var lost error
	if p.pidfd != nil {
		conn, err := p.pidfd.SyscallConn()
		if err != nil {
			return
		}
		if conn.Read(func(uintptr) (done bool) { code, done, lost = exitCode(p.Pid, unix.WNOHANG); return done }) != nil {
			return
		}
	} else {
		code, _, lost = exitCode(p.Pid, 0)
	}
	p.Code, p.Lost, p.At = code, lost != nil, time.Now()
	close(p.exited)
	ended(p)
}

func (p *Process) unwatch() {
	if p.pidfd != nil {
		_ = p.pidfd.Close()
	}
}

// HasExited reports whether the process has ended; Code, Lost and At are set then.
func (p *Process) HasExited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// SignalGroup sends a signal to the process group of the worker. It must not be
// called once the worker is reaped.
func (p *Process) SignalGroup(sig unix.Signal) {
	_ = unix.Kill(-p.Pid, sig)
}

// Signal sends a signal to the worker alone. It must not be called once the worker is reaped.
func (p *Process) Signal(sig unix.Signal) {
	_ = unix.Kill(p.Pid, sig)
}

// childInfo is siginfo_t as waitid fills it in, on the 64-bit machines that we
// support.
type childInfo struct {
	signo, errno, code, _ int32
	pid                   int32
	uid                   uint32
	status                int32
	_                     [100]byte
}

const cldExited = 1 // CLD_EXITED: status is an exit code, else a signal

// exitCode asks for the end of a child without reaping it. It reports false if
// the child runs still and WNOHANG was given, and an error and -1 if something else in this process has
// reaped it.
func exitCode(pid, options int) (code int, done bool, lost error) {
	var info childInfo
	for {
		err := unix.Waitid(unix.P_PID, pid, (*unix.Siginfo)(unsafe.Pointer(&info)), unix.WEXITED|unix.WNOWAIT|options, nil)
		switch {
		case err == unix.EINTR:
			continue
		case err != nil:
			return -1, true, err
		case info.pid == 0:
			return 0, false, nil
		case info.code == cldExited:
			return int(info.status), true, nil
		}
		return -int(info.status), true, nil
	}
}

// openPidfd returns a descriptor that becomes readable when the child exits; nil if the kernel
// gives none.
func openPidfd(pid int) *os.File {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil
	}
	if unix.SetNonblock(fd, true) != nil {
		_ = unix.Close(fd)
		return nil
	}
	return os.NewFile(uintptr(fd), "pidfd")
}

var _ = [1]struct{}{}[unsafe.Sizeof(childInfo{})-unsafe.Sizeof(unix.Siginfo{})] // the two have one size

// exits collects the ends of processes in the order in which they are seen.
// It is safe for concurrent use.
type exits struct {
	mu    sync.Mutex
	queue []*Process
	wake  wake.Signal // holds a token while queue may not be empty
}

func newExits() *exits { return &exits{wake: wake.New()} }

func (e *exits) add(p *Process) {
	e.mu.Lock()
	e.queue = append(e.queue, p)
	e.mu.Unlock()
	e.wake.Set()
}

// take returns what was added since the last take, oldest first.
func (e *exits) take() []*Process {
	e.mu.Lock()
	defer e.mu.Unlock()
	queue := e.queue
	e.queue = nil
	return queue
}
