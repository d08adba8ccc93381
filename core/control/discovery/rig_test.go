package discovery

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"rallypoint/core/control"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// startHost starts a server as a node's host.
func startHost(cfg HostConfig, listeners ...net.Listener) Host {
	return control.Start(control.Config{RunID: cfg.Params.RunID, Fixed: cfg.Fixed, Token: cfg.Token, HTTPNames: cfg.HTTPNames, Log: cfg.Log, Group: cfg.Group}, listeners...)
}

// node keeps the connection that its finder hands over, and has it search again after that.
type node struct {
	*Finder
	obs    member.Observer
	on     atomic.Pointer[Conn] // nil: not connected
	ctx    context.Context
	cancel context.CancelFunc
	loop   sync.WaitGroup
}

// newNode makes a node that is closed with the test.
func newNode(t *testing.T, p params.Params, obs member.Observer) *node {
	t.Helper()
	n := &node{obs: obs}
	id, incarnation := p.Identity()
	n.Finder = New(Config{Params: p, Node: id, Observer: obs, Log: slog.New(slog.DiscardHandler), Start: startHost, Hello: func() wire.Hello {
		return wire.Hello{
			Version: wire.ProtocolVersion, RunID: p.RunID, Session: rendezvous.SessionID(id), Node: id, Named: p.NodeID != "",
			Incarnation: incarnation, Policy: p.Policy,
		}
	}})
	n.ctx, n.cancel = context.WithCancel(context.Background())
	t.Cleanup(n.close)
	return n
}

func (n *node) close() {
	n.cancel()
	n.loop.Wait()
	n.Finder.Close()
}

// connect finds the control plane, and keeps the connection from then on.
func (n *node) connect(ctx context.Context) error {
	l, err := n.Find(ctx)
	if err == nil {
		n.on.Store(l)
		n.loop.Go(func() { n.keep(l) })
	}
	return err
}

func (n *node) keep(l *Conn) {
	for {
		err := n.serve(l)
		n.on.Store(nil)
		l.Close()
		if l, err = n.Again(n.ctx, l, err, false); err != nil {
			return
		}
		n.on.Store(l)
	}
}

// serve reads what the control plane says until the connection ends.
func (n *node) serve(l *Conn) error {
	defer context.AfterFunc(n.ctx, func() { l.Close() })()
	frames := wire.FrameReader{In: l.In}
	for {
		f, err := frames.NextFrame(wire.MaxFrame)
		if err != nil {
			return err
		}
		if to, ok := f.(wire.Redirect); ok {
			return &wire.Redirected{To: to}
		}
		if answer := n.Answer(l, f); answer != nil {
			if _, err := l.Write(wire.AppendFrame(nil, answer)); err != nil {
				return errors.Join(err, l.Close())
			}
		}
	}
}

// connected makes a node and connects it.
func connected(t *testing.T, p params.Params, obs member.Observer) *node {
	t.Helper()
	n := newNode(t, p, obs)
	if err := n.connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	return n
}

// afterDials returns a context whose deadline passes when the node begins to
// dial once more than n times.
func afterDials(t *testing.T, c *node, n int) context.Context {
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

// startWaiting starts the server of a node that stands by in a group, for a host at an address.
func startWaiting(t *testing.T, l net.Listener, p params.Params, node, group, host string) *control.Server {
	t.Helper()
	g := standby.NewGroup(p.RunID, node, p.LeaseTimeout, false)
	g.Follow(wire.Welcome{Group: group, Term: 1, Addr: host}, host)
	s := control.Start(control.Config{RunID: p.RunID, Log: slog.New(slog.DiscardHandler), Group: g}, l)
	t.Cleanup(func() { _ = s.Close() })
	return s
}
