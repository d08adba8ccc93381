package peers

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/succession"
	"rallypoint/internal/backoff"
)

const (
	// dialPatience bounds one dial, and resolvePatience one question for a name.
	dialPatience    = 3 * time.Second
	resolvePatience = 5 * time.Second
	// redial is the longest pause before a peer that could not be reached is dialled again.
	redial = time.Second
)

// errStranger is of a server that is not the one of its address.
var errStranger = errors.New("another server answers")

// keep keeps a connection to a peer, until the end.
func (p *Peers) keep(name string, at params.HostPort) {
	var link *standby.Link
	var last netip.AddrPort     // that link is to
	var end succession.Evidence // of its last connection
	defer func() {
		if link != nil {
			p.Group.Drop(link)
		}
	}()
	for p.life.Err() == nil {
		for _, addr := range p.resolve(at) {
			if link == nil || addr != last { // another address: no proof of what was at the one before
				if link != nil {
					p.Group.Drop(link)
				}
				link, last, end = p.Group.Dial(name), addr, succession.Evidence{}
			}
			if p.stay(name, addr, link, &end) {
				break
			}
		}
		backoff.Sleep(p.life, min(redial, p.Group.Beat()))
	}
}

// stay connects to a peer, and again at once whenever the peer's side has ended the connection.
// Then new dials to its address prove its death, or reach the process in its place. end describes
// the end of the last connection. stay reports whether there was a connection.
func (p *Peers) stay(name string, addr netip.AddrPort, link *standby.Link, end *succession.Evidence) (opened bool) {
	for tries := 0; p.life.Err() == nil && tries < 2*succession.Dials; tries++ {
		p.Group.Redial(link)
		raw, err := p.dial(addr)
		answered := false
		if err == nil {
			answered, err = p.serve(name, addr, link, raw)
		}
		if answered {
			p.Group.Ended(link, succession.Unconnected)
			*end = succession.Evidence{}
		}
		if answered && store.EndedByPeer(err) || link.EndedByPeer() { // the one that was silent
			p.Group.EndedByPeer(link)
			opened, tries, *end = true, 0, succession.Evidence{Ended: true, Direct: true}
			continue
		}
		switch {
		case answered:
			return true
		case !end.Ended:
			return false
		case errors.Is(err, syscall.ECONNREFUSED):
			end.Observe(succession.DialRefused)
		case store.EndedByPeer(err): // the listener outlives the connections by some milliseconds
			end.Observe(succession.DialBroken)
		default:
			end.Observe(succession.DialSilent)
			return opened
		}
		if end.Proves() {
			*end = succession.Evidence{}
			p.Group.Ended(link, succession.Dead)
			return true
		}
		backoff.Sleep(p.life, succession.DialEvery)
	}
	return opened
}

// resolve returns the addresses of a peer, none if they are not known.
func (p *Peers) resolve(at params.HostPort) (list []netip.AddrPort) {
	if addr, err := netip.ParseAddr(at.Host); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(addr.Unmap(), uint16(at.Port))}
	}
	ctx, cancel := context.WithTimeout(p.life, resolvePatience)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", at.Host)
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		list = append(list, netip.AddrPortFrom(a.Unmap(), uint16(at.Port)))
	}
	return list
}

func (p *Peers) dial(addr netip.AddrPort) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(p.life, min(dialPatience, max(p.Lease/10, 200*time.Millisecond)))
	defer cancel()
	return wire.Dial(ctx, addr.String())
}

// serve greets a peer on a new connection, and serves that until it ends. It reports whether the peer
// has answered.
func (p *Peers) serve(name string, addr netip.AddrPort, link *standby.Link, raw net.Conn) (answered bool, err error) {
	own := p.Group.Liveness()
	own.Ask = true
	var said wire.Liveness
	conn, err := wire.Greet(p.life, raw, p.Token, p.Lease, own)
	if err == nil {
		answered, err = p.Group.Serve(link, conn, func(f wire.Liveness) error {
			if said = f; f.Node != name {
				return errStranger
			}
			p.Group.Refused(name, "")
			p.Group.Reached(name, addr)
			return nil
		}, func(wire.Liveness, bool) {})
	}
	if answered {
		return true, err
	}
	if why := refusedBy(name, addr, said, err); why != "" && p.Group.Refused(name, why) {
		p.Log.Warn(why, "address", addr.String())
	}
	return false, err
}

// refusedBy says why the process that has answered a greeting, or ended the connection, is not a
// peer; "" if the reason is another.
func refusedBy(name string, addr netip.AddrPort, said wire.Liveness, err error) string {
	switch {
	case rendezvous.CodeOf(err) == rendezvous.CodeAuth:
		return fmt.Sprintf("%s has another token: %v", name, err)
	case store.EndedByPeer(err):
		return fmt.Sprintf("%s does not take this server for one of its peers: start all with the same --peers and --election-timeout, each as another one of them", name)
	case errors.Is(err, errStranger):
		return fmt.Sprintf("%s answers at %s, which is %s in --peers", said.Node, addr, name)
	}
	return ""
}
