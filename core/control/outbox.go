package control

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"rallypoint/core/rendezvous"
)

// maxBehind is how much waits to be sent before a server reads nothing more from
// the connection. So who asks for much and does not read holds little.
const maxBehind = 64 << 10

// writeChunk bounds one write: a node that does not take as much within its lease
// is cut off.
const writeChunk = 64 << 10

// maxKept is the largest buffer that is kept for the next use.
const maxKept = 64 << 10

// flushTimeout bounds the last write to a connection that is being closed.
const flushTimeout = time.Second

var (
	errSlow  = errors.New("it reads too slowly: what waits to be sent to it has reached its limit")
	errStuck = errors.New("it does not read what is sent to it")
)

// outbox queues frames for one connection and writes them in order, as many as
// there are in one write. Its methods never block and may be called under any
// lock; run is the goroutine that writes.
type outbox struct {
	conn    net.Conn
	limit   int                  // of unsent bytes; a longer queue cuts the connection
	traffic *traffic             // nil: not counted
	uptime  func() time.Duration // nil: stuck is not asked

	since atomic.Int64 // when the write that is under way began, by uptime; 0: none is

	mu      sync.Mutex
	room    sync.Cond
	buf     []byte // queued frames
	spare   []byte // the other buffer, while run does not write it
	writing int    // bytes that run has taken and not written yet
	closing bool   // nothing more is queued; run ends when all is written
	keep    bool   // and leaves the connection open for another writer
	err     error  // why the connection was cut
	wake    chan struct{}
}

// newOutbox makes the outbox of a connection, which holds at most limit bytes. A nil
// traffic counts nothing; without an uptime, a monotonic clock, stuck is always 0.
func newOutbox(conn net.Conn, limit int, sent *traffic, uptime func() time.Duration) *outbox {
	o := &outbox{conn: conn, limit: limit, traffic: sent, uptime: uptime, wake: make(chan struct{}, 1)}
	o.room.L = &o.mu
	return o
}

// send queues a frame. It reports false if the connection is closing.
func (o *outbox) send(f frame) bool {
	o.mu.Lock()
	ok := !o.closing
	if ok {
		o.push(func(buf []byte) []byte { return appendFrame(buf, f) })
		o.count(f)
	}
	o.mu.Unlock()
	return ok
}

// sendReply queues a reply; one that is too large for a frame becomes an error,
// since its node could never take it.
func (o *outbox) sendReply(f reply) bool {
	o.mu.Lock()
	ok := !o.closing
	if ok {
		o.push(func(buf []byte) []byte {
			from := len(buf)
			buf = appendFrame(buf, f)
			if size := len(buf) - from - frameHead; size > maxFrame {
				buf = appendFrame(buf[:from], reply{Number: f.Number, Err: rendezvous.Errorf(rendezvous.CodeTooLarge,
					"the answer has %d bytes, at most %d can be sent: ask for fewer keys at once", size, maxFrame)})
			}
			return buf
		})
		o.count(f)
	}
	o.mu.Unlock()
	return ok
}

// sendBytes queues bytes that are a frame of a kind already, or none if it is 0.
func (o *outbox) sendBytes(b []byte, k kind) bool {
	o.mu.Lock()
	ok := !o.closing
	if ok {
		o.push(func(buf []byte) []byte { return append(buf, b...) })
		if o.traffic != nil && k != 0 {
			o.traffic.framesOut.add(k)
		}
	}
	o.mu.Unlock()
	return ok
}

// hold queues bytes that need not be written before what is sent next.
func (o *outbox) hold(b []byte) {
	o.mu.Lock()
	if !o.closing {
		o.buf = append(o.buf, b...)
	}
	o.mu.Unlock()
}

func (o *outbox) count(f frame) {
	if o.traffic != nil {
		o.traffic.framesOut.add(kindOf(f))
	}
}

func (o *outbox) push(add func([]byte) []byte) {
	if o.buf == nil {
		o.buf, o.spare = o.spare[:0], nil
	}
	o.buf = add(o.buf)
	if len(o.buf)+o.writing > o.limit {
		o.cutLocked(errSlow)
		return
	}
	o.signal()
}

func (o *outbox) signal() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// finish lets what is queued be written, then ends the writing side.
func (o *outbox) finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closing {
		o.closing = true
		o.conn.SetWriteDeadline(time.Now().Add(flushTimeout))
		o.signal()
		o.room.Broadcast()
	}
}

// finishKeeping lets what is queued be written and run end, but leaves the
// connection open.
func (o *outbox) finishKeeping() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closing, o.keep = true, true
	o.signal()
	o.room.Broadcast()
}

// cut closes the connection at once; what is queued is lost. The first cause is
// kept.
func (o *outbox) cut(cause error) {
	o.mu.Lock()
	o.cutLocked(cause)
	o.mu.Unlock()
}

func (o *outbox) cutLocked(cause error) {
	if o.err == nil {
		o.err = cause
	}
	o.closing, o.buf = true, nil
	o.conn.Close()
	o.signal()
	o.room.Broadcast()
}

// awaitRoom waits until little is left to be sent, or nothing more will be, and
// reports whether it had to.
func (o *outbox) awaitRoom() (waited bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ; !o.closing && len(o.buf)+o.writing > maxBehind; waited = true {
		o.room.Wait()
	}
	return waited
}

// unsent returns how many bytes wait to be sent.
func (o *outbox) unsent() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.buf) + o.writing
}

// writingSince returns when the write that is under way began, by uptime; 0 if none is.
func (o *outbox) writingSince() time.Duration { return time.Duration(o.since.Load()) }

// stuck returns for how long the peer has not taken what is being written; 0 if
// nothing is.
func (o *outbox) stuck() time.Duration {
	if since := o.writingSince(); since != 0 {
		return o.uptime() - since
	}
	return 0
}

// forgive lets stuck count anew.
func (o *outbox) forgive() {
	if since := o.since.Load(); since != 0 {
		o.since.CompareAndSwap(since, int64(o.uptime()))
	}
}

// cause returns why the connection was cut from this side, nil if it was not.
func (o *outbox) cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// run writes until the connection is closed or finished. After finish it ends
// the writing side only, so that the peer can still read what was written.
func (o *outbox) run() {
	for range o.wake {
		for {
			o.mu.Lock()
			buf, closing, keep, dead := o.buf, o.closing, o.keep, o.err != nil
			o.buf, o.writing = nil, len(buf)
			o.mu.Unlock()
			if dead {
				return
			}
			if len(buf) == 0 {
				if closing {
					if !keep {
						o.endWrite()
					}
					return
				}
				break
			}
			if err := o.write(buf); err != nil {
				o.cut(err)
				return
			}
		}
	}
}

// write writes what run has taken, and keeps its memory for the next time.
func (o *outbox) write(buf []byte) error {
	for rest := buf; len(rest) > 0; {
		if o.uptime != nil {
			o.since.Store(max(1, int64(o.uptime())))
		}
		n, err := o.conn.Write(rest[:min(len(rest), writeChunk)])
		o.since.Store(0)
		if o.traffic != nil {
			o.traffic.bytesOut.Add(uint64(n))
		}
		if err != nil {
			return err
		}
		rest = rest[n:]
		o.mu.Lock()
		o.writing = len(rest)
		if len(rest) == 0 && cap(buf) <= maxKept {
			o.spare = buf[:0]
		}
		o.room.Broadcast()
		o.mu.Unlock()
	}
	return nil
}

func (o *outbox) endWrite() {
	if c, ok := o.conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		return
	}
	o.conn.Close()
}
