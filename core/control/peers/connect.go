package peers

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
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

// keep keeps a connection to a peer, until the end, and proves the death of a process that has ended one.
func (p *Peers) keep(name string, at params.HostPort) {
	var link *standby.Link
	var last netip.AddrPort // that link is to
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
				link, last = p.Group.Dial(name), addr
			}
			if p.stay(name, addr, link) {
				break
			}
		}
		backoff.Sleep(p.life, min(redial, p.Group.Beat()))
	}
}

// stay connects to a peer, and again as long as that completes the proof of its death, or reaches the process in its
// place. It reports whether there was a connection.
func (p *Peers) stay(name string, addr netip.AddrPort, link *standby.Link) (opened bool) {
	for p.life.Err() == nil {
		p.Group.Redial(link)
		answered, err := p.serve(name, addr, link)
		opened = opened || answered
		pause, soon := p.Group.Attempted(link, answered, err)
		if !soon {
			break
		}
		backoff.Sleep(p.life, pause)
	}
	return opened
}

// resolve returns the addresses of a peer, none if they are not known.
func (p *Peers) resolve(at params.HostPort) []netip.AddrPort {
	ctx, cancel := context.WithTimeout(p.life, resolvePatience)
	defer cancel()
	addrs, _ := at.Addrs(ctx, wire.Resolve)
	return addrs
}

// serve connects to a peer, greets it, and serves the connection until it ends. It reports whether the peer
// has answered.
func (p *Peers) serve(name string, addr netip.AddrPort, link *standby.Link) (answered bool, err error) {
	ctx, cancel := context.WithTimeout(p.life, min(dialPatience, max(p.Lease/10, 200*time.Millisecond)))
	raw, err := wire.Dial(ctx, addr.String())
	cancel()
	if err != nil {
		return false, err
	}
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
