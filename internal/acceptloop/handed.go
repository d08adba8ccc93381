package acceptloop

import (
	"net"
	"sync"
)

// Handed is a listener whose connections come from within this process, by a channel that may outlive it.
type Handed struct {
	conns  <-chan net.Conn
	addr   net.Addr
	closed chan struct{}
	close  func()
}

// NewHanded listens for the connections that come by a channel, as if at an address.
func NewHanded(conns <-chan net.Conn, addr net.Addr) *Handed {
	closed := make(chan struct{})
	return &Handed{conns, addr, closed, sync.OnceFunc(func() { close(closed) })}
}

// Accept returns the next connection.
func (h *Handed) Accept() (net.Conn, error) {
	select {
	case conn := <-h.conns:
		return conn, nil
	case <-h.closed:
		return nil, net.ErrClosed
	}
}

// Addr returns the address of NewHanded.
func (h *Handed) Addr() net.Addr { return h.addr }

// Close ends Accept.
func (h *Handed) Close() error {
	h.close()
	return nil
}

// Closed returns a channel that is closed by Close.
func (h *Handed) Closed() <-chan struct{} { return h.closed }
