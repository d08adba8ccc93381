package params

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"rallypoint/core/rendezvous"
)

// DefaultPort is the control plane's port where the endpoint has none.
const DefaultPort = 29400

// HostPort is where a control plane, or another server, listens.
type HostPort struct {
	Host string // without brackets
	Port int
}

func (hp HostPort) String() string { return net.JoinHostPort(hp.Host, strconv.Itoa(hp.Port)) }

// Addrs returns the addresses there, of a name by resolve: IPv4 first, each family in order, so that all nodes try the
// same ones in the same order.
func (hp HostPort) Addrs(ctx context.Context, resolve func(context.Context, string) ([]netip.Addr, error)) (addrs []netip.AddrPort, err error) {
	var found []netip.Addr
	if addr, wrong := netip.ParseAddr(hp.Host); wrong == nil {
		found = []netip.Addr{addr}
	} else if found, err = resolve(ctx, hp.Host); err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, fmt.Errorf("%q has no address", hp.Host)
	}
	for _, a := range found {
		addrs = append(addrs, netip.AddrPortFrom(a.Unmap(), uint16(hp.Port)))
	}
	slices.SortFunc(addrs, netip.AddrPort.Compare)
	return slices.Compact(addrs), nil
}

// Servers are where a control plane is looked for: one place, or servers that succeed each other
// (docs/decisions/0151).
type Servers []HostPort

// maxServers bounds how many an endpoint may name.
const maxServers = 5

func (s Servers) String() string { return strings.Join(s.Texts(), ",") }

// Texts returns each as HOST:PORT.
func (s Servers) Texts() []string {
	texts := make([]string, len(s))
	for i, hp := range s {
		texts[i] = hp.String()
	}
	return texts
}

// Loopback reports whether the servers, at least one, are all on the machine that asks, whatever names
// resolve to.
func (s Servers) Loopback() bool {
	return len(s) > 0 && !slices.ContainsFunc(s, func(at HostPort) bool {
		name := strings.ToLower(strings.TrimSuffix(at.Host, "."))
		return name != "localhost" && !strings.HasSuffix(name, ".localhost") && !rendezvous.IsLoopback(at.Host)
	})
}

// ParseServers reads an endpoint that may be a list, HOST:PORT,HOST:PORT,..., each as
// ParseEndpoint has it. Errors are ErrInvalid.
func ParseServers(endpoint string, defaultPort int) (Servers, error) {
	var list Servers
	parts := strings.Split(endpoint, ",")
	for _, part := range parts {
		if len(parts) > 1 && strings.TrimSpace(part) == "" {
			return nil, endpointError(QuotableEndpoint(endpoint), "a server in its list is empty")
		}
		at, err := ParseEndpoint(part, defaultPort)
		switch {
		case err != nil:
			return nil, err
		case len(parts) > 1 && at.Port == 0:
			return nil, endpointError(endpoint, "a server in a list needs a port")
		case slices.Contains(list, at):
			return nil, endpointError(endpoint, "it names "+at.String()+" twice")
		case len(list) == maxServers:
			return nil, endpointError(endpoint, fmt.Sprintf("it names more than %d servers", maxServers))
		}
		list = append(list, at)
	}
	return list, nil
}

// ParseEndpoint splits an endpoint into host and port by the rules of torchrun's
// --rdzv-endpoint (docs/spec/rendezvous.md R8-R13). It resolves no names.
//
// The forms are HOST, HOST:PORT, ADDR, [ADDR] and [ADDR]:PORT; a blank endpoint
// is localhost. An IPv6 address may have a zone (fe80::1%eth0). An endpoint that
// as a whole is an IPv6 address is a host without a port, also without brackets.
// Where no port is given it is defaultPort; if that is negative, a missing port is an error.
//
// Errors are ErrInvalid and quote the endpoint, unless it may hold a password.
func ParseEndpoint(endpoint string, defaultPort int) (at HostPort, err error) {
	text := strings.TrimSpace(endpoint)
	if QuotableEndpoint(text) != text {
		return at, endpointError(QuotableEndpoint(text), "there is no user, and there are no options, in an endpoint of this kind")
	}
	text = cmp.Or(text, "localhost")
	host, portText, given := splitEndpoint(text)
	port := defaultPort
	if given {
		if port, err = parsePort(portText); err != nil {
			return at, endpointError(endpoint, err.Error())
		}
	}
	if !validHost(host) {
		return at, endpointError(endpoint, "its host is not a name or an address")
	}
	if port < 0 {
		return at, endpointError(endpoint, "it needs a port")
	}
	return HostPort{host, port}, nil
}

// QuotableEndpoint returns an endpoint for an error. Of one that may hold a password, in
// whatever place, that is its scheme only.
func QuotableEndpoint(endpoint string) string {
	if !strings.ContainsAny(endpoint, "@?") {
		return endpoint
	}
	scheme, _, ok := strings.Cut(endpoint, "://")
	if !ok || strings.ContainsAny(scheme, "@?:/") {
		return "..."
	}
	return scheme + "://..."
}

func endpointError(endpoint, what string) error {
	return rendezvous.Errorf(rendezvous.CodeInvalid, "the endpoint %q is not valid: %s; write HOST, HOST:PORT or [IPV6]:PORT", endpoint, what)
}

func splitEndpoint(text string) (host, port string, given bool) {
	switch colon := strings.LastIndexByte(text, ':'); {
	case isIPv6(text), colon < 0:
		host = text
	case strings.HasPrefix(text, "[") && strings.HasSuffix(text, "]"):
		host = text
	default:
		host, port, given = text[:colon], text[colon+1:], true
	}
	if strings.HasPrefix(host, "[") && strings.HasSuffix(host, "]") {
		host = host[1 : len(host)-1]
	}
	return host, port, given
}

func parsePort(text string) (int, error) {
	port, ok := 0, len(text) >= 1 && len(text) <= 5
	for i := 0; ok && i < len(text); i++ {
		ok = text[i] >= '0' && text[i] <= '9'
	}
	if ok {
		port, _ = strconv.Atoi(text)
	}
	if !ok || port > math.MaxUint16 {
		return 0, rendezvous.Errorf(rendezvous.CodeInvalid, "its port is %q, it must be a number from 0 to %d", text, math.MaxUint16)
	}
	return port, nil
}

// validHost reports whether host consists of word characters, dots, colons and
// hyphens, or is an IPv6 address with a zone.
func validHost(host string) bool {
	if host == "" || !utf8.ValidString(host) {
		return false
	}
	if isIPv6(host) {
		return true
	}
	for _, r := range host {
		if !unicode.IsLetter(r) && !unicode.IsNumber(r) && !strings.ContainsRune("_.:-", r) {
			return false
		}
	}
	return true
}

// isIPv6 reports whether text is an IPv6 address. It rejects a zone with a colon, after which a
// port is meant.
func isIPv6(text string) bool {
	addr, err := netip.ParseAddr(text)
	if err != nil || !addr.Is6() {
		return false
	}
	return addr.Zone() == "" || !strings.ContainsAny(addr.Zone(), ":/%[] \t")
}
