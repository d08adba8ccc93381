package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// foreignAfter is how long what listens at the endpoint may take to answer as a control
// plane does, before the log says that it may be another program.
const foreignAfter = 1200 * time.Millisecond

// foreignError is of a connection that was taken, but not by a control plane: another
// program, or one that is just ending.
type foreignError struct{ error }

func (e foreignError) Unwrap() error { return e.error }

// foreignWarning says once in a search that another program may have the endpoint's port.
type foreignWarning struct {
	client *Client
	once   sync.Once
	start  time.Time
}

// say names the port's state and how its holder is found.
func (f *foreignWarning) say(s *endpoint, why string) {
	f.once.Do(func() {
		f.client.log.Warn(fmt.Sprintf("there is no control plane at %s: %s; another program may have the port: "+
			"`ss -ltnp 'sport = :%d'` on that machine shows which; trying on", s.name(), why, s.port))
	})
}

// failed looks at the error of an attempt.
func (f *foreignWarning) failed(s *endpoint, err error) {
	var foreign foreignError
	if errors.As(err, &foreign) && time.Since(f.start) >= foreignAfter {
		f.say(s, foreign.Error())
	}
}

// dial is dialHello, by open; it follows a redirect, too.
func (f *foreignWarning) dial(ctx context.Context, s *endpoint, to []netip.AddrPort) (*clientConn, error) {
	conn, err := f.client.network.dialAny(ctx, to)
	if err != nil {
		return nil, err
	}
	return f.open(ctx, s, conn)
}

// open says hello on a new connection. What has taken it and is no control plane is
// marked in the error, and named while it is silent.
func (f *foreignWarning) open(ctx context.Context, s *endpoint, conn net.Conn) (*clientConn, error) {
	ended := make(chan struct{})
	silence := time.AfterFunc(foreignAfter, func() {
		defer close(ended)
		f.say(s, fmt.Sprintf("what listens at %v has taken a connection and said nothing for %v", conn.RemoteAddr(), foreignAfter))
	})
	l, err := f.client.openConn(ctx, conn)
	if !silence.Stop() {
		<-ended
	}
	l, err = f.client.follow(ctx, l, err)
	if err != nil && !isRefusal(err) && ctx.Err() == nil {
		err = foreignError{err}
	}
	return l, err
}
