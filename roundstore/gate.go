package roundstore

import (
	"net"
	"sync"
)

// gate is a listener that can be shut: connections that come meanwhile wait
// until it is opened. It bridges the time in which it is not known which round a
// new connection belongs to.
type gate struct {
	net.Listener
	done chan struct{} // closed by Close
	once sync.Once

	mu   sync.Mutex
	pass chan struct{} // closed while the gate is open
}

func newGate(l net.Listener) *gate {
	g := &gate{Listener: l, done: make(chan struct{}), pass: make(chan struct{})}
	close(g.pass)
	return g
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	conn, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for {
		g.mu.Lock()
		pass := g.pass
		g.mu.Unlock()
		select {
		case <-pass:
			return conn, nil
		default:
		}
		select {
		case <-pass: // look again: it may be shut once more
		case <-g.done:
			conn.Close()
			return nil, net.ErrClosed
		}
	}
}

// Close implements net.Listener.
func (g *gate) Close() error {
	g.once.Do(func() { close(g.done) })
	return g.Listener.Close()
}

func (g *gate) shut() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.pass:
		g.pass = make(chan struct{})
	default:
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	select {
	case <-g.pass:
	default:
		close(g.pass)
	}
}
