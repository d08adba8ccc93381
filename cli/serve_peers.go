package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"rallypoint/core/control"
	"rallypoint/core/control/journal"
	"rallypoint/core/control/standby"
	"rallypoint/core/params"
	"rallypoint/internal/host"
)

// leasePerElection is the servers' lease in election timeouts: a voter becomes a candidate when
// it has heard from no host for half the lease.
const leasePerElection = 2

// leastElection bounds --election-timeout: below it, a busy machine ends terms.
const leastElection = 100 * time.Millisecond

type servePeers struct {
	list     string
	self     string
	election time.Duration
}

func (p *servePeers) addFlags(flags *pflag.FlagSet) {
	flags.StringVar(&p.list, "peers", "", "`LIST` of three or five servers that stand in for each other, HOST:PORT,HOST:PORT,..., this one among them; the same on each; empty: none does")
	flags.StringVar(&p.self, "self", "", "`HOST:PORT` of --peers that is this server (default: the one with the port of --listen and an address of this machine)")
	flags.DurationVar(&p.election, "election-timeout", 5*time.Second, "`TIME` after which the peers replace a leader that is silent; one that is dead is replaced at once; the same on each")
}

// servers returns the list, and this server's name in it; nil if there are no peers.
func (p *servePeers) servers(ctx context.Context, listen listenAddr) (names []string, own string, err error) {
	if p.list == "" {
		if p.self != "" {
			return nil, "", errors.New("--self names this server among --peers, but --peers is missing")
		}
		return nil, "", nil
	}
	list, err := params.ParseServers(p.list, params.DefaultPort)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("--peers: %w", err)
	case len(list) != 3 && len(list) != 5:
		return nil, "", fmt.Errorf("--peers names %d servers, it must name three or five: two or four survive no more losses than one or three", len(list))
	case p.election < leastElection:
		return nil, "", fmt.Errorf("--election-timeout is %v, it must be at least %v", p.election, leastElection)
	}
	for _, at := range list {
		names = append(names, at.String())
	}
	own, err = p.own(ctx, list, listen)
	return names, own, err
}

// group returns this server's view of its peers at the start.
func (p *servePeers) group(names []string, own string, s *serveState) (*standby.Peers, error) {
	replica, err := control.NewReplica(s.dir, own+" of "+strings.Join(slices.Sorted(slices.Values(names)), ",")+" with --election-timeout "+p.election.String(), journal.Options{})
	if err != nil {
		return nil, failure{err}
	}
	group, err := standby.NewPeers(names, own, p.lease(), replica, s.quota.TotalBytes)
	if err != nil {
		return nil, failure{errors.Join(err, replica.Close())}
	}
	return group, nil
}

func (p *servePeers) lease() time.Duration { return leasePerElection * p.election }

func (p *servePeers) own(ctx context.Context, list params.Servers, listen listenAddr) (string, error) {
	if p.self != "" {
		at, err := params.ParseEndpoint(p.self, params.DefaultPort)
		switch {
		case err != nil:
			return "", fmt.Errorf("--self: %w", err)
		case !slices.Contains(list, at):
			return "", fmt.Errorf("--self is %s, which is not one of --peers %s: write it exactly as in that list", at, list)
		case at.Port != listen.Port:
			return "", fmt.Errorf("--self has port %d, and --listen %d: they must be equal", at.Port, listen.Port)
		}
		return at.String(), nil
	}
	var found []string
	for _, at := range list {
		if at.Port == listen.Port && isHere(ctx, at.Host, listen.Host) {
			found = append(found, at.String())
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return "", fmt.Errorf("--peers names this server more than once: %s; choose one with --self", strings.Join(found, " and "))
	}
	return "", fmt.Errorf("--peers %s does not name this server: none of them has the port %d of --listen and an address of this machine that it listens on; correct --listen (0.0.0.0:%d is every interface) or --peers, or name this server with --self",
		list, listen.Port, listen.Port)
}

// isHere reports whether a peer's host is this machine, by an address on which the server listens.
func isHere(ctx context.Context, name, listen string) bool {
	if name == listen {
		return true
	}
	listening, err := netip.ParseAddr(listen)
	wildcard := listen == "" || err == nil && listening.IsUnspecified()
	if wildcard && strings.EqualFold(name, host.Name()) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", name)
	if err != nil {
		return false
	}
	own := []netip.Addr{listening}
	if wildcard {
		if own, err = host.Addrs(); err != nil {
			return false
		}
	}
	return slices.ContainsFunc(addrs, func(a netip.Addr) bool { return slices.Contains(own, a.Unmap().WithZone("")) })
}
