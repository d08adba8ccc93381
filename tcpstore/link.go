package tcpstore

import (
	"bufio"
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
)

// link is one connection of a client, after the handshake. It is used by one call
// at a time.
type link struct {
	conn  net.Conn
	in    *bufio.Reader
	pings bool   // the server knows PING
	nonce uint32 // of the last PING
}

// errOutOfStep means that the peer answers something else than it was asked.
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

// exchange sends a request and reads its reply. With read nil the request has
// none: one that has is sent in the same packet. After an error the link is of no
// use any more.
func (l *link) exchange(ctx context.Context, request []byte, read func(*bufio.Reader) error) error {
	defer l.watch(ctx)()
	if read == nil {
		request, read = l.appendReceipt(request), l.readReceipt
	}
	if _, err := l.conn.Write(request); err != nil {
		return err
	}
	return read(l.in)
}

// appendReceipt appends a request that does nothing but has a reply. The reply
// means that all before it was carried out.
func (l *link) appendReceipt(dst []byte) []byte {
	if !l.pings {
		return appendInt(append(dst, byte(opCheck)), 0)
	}
	l.nonce++
	return appendPing(dst, l.nonce)
}

func (l *link) readReceipt(in *bufio.Reader) error {
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
// case it takes the wait back, for at most grace. clean reports whether the link
// can be used again.
func (l *link) await(ctx context.Context, request []byte, grace time.Duration) (clean bool, err error) {
	release := l.watch(ctx)
	if _, err := l.conn.Write(request); err != nil {
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
	done, err := l.takeBack()
	if err != nil {
		return false, store.ContextError(ctx)
	}
	l.conn.SetDeadline(time.Time{})
	if done {
		return true, nil
	}
	return true, store.ContextError(ctx)
}

// takeBack cancels a wait. It reports whether the wait was over just before
// (docs/spec/tcpstore-wire.md 4.4).
func (l *link) takeBack() (done bool, err error) {
	if _, err := l.conn.Write([]byte{byte(opCancelWait)}); err != nil {
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
		return false // a reply nobody has asked for
	}
	sc, ok := l.conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return false
	}
	alive := false
	err = raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		alive = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
		return true
	})
	return err == nil && alive
}

func expectByte(in *bufio.Reader, want byte) error {
	b, err := in.ReadByte()
	if err != nil {
		return err
	}
	if b != want {
		return fmt.Errorf("%w: 0x%02x for 0x%02x", errOutOfStep, b, want)
	}
	return nil
}

func readInt(in *bufio.Reader) (int64, error) {
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
func readText(in *bufio.Reader) ([]byte, error) {
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
