package tcpstore

import (
	"bytes"
	"io"

	"golang.org/x/sys/unix"

	"rallypoint/internal/eventloop"
	"rallypoint/internal/printable"
)

const (
	// tlsRead bounds the bytes of records that are received at a time.
	tlsRead = 64 << 10
	// tlsWrite bounds the bytes of replies that are encrypted at a time: no more records are
	// kept for a peer that does not read, and large values stay shared with other replies.
	tlsWrite = 64 << 10
	// keptRecords bounds the memory that a loop keeps for records to send.
	keptRecords = 2 * tlsWrite
)

// tlsBuffers is memory of a loop that its connections borrow, in to receive and out to send.
type tlsBuffers struct{ in, out []byte }

// receiveTLS gives the parser the received data, after receiving once if there is none. It
// returns false if the parser has no new bytes.
func (c *conn) receiveTLS(p *parser) bool {
	space := p.space()
	if !c.tls.More() && !c.receiveRecords(p, len(space)) {
		return false
	}
	c.borrowRecords()
	got, err := c.tls.Read(space)
	p.received(got)
	switch {
	case err == nil || got > 0: // an error comes again, after the bytes before it
	case err == io.EOF:
		c.ended(p)
		return false
	default:
		c.refuse(refuse(reasonRecord, "its TLS records cannot be read: %s", printable.Text(err.Error())))
		return false
	}
	c.readable = c.readable || c.tls.More()
	return true
}

// receiveRecords receives once, and not much more than the parser has space for. It returns
// false if nothing has come.
func (c *conn) receiveRecords(p *parser, space int) bool {
	l := c.loop
	if l.tls.in == nil {
		l.tls.in = make([]byte, eventloop.RecordHead+eventloop.MaxRecord+tlsRead)
	}
	room := min(max(space, eventloop.RecordHead+eventloop.MaxRecord), tlsRead)
	n, errno := c.tls.Receive(c.fd, l.tls.in, room)
	switch {
	case errno == unix.EAGAIN:
		c.readable = false
		return false
	case errno != 0:
		c.lost(errno)
		return false
	case n == 0 && c.tls.Partial():
		c.refuse(refuse(reasonTruncated, "the peer ended its stream inside a TLS record"))
		return false
	case n == 0:
		c.ended(p)
		return false
	}
	l.counters.bytesIn.Add(uint64(n))
	c.readable = c.hangup || n == room
	return true
}

// borrowRecords makes TLS collect its output in the loop's memory, until returnRecords.
func (c *conn) borrowRecords() {
	if c.tls.Records.Out == nil {
		c.tls.Records.Out = c.loop.tls.out[:0]
		if c.tls.Records.Out == nil {
			c.tls.Records.Out = make([]byte, 0, eventloop.RecordHead+eventloop.MaxRecord)
		}
	}
}

func (c *conn) returnRecords() {
	out := c.tls.Records.Out
	c.tls.Records.Out = nil
	if cap(out) > keptRecords {
		out = nil
	}
	c.loop.tls.out = out[:0]
}

// sendTLS is push for a connection that speaks TLS. What TLS itself sends in answer to a read
// goes first.
func (c *conn) sendTLS(segments []segment) {
	c.borrowRecords()
	segments, left := c.pushTLS(segments)
	c.returnRecords()
	if len(segments) > 0 || len(left) > 0 {
		c.keep(segments)
		c.keepRecords(left)
	}
}

// resumeTLS continues to send the bytes for which the socket had no room.
func (c *conn) resumeTLS(u *unsent) {
	left := u.records
	for len(left) > 0 {
		n, ok := c.pushRecords(left)
		if left = left[n:]; !ok {
			break
		}
	}
	if len(left) == 0 && !c.closed {
		c.borrowRecords()
		u.segments, left = c.pushTLS(u.segments)
		c.returnRecords()
	}
	if !c.closed {
		c.keepRecords(left)
	}
}

// pushTLS writes TLS's own output and then the segments, as much as the socket takes, and returns
// the rest. If the peer is lost, it closes the connection.
func (c *conn) pushTLS(segments []segment) (rest []segment, left []byte) {
	t := c.tls
	for {
		for out := t.Records.Out; len(out) > 0; {
			n, ok := c.pushRecords(out)
			if out = out[n:]; ok {
				continue
			}
			if c.closed {
				c.loop.budget.doneAll(segments)
				return nil, nil
			}
			return segments, bytes.Clone(out)
		}
		t.Records.Out = t.Records.Out[:0]
		if len(segments) == 0 {
			return nil, nil
		}
		segments = c.seal(segments)
	}
}

// seal encrypts some of the segments into records, gives their buffers back, and returns the
// others.
func (c *conn) seal(segments []segment) []segment {
	b := &c.loop.budget
	for room := tlsWrite; len(segments) > 0 && room > 0; {
		s := &segments[0]
		n := min(room, len(s.bytes))
		if n > 0 {
			if _, err := c.tls.Conn.Write(s.bytes[:n]); err != nil { // a read has failed before
				b.doneAll(segments)
				return nil
			}
		}
		room -= n
		if s.bytes = s.bytes[n:]; len(s.bytes) == 0 {
			b.done(s)
			segments = segments[1:]
		}
	}
	return segments
}

// pushRecords writes once. False: the socket has no room, or the peer is lost and the
// connection closed.
func (c *conn) pushRecords(out []byte) (n int, ok bool) {
	n, errno := eventloop.Send(c.fd, out)
	switch {
	case errno == unix.EAGAIN:
		return 0, false
	case errno != 0:
		c.lost(errno)
		return 0, false
	}
	c.loop.counters.bytesOut.Add(uint64(n))
	if c.unsent != nil {
		c.unsent.taken += n
	}
	return n, true
}

// keepRecords keeps records that the socket had no room for.
func (c *conn) keepRecords(left []byte) {
	u, b := c.unsent, &c.loop.budget
	had := len(u.records)
	if len(left) == 0 {
		left = nil
	}
	u.records = left
	u.held += len(left) - had
	if n := len(left) - had; n > 0 {
		b.charge(n)
	} else {
		b.release(-n)
	}
}

// endTLS sends the peer close_notify, if the socket has room for it.
func (c *conn) endTLS() {
	c.borrowRecords()
	_ = c.tls.Conn.CloseWrite() // to memory
	_, _ = eventloop.Send(c.fd, c.tls.Records.Out)
	c.returnRecords()
}
