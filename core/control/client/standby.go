package client

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
)

// takeOver makes the server in waiting of this process the host; left tells that the node
// which hosted hands the control plane on.
func (c *Client) takeOver(term uint64, took time.Duration, left bool) {
	c.mu.Lock()
	c.hosting, c.waiting = c.waiting, nil
	facts := c.facts
	c.mu.Unlock()
	c.endpoint.hosted = ownAddrs(c.listening)
	c.group.Lead(rendezvous.Succession{Term: term, Facts: facts, Left: left}, c.network.now(), took)
	c.startProbing()
}

// resign notes that the server of this process does not host any more.
func (c *Client) resign() {
	c.mu.Lock()
	resigned := c.hosting != nil && c.group != nil && !c.group.Hosting()
	if resigned {
		c.hosting, c.waiting = nil, c.hosting
	}
	c.mu.Unlock()
	if resigned {
		c.stopProbing()
		c.endpoint.hosted = nil
	}
}

// listed takes the host's list of standbys, and what it asks of this node.
func (c *Client) listed(f wire.Standbys, l *clientConn) {
	if c.group == nil || c.host == nil {
		return
	}
	c.mu.Lock()
	hosting, waiting := c.hosting != nil, c.waiting != nil
	c.mu.Unlock()
	if hosting {
		return
	}
	c.group.SetList(f.List)
	switch {
	case f.Invited && !l.standsBy:
		l.standsBy = true
		l.out.Send(c.standBy(l))
	case !f.Invited && waiting && !c.atEndpoint:
		l.standsBy = false
		c.stopWaiting()
	}
}

var errHostsPort = errors.New("the port is the host's")

// standBy opens the listener of a standby unless there is one, and says where it is.
func (c *Client) standBy(l *clientConn) wire.Standby {
	tcp, ok := l.conn.LocalAddr().(*net.TCPAddr)
	if !ok || tcp.Zone != "" {
		return c.cannotStandBy("this node reaches the host by an address that means nothing elsewhere")
	}
	own := tcp.AddrPort().Addr().Unmap()
	for _, a := range c.listening {
		if a.Addr().IsUnspecified() || a.Addr() == own {
			return c.standsBy(netip.AddrPortFrom(own, a.Port()))
		}
	}
	c.stopWaiting()
	ctx, cancel := context.WithTimeout(c.life, evidencePatience)
	defer cancel()
	// Not where the host listens, or has a moment ago: what answers there would be this
	// process, and no refused dial could prove that the host's is dead.
	at := netip.AddrPortFrom(own, uint16(c.endpoint.port))
	var listener net.Listener
	err := errHostsPort
	if at != standby.PlainAddr(l.addr) {
		listener, err = c.network.listen(ctx, at.String())
	}
	if err != nil {
		listener, err = c.network.listen(ctx, netip.AddrPortFrom(own, 0).String())
	}
	if err != nil {
		return c.cannotStandBy(err.Error())
	}
	listeners := []net.Listener{listener}
	c.atEndpoint = false
	c.setListening(listenAddrs(listeners))
	c.mu.Lock()
	c.waiting = c.startServer(listeners)
	c.mu.Unlock()
	addr := c.listening[0]
	c.log.Debug("stands by to host the control plane", "listening", addr.String())
	return c.standsBy(addr)
}

func (c *Client) standsBy(addr netip.AddrPort) wire.Standby {
	c.group.SetSelf(addr.String(), "")
	return wire.Standby{Addr: addr.String()}
}

func (c *Client) cannotStandBy(why string) wire.Standby {
	c.group.SetSelf("", why)
	return wire.Standby{Why: why}
}

// stopWaiting closes the server in waiting.
func (c *Client) stopWaiting() {
	c.mu.Lock()
	waiting := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	if waiting != nil {
		c.group.SetSelf("", "")
		_ = waiting.Close()
		c.setListening(nil)
	}
}

// transfer makes this node host because the host asks it to.
func (c *Client) transfer(f wire.Transfer, l *clientConn) {
	if c.group == nil {
		return
	}
	current := c.group.Current()
	c.mu.Lock()
	waits := c.waiting != nil
	c.mu.Unlock()
	if !waits || f.Group != current.Group || f.Term != current.Term+1 || !succession.Believable(f.Term) {
		c.log.Warn("ignored a request to host the control plane", "term", f.Term)
		return
	}
	c.log.Info("the host leaves: this node hosts now", "host", c.called(l.welcome.HostNode), "term", f.Term)
	c.takeOver(f.Term, 0, true)
	l.out.Send(wire.Transfer{Group: f.Group, Term: f.Term, Addr: c.group.Self()})
}

// handOn gives the control plane of this process to a standby, if there is one. This node
// says no other hello.
func (c *Client) handOn(ctx context.Context, host Host) bool {
	if c.group == nil || ctx.Err() != nil {
		return false
	}
	c.mu.Lock()
	c.leaving = true
	c.mu.Unlock()
	return host.Transfer(ctx)
}

// setListening notes where the server of this process listens.
func (c *Client) setListening(list []netip.AddrPort) {
	c.listening = list
	if c.group != nil {
		c.group.SetListening(list)
	}
}

// listenAddrs are the addresses of listeners.
func listenAddrs(listeners []net.Listener) (list []netip.AddrPort) {
	for _, l := range listeners {
		if tcp, ok := l.Addr().(*net.TCPAddr); ok {
			list = append(list, netip.AddrPortFrom(tcp.AddrPort().Addr().Unmap(), tcp.AddrPort().Port()))
		}
	}
	return list
}
