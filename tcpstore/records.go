package tcpstore

import (
	"encoding/binary"
	"io"
	"net"
	"time"
)

const (
	// recordHead is the length of what a TLS record begins with, its size last.
	recordHead = 5
	// maxRecord is the longest record of TLS 1.3 behind its head.
	maxRecord = 16<<10 + 256
)

// records is the connection below a TLS connection. It hands out one whole record at a time,
// so that crypto/tls never holds a part of one: whether another record is there is known
// without asking, and a connection at rest needs no buffer for what is to come.
//
// While the connection is opened it reads and writes a net.Conn, which may block. From
// enterLoop on it never does: what is to be read was received by the caller into in, what is
// written is collected in out. crypto/tls takes a temporary error of Read for "call again".
type records struct {
	conn net.Conn // nil in a loop
	left int      // of the record that is being handed out
	in   []byte
	out  []byte
}

// notYet is what a Read returns for which nothing has arrived.
type notYet struct{}

func (notYet) Error() string   { return "no whole record has arrived" }
func (notYet) Timeout() bool   { return false }
func (notYet) Temporary() bool { return true }

var _ net.Error = notYet{}

// enterLoop ends the opening. It reports whether it was at the border of two records.
func (r *records) enterLoop() bool {
	r.conn = nil
	return r.left == 0
}

func (r *records) Read(b []byte) (int, error) {
	if r.conn != nil {
		return r.readOpening(b)
	}
	if r.left == 0 {
		if r.left = wholeRecord(r.in); r.left == 0 {
			return 0, notYet{}
		}
	}
	n := copy(b, r.in[:r.left])
	r.in, r.left = r.in[n:], r.left-n
	return n, nil
}

// readOpening reads a record, as far as there is room: what crypto/tls keeps for the life of
// the connection is a buffer for more than it has been given at a time.
func (r *records) readOpening(b []byte) (n int, err error) {
	if r.left == 0 {
		if len(b) < recordHead {
			return 0, io.ErrShortBuffer
		}
		if n, err = io.ReadFull(r.conn, b[:recordHead]); err != nil {
			return n, err
		}
		if r.left = bodyLen(b); r.left > maxRecord { // refused by its head
			r.left = 0
			return n, nil
		}
	}
	body := min(r.left, len(b)-n)
	m, err := io.ReadFull(r.conn, b[n:n+body])
	r.left -= m
	return n + m, err
}

// bodyLen is the length of a record behind its head.
func bodyLen(head []byte) int { return int(binary.BigEndian.Uint16(head[recordHead-2:])) }

// wholeRecord returns the length of the first record of b, 0 if it is not all there. Of one
// that is longer than TLS allows the head is all that is needed to refuse it.
func wholeRecord(b []byte) int {
	if len(b) < recordHead {
		return 0
	}
	n := bodyLen(b)
	switch {
	case n > maxRecord:
		return recordHead
	case len(b) < recordHead+n:
		return 0
	}
	return recordHead + n
}

func (r *records) Write(b []byte) (int, error) {
	if r.conn != nil {
		return r.conn.Write(b)
	}
	r.out = append(r.out, b...)
	return len(b), nil
}

// Close implements net.Conn: the descriptor is the loop's.
func (r *records) Close() error { return nil }

func (r *records) LocalAddr() net.Addr  { return nil }
func (r *records) RemoteAddr() net.Addr { return nil }

// SetDeadline implements net.Conn. A loop does not wait.
func (r *records) SetDeadline(t time.Time) error {
	if r.conn == nil {
		return nil
	}
	return r.conn.SetDeadline(t)
}

// SetReadDeadline implements net.Conn. It is not called.
func (r *records) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline implements net.Conn, for crypto/tls when it ends a stream.
func (r *records) SetWriteDeadline(time.Time) error { return nil }
