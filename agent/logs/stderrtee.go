package logs

import (
	"bytes"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent/pty"
)

// stderrTee copies a worker's stderr to the agent's own, immediately and unchanged, and keeps the
// end of it. Its methods are safe for concurrent use.
type stderrTee struct {
	read *os.File
	pass func([]byte)
	tty  bool     // read is a pseudo-terminal's, which hands over what was written a little later
	like *os.File // the terminal that it stands for
	done chan struct{}

	ring ring
	mu   sync.Mutex
	held []byte // the begin of a line that a full buffer cut
}

// newStderrTee makes a tee and returns the end that the worker writes to: a terminal if to is
// one, so that programs see no difference, else a pipe. It calls pass with each piece of output,
// one call at a time, until stop.
func newStderrTee(to *os.File, pass func([]byte)) (t *stderrTee, write *os.File, err error) {
	var read *os.File
	tty := pty.IsTerminal(to)
	if tty {
		read, write, err = pty.Open(to)
	} else {
		read, write, err = os.Pipe()
	}
	if err != nil {
		return nil, nil, err
	}
	t = &stderrTee{read: read, pass: pass, tty: tty, like: to, done: make(chan struct{})}
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
	if conn, err := s.read.SyscallConn(); err == nil {
		_ = conn.Read(func(fd uintptr) bool { return s.drain(int(fd)) })
	}
}

// teeBuffers are lent to tees while they read, so that idle ones cost nothing.
var teeBuffers = sync.Pool{New: func() any { return new([32 << 10]byte) }}

// drain reads the present content of the pipe, and reports whether it reached the end.
func (s *stderrTee) drain(fd int) (ended bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tty {
		_ = pty.Fit(fd, s.like) // before the worker draws again: no signal reaches a library
	}
	buf := teeBuffers.Get().(*[32 << 10]byte)
	defer teeBuffers.Put(buf)
	for {
		n, err := unix.Read(fd, buf[:])
		switch {
		case err == unix.EINTR:
			continue
		case n > 0:
			s.take(buf[:n], n == len(buf))
			continue
		}
		s.take(nil, false)
		return err != unix.EAGAIN
	}
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
		_ = conn.Control(func(fd uintptr) { s.drain(int(fd)) })
	}
	return s.ring.last()
}

// stop copies what was written so far and ends the tee, even if another process still holds the
// other end. last may be called afterwards.
func (s *stderrTee) stop() {
	s.settle()
	_ = s.read.SetReadDeadline(time.Now())
	<-s.done
	_ = s.last()
	_ = s.read.Close()
}
