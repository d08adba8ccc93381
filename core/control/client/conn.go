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
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/training"
	"rallypoint/internal/host"
	"rallypoint/internal/wording"
)

// A node sends several beats in the length of its lease: two may be lost or late. Each asks for an
// echo. Between two beats the node looks once more whether the control plane has answered. If
// standbys may elect another host, a beat is sent at each look.
//
// A node whose connection has not worked in both directions for half a lease opens a second one, because
// the network may have forgotten the first. One that has heard nothing for half a lease asks the standbys
// who hosts. A control plane that sends nothing for two leases hangs, and the connection is given up. Looks
// are counted and not time, so that this process may be stopped itself.
const (
	looksPerLease = 6
	looksPerBeat  = 2                 // 1 where there are voters
	secondAfter   = looksPerLease / 2 // looks
	lookAfter     = looksPerLease / 2
	silentAfter   = 2 * looksPerLease
)

// unackedLooks is how long the kernel tries to send data that nobody acknowledges: longer than
// secondAfter, so that a second connection comes first.
const unackedLooks = secondAfter + 1

// secondPatience bounds the wait for the second connection after the first one has ended: a server that
// has had its hello ends the first.
const secondPatience = time.Second

// conn is a client's connection to its control plane, from the welcome on. Frames are read
// by one goroutine; out may be used by any.
type conn struct {
	*discovery.Conn
	out    *wire.Outbox // unlimited: what it holds are pending calls, which are held anyway
	frames wire.FrameReader
	heard  atomic.Bool // bytes came since the last look
	finder Finder
	life   context.Context // its client's

	mu       sync.Mutex
	look     *time.Timer // nil: closed
	looks    int
	unheard  int                     // looks since bytes came last
	silent   int                     // looks since the connection last worked, see worksLocked
	acked    uint64                  // bytes, at the last look
	lookedAt time.Duration           // by host.Uptime
	stood    time.Duration           // for how long this process did not run before a look that was late
	stoodAt  time.Duration           // of that look
	second   *second                 // nil: there is none
	gaveUp   bool                    // one was given up, whose hello the server may still read
	training func() *training.Report // what beats carry; nil: nothing
}

// second is a connection that is opened beside a silent one.
type second struct {
	cancel context.CancelFunc
	done   chan struct{}
	found  *discovery.Conn // set before done is closed; nil: it has failed
}

// errReplaced ends a connection whose second one was answered.
var errReplaced = errors.New("a second connection to the control plane was answered in its place")

// newConn begins to keep a connection.
func newConn(life context.Context, found *discovery.Conn, finder Finder) *conn {
	c := &conn{Conn: found, life: life, finder: finder, out: wire.NewOutbox(found.Conn, math.MaxInt, nil, nil)}
	c.frames.In = bufio.NewReaderSize(c, wire.ReadBuffer)
	lease := time.Duration(found.Welcome.Lease)
	wire.SetUserTimeout(found, lease*unackedLooks/looksPerLease)
	c.startLooks(lease)
	return c
}

func (c *conn) startLooks(lease time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lookedAt = host.Uptime()
	c.look = time.AfterFunc(lease/looksPerLease, func() {
		c.lookAgain(lease)
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.look != nil {
			c.look.Reset(lease / looksPerLease)
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

// lookAgain counts the looks without a sign of the control plane, does what follows from that, and
// sends the beats.
func (c *conn) lookAgain(lease time.Duration) {
	voters := c.finder.HasVoters()
	c.mu.Lock()
	c.noteLookLocked(lease)
	c.looks++
	c.unheard++
	c.silent++
	heard := c.heard.Swap(false)
	if heard {
		c.unheard = 0
	}
	if c.worksLocked(heard) {
		c.silent = 0
	}
	due, unheard, silent, report := voters || c.looks%looksPerBeat == 0, c.unheard, c.silent, c.training
	c.mu.Unlock()
	echoes := slices.Contains(c.Welcome.Features, wire.FeatureEcho)
	if echoes && unheard >= silentAfter {
		silence := time.Duration(unheard) * lease / looksPerLease
		c.out.Cut(fmt.Errorf("the control plane at %s has been silent for %s: it hangs, or is cut off", c.RemoteAddr(), silence.Round(time.Millisecond)))
		return
	}
	if echoes && silent >= secondAfter {
		c.openSecond()
	}
	if voters && unheard >= lookAfter {
		c.finder.LookElsewhere(c.Conn)
	}
	if !due {
		return
	}
	beat := wire.Beat{Echo: echoes}
	if report != nil {
		beat.Training = report()
	}
	c.out.Send(beat)
}

// wasSilent reports whether nothing had come for half a lease, or this process did not look for so long.
func (c *conn) wasSilent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unheard >= looksPerLease/2 || host.Uptime()-c.lookedAt > time.Duration(c.Welcome.Lease)/2
}

// noteLookLocked notes whether this process did not run for half a lease before this moment.
func (c *conn) noteLookLocked(lease time.Duration) {
	now := host.Uptime()
	if gap := now - c.lookedAt; gap > lease/2 {
		c.stood, c.stoodAt = gap, now
	}
	c.lookedAt = now
}

// explain adds to why the control plane has dropped the node what only the node can know: its process was
// stopped, or suspended with its machine, or had no CPU time.
func (c *conn) explain(why *rendezvous.Error) *rendezvous.Error {
	lease := time.Duration(c.Welcome.Lease)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.look != nil {
		c.noteLookLocked(lease)
	}
	if c.stood == 0 || c.lookedAt-c.stoodAt > 2*lease {
		return why
	}
	return rendezvous.Errorf(why.Code, "%s; this process did not run for %s: it was stopped or suspended, or had no CPU time", why.Text, wording.Seconds(c.stood))
}

// worksLocked reports whether the connection has worked in both directions since the last look:
// something came and nothing of ours is on the way, or more of that has arrived.
func (c *conn) worksLocked(heard bool) bool {
	acked := wire.Acked(c.Conn)
	arrived := acked > c.acked
	c.acked = acked
	if wire.Untaken(c.Conn) > 0 {
		return arrived
	}
	return heard
}

// isSilent reports whether there is still reason for a second connection.
func (c *conn) isSilent() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.look != nil && c.silent >= secondAfter && !(c.heard.Load() && wire.Untaken(c.Conn) == 0)
}

// openSecond opens a second connection to the same server, unless one is being opened.
func (c *conn) openSecond() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.look == nil || c.second != nil {
		return
	}
	ctx, cancel := context.WithCancel(c.life)
	s := &second{cancel: cancel, done: make(chan struct{})}
	c.second = s
	go func() { // ends with the connection: see replacement
		defer cancel()
		defer close(s.done)
		found, err := c.finder.Beside(ctx, c.Conn, c.isSilent)
		c.mu.Lock()
		s.found = found
		if err != nil {
			c.second, c.gaveUp = nil, c.gaveUp || errors.Is(err, discovery.ErrUnanswered)
		}
		c.mu.Unlock()
		if err == nil {
			c.out.Cut(errReplaced)
		}
	}()
}

// replacement returns the second connection when the first has ended with err; nil if there is
// none. A server that was stopped ends the first, too, when it goes on and reads the hello of a second one
// that was just given up: then another one is opened here.
func (c *conn) replacement(err error) *discovery.Conn {
	c.stopLooks()
	c.mu.Lock()
	s := c.second
	c.mu.Unlock()
	ended, silent := store.EndedByPeer(err), false
	if s != nil {
		if ended || errors.Is(err, errReplaced) { // else the first was ended here
			select {
			case <-s.done:
			case <-time.After(secondPatience):
				silent = true // the server does not answer a further one now either
			}
		}
		s.cancel()
		<-s.done
		if s.found != nil {
			return s.found
		}
	}
	c.mu.Lock()
	gaveUp := c.gaveUp // also since the first has ended
	c.mu.Unlock()
	if !ended || !gaveUp || silent {
		return nil
	}
	ctx, cancel := context.WithTimeout(c.life, 2*secondPatience)
	defer cancel()
	found, err := c.finder.Beside(ctx, c.Conn, func() bool { return true })
	if err != nil {
		return nil
	}
	return found
}

// carryTraining adds the result of report to heartbeats.
func (c *conn) carryTraining(report func() *training.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.training = report
}

// close ends the connection at once and waits for its goroutine.
func (c *conn) close() {
	c.stopLooks()
	c.out.Cut(net.ErrClosed)
	<-c.out.Ended()
}

func (c *conn) stopLooks() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.look != nil {
		c.noteLookLocked(time.Duration(c.Welcome.Lease))
		c.look.Stop()
		c.look = nil
	}
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
