package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"rallypoint/internal/backoff"
)

// besideParts is the part of a lease over which the nodes of a job spread their second connections to
// a server that is silent to all of them.
const besideParts = 12

// errNotBeside is why no second connection was opened, and ErrUnanswered why one was given up.
var (
	errNotBeside  = errors.New("there is no need of a second connection")
	ErrUnanswered = errors.New("the hello on a second connection was not answered in time")
)

// following is the connection that a finder follows.
type following struct {
	mu      sync.Mutex // of what else the finder shares, too
	current *Conn      // the last one that was found; nil: a search is under way
	left    error      // why current was ended here; nil: it was not
	leaving bool       // this node goes, and its control plane with it
}

// leave ends a connection, if it is the current one. Again gets the reason.
func (f *following) leave(l *Conn, why error) {
	f.mu.Lock()
	current := l != nil && f.current == l && f.left == nil
	if current {
		f.left = why
	}
	f.mu.Unlock()
	if current {
		l.Close()
	}
}

// replace does the work of Replace: it makes next, of Beside, the connection of this node in the place of l,
// has follows note it, and reports whether it has. If this node has been told of another host meanwhile, it
// closes next instead.
func (f *following) replace(l, next *Conn, follows func(*Conn), log *slog.Logger) bool {
	if next == nil {
		return false
	}
	f.mu.Lock()
	in := f.current == l && f.left == nil && !f.leaving
	f.mu.Unlock()
	if !in {
		_ = next.Close()
		return false
	}
	follows(next)
	log.Warn(fmt.Sprintf("the connection to the control plane at %s was silent for half a lease, and a second one was answered: the network has forgotten the first, or the server was stopped for a while", l.Addr))
	return true
}

// beside does the work of Beside: it says hello on a second connection to the server of l, which is silent: the
// network may have forgotten the first connection. It asks silent before each step that costs the server
// something. Once the server has the hello it serves the second connection and ends the first.
func (n *network) beside(ctx context.Context, l *Conn, silent func() bool, hello func(conn net.Conn, unanswered int) (*Conn, bool, error)) (*Conn, error) {
	if !l.Addr.IsValid() || !n.sleep(ctx, backoff.Below(time.Duration(l.Welcome.Lease)/besideParts)) || !silent() {
		return nil, errNotBeside
	}
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := n.dial(dialCtx, l.Addr)
	if err != nil {
		return nil, err
	}
	if !silent() {
		_ = conn.Close()
		return nil, errNotBeside
	}
	next, unanswered, err := hello(conn, l.unanswered)
	if unanswered {
		l.unanswered++
		err = ErrUnanswered
	}
	return next, err
}

// helloInTime opens a connection of a job of so many nodes, after so many hellos in a row without an answer.
// silent tells that this one had none either.
func helloInTime(ctx context.Context, nodes, unanswered int, open func(ctx context.Context) (*Conn, error)) (l *Conn, silent bool, err error) {
	// A kernel whose queue of new connections is full drops them, including those that are open
	// for this side, whose retries coincide with those of all other nodes. A new connection after
	// a random time is accepted sooner.
	patience := backoff.Jitter((firstAnswer + min(crowdTime(nodes), handshakeTimeout)) << min(unanswered, 8))
	helloCtx, cancel := context.WithTimeout(ctx, min(patience, handshakeTimeout))
	defer cancel()
	l, err = open(helloCtx)
	return l, err != nil && helloCtx.Err() != nil && ctx.Err() == nil, err
}

// Beside implements client.Finder.
func (f *Finder) Beside(ctx context.Context, l *Conn, silent func() bool) (*Conn, error) {
	if f.Hosting() {
		return nil, errNotBeside
	}
	return f.network.beside(ctx, l, silent, func(conn net.Conn, unanswered int) (*Conn, bool, error) {
		return f.helloOn(ctx, conn, l.Addr, unanswered)
	})
}

// Replace implements client.Finder.
func (f *Finder) Replace(l, next *Conn) bool { return f.replace(l, next, f.follows, f.Log) }

// Beside implements client.Finder.
func (f *RegisterFinder) Beside(ctx context.Context, l *Conn, silent func() bool) (*Conn, error) {
	if f.Hosting() {
		return nil, errNotBeside
	}
	return f.network.beside(ctx, l, silent, func(conn net.Conn, unanswered int) (*Conn, bool, error) {
		return f.helloOn(ctx, conn, unanswered)
	})
}

// Replace implements client.Finder.
func (f *RegisterFinder) Replace(l, next *Conn) bool { return f.replace(l, next, f.follows, f.Log) }
