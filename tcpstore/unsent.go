package tcpstore

import (
	"slices"
	"time"
	"unsafe"

	"rallypoint/core/store"
)

// noRoom is no refusal: the request has to wait until less is unsent.
var noRoom = &refusal{text: "too much waits to be sent to all connections"}

const (
	// shareFrom is the size from which a value is sent without copying it: one copy serves all
	// peers that read it at the same time.
	shareFrom = 16 << 10

	// smallReply is the largest reply that needs no room in the budget. A connection for
	// which that waits costs less than its socket does in the kernel.
	smallReply = 4 << 10

	// slowChunk is how many bytes a peer has to read within Options.SlowAfter, or one slowPart-th
	// of its replies if that is more.
	slowChunk = 64 << 10
	slowPart  = 16

	// slowCheck is how often slow readers are looked for while others wait for room.
	slowCheck = 100 * time.Millisecond

	// keptSegments bounds the memory that a loop keeps for segments.
	keptSegments = 256
)

// part is a large value in a reply. It has a buffer unless it is the reply's own.
type part struct {
	at     int // its place in the bytes of the reply that are no parts
	value  []byte
	buffer *store.Buffer
}

// unsent is the output that a connection could not send yet.
type unsent struct {
	segments []segment
	held     int // bytes of the budget that segments take, without their buffers
	chunk    int // bytes that the peer has to take in Options.SlowAfter
	taken    int // those that it has taken since then
	since    time.Time
	records  []byte // of TLS, which come before segments; held counts them
}

// starvedConn is a connection whose request waits for room since asked.
type starvedConn struct {
	*conn
	asked time.Time
}

// endingConn is a connection that is closed at the deadline, or once nothing is unsent.
type endingConn struct {
	*conn
	deadline time.Time
}

// segment is a piece of a reply that is being sent.
type segment struct {
	bytes   []byte // the rest
	buffer  *store.Buffer
	charged bool // buffer is in the budget
}

// budget is how much all connections of a loop leave unsent. A value is counted once,
// however many replies have it.
type budget struct {
	limit  int
	held   int
	shared map[*store.Buffer]*sharedValue
	freed  bool // since the loop has looked
	queue  bool // for no one but those that wait for room
}

type sharedValue struct{ size, replies int }

// has reports whether a reply of n bytes may be made. One that is too large for the
// budget may if it is the only one.
func (b *budget) has(n int) bool {
	return b == nil || !b.queue && (b.held == 0 || b.held+n <= b.limit)
}

func (b *budget) charge(n int) { b.held += n }

func (b *budget) release(n int) {
	b.held -= n
	b.freed = b.freed || n > 0
}

func (b *budget) share(s *segment) {
	v := b.shared[s.buffer]
	if v == nil {
		v = &sharedValue{size: cap(s.bytes)}
		b.shared[s.buffer] = v
		b.charge(v.size)
	}
	v.replies++
	s.charged = true
}

func (b *budget) done(s *segment) {
	if s.buffer == nil {
		return
	}
	if v := b.shared[s.buffer]; s.charged {
		if v.replies--; v.replies == 0 {
			delete(b.shared, s.buffer)
			b.release(v.size)
		}
	}
	s.buffer.Release()
	s.buffer = nil
}

func (b *budget) doneAll(segments []segment) {
	for i := range segments {
		b.done(&segments[i])
	}
}

// send sends out, which it borrows, with parts in it, and keeps the bytes for which the socket
// has no room.
func (c *conn) send(out []byte, parts []part) {
	if len(parts) == 0 && c.tls == nil {
		rest := c.push(out)
		if len(rest) > 0 {
			c.keep([]segment{{bytes: rest}})
		}
		return
	}
	l := c.loop
	segments, from := l.segments[:0], 0
	for _, p := range parts {
		segments = append(segments, segment{bytes: out[from:p.at]}, segment{bytes: p.value, buffer: p.buffer})
		from = p.at
	}
	if from < len(out) {
		segments = append(segments, segment{bytes: out[from:]})
	}
	if c.tls != nil {
		c.sendTLS(segments)
	} else if rest := c.pushAll(segments); len(rest) > 0 {
		c.keep(rest)
	}
	clear(segments)
	clear(parts)
	if cap(segments) <= keptSegments {
		l.segments = segments
		l.parts = parts
	}
}

// keep keeps what could not be sent: its buffers, and copies of all else.
func (c *conn) keep(rest []segment) {
	b, own, size := &c.loop.budget, 0, 0
	for i := range rest {
		size += len(rest[i].bytes)
		if rest[i].buffer == nil {
			own += len(rest[i].bytes)
		}
	}
	memory := make([]byte, 0, own)
	u := &unsent{segments: slices.Clone(rest), held: own + len(rest)*int(unsafe.Sizeof(segment{})),
		since: time.Now(), chunk: max(slowChunk, size/slowPart)}
	for i := range u.segments {
		s := &u.segments[i]
		if s.buffer != nil {
			b.share(s)
			continue
		}
		from := len(memory)
		memory = append(memory, s.bytes...)
		s.bytes = memory[from:]
	}
	b.charge(u.held)
	c.unsent = u
}

func (c *conn) drop() {
	if c.unsent == nil {
		return
	}
	c.loop.budget.doneAll(c.unsent.segments)
	c.loop.budget.release(c.unsent.held)
	c.unsent = nil
}

// resume continues sending the bytes that the socket had no room for.
func (c *conn) resume() {
	u := c.unsent
	if c.tls != nil {
		c.resumeTLS(u)
	} else {
		u.segments = c.pushAll(u.segments)
	}
	if c.closed {
		return
	}
	if u.taken >= u.chunk {
		u.since, u.taken = time.Now(), 0
	}
	if len(u.segments) > 0 || len(u.records) > 0 {
		return
	}
	c.drop()
	if c.ending {
		c.end()
		return
	}
	c.flush()
}

// starve has a connection wait until there is room for the reply to its request. Requests that
// need less room may come first, for at most Options.SlowAfter.
func (l *loop) starve(c *conn) {
	now := time.Now()
	if len(l.starved) == 0 {
		l.checkSlow = now.Add(slowCheck)
	}
	l.starved = append(l.starved, starvedConn{c, now})
}

// feed continues with connections that wait for room, in their order, as far as there is some.
func (l *loop) feed() {
	if !l.budget.freed {
		return
	}
	l.budget.freed = false
	waiting, checkSlow := l.starved, l.checkSlow
	l.starved, l.budget.queue = nil, false
	for i, c := range waiting {
		c.starved = false
		c.step()
		if c.starved {
			l.checkSlow = checkSlow
			l.starved = waiting[i:]
			l.lineUp(time.Now())
			return
		}
	}
}

// lineUp ends that others come before the first one that waits.
func (l *loop) lineUp(now time.Time) {
	l.budget.queue = now.Sub(l.starved[0].asked) >= l.config.slowAfter
}

// cutSlow closes connections whose peers do not read while others wait for room, starting with
// the one that has not read for the longest time.
func (l *loop) cutSlow() {
	if len(l.starved) == 0 {
		return
	}
	now := time.Now()
	if now.Before(l.checkSlow) {
		return
	}
	l.checkSlow = now.Add(slowCheck)
	l.lineUp(now)
	var slow []*conn
	for c := range l.events.All() {
		if c.unsent != nil && now.Sub(c.unsent.since) >= l.config.slowAfter {
			slow = append(slow, c)
		}
	}
	slices.SortFunc(slow, func(a, b *conn) int { return a.unsent.since.Compare(b.unsent.since) })
	for _, c := range slow {
		u := c.unsent
		if u == nil {
			continue
		}
		c.drop()
		c.refuse(refuse(reasonSlow, "the peer has not read %d bytes of its replies within %v, and others wait for the memory",
			u.chunk, now.Sub(u.since).Round(time.Millisecond)))
		if l.feed(); len(l.starved) == 0 {
			return
		}
	}
}
