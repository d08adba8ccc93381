package forward

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

// Buffers.
const (
	bufferSize = 16 << 10 // of one write: what a TLS record holds
	smallSize  = 1 << 10  // of the buffer that a connection at rest keeps
)

// buffers are lent while there is something in them: a connection at rest has none.
var buffers = sync.Pool{New: func() any { return new([bufferSize]byte) }}

// link is a worker's connection and the one to the store that carries it.
type link struct {
	worker *net.TCPConn

	mu    sync.Mutex
	store Conn // nil: not yet
	ended bool
	small [smallSize]byte // what comes from the store goes here first
}

// reached notes the connection to the store, which is closed if the worker's is ended.
func (l *link) reached(store Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		closeRaw(store, true)
		return false
	}
	l.store = store
	return true
}

// start carries both directions in goroutines of wg, and calls ended when both have ended.
func (l *link) start(wg *sync.WaitGroup, ended func()) {
	var left atomic.Int32
	left.Store(2)
	direction := func(carry func() error, halfClose func() error) {
		l.end(carry(), halfClose)
		if left.Add(-1) == 0 {
			l.cut(false)
			ended()
		}
	}
	wg.Go(func() { direction(l.toStore, l.store.CloseWrite) })
	wg.Go(func() { direction(l.toWorker, l.worker.CloseWrite) })
}

// end passes on how one direction has ended: the end of a stream by halfClose, anything else
// by cutting the connection off.
func (l *link) end(err error, halfClose func() error) {
	if err == io.EOF {
		err = halfClose()
	}
	if err != nil {
		l.cut(true)
	}
}

// cut closes both connections at once, with reset, or if there is none to the store yet, as
// ones that have broken. Cutting again does nothing.
func (l *link) cut(reset bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	closeRaw(l.worker, reset || l.store == nil)
	if l.store != nil {
		closeRaw(l.store, reset)
	}
}

// closeRaw closes a connection without another word. The end of a TLS connection is its
// close_notify, which CloseWrite has sent unless it broke; sending it here might wait.
func closeRaw(c net.Conn, reset bool) {
	c = below(c)
	if tcp, ok := c.(*net.TCPConn); ok && reset {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// below returns the connection below TLS.
func below(c net.Conn) net.Conn {
	for {
		over, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			return c
		}
		c = over.NetConn()
	}
}

// arrived reports whether the kernel has something of a connection to be read.
func arrived(c net.Conn) bool {
	tcp, ok := below(c).(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	return n > 0
}

// toStore carries what the worker sends. It takes a buffer when there is something to read.
func (l *link) toStore() error {
	raw, err := l.worker.SyscallConn()
	if err != nil {
		return err
	}
	var buffer *[bufferSize]byte
	var n int
	var failed error
	receive := func(fd uintptr) bool {
		buffer = buffers.Get().(*[bufferSize]byte)
		n, failed = retryInterrupted(func() (int, error) { return unix.Read(int(fd), buffer[:]) })
		if errors.Is(failed, syscall.EAGAIN) {
			buffers.Put(buffer)
			buffer = nil
			return false
		}
		return true
	}
	for {
		if err := raw.Read(receive); err != nil {
			return err
		}
		if failed == nil && n == 0 {
			failed = io.EOF
		}
		if failed == nil {
			_, failed = l.store.Write(buffer[:n])
		}
		buffers.Put(buffer)
		if failed != nil {
			return failed
		}
	}
}

// toWorker carries what the store sends. Of a large reply all but its beginning goes through
// a buffer that is taken for it.
func (l *link) toWorker() error {
	for {
		n, err := l.store.Read(l.small[:])
		if n > 0 {
			if _, err := l.worker.Write(l.small[:n]); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		if n == len(l.small) {
			if err := l.rest(); err != nil {
				return err
			}
		}
	}
}

// rest carries on until a read does not fill the buffer and nothing more has arrived. A read
// of TLS ends with a record.
func (l *link) rest() error {
	buffer := buffers.Get().(*[bufferSize]byte)
	defer buffers.Put(buffer)
	for {
		n, err := l.store.Read(buffer[:])
		if n > 0 {
			if _, err := l.worker.Write(buffer[:n]); err != nil {
				return err
			}
		}
		if err != nil || n < len(buffer) && !arrived(l.store) {
			return err
		}
	}
}

// retryInterrupted repeats a system call that a signal has interrupted.
func retryInterrupted(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
