package logs

import (
	"bytes"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/pty"
	"rallypoint/internal/linequeue"
)

// stderrTee copies a worker's stderr to the agent's own, immediately and unchanged, and keeps the
// end of it. While the agent's own is not read it does not read the worker's either, which then
// waits in its write. Its methods are safe for concurrent use.
type stderrTee struct {
	read     *os.File
	to       *linequeue.Queue // where pass puts what it gets
	pass     func([]byte)
	tty      bool     // read is a pseudo-terminal's, which hands over what was written a little later
	like     *os.File // the terminal that it stands for
	stopping chan struct{}
	done     chan struct{}

	ring ring
	mu   sync.Mutex
	held []byte // the begin of a line that a full buffer cut
}

// newStderrTee makes a tee and returns the end that the worker writes to: a terminal if to is
// one, so that programs see no difference, else, or where none can be made, a pipe. It calls pass with each piece of output,
// one call at a time, until stop, and awaits room in the queue before each but the last ones.
func newStderrTee(to *os.File, queue *linequeue.Queue, pass func([]byte)) (t *stderrTee, write *os.File, err error) {
	var read *os.File
	tty := pty.IsTerminal(to)
	if tty {
		read, write, err = pty.Open(to)
		tty = err == nil
	}
	if !tty {
		read, write, err = os.Pipe()
	}
	if err != nil {
		return nil, nil, err
	}
	t = &stderrTee{read: read, to: queue, pass: pass, tty: tty, like: to, stopping: make(chan struct{}), done: make(chan struct{})}
	go t.run()
	return t, write, nil
}

// fit gives the worker's terminal the size of the agent's.
func (s *stderrTee) fit() {
	if s.tty {
		_ = pty.Control(s.read, func(fd int) error { return pty.Fit(fd, s.like) })
	}
}

func (s *stderrTee) run() {
	defer close(s.done)
	conn, err := s.read.SyscallConn()
	for ended := err != nil; !ended && s.to.Wait(s.stopping); {
		err = conn.Read(func(fd uintptr) bool {
			read, end := s.drain(int(fd), 1)
			ended = end
			return read > 0 || end
		})
		ended = ended || err != nil
	}
}

// teeBuffers are lent to tees while they read, so that idle ones cost nothing.
var teeBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// restBuffers bounds what is read of a worker that has ended, in buffers: more than a pipe holds
// unless it was made larger. Other processes may have the pipe and write on.
const restBuffers = 32

// drain reads the present content of the pipe, as many buffers as most, and reports how many it
// has read and whether it reached the end.
func (s *stderrTee) drain(fd, most int) (read int, ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tty {
		_ = pty.Fit(fd, s.like) // before the worker draws again: no signal reaches a library
	}
	buf := teeBuffers.Get().(*[32 << 10]byte)
	defer teeBuffers.Put(buf)
	for read < most {
		n, err := unix.Read(fd, buf[:])
		switch {
		case err == unix.EINTR:
		case n > 0:
			s.take(buf[:n], n == len(buf))
			read++
		default:
			s.take(nil, false)
			return read, err != unix.EAGAIN
		}
	}
	return read, false
}

// take keeps a text and passes it on. If more follows at once, the beginning of a last line waits
// for it, so that no other worker's output gets in between.
func (s *stderrTee) take(text []byte, more bool) {
	s.ring.keep(text)
	if len(s.held) > 0 {
		text = append(s.held, text...)
		s.held = nil
	}
	if more {
		if end := bytes.LastIndexByte(text, '\n') + 1; end > 0 {
			s.held = bytes.Clone(text[end:])
			text = text[:end]
		}
	}
	if len(text) > 0 {
		s.pass(text)
	}
}

// ttyPatience is how long a pseudo-terminal may take to deliver what was written.
const ttyPatience = 100 * time.Millisecond

// settle waits until a pseudo-terminal has delivered everything that an ended worker wrote.
func (s *stderrTee) settle() {
	if !s.tty {
		return
	}
	select {
	case <-s.done: // closed, and all of it was read
	case <-time.After(ttyPatience): // another process has it open
	}
}

// last returns the last Kept bytes that a worker, which has ended, wrote.
func (s *stderrTee) last() []byte {
	s.settle()
	if conn, err := s.read.SyscallConn(); err == nil {
		_ = conn.Control(func(fd uintptr) { s.drain(int(fd), restBuffers) })
	}
	return s.ring.last()
}

// stop copies what was written so far and ends the tee, even if another process still holds the
// other end. last may be called afterwards.
func (s *stderrTee) stop() {
	s.settle()
	close(s.stopping)
	_ = s.read.SetReadDeadline(time.Now())
	<-s.done
	_ = s.last()
	_ = s.read.Close()
}
