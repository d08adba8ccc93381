package client

import (
	"context"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"rallypoint/core/control"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startServer starts a control plane on a port of its own and returns its address.
func startServer(t *testing.T, cfg control.Config) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := control.Start(cfg, l)
	t.Cleanup(func() { s.Close() })
	return l.Addr().String()
}

// startHost starts a server as a client's host.
func startHost(cfg HostConfig, listeners ...net.Listener) Host {
	return control.Start(control.Config{RunID: cfg.Params.RunID, Fixed: cfg.Fixed, Token: cfg.Token, HTTPNames: cfg.HTTPNames, Log: cfg.Log, Group: cfg.Group}, listeners...)
}

// newTestClient makes a client that is closed with the test.
func newTestClient(t *testing.T, p params.Params, obs member.Observer) *Client {
	t.Helper()
	c := New(p, obs, nil, startHost)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		c.Close(ctx)
	})
	return c
}

// connected makes a client and connects it.
func connected(t *testing.T, p params.Params, obs member.Observer) *Client {
	t.Helper()
	c := newTestClient(t, p, obs)
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	return c
}

// afterDials returns a context whose deadline passes when the client begins to
// dial once more than n times.
func afterDials(t *testing.T, c *Client, n int) context.Context {
	t.Helper()
	ctx, expire := controltest.Expiring()
	t.Cleanup(expire)
	dial := c.network.dial
	var dials atomic.Int64
	c.network.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		if dials.Add(1) > int64(n) {
			expire()
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return dial(ctx, to)
	}
	return ctx
}

// peerConn is the server's end of a connection, by hand.
type peerConn struct {
	t      *testing.T
	conn   net.Conn
	frames wire.FrameReader
}

func (p *peerConn) write(b []byte) {
	p.t.Helper()
	if _, err := p.conn.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peerConn) send(f wire.Frame) {
	p.t.Helper()
	p.write(wire.AppendFrame(nil, f))
}
