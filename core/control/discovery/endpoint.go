package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
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
	params.HostPort
	addrs    []netip.Addr
	resolved time.Time        // when the resolver was asked last
	failure  error            // its last answer, if there are no addresses
	hosted   []netip.AddrPort // of the control plane in this process; nil: not here
}

// targets are the addresses to dial.
func (e *endpoint) targets() []netip.AddrPort {
	if e.hosted != nil {
		return e.hosted
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
	if s.hosted != nil || s.addrs != nil && age < resolveEvery || s.failure != nil && age < resolveFailed {
		return s.failure
	}
	addrs, err := f.network.lookup(ctx, s.Host)
	s.resolved = time.Now()
	switch {
	case err != nil && s.addrs == nil:
		var name *net.DNSError // says the name again, and which server was asked
		if errors.As(err, &name) {
			err = errors.New(name.Err)
		}
		s.failure = fmt.Errorf("cannot resolve %q: %w", s.Host, err)
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
