package eventloop

import (
	"crypto/tls"
	"errors"
	"net"
	"syscall"
)

// TLS is an open TLS connection of a loop. While it is idle it has no buffer.
type TLS struct {
	Conn    *tls.Conn
	Records *Records // below Conn; its Out holds what is written to Conn
	rest    []byte   // received: the beginning of a record; if more is set, perhaps whole ones
	// more reports that Conn may have something to read before anything else is received: no event
	// announces the rest of a record that did not fit, nor an error after the bytes that were
	// read.
	more bool
}

// NewTLS makes a connection over Records, on which nothing reads or writes, one of a loop. Bytes
// that came with the end of its opening make no event: the loop reads first.
func NewTLS(conn *tls.Conn) (*TLS, error) {
	below := conn.NetConn()
	for {
		if r, ok := below.(*Records); ok {
			t := &TLS{Conn: conn, Records: r, rest: r.enterLoop(), more: true}
			if r.left > 0 { // not with what crypto/tls does
				return nil, errors.New("a record was read in part")
			}
			return t, nil
		}
		over, ok := below.(interface{ NetConn() net.Conn })
		if !ok {
			return nil, errors.New("the TLS connection is not over records")
		}
		below = over.NetConn()
	}
}

// More reports that Read may return something before anything else is received.
func (t *TLS) More() bool { return t.more }

// Partial reports that the beginning of a record has been received, and not its end.
func (t *TLS) Partial() bool { return len(t.rest) > 0 }

// Receive receives once, at most room bytes, into memory of the loop, which is lent until Read
// and holds a record more than that.
func (t *TLS) Receive(fd int32, memory []byte, room int) (n int, errno syscall.Errno) {
	had := copy(memory, t.rest)
	n, errno = Receive(fd, memory[had:][:room])
	if errno == 0 && n > 0 {
		t.Records.in = memory[:had+n]
	}
	return n, errno
}

// Read fills b from the whole records that have been received, and keeps what is left.
func (t *TLS) Read(b []byte) (got int, err error) {
	r := t.Records
	if r.in == nil {
		r.in = t.rest
	}
	got, err = t.read(b)
	if len(r.in) == 0 {
		t.rest = nil
	} else {
		t.rest = append(t.rest[:0], r.in...)
	}
	r.in = nil
	return got, err
}

func (t *TLS) read(b []byte) (got int, err error) {
	r := t.Records
	for {
		whole, had := wholeRecord(r.in) > 0, len(r.in)
		if got == len(b) || !whole && !t.more {
			return got, nil
		}
		n, err := t.Conn.Read(b[got:])
		got += n
		again := errors.Is(err, notYet{}) && (!whole || len(r.in) < had)
		t.more = err != nil && !again || got == len(b)
		if err != nil && !again {
			return got, err
		}
	}
}
