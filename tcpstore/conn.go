package tcpstore

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// pauseUnsent is how many bytes of replies are collected before requests
	// that have arrived already have to wait for their peer to read. It makes
	// one write of any usual pipeline and keeps the memory of a peer that does
	// not read far below MaxUnsent.
	pauseUnsent = 256 << 10

	// keptReplies bounds the memory that a connection keeps for its next replies.
	keptReplies = 64 << 10

	// lastWords bounds how long a refused peer may take to read the replies to
	// its earlier requests.
	lastWords = time.Second
)

// conn moves the bytes between a socket and its session.
//
// The goroutine of serve reads, processes and writes. Replies that other
// connections cause (the end of a wait) are written by a goroutine that lives
// only for that. Lock order: writing, then hub.mu; Server.mu is not held with
// either.
type conn struct {
	server  *Server
	hub     *hub
	nc      net.Conn
	session session // guarded by hub.mu, except its parser's space and received

	writing sync.Mutex
	spare   []byte // guarded by writing

	flushing bool    // guarded by hub.mu: a goroutine is about to take session.out
	others   []*conn // of the serve goroutine
}

func newConn(s *Server, h *hub, nc net.Conn) *conn {
	if tcp, ok := nc.(*net.TCPConn); ok {
		tcp.SetNoDelay(true) // Go's default; replies are small and awaited
	}
	c := &conn{server: s, hub: h, nc: nc}
	c.session = session{engine: h.engine, config: &s.config, woken: c.woken}
	return c
}

// serve runs the connection until it ends.
func (c *conn) serve() {
	defer c.server.forget(c)
	defer c.nc.Close()
	defer func() {
		c.hub.mu.Lock()
		defer c.hub.mu.Unlock()
		c.session.close()
	}()
	for {
		n, err := c.nc.Read(c.session.parser.space())
		c.server.counters.bytesIn.Add(uint64(n))
		c.session.parser.received(n)
		if !c.process() {
			return
		}
		if err != nil {
			c.ended(err)
			return
		}
	}
}

// process carries out what has been received and sends the replies. It reports
// whether the connection goes on.
func (c *conn) process() bool {
	for {
		c.hub.mu.Lock()
		drained, refused := c.session.process(pauseUnsent)
		c.others = append(c.others[:0], c.hub.woken...)
		clear(c.hub.woken)
		c.hub.woken = c.hub.woken[:0]
		c.hub.mu.Unlock()

		for i, other := range c.others {
			if other != c {
				c.server.wg.Go(other.flushWoken)
			}
			c.others[i] = nil
		}
		if refused != nil {
			c.refuse(refused)
			return false
		}
		if !c.flush() {
			return false
		}
		if drained {
			return true
		}
	}
}

// woken is called with hub.mu held when a wait of this connection is over. It
// asks for one flush, however many waits end before that happens.
func (c *conn) woken() {
	if !c.flushing {
		c.flushing = true
		c.hub.woken = append(c.hub.woken, c)
	}
}

// flushWoken sends a reply which another connection has caused. If that fails
// the serve goroutine finds out by its read.
func (c *conn) flushWoken() {
	if !c.flush() {
		c.nc.Close()
	}
}

// flush sends the replies there are, in one write, and reports whether that went
// well. It waits for the peer to make room, and for another flush to end.
func (c *conn) flush() bool {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.hub.mu.Lock()
	c.flushing = false
	out := c.session.takeOut(c.spare)
	c.hub.mu.Unlock()

	n := 0
	var err error
	if len(out) > 0 {
		n, err = c.nc.Write(out)
		c.server.counters.bytesOut.Add(uint64(n))
	}
	c.spare = out
	if cap(out) > keptReplies {
		c.spare = nil
	}
	return err == nil
}

// refuse logs why the connection is closed and sends the replies to the requests
// before that.
func (c *conn) refuse(why *refusal) {
	c.server.counters.refused[why.reason].Add(1)
	c.server.log.Warn("tcpstore: connection closed: "+why.text,
		"peer", c.nc.RemoteAddr().String(), "listen", c.server.Addr().String(), "reason", why.reason.String())
	c.nc.SetWriteDeadline(time.Now().Add(lastWords))
	c.flush()
}

// ended deals with the end of the input.
func (c *conn) ended(err error) {
	switch {
	case c.server.done.Err() != nil:
	case errors.Is(err, io.EOF) && c.session.parser.partial():
		c.refuse(refuse(ReasonTruncated, "the peer ended its stream inside a message"))
	case !errors.Is(err, io.EOF):
		c.server.log.Debug("tcpstore: connection lost", "peer", c.nc.RemoteAddr().String(), "error", err)
	}
}
