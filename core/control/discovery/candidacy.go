package discovery

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"rallypoint/core/rendezvous"
)

// candidacy says whether this machine is one that the endpoint names, and where
// a control plane here would listen (docs/decisions/0019 and 0032).
type candidacy struct {
	candidate bool
	wildcard  bool         // listen on all addresses
	listen    []netip.Addr // else on these
	why       string       // what was compared, human-readable
}

// anyway is that of a process which hosts whatever addresses its machine has (is_host=1).
func anyway(host string) candidacy {
	if addr, err := netip.ParseAddr(host); err == nil && addr.IsLoopback() {
		return candidacy{candidate: true, listen: []netip.Addr{addr}}
	}
	return candidacy{candidate: true, wildcard: true}
}

// hosts are those of the addresses to listen on.
func (c candidacy) hosts() (list []string) {
	if c.wildcard {
		return []string{""}
	}
	for _, a := range c.listen {
		list = append(list, a.String())
	}
	return list
}

// checkWildcard refuses an endpoint that names no machine.
func checkWildcard(endpoint string, addrs []netip.AddrPort) *rendezvous.Error {
	if i := slices.IndexFunc(addrs, func(a netip.AddrPort) bool { return a.Addr().IsUnspecified() }); i >= 0 {
		return rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q stands for all addresses of a machine (%s) and names none that nodes could connect to; give the host's name or address",
			endpoint, addrs[i].Addr())
	}
	return nil
}

// loopbackName reports whether a host is meant to be this machine only.
func loopbackName(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return addr.Unmap().IsLoopback()
	}
	name := strings.ToLower(strings.TrimSuffix(host, "."))
	switch name {
	case "localhost", "localhost.localdomain", "localhost4", "localhost6", "ip6-localhost", "ip6-loopback":
		return true
	}
	return strings.HasSuffix(name, ".localhost")
}

// elect decides by the addresses that the endpoint's host resolves to and those
// of this machine's interfaces, which are asked for only if needed.
func elect(host string, addrs []netip.Addr, locals func() ([]netip.Addr, error)) candidacy {
	loop := slices.ContainsFunc(addrs, netip.Addr.IsLoopback)
	switch {
	case loop && !loopbackName(host):
		return candidacy{candidate: true, wildcard: true,
			why: fmt.Sprintf("%s is a loopback address on this machine, so it names this machine", host)}
	case loop && !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !a.IsLoopback() }):
		return candidacy{candidate: true, listen: addrs, why: host + " is this machine"}
	}
	mine, err := locals()
	if err != nil {
		return candidacy{why: fmt.Sprintf("the addresses of this machine's interfaces are not known: %v", err)}
	}
	carried := func(a netip.Addr) bool {
		return a.IsLoopback() || slices.Contains(mine, a.WithZone(""))
	}
	here := slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return !carried(a) })
	lowest := slices.MinFunc(addrs, netip.Addr.Compare)
	switch {
	case len(here) == 0:
		return candidacy{why: fmt.Sprintf("this machine has only %s", listed(mine))}
	case !carried(lowest):
		return candidacy{why: fmt.Sprintf("of several machines the one with %s hosts; this machine has %s", lowest, listed(here))}
	}
	return candidacy{candidate: true, listen: here, why: fmt.Sprintf("this machine has %s", listed(here))}
}

// maxAddrs bounds how many addresses a text lists.
const maxAddrs = 16

func listed(addrs []netip.Addr) string {
	var list []string
	for i, a := range addrs {
		if i == maxAddrs {
			list = append(list, fmt.Sprintf("and %d more", len(addrs)-maxAddrs))
			break
		}
		list = append(list, a.String())
	}
	return strings.Join(list, ", ")
}
