package discovery

import (
	"context"
	"net"
	"sync"

	"rallypoint/internal/acceptloop"
)

// LocalFinder is the client.Finder of the only node of a job: it starts a control plane in this process, which no
// other reaches, and connects to it by a pipe. It is for one goroutine at a time, as Finder is.
type LocalFinder struct {
	Config
	noStandbys

	mu       sync.Mutex
	host     Host // nil: it was not started, or is closed
	listener *acceptloop.Handed
	conns    chan net.Conn // to listener
}

func (f *LocalFinder) Find(ctx context.Context) (*Conn, error) {
	f.mu.Lock()
	if f.host == nil {
		f.conns = make(chan net.Conn)
		f.listener = acceptloop.NewHanded(f.conns, here{})
		f.host = f.Start(HostConfig{Params: f.Params, Node: f.Node, Log: f.Log}, f.listener)
	}
	f.mu.Unlock()
	conn, err := f.dial(ctx)
	if err != nil {
		return nil, err
	}
	h := f.Hello()
	h.InHost = true
	return openConn(ctx, conn, h, nil, func(net.Conn) error { return nil })
}

func (f *LocalFinder) Again(ctx context.Context, _ *Conn, _ error, _ bool) (*Conn, error) {
	return f.Find(ctx)
}

func (f *LocalFinder) Hosting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.host != nil
}

// Beside implements client.Finder: no network is between.
func (f *LocalFinder) Beside(context.Context, *Conn, func() bool) (*Conn, error) {
	return nil, errNotBeside
}

// Leave implements client.Finder: there is nobody to wait for.
func (f *LocalFinder) Leave(context.Context) {}

func (f *LocalFinder) Close() {
	f.mu.Lock()
	host := f.host
	f.host = nil
	f.mu.Unlock()
	if host != nil {
		_ = host.Close()
	}
}

func (f *LocalFinder) dial(ctx context.Context) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case f.conns <- pipeConn{far}:
		return pipeConn{near}, nil
	case <-f.listener.Closed():
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// pipeConn is one end of a connection within this process.
type pipeConn struct{ net.Conn }

func (pipeConn) RemoteAddr() net.Addr { return here{} }

func (pipeConn) LocalAddr() net.Addr { return here{} }

// here is the address of a control plane that only this process reaches.
type here struct{}

func (here) Network() string { return "process" }

func (here) String() string { return "this process" }
