package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"syscall"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/election"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
)

// Host is a control plane that runs in this process.
type Host interface {
	// WaitIdle returns nil once no node is connected except those with the given sessions, or the
	// error of ctx.
	WaitIdle(ctx context.Context, except ...rendezvous.SessionID) error
	// Close ends all connections and returns when the control plane has ended.
	Close() error
	// Transfer makes the first standby host, sends all nodes there, and reports whether that
	// was done: not without a standby, and not in a run that has ended.
	Transfer(ctx context.Context) bool
	// StepDown sends all nodes to another server and makes this one wait; why is for the
	// log.
	StepDown(to wire.Redirect, why string)
	// Remains says what is left of the run without the node of a session, whose process leads it.
	Remains(own rendezvous.SessionID) election.Remains
	// SendOn is StepDown for a process that leaves: it waits until the nodes have read it.
	SendOn(to wire.Redirect, why string)
	// Listen serves one more listener, which belongs to the control plane from then on.
	Listen(l net.Listener)
	// Confirmed sends nodes what the voters have accepted meanwhile. It does not block.
	Confirmed()
}

// HostConfig configures a control plane in this process.
type HostConfig struct {
	Params    params.Params  // of the node that hosts; its run is the one that the control plane takes
	Node      string         // that node's id
	Fixed     bool           // nodes of an earlier control plane may come back to its address
	Standby   bool           // it does not listen at the endpoint, and may end before its node
	Token     *secret.Token  // nil: none
	HTTPNames []string       // names of this machine by which browsers may ask
	Log       *slog.Logger   // its lines name no run
	Group     *standby.Group // the servers that succeed each other; nil: the Elector says who leads
	Elector   election.Elector
	Ended     *rendezvous.Ended // how the run was closed before, if it stays so; nil: it was not
}

// StartHost starts a control plane in this process. The listeners belong to it.
type StartHost func(cfg HostConfig, listeners ...net.Listener) Host

// startHosting listens where the candidacy says and starts the control plane of this run. On an
// error it leaves nothing behind.
func (f *Finder) startHosting(ctx context.Context, where candidacy) error {
	s := &f.endpoint
	listeners, err := f.listenAll(ctx, where.hosts(), s.Port)
	if err != nil {
		return err
	}
	if f.group != nil {
		f.group.Found(f.network.now()) // before another server of the run can ask
	}
	f.atEndpoint = true
	host := f.startServer(listeners)
	f.setListening(listenAddrs(listeners))
	f.mu.Lock()
	f.hosting = host
	f.mu.Unlock()
	for _, l := range listeners {
		f.Log.Log(context.Background(), f.Params.EventLevel(), "hosting the control plane in this process", "endpoint", s.String(), "listening", l.Addr().String())
	}
	return nil
}

// bindEvery is how often a process whose machine the endpoint names tries to listen there.
const bindEvery = time.Second

// bindEndpoint has the server of this process listen at the endpoint if that names this machine and the port is
// free by now, so that newcomers and administrators reach the job there: with a server that waits, unless there is
// one. l is this node's connection. It does nothing while that leads to the endpoint itself, and at first after that:
// this process would answer there, and no refused dial could prove that the host's is dead.
func (f *Finder) bindEndpoint(l *Conn) {
	s := &f.endpoint
	if f.group == nil || f.atEndpoint || s.list != nil || s.Port == 0 || !f.Hosting() && slices.Contains(f.targets(), standby.PlainAddr(l.Addr)) {
		return
	}
	now := f.network.now()
	if now.Sub(l.opened) < bindEvery || now.Sub(f.bound) < bindEvery {
		return
	}
	f.bound = now
	where := anyway(s.Host)
	switch isHost := f.Params.IsHost; {
	case isHost == nil && s.found != nil:
		where = elect(s.Host, s.addrs(), f.network.locals)
	case isHost == nil, !*isHost:
		return
	}
	if !where.candidate {
		return
	}
	where.listen = slices.DeleteFunc(where.listen, func(a netip.Addr) bool {
		return slices.Contains(f.listening, netip.AddrPortFrom(a, uint16(s.Port)))
	})
	if !where.wildcard && len(where.listen) == 0 { // where it stands by
		f.atEndpoint = true
		return
	}
	listeners, err := f.listenAll(f.life, where.hosts(), s.Port)
	if err != nil {
		return // another process has it
	}
	f.atEndpoint = true
	f.setListening(slices.Concat(f.listening, listenAddrs(listeners)))
	f.mu.Lock()
	host := cmp.Or(f.hosting, f.waiting)
	f.mu.Unlock()
	switch {
	case host == nil:
		host = f.startServer(listeners)
		f.mu.Lock()
		f.waiting = host
		f.mu.Unlock()
	default:
		for _, l := range listeners {
			host.Listen(l)
		}
	}
	f.Log.Info("nothing listened at the endpoint any more: this process does now", "endpoint", s.String())
}

// startServer starts a server of this run, which waits if it has a group that it does not
// lead.
func (f *Finder) startServer(listeners []net.Listener) Host {
	return f.Start(HostConfig{
		Params: f.Params, Node: f.Node, Fixed: f.endpoint.Port != 0, Standby: !f.atEndpoint, Token: f.token, HTTPNames: []string{f.endpoint.Host, f.Params.AdvertiseAddr},
		Log: f.Log, Group: f.group,
	}, listeners...)
}

// listenAll listens on every host. The first one decides: processes that start
// together take them in the same order, so that one of them wins. A later one
// that is taken is left out.
func (f *Finder) listenAll(ctx context.Context, hosts []string, port int) ([]net.Listener, error) {
	var list []net.Listener
	for _, host := range hosts {
		l, err := f.network.listen(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
		switch {
		case err == nil:
			list = append(list, l)
		case len(list) == 0:
			return nil, err
		default:
			f.Log.Warn("the control plane does not listen on one of its addresses", "address", host, "error", err)
			continue
		}
		if tcp, ok := l.Addr().(*net.TCPAddr); ok && port == 0 {
			port = tcp.Port
		}
	}
	return list, nil
}

// own reports whether an address is that of the server in this process.
func (f *Finder) own(addr netip.AddrPort) bool {
	return f.group.Self() == addr.String() || slices.Contains(ownAddrs(f.group.Listening()), addr)
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

// hostAnyway hosts because the parameters demand it (is_host=1). A port that is in use is an
// error, unless this run's control plane uses it.
func (f *Finder) hostAnyway(ctx context.Context, foreign *foreignWarning) (*Conn, error) {
	s := &f.endpoint
	if err := f.resolve(ctx); isRefusal(err) {
		return nil, err // else the name need not be known here: only the others have to resolve it
	}
	bindErr := f.startHosting(ctx, anyway(s.Host))
	if bindErr == nil {
		return f.dialHello(ctx, f.targets())
	}
	if !errors.Is(bindErr, syscall.EADDRINUSE) {
		return nil, rendezvous.Errorf(rendezvous.CodeConnection, "cannot host the control plane at %s (is_host=1): %v", s.String(), bindErr)
	}
	targets := append([]netip.AddrPort{
		netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), uint16(s.Port)),
	}, f.targets()...)
	conn, err := f.network.dialAny(ctx, targets)
	if err != nil { // held by a process that is about to end, perhaps
		return nil, fmt.Errorf("cannot host the control plane (is_host=1): %w, and no control plane answers there: %w", bindErr, err)
	}
	l, err := foreign.open(ctx, conn)
	switch {
	case err == nil:
		f.Log.Warn("is_host=1, but another process hosts the control plane of this run already", "endpoint", s.String())
		return l, nil
	case isRefusal(err), ctx.Err() != nil:
		return nil, err
	}
	return nil, rendezvous.Errorf(rendezvous.CodeConnection,
		"cannot host the control plane at %s (is_host=1): the port is taken by another program (%v), `ss -ltnp 'sport = :%d'` shows which; free it or choose another port", s.String(), err, s.Port)
}

// stopHosting ends the servers of this process.
func (f *Finder) stopHosting() {
	f.mu.Lock()
	hosts := []Host{f.hosting, f.waiting}
	f.hosting, f.waiting = nil, nil
	f.mu.Unlock()
	for _, host := range hosts {
		if host != nil {
			_ = host.Close()
		}
	}
}
