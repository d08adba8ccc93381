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
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"rallypoint/core/control/discovery"
	"rallypoint/core/control/wire"
	"rallypoint/core/training"
)

// A node sends several beats in the length of its lease: two may be lost or late.
// When it has heard nothing for nearly as long, its beats ask for an echo; a
// control plane that gives none for two leases hangs, and the connection is given
// up.
//
// If standbys may elect another host, heartbeats are sent twice as often and each asks for an
// echo. A node that hears nothing for about 0.6 of a lease asks the standbys who hosts.
const (
	beatsPerLease = 3
	lookAfter     = 3                 // beats since bytes came last, where there are voters
	echoAfter     = beatsPerLease - 1 // beats since bytes came last
	silentAfter   = 2 * beatsPerLease // the same
)

// conn is a client's connection to its control plane, from the welcome on. Frames are read
// by one goroutine; out may be used by any.
type conn struct {
	*discovery.Conn
	out    *wire.Outbox // unlimited: what it holds are pending calls, which are held anyway
	frames wire.FrameReader
	heard  atomic.Bool // bytes came since the last beat
	finder Finder

	mu              sync.Mutex
	beat            *time.Timer             // nil: closed
	unansweredBeats int                     // beats since bytes came last
	training        func() *training.Report // what beats carry; nil: nothing
}

// newConn begins to keep a connection.
func newConn(found *discovery.Conn, finder Finder) *conn {
	c := &conn{Conn: found, finder: finder, out: wire.NewOutbox(found.Conn, math.MaxInt, nil, nil)}
	c.frames.In = bufio.NewReaderSize(c, wire.ReadBuffer)
	c.startBeats(time.Duration(found.Welcome.Lease))
	return c
}

func (c *conn) startBeats(lease time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.beat = time.AfterFunc(lease/beatsPerLease, func() {
		parts := c.sendBeat(lease)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.beat != nil {
			c.beat.Reset(lease / time.Duration(parts))
		}
	})
}

// Read reads from the connection and notes that the control plane was heard.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard.Store(true)
	}
	return n, err
}

// sendBeat sends a beat, or gives up a control plane that does not answer them.
// Beats are counted and not time, so that this process may be stopped itself. The result is how
// many of them a lease has.
func (c *conn) sendBeat(lease time.Duration) (parts int) {
	voters := c.finder.HasVoters()
	parts = beatsPerLease
	if voters {
		parts *= 2
	}
	c.mu.Lock()
	c.unansweredBeats++
	if c.heard.Swap(false) {
		c.unansweredBeats = 0
	}
	deaf, report := c.unansweredBeats, c.training
	c.mu.Unlock()
	echoes := slices.Contains(c.Welcome.Features, wire.FeatureEcho)
	if echoes && deaf >= silentAfter*parts/beatsPerLease {
		silence := time.Duration(deaf) * lease / time.Duration(parts)
		c.out.Cut(fmt.Errorf("the control plane at %s has been silent for %s: it hangs, or is cut off", c.RemoteAddr(), silence.Round(time.Millisecond)))
		return parts
	}
	if voters && deaf >= lookAfter {
		c.finder.LookElsewhere(c.Conn)
	}
	beat := wire.Beat{Echo: echoes && (voters || deaf >= echoAfter)}
	if report != nil {
		beat.Training = report()
	}
	c.out.Send(beat)
	return parts
}

// carryTraining adds the result of report to heartbeats.
func (c *conn) carryTraining(report func() *training.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.training = report
}

// close ends the connection at once and waits for its goroutine.
func (c *conn) close() {
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
func (c *conn) sayGoodbye(ctx context.Context) {
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

// brokenBy says why reading ended, in terms of the connection. If the server has named another
// one, the result of a concurrent write does not matter.
func (c *conn) brokenBy(err error) error {
	if errors.As(err, new(*wire.Redirected)) {
		return err
	}
	err = cmp.Or(c.out.Cause(), err)
	switch {
	case errors.Is(err, io.EOF):
		return &endedError{c.RemoteAddr()}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return net.ErrClosed
	}
	return err
}
