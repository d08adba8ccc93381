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
	found           []netip.AddrPort // their addresses
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

// addrs are the addresses of the machine of the only server.
func (e *endpoint) addrs() (list []netip.Addr) {
	for _, at := range e.found {
		list = append(list, at.Addr())
	}
	return list
}

// targets are the addresses to dial: of the control plane in this process, if it is here.
func (f *Finder) targets() []netip.AddrPort {
	if f.Hosting() {
		return ownAddrs(f.listening)
	}
	return f.endpoint.found
}

// resolve brings the endpoint's addresses up to date. Old ones serve on if the
// resolver fails for a while. It leaves out a server of a list whose name does
// not resolve, since the name of a server that is down may be gone with it.
func (f *Finder) resolve(ctx context.Context) error {
	s := &f.endpoint
	age := time.Since(s.resolved)
	if f.Hosting() {
		return nil
	}
	if s.found != nil && age < resolveEvery || s.failure != nil && age < resolveFailed {
		return s.failure
	}
	servers := s.list
	if servers == nil {
		servers = params.Servers{s.HostPort}
	}
	type answer struct {
		addrs []netip.AddrPort
		err   error
	}
	answers := make([]answer, len(servers))
	var asking sync.WaitGroup
	for i, at := range servers {
		asking.Go(func() { answers[i].addrs, answers[i].err = at.Addrs(ctx, f.network.resolve) })
	}
	asking.Wait()
	s.resolved = time.Now()
	var found []netip.AddrPort
	var failures []error
	for i, at := range servers {
		if err := answers[i].err; err != nil {
			failures = append(failures, unresolved(at.Host, err))
			continue
		}
		if refusal := checkWildcard(f.Params.Endpoint, answers[i].addrs); refusal != nil {
			return refusal
		}
		found = append(found, answers[i].addrs...)
	}
	if found != nil {
		s.found = found
	}
	s.failure = nil
	if s.found == nil {
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
