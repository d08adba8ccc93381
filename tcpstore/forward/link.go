package forward

import (
	"crypto/tls"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"rallypoint/internal/eventloop"
)

// link is a worker's connection and the one to the store that carries it.
type link struct {
	worker atomic.Pointer[net.TCPConn] // nil: a loop carries it, or it was cut before

	// of the loop
	loop *loop
	ends [2]end // of the worker, of the store
	over bool   // both sockets are closed
	gone func() // called then
}

func newLink(worker *net.TCPConn) *link {
	k := &link{}
	k.worker.Store(worker)
	return k
}

// cut resets the worker's connection, unless a loop carries it.
func (l *link) cut() {
	if worker := l.worker.Swap(nil); worker != nil {
		closeRaw(worker)
	}
}

// carrier carries the links of one owner by a loop, which begins with the first of them.
type carrier struct {
	log *slog.Logger
	wg  *sync.WaitGroup // of the owner, which waits for it after stop

	mu      sync.Mutex
	loop    *loop // nil: there is none yet
	stopped bool
}

// carry begins to carry a link to a connection to the store, and has gone called when it has
// ended. If it fails it has reset both connections, and does not call gone.
func (c *carrier) carry(k *link, store Conn, gone func()) error {
	worker, raw := k.worker.Swap(nil), below(store)
	if worker == nil {
		closeRaw(raw)
		return net.ErrClosed
	}
	k.gone = gone
	k.ends[0] = end{link: k, other: &k.ends[1], fd: -1}
	k.ends[1] = end{link: k, other: &k.ends[0], fd: -1}
	if err := c.take(k, worker, store, raw); err != nil {
		closeRaw(worker)
		closeRaw(raw)
		for i := range k.ends {
			if fd := k.ends[i].fd; fd >= 0 {
				closeFD(fd, true)
			}
		}
		return err
	}
	return nil
}

// take hands the sockets of a link to the loop.
func (c *carrier) take(k *link, worker *net.TCPConn, store Conn, raw net.Conn) error {
	l, err := c.running()
	if err != nil {
		return err
	}
	if secured, ok := store.(*tls.Conn); ok {
		if k.ends[1].tls, err = eventloop.NewTLS(secured); err != nil {
			return err
		}
	}
	for i, conn := range []net.Conn{worker, raw} {
		fd, err := eventloop.TakeOver(conn)
		if err != nil {
			return err
		}
		k.ends[i].fd = int32(fd)
	}
	if !l.events.Put(func(in *inbox) { in.added = append(in.added, k) }) {
		return net.ErrClosed
	}
	return nil
}

func (c *carrier) running() (*loop, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.stopped {
		return nil, net.ErrClosed
	}
	if c.loop == nil {
		l, err := newLoop()
		if err != nil {
			return nil, err
		}
		c.loop = l
		c.wg.Go(func() {
			if err := l.run(); err != nil {
				c.log.Error("connections to the workers' store are no longer forwarded", "error", err)
			}
		})
	}
	return c.loop, nil
}

// stop has all links cut.
func (c *carrier) stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	if c.loop != nil {
		c.loop.events.Put(func(in *inbox) { in.stop = true })
	}
}

// closeRaw resets a connection without another word. The end of a TLS connection is its
// close_notify; sending it here might wait.
func closeRaw(c net.Conn) {
	c = below(c)
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.Close()
}

// closeFD closes a socket of a loop.
func closeFD(fd int32, reset bool) {
	if reset {
		_ = unix.SetsockoptLinger(int(fd), unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1})
	}
	_ = unix.Close(int(fd))
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
