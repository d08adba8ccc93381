package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// foreignAfter is how long the program at the endpoint may take to answer like a control plane
// before the log says that it may be another program.
const foreignAfter = 1200 * time.Millisecond

// foreignError is of a connection that was taken, but not by a control plane: another
// program, or one that is just ending.
type foreignError struct{ error }

func (e foreignError) Unwrap() error { return e.error }

// foreignWarning says once in a search that another program may have the endpoint's port.
type foreignWarning struct {
	f     *Finder
	once  sync.Once
	start time.Time
}

// say names the port's state and how its holder is found.
func (w *foreignWarning) say(why string) {
	w.once.Do(func() {
		w.f.Log.Warn(fmt.Sprintf("there is no control plane at %s: %s; another program may have the port: "+
			"`ss -ltnp 'sport = :%d'` on that machine shows which; trying on", w.f.endpoint.String(), why, w.f.endpoint.Port))
	})
}

// failed looks at the error of an attempt.
func (w *foreignWarning) failed(err error) {
	if foreign, ok := errors.AsType[foreignError](err); ok && time.Since(w.start) >= foreignAfter {
		w.say(foreign.Error())
	}
}

// dial is dialHello to the endpoint, by open.
func (w *foreignWarning) dial(ctx context.Context) (*Conn, error) {
	conn, err := w.f.network.dialAny(ctx, w.f.endpoint.targets())
	if err != nil {
		return nil, err
	}
	return w.open(ctx, conn)
}

// open says hello on a new connection. The error marks a program that has taken the connection and
// is no control plane, and names it while it is silent.
func (w *foreignWarning) open(ctx context.Context, conn net.Conn) (*Conn, error) {
	ended := make(chan struct{})
	silence := time.AfterFunc(foreignAfter, func() {
		defer close(ended)
		w.say(fmt.Sprintf("what listens at %v has taken a connection and said nothing for %v", conn.RemoteAddr(), foreignAfter))
	})
	l, err := w.f.openConn(ctx, conn)
	if !silence.Stop() {
		<-ended
	}
	l, err = w.f.follow(ctx, l, err)
	if err != nil && !isRefusal(err) && !errors.As(err, new(redirectError)) && ctx.Err() == nil {
		err = foreignError{err}
	}
	return l, err
}
