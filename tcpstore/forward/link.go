package forward

import (
	"context"
	"crypto/tls"
	"log/slog"
	"net"
	"sync"

	"golang.org/x/sys/unix"

	"rallypoint/internal/eventloop"
)

// link is a connection that was accepted and the one that carries it on.
type link struct {
	accepted net.Conn // nil: a loop has it, or it was cut before; guarded by carrier.mu

	// of the loop
	loop *loop
	ends [2]end
	over bool   // both sockets are closed
	gone func() // called then
}

// carrier has connections from when they are accepted: it resets those whose other end is not reached
// yet when it stops, and carries the others by a loop, which begins with the first of them.
type carrier struct {
	log  *slog.Logger
	life context.Context // ends with stop
	end  context.CancelFunc
	wg   sync.WaitGroup

	mu    sync.Mutex
	loop  *loop // nil: there is none yet
	links map[*link]struct{}
}

func newCarrier(log *slog.Logger) *carrier {
	c := &carrier{log: log, links: map[*link]struct{}{}}
	c.life, c.end = context.WithCancel(context.Background())
	return c
}

// take takes over a connection that was accepted, and calls further in a goroutine, which ends with
// carry or cut.
func (c *carrier) take(accepted net.Conn, further func(k *link)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		closeRaw(accepted)
		return
	}
	k := &link{accepted: accepted}
	c.links[k] = struct{}{}
	c.wg.Go(func() { further(k) })
}

// claim returns the accepted connection of a link, which is the caller's from then on; nil: it was cut.
func (c *carrier) claim(k *link) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := k.accepted
	k.accepted = nil
	return conn
}

// cut resets a link whose other end cannot be reached.
func (c *carrier) cut(k *link) {
	if conn := c.claim(k); conn != nil {
		closeRaw(conn)
	}
	c.forget(k)
}

func (c *carrier) forget(k *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.links, k)
}

// carry begins to carry a link to its other connection. If it fails it has reset both.
func (c *carrier) carry(k *link, other net.Conn) error {
	accepted := c.claim(k)
	if accepted == nil {
		closeRaw(other)
		return net.ErrClosed
	}
	k.gone = func() { c.forget(k) }
	k.ends[0] = end{link: k, other: &k.ends[1], fd: -1}
	k.ends[1] = end{link: k, other: &k.ends[0], fd: -1}
	conns := [2]net.Conn{accepted, other}
	raw := [2]net.Conn{below(accepted), below(other)} // as long as TLS is over them
	err := c.handOver(k, conns, raw)
	if err != nil {
		for i := range k.ends {
			closeRaw(raw[i])
			if fd := k.ends[i].fd; fd >= 0 {
				closeFD(fd, true)
			}
		}
		c.forget(k)
	}
	return err
}

// handOver hands the sockets of a link to the loop.
func (c *carrier) handOver(k *link, conns, raw [2]net.Conn) error {
	l, err := c.running()
	if err != nil {
		return err
	}
	for i, conn := range conns {
		if secured, ok := conn.(*tls.Conn); ok {
			if k.ends[i].tls, err = eventloop.NewTLS(secured); err != nil {
				return err
			}
		}
		fd, err := eventloop.TakeOver(raw[i])
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
	if c.life.Err() != nil {
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

// stop cuts all links, and returns when nothing of the carrier runs any more.
func (c *carrier) stop() {
	c.mu.Lock()
	c.end()
	for k := range c.links {
		if k.accepted != nil {
			closeRaw(k.accepted)
			k.accepted = nil
		}
	}
	if c.loop != nil {
		c.loop.events.Put(func(in *inbox) { in.stop = true })
	}
	c.mu.Unlock()
	c.wg.Wait()
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
