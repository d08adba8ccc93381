package client

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/training"
	"rallypoint/internal/printable"
)

// handshakeTimeout bounds one attempt from the hello to its answer: a server that
// was stopped still accepts connections, but never answers.
const handshakeTimeout = 10 * time.Second

// A node sends several beats in the length of its lease: two may be lost or late.
// When it has heard nothing for nearly as long, its beats ask for an echo; a
// control plane that gives none for two leases hangs, and the connection is given
// up.
const (
	beatsPerLease = 3
	echoAfter     = beatsPerLease - 1 // beats since bytes came last
	silentAfter   = 2 * beatsPerLease // the same
)

// clientConn is one connection of a client to its control plane, from the accepted
// hello on. Frames are read by one goroutine; out may be used by any.
type clientConn struct {
	conn    net.Conn
	addr    netip.AddrPort // of the server, as dialled
	out     *wire.Outbox   // unlimited: what it holds are pending calls, which are held anyway
	frames  wire.FrameReader
	welcome wire.Welcome
	opened  time.Time
	heard   atomic.Bool // bytes came since the last beat

	standsBy bool // the host has received where this node stands by; of the goroutine that reads

	mu              sync.Mutex
	beat            *time.Timer             // nil: closed
	unansweredBeats int                     // beats since bytes came last
	training        func() *training.Report // what beats carry; nil: nothing
}

// openConn says hello on a new connection. A refusal is a *rendezvous.Error; the
// connection is closed on any error.
func (c *Client) openConn(ctx context.Context, raw net.Conn) (*clientConn, error) {
	return openConn(ctx, raw, c.hello(), c.token, c.believe)
}

// believe asks whose process has answered. A job of one machine that has no token is safe from
// other users only if it neither serves them nor follows one of them who was quicker to listen.
func (c *Client) believe(conn net.Conn) error {
	if err := c.servers.AdmitServer(conn); err != nil {
		return fmt.Errorf("what answers at %s may be another user's: %w; is_host=0 is for a control plane that users share, a token for all else",
			conn.RemoteAddr(), err)
	}
	return nil
}

// openConn is Client's. believe is asked about who has answered, whatever that says.
func openConn(ctx context.Context, raw net.Conn, h wire.Hello, token *secret.Token, believe func(net.Conn) error) (*clientConn, error) {
	conn := wire.NewConn(raw)
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	ours := h.Policy.LeaseTimeout
	wire.SetUserTimeout(conn, ours) // until the run's is known
	release := abortOn(ctx, conn)
	l := &clientConn{conn: conn, out: wire.NewOutbox(conn, math.MaxInt, nil, nil), opened: time.Now()}
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		l.addr = tcp.AddrPort()
	}
	l.frames.In = bufio.NewReaderSize(l, wire.ReadBuffer)
	err := l.handshake(h, wire.ClientHandshake{Token: token, Addr: conn.RemoteAddr()})
	var moved *redirected
	if err == nil || isRefusal(err) || errors.As(err, &moved) {
		err = cmp.Or(believe(conn), err)
	}
	if !release() && ctx.Err() != nil {
		err = fmt.Errorf("no answer from %s to the hello within %s", conn.RemoteAddr(), time.Since(l.opened).Round(time.Millisecond))
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	lease := time.Duration(l.welcome.Lease)
	if lease != ours {
		wire.SetUserTimeout(conn, lease)
	}
	l.startBeats(lease / beatsPerLease)
	return l, nil
}

// abortOn makes the end of ctx end the connection's I/O. The result stops that
// and reports whether it came in time.
func abortOn(ctx context.Context, conn net.Conn) (release func() bool) {
	return context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
}

// handshake says hello and reads the answer.
func (c *clientConn) handshake(h wire.Hello, g wire.ClientHandshake) error {
	theirs, err := g.Run(c.conn, &c.frames, wire.AppendFrame(nil, h))
	if err != nil {
		return err
	}
	f, err := c.frames.NextFrame(wire.MaxFrame)
	if err != nil {
		return fmt.Errorf("%s did not answer the hello: %w", c.conn.RemoteAddr(), wire.NoEOF(err))
	}
	switch f := f.(type) {
	case wire.Welcome:
		if _, ok := wire.Negotiate(theirs); !ok || f.Lease <= 0 {
			return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s answered with protocol version %d and lease %d",
				c.conn.RemoteAddr(), theirs.High, f.Lease)
		}
		if h.Policy.Segment > 1 && !slices.Contains(f.Features, wire.FeatureSegments) {
			return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s is of release %s, which knows no segments: start it by the release of this node, or leave --segment out",
				c.conn.RemoteAddr(), printable.Text(f.Software))
		}
		c.welcome = f
		return nil
	case wire.Redirect:
		return &redirected{f}
	case wire.Refuse:
		if rendezvous.CodeOf(f.Err) == rendezvous.CodeConnection { // as long as it cannot store: tried again, like one that is out of reach
			return fmt.Errorf("%s takes this node not yet: %s", c.conn.RemoteAddr(), printable.Text(f.Err.Text))
		}
		return g.Explain(f.Err, theirs)
	}
	return rendezvous.Errorf(rendezvous.CodeState, "the control plane at %s answered a hello with a frame %q", c.conn.RemoteAddr(), wire.NameOf(f))
}

func (c *clientConn) startBeats(every time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beat = time.AfterFunc(every, func() {
		c.sendBeat(every)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.beat != nil {
			c.beat.Reset(every)
		}
	})
}

// Read reads from the connection and notes that the control plane was heard.
func (c *clientConn) Read(b []byte) (int, error) {
	n, err := c.conn.Read(b)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, err
}

// sendBeat sends a beat, or gives up a control plane that does not answer them.
// Beats are counted and not time, so that this process may be stopped itself.
func (c *clientConn) sendBeat(every time.Duration) {
	c.mu.Lock()
	c.unansweredBeats++
	if c.heard.Swap(false) {
		c.unansweredBeats = 0
	}
	deaf, report := c.unansweredBeats, c.training
	c.mu.Unlock()
	echoes := slices.Contains(c.welcome.Features, wire.FeatureEcho)
	if echoes && deaf >= silentAfter {
		c.out.Cut(fmt.Errorf("the control plane at %s has been silent for %s: it hangs, or is cut off", c.conn.RemoteAddr(), (time.Duration(deaf) * every).Round(time.Millisecond)))
		return
	}
	beat := wire.Beat{Echo: echoes && deaf >= echoAfter}
	if report != nil {
		beat.Training = report()
	}
	c.out.Send(beat)
}

// carryTraining makes beats carry what report says.
func (c *clientConn) carryTraining(report func() *training.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.training = report
}

// close ends the connection at once and waits for its goroutine.
func (c *clientConn) close() {
	c.mu.Lock()
	if c.beat != nil {
		c.beat.Stop()
		c.beat = nil
	}
	c.mu.Unlock()
	c.out.Cut(net.ErrClosed)
	<-c.out.Ended()
}

// sayGoodbye says goodbye and waits until that is written, at most until ctx ends or
// for flushTimeout.
func (c *clientConn) sayGoodbye(ctx context.Context) {
	c.out.Send(wire.Goodbye{})
	c.out.Finish()
	select {
	case <-c.out.Ended():
	case <-ctx.Done():
	}
}

// endedError tells that the control plane's side has ended a connection.
type endedError struct{ by net.Addr }

func (e *endedError) Error() string { return e.by.String() + " closed the connection" }
func (e *endedError) Unwrap() error { return io.EOF }

// brokenBy says why reading ended, in terms of the connection. Where a server has named another
// one, what became of a write meanwhile does not count.
func (c *clientConn) brokenBy(err error) error {
	if to := (*redirected)(nil); errors.As(err, &to) {
		return err
	}
	if cause := c.out.Cause(); cause != nil {
		err = cause
	}
	switch {
	case errors.Is(err, io.EOF):
		return &endedError{c.conn.RemoteAddr()}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return net.ErrClosed
	}
	return err
}
