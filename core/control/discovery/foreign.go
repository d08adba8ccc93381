package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"rallypoint/core/control/wire"
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
	conn, err := w.f.network.dialAny(ctx, w.f.targets())
	if err != nil {
		return nil, err
	}
	return w.open(ctx, conn)
}

// open says hello on a new connection. The error marks a program that has taken the connection and
// is no control plane. One that is silent is named after a while, or is asked whether it is a
// TCPStore, which ends the attempt.
func (w *foreignWarning) open(ctx context.Context, conn net.Conn) (*Conn, error) {
	hello, cancel := context.WithCancel(ctx)
	defer cancel()
	addr := conn.RemoteAddr()
	var isStore bool
	ended := make(chan struct{})
	silence := time.AfterFunc(foreignAfter, func() {
		defer close(ended)
		switch isStore = w.f.isTCPStore(hello, addr); {
		case isStore:
			cancel()
		case hello.Err() == nil:
			w.say(fmt.Sprintf("what listens at %v has taken a connection and said nothing for %v", addr, foreignAfter))
		}
	})
	l, err := w.f.openConn(hello, conn)
	asked := !silence.Stop()
	if asked {
		cancel()
		<-ended
	}
	l, err = w.f.follow(ctx, l, err)
	if err == nil || isRefusal(err) || errors.As(err, new(redirectError)) || ctx.Err() != nil {
		return l, err
	}
	if !asked && time.Since(w.start) >= foreignAfter {
		isStore = w.f.isTCPStore(ctx, addr)
	}
	if isStore {
		err = fmt.Errorf("a TCPStore answers at %v, and no control plane of Rallypoint: start all nodes with the same launcher "+
			"(torchrun's c10d has such a store at its endpoint), or name another port", addr)
	}
	return nil, foreignError{err}
}

// storeTimeout limits the question whether a program is a TCPStore.
const storeTimeout = time.Second

// isTCPStore asks a program that does not answer like a control plane. One that serves HTTP is a
// control plane that is slow, whose port the round's store shares.
func (f *Finder) isTCPStore(ctx context.Context, addr net.Addr) bool {
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	to, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return false
	}
	asked := func(question func(context.Context, net.Conn) bool) bool {
		conn, err := f.network.dial(ctx, to)
		if err != nil {
			return false
		}
		defer conn.Close()
		return question(ctx, conn)
	}
	return asked(wire.IsTCPStore) && !asked(wire.ServesHTTP)
}
