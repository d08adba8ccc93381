package eventloop

import (
	"encoding/binary"
	"io"
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// RecordHead is the length of a TLS record's header, which ends with the body's length.
	RecordHead = 5
	// MaxRecord is the longest body of a TLS 1.3 record.
	MaxRecord = 16<<10 + 256
	// openingRead is how much is read at a time while a connection is opened.
	openingRead = 1 << 10
)

// Records is the connection below a TLS connection. It hands out one whole record at a time,
// so that crypto/tls never holds part of one: the loop knows without asking whether another
// record has arrived, and an idle connection needs no buffer to read into. For the life of a
// connection crypto/tls keeps one that is larger than the most that one Read has returned.
//
// Until it is in a loop (NewTLS) it reads and writes conn, which may block. Then it never
// blocks: Read takes from in what the loop has received, Write appends to Out. crypto/tls reads
// a temporary error of Read as "call again".
type Records struct {
	Out    []byte
	conn   net.Conn // nil in a loop
	left   int      // of the record that is being handed out
	in     []byte
	memory *[openingRead]byte // of in; nil in a loop
}

// openings are lent to connections while they are opened.
var openings = sync.Pool{New: func() any { return new([openingRead]byte) }}

// notYet is the error of a Read while no whole record has arrived.
type notYet struct{}

func (notYet) Error() string   { return "no whole record has arrived" }
func (notYet) Timeout() bool   { return false }
func (notYet) Temporary() bool { return true }

var _ net.Error = notYet{}

// NewRecords returns the connection below one of TLS that is going to be opened over conn.
func NewRecords(conn net.Conn) *Records { return &Records{conn: conn} }

// NetConn returns the connection below; nil in a loop.
func (r *Records) NetConn() net.Conn { return r.conn }

// enterLoop ends the opening, and returns what has been received and not handed out.
func (r *Records) enterLoop() (rest []byte) {
	if len(r.in) > 0 {
		rest = slices.Clone(r.in)
	}
	if r.memory != nil {
		openings.Put(r.memory)
	}
	r.conn, r.in, r.memory = nil, nil, nil
	return rest
}

func (r *Records) Read(b []byte) (int, error) {
	for r.left == 0 {
		if r.left = wholeRecord(r.in); r.left > 0 {
			break
		}
		if r.conn == nil {
			return 0, notYet{}
		}
		if err := r.readMore(); err != nil {
			return 0, err
		}
	}
	n := copy(b, r.in[:r.left])
	r.in, r.left = r.in[n:], r.left-n
	return n, nil
}

func (r *Records) readMore() error {
	if r.memory == nil {
		r.memory = openings.Get().(*[openingRead]byte)
	}
	had := len(r.in)
	switch {
	case had == 0:
		r.in = r.memory[:0]
	case had == cap(r.in):
		r.in = slices.Grow(r.in, openingRead)
	}
	n, err := r.conn.Read(r.in[had:cap(r.in)])
	r.in = r.in[:had+n]
	switch {
	case n > 0:
		return nil
	case err == io.EOF && had > 0:
		return io.ErrUnexpectedEOF
	}
	return err
}

// BodyLen returns the length of a record's body, by its header.
func BodyLen(head []byte) int { return int(binary.BigEndian.Uint16(head[RecordHead-2:])) }

// wholeRecord returns the length of the first record of b, 0 if it is not all there. For one
// that is longer than TLS allows it is the header's: crypto/tls refuses it by that alone.
func wholeRecord(b []byte) int {
	if len(b) < RecordHead {
		return 0
	}
	n := BodyLen(b)
	switch {
	case n > MaxRecord:
		return RecordHead
	case len(b) < RecordHead+n:
		return 0
	}
	return RecordHead + n
}

func (r *Records) Write(b []byte) (int, error) {
	if r.conn != nil {
		return r.conn.Write(b)
	}
	r.Out = append(r.Out, b...)
	return len(b), nil
}

// Close closes the connection below. In a loop it does nothing: the descriptor is the loop's.
func (r *Records) Close() error {
	if r.conn == nil {
		return nil
	}
	return r.conn.Close()
}

// LocalAddr implements net.Conn; in a loop it is nil.
func (r *Records) LocalAddr() net.Addr {
	if r.conn == nil {
		return nil
	}
	return r.conn.LocalAddr()
}

// RemoteAddr implements net.Conn; in a loop it is nil.
func (r *Records) RemoteAddr() net.Addr {
	if r.conn == nil {
		return nil
	}
	return r.conn.RemoteAddr()
}

// SetDeadline implements net.Conn, as the others do that set one. In a loop no call waits.
func (r *Records) SetDeadline(t time.Time) error {
	return r.set(t, net.Conn.SetDeadline)
}

// SetReadDeadline implements net.Conn.
func (r *Records) SetReadDeadline(t time.Time) error {
	return r.set(t, net.Conn.SetReadDeadline)
}

// SetWriteDeadline implements net.Conn.
func (r *Records) SetWriteDeadline(t time.Time) error {
	return r.set(t, net.Conn.SetWriteDeadline)
}

func (r *Records) set(t time.Time, deadline func(net.Conn, time.Time) error) error {
	if r.conn == nil {
		return nil
	}
	return deadline(r.conn, t)
}
