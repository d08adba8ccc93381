package wire

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"rallypoint/core/rendezvous"
)

// maxBehind is how much may wait to be sent while a server still reads from the
// connection. So a node that asks for much and does not read occupies little memory.
const maxBehind = 64 << 10

// writeChunk bounds one write: a node that does not take as much within its lease
// is cut off.
const writeChunk = 64 << 10

// maxKept is the largest buffer that is kept for the next use.
const maxKept = 64 << 10

// flushTimeout bounds the last write to a connection that is being closed.
const flushTimeout = time.Second

// Why the outbox has cut a connection.
var (
	ErrSlow  = errors.New("it reads too slowly: what waits to be sent to it has reached its limit")
	ErrStuck = errors.New("it does not read what is sent to it")
)

// Outbox queues frames for one connection and writes them in order, as many as there are in one
// write. Its methods never block and may be called under any lock. It has a goroutine only while
// there is something to write: of a server's many connections most are idle. A sender ends the
// outbox, by Finish, FinishKeeping or Cut, and waits for Ended.
type Outbox struct {
	conn    net.Conn
	limit   int                  // of unsent bytes; a longer queue cuts the connection
	traffic *Traffic             // nil: not counted
	uptime  func() time.Duration // nil: Stuck is always 0

	since atomic.Int64 // when the write that is under way began, by uptime; 0: none is

	mu      sync.Mutex
	drained sync.Cond
	buf     []byte // queued frames
	spare   []byte // the other buffer, while it is not written
	writing int    // bytes that are taken and not written yet
	counted int    // of buf and writing, as counts has them
	counts  []*atomic.Int64
	closing bool  // nothing more is queued
	keep    bool  // the connection stays open for another use
	err     error // why the connection was cut
	running bool  // run is under way, or nothing is written any more
	ended   chan struct{}
	late    *time.Timer // starts run for what SendReplyLate has queued; nil: nothing was yet
	waits   bool        // late runs
}

// NewOutbox makes the outbox of a connection, which holds at most limit bytes. A nil
// traffic counts nothing. Without uptime, a monotonic clock, Stuck is always 0.
func NewOutbox(conn net.Conn, limit int, sent *Traffic, uptime func() time.Duration) *Outbox {
	o := &Outbox{conn: conn, limit: limit, traffic: sent, uptime: uptime, ended: make(chan struct{})}
	o.drained.L = &o.mu
	return o
}

// CountIn adds the bytes that wait to be sent, from now on and until they are sent, to a sum that
// several outboxes share.
func (o *Outbox) CountIn(sum *atomic.Int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	sum.Add(int64(o.counted))
	o.counts = append(o.counts, sum)
}

// countLocked brings the sums up to date.
func (o *Outbox) countLocked() {
	now := len(o.buf) + o.writing
	for _, sum := range o.counts {
		sum.Add(int64(now - o.counted))
	}
	o.counted = now
}

// Send queues a frame. It reports false if the connection is closing.
func (o *Outbox) Send(f Frame) bool {
	return o.send(f.kind(), 0, func(buf []byte) []byte { return AppendFrame(buf, f) })
}

// SendReply queues a reply; one that is too large for a frame becomes an error,
// since its node could never take it.
func (o *Outbox) SendReply(f Reply) bool { return o.SendReplyLate(f, 0) }

// SendReplyLate is SendReply for a reply that no node waits for. It is written together with the
// next frame if that comes within the given time, since a write costs many times as much as the
// frame.
func (o *Outbox) SendReplyLate(f Reply, within time.Duration) bool {
	return o.send(KindReply, within, func(buf []byte) []byte {
		from := len(buf)
		buf = AppendFrame(buf, f)
		if size := len(buf) - from - frameHead; size > MaxFrame {
			buf = AppendFrame(buf[:from], Reply{Number: f.Number, Err: rendezvous.Errorf(rendezvous.CodeTooLarge,
				"the answer has %d bytes, at most %d can be sent: ask for fewer keys at once", size, MaxFrame)})
		}
		return buf
	})
}

// SendBytes queues bytes that are a frame of a kind already.
func (o *Outbox) SendBytes(b []byte, k Kind) bool {
	return o.send(k, 0, func(buf []byte) []byte { return append(buf, b...) })
}

// send queues the frame that add appends, to be written within a time.
func (o *Outbox) send(k Kind, within time.Duration, add func([]byte) []byte) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closing {
		return false
	}
	if o.traffic != nil {
		o.traffic.FramesOut.add(k)
	}
	switch {
	case !o.queue(add): // cut
	case within == 0:
		o.startLocked()
	default:
		o.startLateLocked(within)
	}
	return true
}

// Hold queues bytes that are written together with the next frame.
func (o *Outbox) Hold(b []byte) {
	o.mu.Lock()
	if !o.closing {
		o.buf = append(o.buf, b...)
		o.countLocked()
	}
	o.mu.Unlock()
}

// startLocked starts writing the queue.
func (o *Outbox) startLocked() {
	if !o.running {
		o.running = true
		go o.run()
	}
}

// startLateLocked starts after a time, if nothing has before.
func (o *Outbox) startLateLocked(within time.Duration) {
	switch {
	case o.waits:
		return
	case o.late == nil:
		o.late = time.AfterFunc(within, func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.startLocked()
		})
	default:
		o.late.Reset(within)
	}
	o.waits = true
}

// stopLateLocked takes startLate back.
func (o *Outbox) stopLateLocked() {
	if o.waits {
		o.waits = false
		o.late.Stop()
	}
}

// queue adds bytes; it reports false if that was too much, so that the connection is cut.
func (o *Outbox) queue(add func([]byte) []byte) bool {
	if o.buf == nil {
		o.buf, o.spare = o.spare[:0], nil
	}
	o.buf = add(o.buf)
	o.countLocked()
	if len(o.buf)+o.writing > o.limit {
		o.cutLocked(ErrSlow)
		return false
	}
	return true
}

// Finish writes the queue and then ends the writing side.
func (o *Outbox) Finish() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closing {
		o.closing = true
		o.conn.SetWriteDeadline(time.Now().Add(flushTimeout))
		o.startLocked()
		o.drained.Broadcast()
	}
}

// FinishKeeping writes the queue. The connection stays open.
func (o *Outbox) FinishKeeping() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closing, o.keep = true, true
	o.startLocked()
	o.drained.Broadcast()
}

// Ended is closed when no more will be written, after one of Finish, FinishKeeping and Cut.
func (o *Outbox) Ended() <-chan struct{} { return o.ended }

// Cut closes the connection at once. Queued frames are lost. The first cause is kept.
func (o *Outbox) Cut(cause error) {
	o.mu.Lock()
	o.cutLocked(cause)
	o.mu.Unlock()
}

func (o *Outbox) cutLocked(cause error) {
	if o.err == nil {
		o.err = cause
	}
	o.closing, o.buf = true, nil
	o.countLocked()
	o.conn.Close()
	o.stopLateLocked()
	if !o.running {
		o.running = true
		close(o.ended)
	}
	o.drained.Broadcast()
}

// AwaitDrained waits until at most maxBehind bytes are unsent or the outbox is closing,
// and reports whether it had to wait.
func (o *Outbox) AwaitDrained() (waited bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ; !o.closing && len(o.buf)+o.writing > maxBehind; waited = true {
		o.drained.Wait()
	}
	return waited
}

// WritingSince returns when the write that is under way began, by uptime; 0 if none is.
func (o *Outbox) WritingSince() time.Duration { return time.Duration(o.since.Load()) }

// Stuck returns for how long the peer has not taken what is being written; 0 if
// nothing is.
func (o *Outbox) Stuck() time.Duration {
	if since := o.WritingSince(); since != 0 {
		return o.uptime() - since
	}
	return 0
}

// ResetStuck restarts the time of Stuck.
func (o *Outbox) ResetStuck() {
	if since := o.since.Load(); since != 0 {
		o.since.CompareAndSwap(since, int64(o.uptime()))
	}
}

// Cause returns why the connection was cut from this side, nil if it was not.
func (o *Outbox) Cause() error {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.err
}

// run writes until the queue is empty. If the outbox is closing, it then ends the writing side
// only, so that the peer can still read what was written.
func (o *Outbox) run() {
	for {
		buf, more := o.take()
		if !more {
			return
		}
		if err := o.write(buf); err != nil {
			o.Cut(err)
		}
	}
}

// take empties the queue. If it was empty, run ends, and an outbox that is closing has ended.
func (o *Outbox) take() (buf []byte, more bool) {
	o.mu.Lock()
	o.stopLateLocked()
	buf, o.buf, o.writing = o.buf, nil, len(o.buf)
	o.countLocked()
	o.running = len(buf) > 0 || o.closing
	end := len(buf) == 0 && o.closing
	half := o.err == nil && !o.keep
	o.mu.Unlock()
	if end {
		if half {
			o.endWrite()
		}
		close(o.ended)
	}
	return buf, len(buf) > 0
}

// write writes what was taken, and keeps its memory for the next time.
func (o *Outbox) write(buf []byte) error {
	for rest := buf; len(rest) > 0; {
		if o.uptime != nil {
			o.since.Store(max(1, int64(o.uptime())))
		}
		n, err := o.conn.Write(rest[:min(len(rest), writeChunk)])
		o.since.Store(0)
		if o.traffic != nil {
			o.traffic.BytesOut.Add(uint64(n))
		}
		if err != nil {
			return err
		}
		rest = rest[n:]
		o.mu.Lock()
		o.writing = len(rest)
		o.countLocked()
		if len(rest) == 0 && cap(buf) <= maxKept {
			o.spare = buf[:0]
		}
		o.drained.Broadcast()
		o.mu.Unlock()
	}
	return nil
}

func (o *Outbox) endWrite() {
	if c, ok := o.conn.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
		return
	}
	o.conn.Close()
}
