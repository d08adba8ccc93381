package forward

import (
	"bytes"
	"io"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/internal/eventloop"
)

const (
	// carried is the most that one connection forwards before it is the others' turn.
	carried = 64 << 10
	// keptRecords bounds the memory that a loop keeps for records to send.
	keptRecords = 2 * carried
	// maxUnsent limits the bytes that wait for one socket: forwarded data, and TLS's own answers
	// to a peer that does not read.
	maxUnsent = 4 * carried
	// maxPiece bounds the bytes of a piece of a batch, and maxPieces how many a batch has: the
	// first one waits for the last.
	maxPiece  = 4 << 10
	maxPieces = 32
)

// loop forwards the bytes of all links in one goroutine, which blocks only to wait for events. An
// idle link has no buffer. It borrows the loop's, and copies only bytes for which a socket has no
// room, or the beginning of a record.
type loop struct {
	events *eventloop.Loop[*end, inbox]
	sealed []byte // records as they are received, after the beginning of an earlier one
	plain  []byte // what is in them, or comes without TLS
	out    []byte // records to send
	batch  batch

	stopping bool
}

// batch holds bytes that the loop sends to sockets before the iteration ends. A store that gets
// the requests of several workers one right after the other wakes up once for them.
type batch struct {
	bytes  []byte
	pieces []piece
}

// piece is one socket's part of a batch: the bytes up to end, from where the piece before it ends.
type piece struct {
	to  *end
	end int
}

// inbox has the messages of other goroutines to a loop.
type inbox struct {
	stop  bool
	added []*link
}

// end is one of the two sockets of a link. Bytes from it go to the other one.
type end struct {
	link  *link
	other *end
	tls   *eventloop.TLS // nil: the connection is plain
	fd    int32
	// unsent are bytes for which its socket has no room. While there are any, nothing is received
	// from other.
	unsent   []byte
	readable bool // there may be something to receive: the poller reports it once
	hangup   bool // the end of the stream can be received
	broken   bool // its connection has broken off: that is reported once, too
	ended    bool // its stream has ended
	queued   bool // for the loop's next turn
}

func newLoop() (*loop, error) {
	events, err := eventloop.NewLoop[*end, inbox]()
	if err != nil {
		return nil, err
	}
	return &loop{events: events, plain: make([]byte, carried+eventloop.RecordHead+eventloop.MaxRecord)}, nil
}

// run carries until the inbox says stop, and cuts all links then. An iteration serves the ends
// that have events, and then those that had more to do before.
func (l *loop) run() error {
	defer l.events.Close()
	defer l.close()
	for !l.stopping {
		if err := l.events.Turn(true, time.Time{}, l.readInbox); err != nil { // another part of the process has closed our descriptor
			return err
		}
		l.flush()
	}
	return nil
}

func (l *loop) close() {
	l.readInbox(l.events.Shut())
	for e := range l.events.All() {
		l.cut(e.link, false)
	}
}

func (l *loop) readInbox(in inbox) {
	for _, link := range in.added {
		l.add(link)
	}
	l.stopping = in.stop
}

// add begins to forward a link. Its sockets' first event, that they have room, comes at once. So
// data that TLS received with the opening, which makes no event, is noticed.
func (l *loop) add(k *link) {
	k.loop = l
	for i := range k.ends {
		if err := l.events.Add(k.ends[i].fd, &k.ends[i]); err != nil {
			l.cut(k, true)
			return
		}
	}
}

// queue makes an end take part in the next iteration.
func (l *loop) queue(e *end) {
	if !e.queued {
		e.queued = true
		l.events.Queue(e)
	}
}

// Step is eventloop.Socket's.
func (e *end) Step() {
	e.queued = false
	e.link.loop.carry(e)
}

// Event is eventloop.Socket's.
func (e *end) Event(events uint32) {
	const hangup = unix.EPOLLRDHUP | unix.EPOLLHUP | unix.EPOLLERR
	if events&(unix.EPOLLIN|hangup) != 0 {
		e.readable = true
	}
	if events&hangup != 0 {
		e.hangup = true
	}
	if events&unix.EPOLLERR != 0 {
		e.broken = true
	}
	l := e.link.loop
	if e.broken && e.ended { // nothing is received that would tell
		l.cut(e.link, true)
		return
	}
	if len(e.unsent) > 0 && l.resume(e) {
		l.carry(e.other)
	}
	l.carry(e)
}

// carry receives once from an end, unless the other one has no room, and sends that on. If there
// may be more to do it has itself called again. Bytes that were received before a connection broke
// off are not kept for another end that has no room.
func (l *loop) carry(e *end) {
	if e.link.over || e.ended {
		return
	}
	if len(e.other.unsent) > 0 {
		if e.broken {
			l.cut(e.link, true)
		}
		return
	}
	if !e.readable && (e.tls == nil || !e.tls.More()) {
		return
	}
	b, err := l.receive(e)
	if len(b) > 0 && !e.link.over {
		l.send(e.other, b)
	}
	switch {
	case e.link.over:
	case err == nil:
		if e.readable || e.tls != nil && e.tls.More() {
			l.queue(e)
		}
	case err == io.EOF:
		e.ended = true
		l.halfClose(e.other)
	default:
		l.flush() // what came before the error
		l.cut(e.link, true)
	}
}

// receive receives once and returns the bytes, possibly none, in the loop's memory.
func (l *loop) receive(e *end) ([]byte, error) {
	if e.tls != nil {
		return l.receiveTLS(e)
	}
	n, errno := eventloop.Receive(e.fd, l.plain[:carried])
	if err := e.received(n, errno); err != nil {
		return nil, err
	}
	return l.plain[:max(n, 0)], nil
}

func (l *loop) receiveTLS(e *end) ([]byte, error) {
	if l.sealed == nil {
		l.sealed = make([]byte, len(l.plain))
	}
	if !e.tls.More() {
		n, errno := e.tls.Receive(e.fd, l.sealed, carried)
		if err := e.received(n, errno); err != nil {
			if err == io.EOF { // without close_notify: an attacker between the two machines can do that
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if n < 0 {
			return nil, nil
		}
	}
	e.tls.Records.Out = l.lent()
	n, err := e.tls.Read(l.plain)
	out := l.collected(e)
	if len(out) > 0 { // what TLS itself answers
		l.push(e, out)
	}
	return l.plain[:n], err
}

// received handles the result of a receive. If it returns no error, n bytes have arrived, none if
// n is negative.
func (e *end) received(n int, errno syscall.Errno) error {
	switch {
	case errno == unix.EAGAIN:
		e.readable = false
		return nil
	case errno != 0:
		return errno
	case n == 0:
		return io.EOF
	}
	e.readable = e.hangup || n == carried
	return nil
}

// lent returns memory for records to send. collected returns its content, which is valid until
// the next lent.
func (l *loop) lent() []byte {
	if cap(l.out) == 0 || cap(l.out) > keptRecords {
		l.out = make([]byte, 0, eventloop.RecordHead+eventloop.MaxRecord)
	}
	return l.out[:0]
}

func (l *loop) collected(e *end) []byte {
	l.out = e.tls.Records.Out
	e.tls.Records.Out = nil
	return l.out
}

// send sends bytes to an end, through TLS if the end uses it.
func (l *loop) send(e *end, b []byte) {
	if e.tls == nil {
		l.push(e, b)
		return
	}
	e.tls.Records.Out = l.lent()
	_, err := e.tls.Conn.Write(b) // to memory
	out := l.collected(e)
	if err != nil {
		l.cut(e.link, true)
		return
	}
	l.push(e, out)
}

// halfClose tells an end that nothing more comes; if the other direction has ended too that is
// the end of the link.
func (l *loop) halfClose(e *end) {
	if e.tls != nil {
		e.tls.Records.Out = l.lent()
		err := e.tls.Conn.CloseWrite() // to memory
		out := l.collected(e)
		if err != nil {
			l.cut(e.link, true)
			return
		}
		l.push(e, out)
	}
	l.finish(e)
}

// finish completes a half-close when all before it is sent.
func (l *loop) finish(e *end) {
	l.flush()
	k := e.link
	if k.over || len(e.unsent) > 0 {
		return
	}
	if e.tls == nil {
		if err := unix.Shutdown(int(e.fd), unix.SHUT_WR); err != nil {
			l.cut(k, true)
			return
		}
	}
	if e.ended && len(e.other.unsent) == 0 {
		l.cut(k, false)
	}
}

// push has bytes sent in the order of the calls: few with the batch, more now.
func (l *loop) push(e *end, b []byte) {
	if len(b) > maxPiece {
		l.flush()
		l.pushNow(e, b)
		return
	}
	l.batch.bytes = append(l.batch.bytes, b...)
	l.batch.pieces = append(l.batch.pieces, piece{e, len(l.batch.bytes)})
	if len(l.batch.pieces) == maxPieces {
		l.flush()
	}
}

func (l *loop) flush() {
	from := 0
	for i, p := range l.batch.pieces {
		l.pushNow(p.to, l.batch.bytes[from:p.end])
		from = p.end
		l.batch.pieces[i] = piece{}
	}
	l.batch.bytes, l.batch.pieces = l.batch.bytes[:0], l.batch.pieces[:0]
}

// pushNow writes as much as the socket takes, and keeps the rest.
func (l *loop) pushNow(e *end, b []byte) {
	if e.link.over {
		return
	}
	if len(e.unsent) > 0 {
		if e.unsent = append(e.unsent, b...); len(e.unsent) > maxUnsent {
			l.cut(e.link, true)
		}
		return
	}
	if left := l.write(e, b); len(left) > 0 {
		e.unsent = bytes.Clone(left)
	}
}

// write writes as much as the socket takes and returns the rest. If the peer is lost it cuts
// the link.
func (l *loop) write(e *end, b []byte) (left []byte) {
	for len(b) > 0 {
		n, errno := eventloop.Send(e.fd, b)
		switch {
		case errno == unix.EAGAIN:
			return b
		case errno != 0:
			l.cut(e.link, true)
			return nil
		}
		b = b[n:]
	}
	return nil
}

// resume sends the bytes that the socket had no room for, and reports whether all are sent.
func (l *loop) resume(e *end) bool {
	left := l.write(e, e.unsent)
	if e.unsent = left; len(left) > 0 || e.link.over {
		return false
	}
	e.unsent = nil
	if e.other.ended {
		l.finish(e)
	}
	return true
}

// cut ends a link: both sockets at once, with a reset or without.
func (l *loop) cut(k *link, reset bool) {
	if k.over {
		return
	}
	k.over = true
	for i := range k.ends {
		e := &k.ends[i]
		l.events.Remove(e.fd)
		closeFD(e.fd, reset)
		e.unsent, e.tls = nil, nil
	}
	k.gone()
}
