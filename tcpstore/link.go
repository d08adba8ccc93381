package tcpstore

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"rallypoint/core/store"
	"rallypoint/internal/eventloop"
)

// link is one connection of a client, after the handshake. It is used by one call
// at a time.
//
// It receives through raw, with system calls that do not wait. Waiting happens in the Go runtime's
// poller, or, until a time that is set, on the caller's thread.
type link struct {
	conn      *net.TCPConn
	raw       syscall.RawConn
	in        *bufio.Reader // over Read
	until     time.Time     // if set, Read waits on this thread, and no longer
	pings     bool          // the server knows PING
	missingOK bool          // the server answers reads of missing keys
	nonce     uint32        // of the last PING
}

// maxInline is how many bytes the kernel is sure to take of a request, since the one before was
// answered, and how many of a reply are looked at before the rest has come.
const maxInline = 16 << 10

func newLink(conn *net.TCPConn) (*link, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	l := &link{conn: conn, raw: raw}
	l.in = bufio.NewReaderSize(l, maxInline)
	return l, nil
}

// input is the buffered stream of replies.
type input interface {
	io.Reader
	io.ByteReader
}

// errWouldBlock means that a call that may wait only until some time would have to wait longer.
var errWouldBlock = errors.New("the call would have to wait longer")

// errOutOfStep means that the reply is none to the request.
var errOutOfStep = errors.New("the peer does not answer as a TCPStore server does")

// past is a deadline that ends an I/O call at once.
var past = time.Unix(1, 0)

// watch makes the end of ctx end the link's I/O. The result stops that, after
// which the link has no deadline.
func (l *link) watch(ctx context.Context) (release func()) {
	if ctx.Done() == nil {
		return func() {}
	}
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		l.conn.SetDeadline(past)
		close(fired)
	})
	return func() {
		if !stop() {
			<-fired
			l.conn.SetDeadline(time.Time{})
		}
	}
}

// exchange sends a request, unless it was sent before, and reads its reply. With read nil the
// request has none: one that has is sent in the same packet. With until set, errWouldBlock says
// that the reply is still to be read. After any other error the link cannot be used again.
func (l *link) exchange(ctx context.Context, request []byte, read func(input) error, sent *bool, until time.Time) error {
	if !*sent {
		if read == nil {
			request = l.appendAck(request)
		}
		if err := l.send(ctx, request); err != nil {
			return err
		}
		*sent = true
	}
	if read == nil {
		read = l.readAck
	}
	if !until.IsZero() {
		return l.tryReadReply(until, read)
	}
	defer l.watch(ctx)()
	return read(l.in)
}

// send sends a request. One of up to maxInline bytes never waits.
func (l *link) send(ctx context.Context, request []byte) error {
	if len(request) > maxInline {
		defer l.watch(ctx)()
	}
	return l.write(request)
}

func (l *link) write(b []byte) error {
	var errno syscall.Errno
	err := l.raw.Write(func(fd uintptr) bool {
		for len(b) > 0 {
			var n int
			if n, errno = eventloop.Send(int32(fd), b); errno != 0 {
				return errno != syscall.EAGAIN
			}
			b = b[n:]
		}
		return true
	})
	if err == nil && errno != 0 {
		err = errno
	}
	return err
}

// tryReadReply reads a reply if the whole of it comes soon, and is short; else it leaves
// everything to be read and returns errWouldBlock. It waits on this thread: to wake another one
// for a reply that arrives in some microseconds takes longer than the reply.
func (l *link) tryReadReply(until time.Time, read func(input) error) error {
	l.until = until
	defer func() { l.until = time.Time{} }()
	var reply bytes.Reader
	for {
		here, _ := l.in.Peek(l.in.Buffered())
		reply.Reset(here)
		if err := read(&reply); !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			l.in.Discard(len(here) - reply.Len())
			return err
		}
		switch _, err := l.in.Peek(len(here) + 1); err {
		case nil:
		case bufio.ErrBufferFull:
			return errWouldBlock
		default:
			return err
		}
	}
}

// Read implements io.Reader for the bufio.Reader.
func (l *link) Read(b []byte) (int, error) {
	var n int
	var errno syscall.Errno
	failed := l.raw.Read(func(fd uintptr) bool {
		if !l.until.IsZero() {
			awaitReadable(int(fd), l.until)
		}
		n, errno = eventloop.Receive(int32(fd), b)
		return errno != syscall.EAGAIN || !l.until.IsZero()
	})
	switch {
	case failed != nil:
		return 0, failed
	case errno == syscall.EAGAIN:
		return 0, errWouldBlock
	case errno != 0:
		return 0, errno
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// cut ends the link from another goroutine than the one that uses it, also one that waits on
// its thread.
func (l *link) cut() {
	l.conn.CloseRead()
	l.conn.Close()
}

// appendAck appends a request that does nothing but has a reply. The reply
// means that all before it was carried out.
func (l *link) appendAck(dst []byte) []byte {
	if !l.pings {
		return appendInt(append(dst, byte(opCheck)), 0)
	}
	l.nonce++
	return appendPing(dst, l.nonce)
}

func (l *link) readAck(in input) error {
	if !l.pings {
		return expectByte(in, replyReady)
	}
	var echo [4]byte
	if _, err := io.ReadFull(in, echo[:]); err != nil {
		return err
	}
	if binary.LittleEndian.Uint32(echo[:]) != l.nonce {
		return errOutOfStep
	}
	return nil
}

// await sends WAIT or BARRIER and waits for its reply or the end of ctx, in which
// case it cancels the wait, for at most grace. clean reports whether the link
// can be used again.
func (l *link) await(ctx context.Context, request []byte, grace time.Duration) (clean bool, err error) {
	release := l.watch(ctx)
	if err := l.write(request); err != nil {
		release()
		return false, err
	}
	err = expectByte(l.in, replyStopWaiting)
	release()
	if err == nil {
		return true, nil
	}
	if ctx.Err() == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
		return false, err
	}
	l.conn.SetDeadline(time.Now().Add(grace))
	done, err := l.cancelWait()
	if err != nil {
		return false, store.ContextError(ctx)
	}
	l.conn.SetDeadline(time.Time{})
	if done {
		return true, nil
	}
	return true, store.ContextError(ctx)
}

// cancelWait cancels a wait. It reports whether the wait was over just before
// (docs/spec/tcpstore-wire.md 4.4).
func (l *link) cancelWait() (done bool, err error) {
	if err := l.write([]byte{byte(opCancelWait)}); err != nil {
		return false, err
	}
	b, err := l.in.ReadByte()
	if err != nil {
		return false, err
	}
	if b == replyWaitCanceled {
		return false, nil
	}
	if b != replyStopWaiting {
		return false, errOutOfStep
	}
	return true, expectByte(l.in, replyWaitCanceled)
}

// alive reports whether an idle link is still connected, as far as the kernel
// knows. It makes a request that may not be sent twice safe to send after the
// server went away.
func (l *link) alive() bool {
	if l.in.Buffered() > 0 {
		return false // a reply to no request
	}
	alive := false
	err := l.raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		alive = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
		return true
	})
	return err == nil && alive
}

func expectByte(in input, want byte) error {
	b, err := in.ReadByte()
	if err != nil {
		return err
	}
	if b != want {
		return fmt.Errorf("%w: 0x%02x for 0x%02x", errOutOfStep, b, want)
	}
	return nil
}

func readInt(in input) (int64, error) {
	var b [8]byte
	if _, err := io.ReadFull(in, b[:]); err != nil {
		return 0, err
	}
	return int64(binary.LittleEndian.Uint64(b[:])), nil
}

const (
	// maxReply bounds one value in a reply: beyond what a server's memory may
	// hold it is rather a stream out of step.
	maxReply = 1 << 40

	// firstReply is how much memory a declared length is good for before the
	// bytes have come.
	firstReply = 64 << 10
)

// readText reads a str or bytes field. The result is never nil.
func readText(in input) ([]byte, error) {
	n, err := readInt(in)
	if err != nil {
		return nil, err
	}
	if n < 0 || n > maxReply {
		return nil, fmt.Errorf("%w: value of %d bytes", errOutOfStep, n)
	}
	text := make([]byte, min(n, firstReply))
	for have := 0; ; {
		if _, err := io.ReadFull(in, text[have:]); err != nil {
			return nil, err
		}
		have = len(text)
		if int64(have) == n {
			return text, nil
		}
		text = append(text, make([]byte, min(n-int64(have), int64(have)))...)
	}
}
