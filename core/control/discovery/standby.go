package discovery

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

// takeOver makes the server in waiting of this process the host. took is for how long there was
// none. It reports false if another process has become the host meanwhile.
func (f *Finder) takeOver(s rendezvous.Succession, took time.Duration) bool {
	led := f.group.Lead(s, f.network.now(), took)
	if led {
		f.hostHere()
	}
	return led
}

// foundAnew makes the server in waiting of this process the host of another group, where the voters of the
// one before can elect nobody any more.
func (f *Finder) foundAnew() bool {
	why, founded := f.group.FoundAnew(f.network.now())
	if founded {
		f.hostHere()
		f.Log.Warn(why)
	}
	return founded
}

// hostHere notes that the server in waiting of this process hosts.
func (f *Finder) hostHere() {
	f.mu.Lock()
	f.hosting, f.waiting = f.waiting, nil
	f.mu.Unlock()
	f.startProbing()
}

// resign notes that the server of this process does not host any more.
func (f *Finder) resign() {
	f.mu.Lock()
	resigned := f.hosting != nil && f.group != nil && !f.group.Hosting()
	if resigned {
		f.hosting, f.waiting = nil, f.hosting
	}
	f.mu.Unlock()
	if resigned {
		f.stopProbing()
	}
}

// listed takes the host's list of standbys, and its invitation to this node.
func (f *Finder) listed(l *Conn, said wire.Standbys) wire.Frame {
	f.mu.Lock()
	hosting, waiting := f.hosting != nil, f.waiting != nil
	f.mu.Unlock()
	if hosting {
		return nil
	}
	f.group.SetList(said.List)
	switch {
	case f.Start == nil: // it cannot host, and asks these when the host is silent
	case said.Invited && !l.standsBy:
		l.standsBy = true
		return f.standBy(l)
	case !said.Invited && waiting && !f.atEndpoint:
		l.standsBy = false
		f.stopWaiting()
	}
	return nil
}

var errHostsPort = errors.New("the port is the host's")

// standBy opens the listener of a standby unless there is one, and says where it is.
func (f *Finder) standBy(l *Conn) wire.Standby {
	tcp, ok := l.LocalAddr().(*net.TCPAddr)
	if !ok || tcp.Zone != "" {
		return f.cannotStandBy("this node reaches the host by an address that means nothing elsewhere")
	}
	own := tcp.AddrPort().Addr().Unmap()
	for _, a := range f.listening {
		if a.Addr().IsUnspecified() || a.Addr() == own {
			return f.standsBy(netip.AddrPortFrom(own, a.Port()))
		}
	}
	f.stopWaiting()
	ctx, cancel := context.WithTimeout(f.life, evidencePatience)
	defer cancel()
	// Not at the host's present or recent address: there this process would answer, and no
	// refused dial could prove that the host's is dead.
	at := netip.AddrPortFrom(own, uint16(f.endpoint.Port))
	var listener net.Listener
	err := errHostsPort
	if at != standby.PlainAddr(l.Addr) {
		listener, err = f.network.listen(ctx, at.String())
	}
	if err != nil {
		listener, err = f.network.listen(ctx, netip.AddrPortFrom(own, 0).String())
	}
	if err != nil {
		return f.cannotStandBy(err.Error())
	}
	listeners := []net.Listener{listener}
	f.atEndpoint = false
	f.setListening(listenAddrs(listeners))
	waiting := f.startServer(listeners)
	f.mu.Lock()
	f.waiting = waiting
	f.mu.Unlock()
	addr := f.listening[0]
	f.Log.Debug("stands by to host the control plane", "listening", addr.String())
	return f.standsBy(addr)
}

func (f *Finder) standsBy(addr netip.AddrPort) wire.Standby {
	f.group.SetSelf(addr.String(), "")
	return wire.Standby{Addr: addr.String()}
}

func (f *Finder) cannotStandBy(why string) wire.Standby {
	f.group.SetSelf("", why)
	return wire.Standby{Why: why}
}

// stopWaiting closes the server in waiting.
func (f *Finder) stopWaiting() {
	f.mu.Lock()
	waiting := f.waiting
	f.waiting = nil
	f.mu.Unlock()
	if waiting != nil {
		f.group.SetSelf("", "")
		_ = waiting.Close()
		f.setListening(nil)
	}
}

// transfer makes this node host because the host asks it to.
func (f *Finder) transfer(l *Conn, said wire.Transfer) wire.Frame {
	current := f.group.Current()
	f.mu.Lock()
	waits := f.waiting != nil
	f.mu.Unlock()
	if !waits || said.Group != current.Group || said.Term != current.Term+1 || !succession.Believable(said.Term) {
		f.Log.Warn("ignored a request to host the control plane", "term", said.Term)
		return nil
	}
	next := rendezvous.Succession{Term: said.Term, From: l.Welcome.HostNode, Facts: f.Hello().LastRound.Facts, Left: true}
	if f.group.Votes() && !f.elect(&next) {
		f.Log.Warn("the host leaves, but the voters do not elect this node", "term", said.Term)
		return nil
	}
	f.Log.Info("the host leaves: this node hosts now", "host", f.called(l.Welcome.HostNode), "term", next.Term)
	led := f.takeOver(next, 0)
	f.mu.Lock()
	f.transferring = false
	f.mu.Unlock()
	if !led {
		return nil
	}
	return wire.Transfer{Group: said.Group, Term: next.Term, Addr: f.group.Self()}
}

// electPatience is how long the voters may take to elect the node that the host hands the control
// plane on to.
const electPatience = time.Second

// elect has the voters elect this node at the host's request, and notes the term and the facts
// that the voters keep.
func (f *Finder) elect(next *rendezvous.Succession) bool {
	f.mu.Lock()
	f.transferring = true
	f.mu.Unlock()
	patience, stop := f.network.timer(electPatience)
	defer stop()
	again := time.NewTicker(f.group.Beat())
	defer again.Stop()
	for {
		changed := f.group.Changed()
		f.group.TakeOver()
		if term := f.group.Elected(); term > 0 {
			next.Term = term
			if in, err := f.group.Inherited(next.From, next.Facts.Generation, false); err == nil {
				next.Facts = in.Facts
			}
			return true
		}
		select {
		case <-changed:
		case <-again.C: // a connection to a voter may have been opened meanwhile
		case <-patience:
			f.mu.Lock()
			f.transferring = false
			f.mu.Unlock()
			return false
		case <-f.life.Done():
			return false
		}
	}
}

// setListening notes where the server of this process listens.
func (f *Finder) setListening(list []netip.AddrPort) {
	f.listening = list
	if f.group != nil {
		f.group.SetListening(list)
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
