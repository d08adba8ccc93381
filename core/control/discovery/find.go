package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
)

// findOrHost finds the control plane or starts to host it: connect first, then bind.
func (f *Finder) findOrHost(ctx context.Context) (*Conn, error) {
	start := time.Now()
	if err := f.checkPort(); err != nil {
		return nil, err
	}
	told := &progress{observer: f.Observer, headline: "looking for the control plane at " + f.endpoint.String(), start: start}
	foreign := &foreignWarning{f: f, start: start}
	pause := newBackoff(f.Params.Max)
	var last error
	for {
		l, err := f.tryOnce(ctx, foreign)
		if err == nil {
			return l, nil
		}
		if refusal, ok := errors.AsType[*rendezvous.Error](err); ok {
			return nil, refusal
		}
		if last == nil || ctx.Err() == nil { // an attempt that ctx has ended says less
			last = err
		}
		told.tell(last)
		foreign.failed(last)
		if !pause.Wait(ctx) {
			return nil, f.notFound(ctx, last)
		}
	}
}

// checkPort refuses an endpoint with a port that only this process could know.
func (f *Finder) checkPort() error {
	host := f.Params.IsHost
	switch {
	case f.endpoint.list != nil && *host:
		return rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q is a list of servers, and is_host=1: `rallypoint serve --peers` hosts there, and no node; leave is_host out, or name one endpoint", f.Params.Endpoint)
	case f.endpoint.Port != 0, host != nil && *host:
		return nil
	case host != nil:
		return rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q has port 0, which only its host could know, and is_host=0: give the port of the control plane", f.Params.Endpoint)
	case f.Params.Max > 1:
		return rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q has port 0, so that other nodes could not find it, but the run has up to %d nodes: give a port", f.Params.Endpoint, f.Params.Max)
	}
	return nil
}

// tryOnce makes one attempt. An error other than a *rendezvous.Error may pass.
func (f *Finder) tryOnce(ctx context.Context, foreign *foreignWarning) (*Conn, error) {
	s := &f.endpoint
	isHost := f.Params.IsHost
	if isHost != nil && *isHost && !f.Hosting() {
		return f.hostAnyway(ctx, foreign)
	}
	if err := f.resolve(ctx); err != nil {
		return nil, err
	}
	if s.list != nil {
		return (&search{f: f}).race(ctx, f.targets())
	}
	var err error
	if s.Port != 0 || f.Hosting() {
		var l *Conn
		if l, err = foreign.dial(ctx); err == nil {
			return l, nil
		}
	}
	if f.Hosting() || isHost != nil || ctx.Err() != nil || s.Port != 0 && !errors.Is(err, syscall.ECONNREFUSED) {
		return nil, err
	}
	where := elect(s.Host, s.addrs(), f.network.locals)
	switch {
	case !where.candidate && s.Port == 0:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q has port 0, which only its host could know, and is not this machine: %s resolves to %s; %s",
			f.Params.Endpoint, s.Host, listed(s.addrs()), where.why)
	case !where.candidate:
		return nil, err
	}
	if bindErr := f.startHosting(ctx, where); bindErr != nil {
		if s.Port == 0 {
			return nil, rendezvous.Errorf(rendezvous.CodeConnection, "cannot host the control plane at %s: %v", s.String(), bindErr)
		}
		// In use: another process of this machine was quicker.
		return nil, fmt.Errorf("%w; hosting it here: %w", err, bindErr)
	}
	return f.dialHello(ctx, f.targets())
}

// dialHello connects to one of the addresses, says hello, and follows a redirect.
func (f *Finder) dialHello(ctx context.Context, to []netip.AddrPort) (*Conn, error) {
	conn, err := f.network.dialAny(ctx, to)
	if err != nil {
		return nil, err
	}
	l, err := f.openConn(ctx, conn)
	return f.follow(ctx, l, err)
}

// follow goes where the answer to a hello has sent this node, if it has.
func (f *Finder) follow(ctx context.Context, l *Conn, err error) (*Conn, error) {
	if moved, ok := errors.AsType[*wire.Redirected](err); ok {
		f.resign() // another server may have found the one of this process before this hello did
		if addr := f.accept(moved.To); addr.IsValid() {
			l, err = (&search{f: f}).race(ctx, []netip.AddrPort{addr})
			if err != nil && !isRefusal(err) {
				err = redirectError(fmt.Sprintf("a node of the run redirects to its host at %s: %v", addr, err))
			}
			return l, err
		}
	}
	return l, err
}

// redirectError says that a host was not reached to which a server redirects. It wraps nothing: how that dial
// ended proves nothing about the endpoint.
type redirectError string

func (e redirectError) Error() string { return string(e) }

// Hint adds a peculiarity of the endpoint to what a node waits for: a missing node may look for
// the endpoint on its own machine.
func (f *Finder) Hint(p rendezvous.Progress) rendezvous.Progress {
	if f.Params.Max > 1 && loopbackName(f.endpoint.Host) && !p.Spare {
		p.Detail = strings.TrimPrefix(p.Detail+"; the endpoint "+f.endpoint.String()+
			" is this machine's loopback, which nodes on other machines cannot reach; give the name or address of the host if there are others", "; ")
	}
	return p
}

// notFound is the error of a search that ran out of time. The member adds for how long it waited.
func (f *Finder) notFound(ctx context.Context, last error) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return rendezvous.Errorf(rendezvous.CodeCanceled, "run %q: connecting to the control plane at %s was canceled: %v", f.Params.RunID, f.endpoint.String(), last)
	}
	return rendezvous.Errorf(rendezvous.CodeConnection, "run %q: no control plane at %s: %v; %s", f.Params.RunID, f.endpoint.String(), last, f.compared())
}

// compared says why this process does not host, and what to do.
func (f *Finder) compared() string {
	s := &f.endpoint
	const check = "check that the host's node runs and that the endpoint is right"
	switch {
	case f.Params.IsHost != nil && *f.Params.IsHost:
		return "this node is to host it (is_host=1)"
	case s.list != nil:
		return "check that a majority of these servers runs (`rallypoint serve --peers`), and that the list is right"
	case f.Params.IsHost != nil:
		return "this node is not to host it (is_host=0); " + check
	case s.found == nil:
		return "without an address it is not known which machine hosts; check the name, or give is_host=1 to the one node that is to host"
	}
	var parts []string
	if _, named := netip.ParseAddr(s.Host); named != nil && (!loopbackName(s.Host) || len(s.found) > 1) {
		parts = append(parts, fmt.Sprintf("%s resolves to %s", s.Host, listed(s.addrs())))
	}
	where := elect(s.Host, s.addrs(), f.network.locals)
	parts = append(parts, where.why)
	if where.candidate {
		return strings.Join(parts, "; ") + "; check which program holds the port"
	}
	parts = append(parts, "so another machine is to host", check,
		"if the endpoint is this machine under an address that its interfaces do not carry (NAT, floating), give is_host=1 to this one node")
	return strings.Join(parts, "; ")
}
