package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"syscall"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// Host is a control plane that runs in this process.
type Host interface {
	// WaitIdle returns nil once no node is connected but those whose session is
	// named, or the error of ctx.
	WaitIdle(ctx context.Context, except ...rendezvous.SessionID) error
	// Close ends all connections and returns when the control plane has ended.
	Close() error
	// Transfer makes the first standby host, sends all nodes there, and reports whether that
	// was done: not without a standby, and not in a run that has ended.
	Transfer(ctx context.Context) bool
	// StepDown sends all nodes to another server and makes this one wait; why is for the
	// log.
	StepDown(to wire.Redirect, why string)
}

// HostConfig says what a control plane in this process serves.
type HostConfig struct {
	Params    params.Params  // of the node that hosts; its run is the one that the control plane takes
	Node      string         // that node's id
	Fixed     bool           // nodes of an earlier control plane may come back to its address
	Token     *secret.Token  // nil: none
	HTTPNames []string       // names of this machine by which browsers may ask
	Log       *slog.Logger   // its lines name no run
	Group     *standby.Group // the servers that succeed each other; nil: it has no successors
}

// StartHost starts a control plane in this process. The listeners belong to it.
type StartHost func(cfg HostConfig, listeners ...net.Listener) Host

// startHosting listens where the election says and starts the control plane of
// this run. An error leaves nothing behind.
func (c *Client) startHosting(ctx context.Context, s *endpoint, where election) error {
	hosts := []string{""}
	if !where.wildcard {
		hosts = hosts[:0]
		for _, a := range where.listen {
			hosts = append(hosts, a.String())
		}
	}
	listeners, err := c.listenAll(ctx, hosts, s.port)
	if err != nil {
		return err
	}
	host := c.startServer(listeners)
	if c.group != nil {
		c.group.Found(c.network.now())
	}
	c.atEndpoint = true
	c.setListening(listenAddrs(listeners))
	s.hosted = ownAddrs(c.listening)
	c.mu.Lock()
	c.hosting = host
	c.mu.Unlock()
	for _, l := range listeners {
		c.log.Log(context.Background(), c.params.EventLevel(), "hosting the control plane in this process", "endpoint", s.name(), "listening", l.Addr().String())
	}
	return nil
}

// startServer starts a server of this run, which waits if it has a group that it does not
// lead.
func (c *Client) startServer(listeners []net.Listener) Host {
	return c.host(HostConfig{
		Params: c.params, Node: c.node, Fixed: c.endpoint.port != 0, Token: c.token, HTTPNames: []string{c.endpoint.host, c.params.AdvertiseAddr},
		Log: c.log, Group: c.group,
	}, listeners...)
}

// listenAll listens on every host. The first one decides: processes that start
// together take them in the same order, so that one of them wins. A later one
// that is taken is left out.
func (c *Client) listenAll(ctx context.Context, hosts []string, port int) ([]net.Listener, error) {
	var list []net.Listener
	for _, host := range hosts {
		l, err := c.network.listen(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
		switch {
		case err == nil:
			list = append(list, l)
		case len(list) == 0:
			return nil, err
		default:
			c.log.Warn("the control plane does not listen on one of its addresses", "address", host, "error", err)
			continue
		}
		if tcp, ok := l.Addr().(*net.TCPAddr); ok && port == 0 {
			port = tcp.Port
		}
	}
	return list, nil
}

// ownAddrs are the addresses by which this process reaches listeners of its own.
func ownAddrs(listening []netip.AddrPort) []netip.AddrPort {
	var list []netip.AddrPort
	for _, to := range listening {
		if to.Addr().IsUnspecified() {
			list = append(list, netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), to.Port()),
				netip.AddrPortFrom(netip.IPv6Loopback(), to.Port()))
			continue
		}
		list = append(list, netip.AddrPortFrom(to.Addr().Unmap(), to.Port()))
	}
	return list
}

// hostAnyway hosts because the parameters say so (is_host=1). A port that is in use is
// an error, unless this run's control plane is what uses it.
func (c *Client) hostAnyway(ctx context.Context, s *endpoint, foreign *foreignWarning) (*clientConn, error) {
	if err := c.resolve(ctx, s); isRefusal(err) {
		return nil, err // else the name need not be known here: only the others have to resolve it
	}
	c.noteLoopback(s)
	where := election{wildcard: true}
	if addr, err := netip.ParseAddr(s.host); err == nil && addr.IsLoopback() {
		where = election{listen: []netip.Addr{addr}}
	}
	bindErr := c.startHosting(ctx, s, where)
	if bindErr == nil {
		return c.dialHello(ctx, s.hosted)
	}
	if !errors.Is(bindErr, syscall.EADDRINUSE) {
		return nil, rendezvous.Errorf(rendezvous.CodeConnection, "cannot host the control plane at %s (is_host=1): %v", s.name(), bindErr)
	}
	targets := append([]netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(s.port)),
	}, s.targets()...)
	conn, err := c.network.dialAny(ctx, targets)
	if err != nil { // held by a process that is about to end, perhaps
		return nil, fmt.Errorf("cannot host the control plane (is_host=1): %w, and no control plane answers there: %w", bindErr, err)
	}
	l, err := foreign.open(ctx, s, conn)
	switch {
	case err == nil:
		c.log.Warn("is_host=1, but another process hosts the control plane of this run already", "endpoint", s.name())
		return l, nil
	case isRefusal(err), ctx.Err() != nil:
		return nil, err
	}
	return nil, rendezvous.Errorf(rendezvous.CodeConnection,
		"cannot host the control plane at %s (is_host=1): the port is taken by another program (%v), `ss -ltnp 'sport = :%d'` shows which; free it or choose another port", s.name(), err, s.port)
}
