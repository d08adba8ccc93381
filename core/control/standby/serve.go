package standby

import (
	"cmp"
	"errors"
	"io"
	"net"
	"os"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/store"
)

// maxUnsent limits the bytes that wait for a process that does not read.
const maxUnsent = 4 * wire.MaxFrame

// Serve serves a connection that was opened for a link, until it ends or nothing comes on it any more: then it is
// kept, for Attempted. check looks at each message of the other side before it counts; an error ends
// the connection. heard is called after it. The result tells whether a message has counted.
func (g *Group) Serve(l *Link, conn *wire.Call, check func(wire.Liveness) error, heard func(said wire.Liveness, superseded bool)) (opened bool, err error) {
	out := wire.NewOutbox(conn, maxUnsent, nil, nil)
	silent := false
	defer func() {
		if silent {
			conn.SetWriteDeadline(time.Now().Add(g.Beat()))
			out.FinishKeeping()
		} else {
			out.Cut(net.ErrClosed)
		}
		<-out.Ended()
		if silent {
			l.silent.keep(conn)
		} else {
			conn.Close()
		}
	}()
	for {
		if opened {
			if silent = g.awaitFrame(l, conn); !silent {
				conn.SetReadDeadline(time.Time{})
			}
		}
		frame, err := conn.NextFrame(g.maxFrame)
		if err != nil {
			return opened, cmp.Or(out.Cause(), err)
		}
		switch said := frame.(type) {
		case wire.Liveness:
			if err := check(said); err != nil {
				return opened, err
			}
			if !opened {
				opened = true
				conn.SetDeadline(time.Time{})
				l.silent.close()
				g.Opened(l, out)
			}
			_, superseded := g.Hear(l, said)
			heard(said, superseded)
		case wire.Vote:
			g.HearVote(l, said)
		case wire.Refuse:
			return opened, conn.Explain(said.Err)
		}
	}
}

// awaitFrame waits until a frame begins, or the connection ends. It reports whether a voter is silent that has had to
// answer for a quarter of a lease: who votes may change while nothing comes.
func (g *Group) awaitFrame(l *Link, conn *wire.Call) (silent bool) {
	for {
		expected := g.expects(l)
		conn.SetReadDeadline(time.Now().Add(g.lease / 4))
		_, err := conn.In.Peek(1)
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return false
		}
		if expected && g.expects(l) { // this process was stopped, perhaps: what came meanwhile is read first
			conn.SetReadDeadline(time.Now().Add(g.Beat()))
			_, err = conn.In.Peek(1)
			return errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}

// silentConn is a connection that has been silent for too long. It is kept while others are
// attempted, since only the end of an established connection proves a death.
type silentConn struct {
	conn  *wire.Call
	ended chan error // has room for one
}

// keep replaces the one that is kept.
func (s *silentConn) keep(conn *wire.Call) {
	s.close()
	s.conn, s.ended = conn, make(chan error, 1)
	conn.SetDeadline(time.Time{})
	go func() { // ends with the connection
		_, err := io.Copy(io.Discard, conn.In)
		s.ended <- cmp.Or(err, io.EOF)
	}()
}

// endedByPeer reports, once, whether the other side has ended it.
func (s *silentConn) endedByPeer() bool {
	select {
	case err := <-s.ended:
		s.conn.Close()
		s.conn, s.ended = nil, nil
		return store.EndedByPeer(err)
	default:
		return false
	}
}

func (s *silentConn) close() {
	if s.conn != nil {
		s.conn.Close()
		<-s.ended
		s.conn, s.ended = nil, nil
	}
}
