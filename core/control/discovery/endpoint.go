package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"rallypoint/core/params"
)

// How often the finder resolves an endpoint's name again: while no control plane
// answers there, and while the name is not known.
const (
	resolveEvery  = 5 * time.Second
	resolveFailed = time.Second
)

// endpoint is where the control plane is looked for.
type endpoint struct {
	params.HostPort                  // the only server, or the first one
	list            params.Servers   // of several, which succeed each other; nil: there is one
	addrs           []netip.Addr     // of the only one
	listed          []netip.AddrPort // of all in the list
	resolved        time.Time        // when the resolver was asked last
	failure         error            // its last answer, if there are no addresses
}

func newEndpoint(servers params.Servers) endpoint {
	e := endpoint{HostPort: servers[0]}
	if len(servers) > 1 {
		e.list = servers
	}
	return e
}

func (e *endpoint) String() string {
	if e.list != nil {
		return e.list.String()
	}
	return e.HostPort.String()
}

// targets are the addresses to dial: of the control plane in this process, if it is here.
func (f *Finder) targets() []netip.AddrPort {
	e := &f.endpoint
	switch {
	case f.Hosting():
		return ownAddrs(f.listening)
	case e.list != nil:
		return e.listed
	}
	list := make([]netip.AddrPort, len(e.addrs))
	for i, a := range e.addrs {
		list[i] = netip.AddrPortFrom(a, uint16(e.Port))
	}
	return list
}

// resolve brings the endpoint's addresses up to date. Old ones serve on if the
// resolver fails for a while.
func (f *Finder) resolve(ctx context.Context) error {
	s := &f.endpoint
	age := time.Since(s.resolved)
	if f.Hosting() || len(s.addrs)+len(s.listed) > 0 && age < resolveEvery || s.failure != nil && age < resolveFailed {
		return s.failure
	}
	if s.list != nil {
		return f.resolveList(ctx)
	}
	addrs, err := f.network.lookup(ctx, s.Host)
	s.resolved = time.Now()
	switch {
	case err != nil && s.addrs == nil:
		s.failure = unresolved(s.Host, err)
		return s.failure
	case err != nil:
		return nil
	}
	if refusal := checkWildcard(f.Params.Endpoint, addrs); refusal != nil {
		return refusal
	}
	s.addrs, s.failure = addrs, nil
	return nil
}

// resolveList updates the addresses of a list of servers. It leaves out a server whose name does
// not resolve, since the name of a server that is down may be gone with it.
func (f *Finder) resolveList(ctx context.Context) error {
	s := &f.endpoint
	type answer struct {
		addrs []netip.Addr
		err   error
	}
	answers := make([]answer, len(s.list))
	var asking sync.WaitGroup
	for i, at := range s.list {
		asking.Go(func() { answers[i].addrs, answers[i].err = f.network.lookup(ctx, at.Host) })
	}
	asking.Wait()
	s.resolved = time.Now()
	var found []netip.AddrPort
	var failures []error
	for i, at := range s.list {
		if err := answers[i].err; err != nil {
			failures = append(failures, unresolved(at.Host, err))
			continue
		}
		if refusal := checkWildcard(f.Params.Endpoint, answers[i].addrs); refusal != nil {
			return refusal
		}
		for _, a := range answers[i].addrs {
			found = append(found, netip.AddrPortFrom(a, uint16(at.Port)))
		}
	}
	if found != nil {
		s.listed = found
	}
	s.failure = nil
	if s.listed == nil {
		s.failure = errors.Join(failures...)
	}
	return s.failure
}

// unresolved is the error of a name that no resolver knows.
func unresolved(host string, err error) error {
	var name *net.DNSError // says the name again, and which server was asked
	if errors.As(err, &name) {
		err = errors.New(name.Err)
	}
	return fmt.Errorf("cannot resolve %q: %w", host, err)
}
