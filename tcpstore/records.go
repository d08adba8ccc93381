package tcpstore

import (
	"encoding/binary"
	"io"
	"net"
	"time"
)

const (
	// recordHead is the length of a TLS record's header, which ends with the body's length.
	recordHead = 5
	// maxRecord is the longest body of a TLS 1.3 record.
	maxRecord = 16<<10 + 256
)

// records is the connection below a TLS connection. It hands out one whole record at a time,
// so that crypto/tls never holds part of one: the loop knows without asking whether another
// record has arrived, and an idle connection needs no buffer to read into.
//
// Until enterLoop it reads and writes conn, which may block. After enterLoop it never blocks:
// Read takes from in what the caller has received, Write appends to out. crypto/tls reads a
// temporary error of Read as "call again".
type records struct {
	conn net.Conn // nil in a loop
	left int      // of the record that is being handed out
	in   []byte
	out  []byte
}

// notYet is the error of a Read while no whole record has arrived.
type notYet struct{}

func (notYet) Error() string   { return "no whole record has arrived" }
func (notYet) Timeout() bool   { return false }
func (notYet) Temporary() bool { return true }

var _ net.Error = notYet{}

// enterLoop ends the opening, and reports whether it does so between two records.
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

// readOpening reads at most to the end of a record: for the life of the connection crypto/tls
// keeps a buffer that is larger than the most that one Read has returned.
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

// bodyLen returns the length of a record's body, by its header.
func bodyLen(head []byte) int { return int(binary.BigEndian.Uint16(head[recordHead-2:])) }

// wholeRecord returns the length of the first record of b, 0 if it is not all there. For one
// that is longer than TLS allows it is the header's: crypto/tls refuses it by that alone.
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

// SetDeadline implements net.Conn. In a loop no call waits.
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
