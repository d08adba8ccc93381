package roundstore

import (
	"context"
	"net"
	"net/netip"
	"slices"

	"rallypoint/tcpstore"
)

// controlPort is the port of the control plane in this process, as far as it is a round store's,
// too (docs/decisions/0123): what clients of a store open there.
type controlPort struct {
	addr  *net.TCPAddr
	on    []netip.Addr  // where the control plane listens
	plain bool          // a connection by TLS is for no store
	conns chan net.Conn // without room: the peer of one that waits here is at the control plane's cost
}

// serves reports whether the control plane listens where a store on host would ("": on all addresses that
// the nodes use).
func (p *controlPort) serves(ctx context.Context, host string) bool {
	if host == "" || slices.ContainsFunc(p.on, netip.Addr.IsUnspecified) {
		return true
	}
	addr, ok := resolve(ctx, host)
	return ok && slices.Contains(p.on, addr.Unmap())
}

// take hands a connection to the store that listens, with what was read of it already. It is
// control.Config.TakeStore.
func (p *controlPort) take(conn net.Conn, said []byte, stop <-chan struct{}) {
	tcp, ok := conn.(*net.TCPConn)
	if !ok || said != nil && p.plain {
		_ = conn.Close()
		return
	}
	_ = tcp.SetKeepAliveConfig(tcpstore.KeepAlive) // a control plane's listener has none
	if said != nil {
		conn = &begunConn{tcp, said}
	}
	select {
	case p.conns <- conn:
	case <-stop:
		_ = conn.Close()
	}
}

// begunConn is a connection of which something was read already.
type begunConn struct {
	*net.TCPConn
	said []byte
}

func (c *begunConn) Read(b []byte) (int, error) {
	if len(c.said) == 0 {
		return c.TCPConn.Read(b)
	}
	n := copy(b, c.said)
	c.said = c.said[n:]
	return n, nil
}
