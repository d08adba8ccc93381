// Package forward carries the connections of this machine's workers to a round store on
// another one: a listener on a loopback address, and for each connection that it accepts one
// of its own to the store.
package forward

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"time"

	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/acceptloop"
	"rallypoint/internal/logsampler"
	"rallypoint/tcpstore"
)

// Bounds.
const (
	// dialTimeout bounds one attempt to reach the store.
	dialTimeout = 10 * time.Second

	// unreachableAfter is how long attempts have to fail before that is logged as a warning: a
	// store that opens after its first worker has come is no reason for one.
	unreachableAfter = 5 * time.Second
)

// Conn is a connection to the store: a *tls.Conn of secret.DialStore or a *net.TCPConn.
type Conn interface {
	net.Conn
	CloseWrite() error
}

// Options are the settings of a Forwarder.
type Options struct {
	// Dial opens a connection to the store, port of its node; port 0 is the store itself. It
	// returns soon after ctx ends.
	Dial func(ctx context.Context, port int) (Conn, error)

	// Accept returns the connections that may be carried. Nil takes all.
	Accept tcpstore.Accept

	// Store names the store for the log.
	Store string

	// Hint ends the warning about a store that cannot be reached.
	Hint string

	Log *slog.Logger

	// Refusals counts the connections that Accept has refused; nil: they are not counted.
	Refusals *Refusals
}

// Forwarder connects one node's workers to a store on another node. It closes connections that
// the store closes, passes half-closes and resets on, and resets a connection at once if it
// cannot reach the store, so that torch's client tries again. A connection that breaks is not
// resumed. Its methods are safe for concurrent use.
type Forwarder struct {
	opts     Options
	addr     netip.AddrPort
	refusals *logsampler.Sampler
	carrier  *carrier

	mu        sync.Mutex
	listeners []net.Listener
	failing   time.Time // since when no attempt has succeeded; zero: the last one has
	warned    bool      // that was logged as a warning
	lastErr   error     // of the last attempt; nil: it has succeeded
}

// Listen binds a forwarder to port at a loopback address; where another program has that, or
// the machine has no such address, to the next best one that its workers can use.
// Further processes of this user may bind the same address and port: two nodes on one machine
// share the connections.
func Listen(addr netip.Addr, port int, opts Options) (*Forwarder, error) {
	l, err := Bind(addr, port, opts.Log)
	if err != nil {
		return nil, err
	}
	f := &Forwarder{opts: opts, addr: l.Addr().(*net.TCPAddr).AddrPort(), carrier: newCarrier(opts.Log)}
	f.refusals = logsampler.New(func(d time.Duration, f func()) func() bool { return time.AfterFunc(d, f).Stop }, f.sumUp)
	if _, err := f.carrier.running(); err != nil {
		_ = l.Close()
		return nil, rendezvous.Errorf(rendezvous.CodeConnection, "cannot carry connections of this node's workers to their store: %v", err)
	}
	f.serve(l, 0)
	return f, nil
}

// Beside also carries connections to port of the store's node, by a listener at the same port
// of this one. A port that another program has here is left out, and false returned.
func (f *Forwarder) Beside(port int) bool {
	l, err := bind(netip.AddrPortFrom(f.addr.Addr(), uint16(port)))
	if err != nil {
		return false
	}
	f.serve(l, port)
	return true
}

// Addr is where workers connect.
func (f *Forwarder) Addr() netip.AddrPort { return f.addr }

// Err returns why the last attempt to reach the store has failed; nil if it has not.
func (f *Forwarder) Err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.lastErr
}

// Close ends all connections and waits until nothing of the forwarder runs any more. A further
// call only waits.
func (f *Forwarder) Close() error {
	f.mu.Lock()
	f.carrier.end()
	listeners := f.listeners
	f.listeners = nil
	f.mu.Unlock()
	var err error
	for _, l := range listeners {
		err = errors.Join(err, l.Close())
	}
	f.carrier.stop()
	f.refusals.Close()
	return err
}

// serve accepts connections from a listener and forwards them to port of the store's node.
func (f *Forwarder) serve(l net.Listener, port int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.carrier.life.Err() != nil {
		_ = l.Close()
		return
	}
	f.listeners = append(f.listeners, l)
	f.carrier.wg.Go(func() { f.accept(l, port) })
}

func (f *Forwarder) accept(l net.Listener, port int) {
	log := f.opts.Log.With("listen", l.Addr().String())
	err := acceptloop.Run(f.carrier.life, log, "connections of this node's workers", func() error {
		conn, err := f.next(l)
		if err == nil {
			f.carrier.take(conn, func(k *link) { f.carry(k, port) })
		}
		return err
	})
	if err != nil {
		log.Error("the listener for this node's workers was closed from outside; no new connections are carried to the store", "store", f.opts.Store)
	}
}

func (f *Forwarder) next(l net.Listener) (net.Conn, error) {
	if f.opts.Accept == nil {
		return l.Accept()
	}
	return f.opts.Accept(l, func(from netip.AddrPort, why error) {
		if errors.Is(why, peer.ErrEnded) {
			f.opts.Refusals.add(refusedEnded)
			f.opts.Log.Debug("a connection to the workers' store ended before it was accepted", "peer", from.String(), "listen", l.Addr().String())
			return
		}
		f.opts.Refusals.add(refusedUser)
		if f.refusals.Note("other_user", from.Addr().String()) {
			f.opts.Log.Warn("connection to the workers' store closed: "+why.Error(), "peer", from.String(), "listen", l.Addr().String())
		}
	})
}

// carry reaches the store for a connection, and has the loop carry it.
func (f *Forwarder) carry(k *link, port int) {
	ctx, cancel := context.WithTimeout(f.carrier.life, dialTimeout)
	store, err := f.opts.Dial(ctx, port)
	cancel()
	if port == 0 {
		f.note(err)
	}
	if err != nil {
		f.carrier.cut(k)
		return
	}
	err = f.carrier.carry(k, store)
	if err != nil && f.carrier.life.Err() == nil && f.refusals.Note("not_carried", f.addr.Addr().String()) {
		f.opts.Log.Warn("connection to the workers' store reset: it cannot be carried, though the store is reached: "+err.Error(),
			"listen", f.addr.String(), "store", f.opts.Store)
	}
}

// note records whether the store can be reached, and logs when that changes.
func (f *Forwarder) note(err error) {
	f.mu.Lock()
	if f.carrier.life.Err() != nil {
		f.mu.Unlock()
		return
	}
	f.lastErr = err
	var since time.Duration
	back, warn := false, false
	switch now := time.Now(); {
	case err == nil:
		back = f.warned
		f.failing, f.warned = time.Time{}, false
	case f.failing.IsZero():
		f.failing = now
		warn = isFinal(err)
	default:
		since = now.Sub(f.failing)
		warn = !f.warned && (isFinal(err) || since >= unreachableAfter)
	}
	f.warned = f.warned || warn
	f.mu.Unlock()
	switch {
	case warn:
		f.opts.Log.Warn(fmt.Sprintf("the workers' store at %s cannot be reached from this node, tried for %v: %v; workers that use it fail or wait until they time out%s",
			f.opts.Store, since.Round(time.Millisecond), err, f.opts.Hint))
	case back:
		f.opts.Log.Info("the workers' store at " + f.opts.Store + " is reached again")
	}
}

// sumUp logs refusals that were not logged one by one.
func (f *Forwarder) sumUp(sum logsampler.Summary) {
	f.opts.Log.Warn("more connections to the workers' store were closed for the same reason",
		"reason", sum.Reason, "count", sum.Count, "last", sum.Last, "listen", f.addr.String())
}
