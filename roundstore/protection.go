package roundstore

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	machine "rallypoint/internal/host"
	"rallypoint/tcpstore"
	"rallypoint/tcpstore/forward"
)

// Protection is what a node with a token protects its round stores by: nothing listens on an
// address that other machines reach without TLS and a proof of the token, and the workers of
// this machine find the store at a loopback address that serves the users of
// params.LoopbackUsers only (docs/decisions/0070). A nil *Protection leaves stores plain.
type Protection struct {
	users params.LoopbackUsers
	log   *slog.Logger
	with  tcpstore.Secure
	extra []int // ports that forward_ports adds

	refusals forward.Refusals

	// Replaced by tests.
	isHere  func(ctx context.Context, host string) bool
	address func(secret.StoreName) netip.Addr
}

// newProtection returns the protection of the node that p describes: nil without a token, and
// with store_tls=0. The error is ErrInvalid if the token file cannot be used.
func newProtection(p *params.Params, log *slog.Logger) (*Protection, error) {
	if p.TokenFile == "" || p.PlainStore {
		return nil, nil
	}
	token, err := secret.OpenToken(p.TokenFile, log)
	if err != nil {
		return nil, err
	}
	config, err := secret.ServerTLS()
	if err != nil {
		return nil, err
	}
	return &Protection{
		users: p.LoopbackUsers, log: log, with: tcpstore.Secure{Token: token, Config: config}, extra: p.ForwardPorts,
		isHere: isHere, address: forward.Address,
	}, nil
}

// refused counts what this node's forwarders, and what carries other nodes' to its programs,
// have refused, by reason, with a 0 for those that have not occurred.
func (p *Protection) refused() map[string]uint64 {
	if p == nil {
		return (*forward.Refusals)(nil).Counts()
	}
	return p.refusals.Counts()
}

// sideWindow is how many ports above a store's are forwarded, too: scripts open further stores
// there.
const sideWindow = 8

// sidePorts are the ports of the node of a store, other than the store's, that the workers of
// other nodes reach.
func (p *Protection) sidePorts(port int) []int {
	ports := slices.Clone(p.extra)
	for side := port + 1; side <= min(port+sideWindow, math.MaxUint16); side++ {
		ports = append(ports, side)
	}
	return ports
}

// Sides are the connections of other nodes to other ports of this one, in the round that a
// server serves. A nil *Sides has none.
type Sides struct {
	protection *Protection

	mu   sync.Mutex
	name secret.StoreName
	open *forward.Sides // nil: there is no round
}

// sides returns those of one server, to be closed after it; nil without protection.
func (p *Protection) sides() *Sides {
	if p == nil {
		return nil
	}
	return &Sides{protection: p}
}

func (s *Sides) protect(opts *tcpstore.Options) {
	if s != nil {
		opts.Secure, opts.Side = &s.protection.with, s.take
	}
}

// take carries a connection of the present round.
func (s *Sides) take(conn *tls.Conn, name secret.StoreName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open == nil || s.name != name {
		_ = conn.NetConn().Close()
		return
	}
	s.open.Take(conn)
}

// begin ends the connections of the last round, and takes those of the next one.
func (s *Sides) begin(name secret.StoreName, port int) {
	t := s.protection
	ports := t.sidePorts(port)
	open := forward.NewSides(forward.SidesOptions{
		At: t.address(name), Logger: t.log, Admit: peer.NewLoopbackCheck(t.users).Admit,
		May: func(asked int) bool { return slices.Contains(ports, asked) }, Refusals: &t.refusals,
	})
	s.replace(name, open)
}

// Close ends all connections.
func (s *Sides) Close() {
	if s != nil {
		s.replace(secret.StoreName{}, nil)
	}
}

// replace ends the connections of the round before.
func (s *Sides) replace(name secret.StoreName, open *forward.Sides) {
	s.mu.Lock()
	last := s.open
	s.name, s.open = name, open
	s.mu.Unlock()
	if last != nil {
		last.Close()
	}
}

// serve has a server serve the workers of this machine, too, at the loopback address of a store's
// name, at the server's port unless that is taken there. stop ends that; the server continues.
func (p *Protection) serve(server *tcpstore.Server, sides *Sides, name secret.StoreName) (at netip.AddrPort, stop func(), err error) {
	l, err := forward.Bind(p.address(name), server.Addr().(*net.TCPAddr).Port, p.log)
	if err != nil {
		return netip.AddrPort{}, nil, err
	}
	sides.begin(name, server.Addr().(*net.TCPAddr).Port)
	stop = server.AlsoAccept(l, peer.NewLoopbackCheck(p.users).Accept)
	return l.Addr().(*net.TCPAddr).AddrPort(), stop, nil
}

// Reach opens a way for the workers of this machine to the store of a name that another node
// serves at host and port. On the machine of that node it is the store's own listener, and way
// is nil.
func (p *Protection) Reach(ctx context.Context, host string, port int, name secret.StoreName) (at netip.AddrPort, way io.Closer, err error) {
	if p.isHere(ctx, host) {
		return netip.AddrPortFrom(p.address(name), uint16(port)), nil, nil
	}
	place := net.JoinHostPort(host, strconv.Itoa(port))
	f, err := forward.Listen(p.address(name), port, forward.Options{
		Accept: peer.NewLoopbackCheck(p.users).Accept,
		Dial:   func(ctx context.Context, side int) (forward.Conn, error) { return p.dial(ctx, place, name, side) },
		Store:  place, Log: p.log, Refusals: &p.refusals,
		Hint: "; its address is what the node of rank 0 announces: give advertise_addr= or --local-addr there, an address under which the others reach it, " +
			"and store_port= if a firewall is between them; all nodes need the same token and store_tls=",
	})
	if err != nil {
		return netip.AddrPort{}, nil, err
	}
	for _, side := range p.sidePorts(port) {
		if !f.Beside(side) {
			p.log.Warn(fmt.Sprintf("port %d is taken on this node: its workers reach the program that has it, another user's perhaps, not the one on the node of rank 0", side))
		}
	}
	return f.Addr(), f, nil
}

func (p *Protection) dial(ctx context.Context, place string, name secret.StoreName, side int) (*tls.Conn, error) {
	purpose := secret.PurposeStore
	if side != 0 {
		purpose = secret.PurposeSide
	}
	conn, err := forward.Dialer().DialContext(ctx, "tcp", place)
	if err != nil {
		return nil, err
	}
	secured, err := secret.DialStore(ctx, conn, p.with.Token, name, purpose)
	if err == nil && side != 0 {
		err = forward.AskPort(secured, side)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	return secured, nil
}

func isHere(ctx context.Context, host string) bool {
	addrs := []netip.Addr{}
	if addr, err := netip.ParseAddr(host); err == nil {
		addrs = append(addrs, addr)
	} else {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		if addrs, err = net.DefaultResolver.LookupNetIP(ctx, "ip", host); err != nil {
			return false
		}
	}
	own, _ := machine.Addrs()
	return slices.ContainsFunc(addrs, func(addr netip.Addr) bool {
		return addr.IsLoopback() || addr.IsUnspecified() || slices.Contains(own, addr.Unmap().WithZone(""))
	})
}

func nameOf(run string, o rendezvous.Outcome) secret.StoreName {
	return secret.StoreName{Run: run, Generation: o.Generation, Round: o.Round}
}

// located is an outcome for the workers of a node that find its store at a place.
func located(o rendezvous.Outcome, at netip.AddrPort) rendezvous.Outcome {
	o.StoreAddr, o.StorePort = at.Addr().String(), int(at.Port())
	return o
}
