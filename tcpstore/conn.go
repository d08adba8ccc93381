package tcpstore

import (
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/eventloop"
)

const (
	// pauseUnsent is how many bytes of replies are collected before further requests have to wait
	// until their peer reads. Any usual pipeline fits into one write, and a peer that does not
	// read stays far below MaxUnsent, so that a thousand of them are affordable. It also limits
	// how much work a connection gets before it is the others' turn.
	pauseUnsent = 64 << 10

	// refusalGrace bounds how long a refused peer may take to read the replies to
	// its earlier requests.
	refusalGrace = time.Second
)

// conn moves the bytes between a socket and its session. It belongs to the goroutine of its loop,
// except where a comment says otherwise.
//
// An idle connection has no buffers. It borrows one from the loop to read into and one to collect
// replies in, and copies only the remainder, which is rare. So an idle connection needs a few
// hundred bytes, and the buffers in use stay in the processor's cache.
type conn struct {
	loop    *loop
	shard   *engineShard
	session session // guarded by shard.mu, except its parser

	unsent    *unsent        // replies that the socket has no room for; nil: none
	tls       *eventloop.TLS // nil: the connection is plain
	fd        int32
	validated bool // while the session has no parser
	backlog   bool // the parser has more than the beginning of a message
	queued    bool // for the loop's next turn
	starved   bool // in loop.starved: the parser's next request has no room for its reply
	readable  bool // there may be something to receive: the poller reports it once
	hangup    bool // the end of the stream can be received
	ending    bool // refused: closed when unsent is sent
	closed    bool
	flushing  bool // guarded by shard.mu: flush is going to be called

	peer netip.AddrPort

	// session.out's memory while none is borrowed from the loop, for replies that other
	// connections cause: nearly always one byte.
	few [8]byte
}

func newConn(l *loop, shard *engineShard, fd int, peer netip.AddrPort) *conn {
	c := &conn{fd: int32(fd), loop: l, shard: shard, peer: peer}
	c.session = session{engine: shard.engine, config: &l.config, woken: c.woken, out: c.few[:0]}
	return c
}

// Event is eventloop.Socket's.
func (c *conn) Event(events uint32) {
	const end = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	if events&(unix.EPOLLIN|end) != 0 {
		c.readable = true
	}
	if events&end != 0 {
		c.hangup = true
	}
	if c.unsent != nil {
		c.resume()
	}
	c.step()
}

// Step is eventloop.Socket's.
func (c *conn) Step() {
	c.queued = false
	c.step()
}

// step receives once, if it has nothing left, and carries out the requests in the parser, up to
// pauseUnsent bytes of replies. If there may be more to do it has itself called
// again. Requests wait as long as there are unsent replies.
func (c *conn) step() {
	if c.ending || c.closed || c.starved || c.unsent != nil || !c.backlog && !c.readable {
		return
	}
	p := c.session.parser
	if p == nil {
		p = c.loop.parser
		p.reset(c.validated)
	}
	switch {
	case c.backlog:
	case c.tls != nil:
		if !c.receiveTLS(p) {
			return
		}
	default:
		space := p.space()
		n, errno := eventloop.Receive(c.fd, space)
		switch {
		case errno == unix.EAGAIN:
			c.readable = false
			return
		case errno != 0:
			c.lost(errno)
			return
		case n == 0:
			c.ended(p)
			return
		}
		c.loop.counters.bytesIn.Add(uint64(n))
		p.received(n)
		c.readable = c.hangup || n == len(space)
	}
	drained, refused := c.process(p)
	switch {
	case refused == noRoom:
		c.starved = !c.closed
	case refused != nil:
		c.refuse(refused)
	}
	if c.closed || c.ending {
		return
	}
	c.settle(p, drained)
	switch {
	case c.starved:
		c.loop.starve(c)
	case c.backlog || c.readable:
		c.loop.queue(c)
	}
}

// process carries out the parser's requests and sends the replies.
func (c *conn) process(p *parser) (drained bool, refused *refusal) {
	s, l := &c.session, c.loop
	c.shard.mu.Lock()
	s.parser = p
	s.out, s.config.parts = append(l.borrowBuffer(), s.out...), l.parts[:0]
	pause := pauseUnsent
	if l.budget.held >= l.budget.limit {
		pause = smallReply
	}
	drained, refused = s.process(pause)
	out, parts := s.takeOut(c.few[:0])
	c.flushing = false
	l.takeWokenLocked(c.shard)
	c.shard.mu.Unlock()
	c.send(out, parts)
	l.returnBuffer(out)
	return drained, refused
}

// settle makes the connection idle, or keeps the remaining input in its own parser.
func (c *conn) settle(p *parser, drained bool) {
	shared := p == c.loop.parser
	c.validated = p.validated
	c.backlog = !drained && p.partial()
	switch {
	case !p.partial():
		c.session.parser = nil
		if !shared {
			c.loop.freeParser(p)
		}
	case shared:
		own := c.loop.newParser()
		p.moveTo(own)
		c.session.parser = own
	}
}

// woken is called with shard.mu held when a wait of this connection is over. It
// asks for one flush, however many waits end before that happens.
func (c *conn) woken() {
	if !c.flushing {
		c.flushing = true
		c.shard.woken = append(c.shard.woken, c)
	}
}

// flush sends replies that other connections have caused.
func (c *conn) flush() {
	c.shard.mu.Lock()
	c.flushing = false
	if c.closed || c.ending || c.unsent != nil {
		c.shard.mu.Unlock()
		return // if they can still be sent, it is by resume
	}
	out := append(c.loop.borrowBuffer(), c.session.out...)
	c.session.takeOut(c.few[:0])
	c.shard.mu.Unlock()
	c.send(out, nil)
	c.loop.returnBuffer(out)
}

// push writes as much as the socket takes and returns the rest. If the peer is
// lost it closes the connection.
func (c *conn) push(out []byte) (rest []byte) {
	for len(out) > 0 {
		n, errno := eventloop.Send(c.fd, out)
		switch {
		case errno == unix.EAGAIN:
			return out
		case errno != 0:
			c.lost(errno)
			return nil
		}
		c.loop.counters.bytesOut.Add(uint64(n))
		out = out[n:]
	}
	return nil
}

// pushAll is push for segments. It gives back the buffers of those that are sent, or lost.
func (c *conn) pushAll(segments []segment) (rest []segment) {
	b := &c.loop.budget
	for len(segments) > 0 {
		n, errno := sendSegments(c.fd, segments)
		switch {
		case errno == unix.EAGAIN:
			return segments
		case errno != 0:
			c.lost(errno)
			b.doneAll(segments)
			return nil
		}
		c.loop.counters.bytesOut.Add(uint64(n))
		if c.unsent != nil {
			c.unsent.taken += n
		}
		for len(segments) > 0 && n >= len(segments[0].bytes) {
			n -= len(segments[0].bytes)
			b.done(&segments[0])
			segments = segments[1:]
		}
		if len(segments) > 0 {
			segments[0].bytes = segments[0].bytes[n:]
		}
	}
	return nil
}

// refuse counts and logs why the connection is closed, which happens when the replies to the
// requests before that are sent.
func (c *conn) refuse(why *refusal) {
	l := c.loop
	l.server.refuse(why, c.peer)
	if c.unsent == nil {
		c.end()
		return
	}
	c.ending = true
	l.ending = append(l.ending, endingConn{c, time.Now().Add(refusalGrace)})
}

func (c *conn) ended(p *parser) {
	if p.partial() {
		c.refuse(refuse(reasonTruncated, "the peer ended its stream inside a message"))
		return
	}
	c.end()
}

func (c *conn) lost(errno syscall.Errno) {
	c.loop.server.log.Debug("tcpstore: connection lost", "peer", c.peer.String(), "error", errno)
	c.close()
}

// end closes a connection whose peer is alive and to which all replies were sent.
func (c *conn) end() {
	if c.tls != nil && !c.closed {
		c.endTLS()
	}
	c.close()
}

// close ends the connection. The lists that it is in keep it, as one that is closed.
func (c *conn) close() {
	if c.closed {
		return
	}
	c.closed = true
	c.drop()
	c.shard.mu.Lock()
	c.session.close()
	c.shard.mu.Unlock()
	if p := c.session.parser; p != nil && p != c.loop.parser {
		c.loop.freeParser(p)
	}
	c.session.parser = nil
	c.loop.forget(c)
}
