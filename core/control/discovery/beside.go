package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"rallypoint/internal/backoff"
)

// besideParts is the part of a lease over which the nodes of a job spread their second connections to
// a server that is silent to all of them.
const besideParts = 12

// errNotBeside is why no second connection was opened.
var errNotBeside = errors.New("there is no need of a second connection")

// Beside says hello on a second connection to the server of l, which is silent: the network may have
// forgotten the first connection. It asks silent before each step that costs the server something.
// Once the server has the hello it serves the second connection and ends the first.
func (f *Finder) Beside(ctx context.Context, l *Conn, silent func() bool) (*Conn, error) {
	if f.Hosting() {
		return nil, errNotBeside
	}
	conn, err := f.network.dialBeside(ctx, l, silent)
	if err != nil {
		return nil, err
	}
	next, unanswered, err := f.helloOn(ctx, conn, l.Addr, l.unanswered)
	if unanswered {
		l.unanswered++
	}
	return next, err
}

// dialBeside opens the connection on which a finder's Beside says hello.
func (n *network) dialBeside(ctx context.Context, l *Conn, silent func() bool) (net.Conn, error) {
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
	return conn, nil
}

// Replace makes next, of Beside, the connection of this node in the place of l, and reports whether it
// has. If this node has been told of another host meanwhile, it closes next instead.
func (f *Finder) Replace(l, next *Conn) bool {
	if next == nil {
		return false
	}
	f.mu.Lock()
	follows := f.current == l && f.left == nil && !f.deserted && !f.leaving
	f.mu.Unlock()
	if !follows {
		_ = next.Close()
		return false
	}
	f.follows(next)
	f.Log.Warn(secondConnection(l))
	return true
}

// secondConnection tells that a second connection has taken the place of one.
func secondConnection(l *Conn) string {
	return fmt.Sprintf("the connection to the control plane at %s was silent for half a lease, and a second one was answered: the network has forgotten the first, or the server was stopped for a while", l.Addr)
}
