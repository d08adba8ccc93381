package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election"
	"rallypoint/core/election/register"
)

// listen opens the listener of the control plane that this process may lead, unless it is open.
func (f *RegisterFinder) listen(ctx context.Context) error {
	if f.listener != nil {
		return nil
	}
	host := f.ownHost()
	var l net.Listener
	err := error(syscall.EADDRNOTAVAIL)
	if ip, wrong := netip.ParseAddr(host); wrong == nil {
		l, err = f.network.listen(ctx, netip.AddrPortFrom(ip, 0).String())
	}
	if errors.Is(err, syscall.EADDRNOTAVAIL) { // a name, or an address that is not of an interface
		l, err = f.network.listen(ctx, ":0")
	}
	if err != nil {
		return err
	}
	tcp, ok := l.Addr().(*net.TCPAddr)
	if !ok {
		l.Close()
		return fmt.Errorf("the listener at %v is not of TCP", l.Addr())
	}
	f.listener, f.addr = l, net.JoinHostPort(host, strconv.Itoa(tcp.Port))
	return nil
}

func (f *RegisterFinder) closeListener() {
	if f.listener != nil {
		f.listener.Close()
		f.listener = nil
	}
}

// startHost starts the control plane of this process, which leads.
func (f *RegisterFinder) startHost(ctx context.Context) {
	if err := f.listen(ctx); err != nil { // the listener of an attempt whose answer was late is closed
		f.Log.Warn("this node is to host the control plane, and cannot", "error", err)
		f.resign(ctx)
		return
	}
	f.listening = listenAddrs([]net.Listener{f.listener})
	host := f.Start(HostConfig{
		Params: f.Params, Node: f.Node, Token: f.token, HTTPNames: []string{f.ownHost(), f.Params.AdvertiseAddr}, Log: f.Log, Elector: f.elector, Ended: f.elector.Ended(),
	}, f.listener)
	f.listener = nil
	f.mu.Lock()
	f.hosting = host
	f.mu.Unlock()
}

// dialOwn connects to the control plane of this process.
func (f *RegisterFinder) dialOwn(ctx context.Context) (*Conn, error) {
	conn, err := f.network.dialAny(ctx, ownAddrs(f.listening))
	if err != nil {
		return nil, err
	}
	return f.openConn(ctx, conn)
}

// obey acts on what the register says, until the finder is closed.
func (f *RegisterFinder) obey() {
	for f.life.Err() == nil {
		changed := f.elector.Changed()
		to, deposed := f.elector.Deposed()
		f.mu.Lock()
		host, l, leaving := f.hosting, f.current, f.leaving
		if deposed && host != nil && !leaving {
			f.hosting = nil
		}
		f.mu.Unlock()
		switch {
		case leaving && (deposed || host == nil):
		case deposed && host != nil:
			host.StepDown(to, fmt.Sprintf("node %s leads in term %d", to.Node, to.Term))
			f.helpers.Go(func() { _ = host.Close() })
		case host != nil:
			host.Confirmed()
		case l != nil:
			if why := f.gone(l.Welcome); why != nil {
				f.leave(l, why)
			}
		}
		select {
		case <-changed:
		case <-f.life.Done():
		}
	}
}

// errMute is why a connection is ended whose leader may live.
var errMute = errors.New("its leader has not written to the register for a lease")

// gone says why a leader leads no more, as far as the register tells; nil: it does.
func (f *RegisterFinder) gone(w wire.Welcome) error {
	v := f.elector.Leadership()
	switch r := v.Record; {
	case r == nil: // the leader writes it anew
		return nil
	case r.Group != w.Group, r.Term > w.Term, r.Phase != register.Leads:
		return &wire.Redirected{To: wire.Redirect{Group: r.Group, Term: r.Term, Host: r.Addr, Node: r.Node}}
	case v.Silent && f.mayLead():
		return errMute
	}
	return nil
}

func (f *RegisterFinder) mayLead() bool {
	return f.Start != nil && (f.Params.IsHost == nil || *f.Params.IsHost)
}

func (f *RegisterFinder) Leave(ctx context.Context) {
	f.mu.Lock()
	host := f.hosting
	f.leaving = true
	f.mu.Unlock()
	if host == nil {
		return
	}
	own := f.Hello().Session
	if rest := host.Remains(own); rest.Open && ctx.Err() == nil {
		if left, _ := f.elector.Leave(ctx, register.Left, nil); left {
			host.SendOn(f.nowhere(), "this node leaves")
			return
		}
	}
	if err := host.WaitIdle(ctx, own); err != nil {
		f.Log.Warn("the control plane in this process ends while other nodes are connected", "waited for them", err)
	}
}

// farewell is how long a leader that leaves tries at most to say so in the register, whatever is left
// of its caller's time.
const farewell = time.Second

// leaveRecord says in the register that this process leads no more, if it does. host is its control plane; nil: there is
// none, and no node has been told anything in this term.
func (f *RegisterFinder) leaveRecord(ctx context.Context, host Host) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	if !f.elector.Settle(ctx) {
		return
	}
	before := f.elector.Ended()
	rest := election.Remains{Over: f.elector.Current().Term == 1, Ended: before, Rests: true}
	if host != nil {
		rest = host.Remains(f.Hello().Session)
	}
	phase := register.Left
	if rest.Over {
		phase = register.Over
		if rest.Ended != nil && rest.Rests && before != nil {
			rest.Ended = register.Later(before)
		}
	}
	if _, err := f.elector.Leave(ctx, phase, rest.Ended); err != nil {
		f.Log.Debug("the register does not take that this node leads no more", "error", err)
	}
}

// nowhere is the redirect of nodes that have to look at the register.
func (f *RegisterFinder) nowhere() wire.Redirect {
	to := f.elector.Current()
	return wire.Redirect{Group: to.Group, Term: to.Term}
}

// resign has this process lead no more, if it does or may do so yet, and ends its control plane.
func (f *RegisterFinder) resign(ctx context.Context) {
	f.closeListener()
	f.mu.Lock()
	host := f.hosting
	f.hosting = nil
	f.mu.Unlock()
	f.leaveRecord(ctx, host)
	if host != nil {
		_ = host.Close()
	}
	f.elector.StepDown(wire.Redirect{})
}
