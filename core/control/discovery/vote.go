package discovery

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/wording"
)

var errElected = errors.New("this node was elected to host the control plane")

// obey acts on the results of the vote about who hosts (docs/decisions/0151), once on each.
func (f *Finder) obey() {
	if to, deposed := f.group.Deposed(); deposed {
		f.stepDown(to, fmt.Sprintf("another node was elected in term %d while this one was silent", to.Term))
	}
	if to, why := f.group.Deserted(); why != "" {
		f.stepDown(to, why)
	}
	elected := f.group.Elected() > 0 || f.group.MayFound()
	f.mu.Lock()
	host, l, cancel, transferring := f.hosting, f.current, f.onElected, f.transferring
	f.mu.Unlock()
	switch {
	case host != nil:
		host.Confirmed()
	case elected && !transferring:
		if cancel != nil {
			cancel()
		}
		f.leave(l, errElected)
	case l != nil:
		if to, found := f.group.Elsewhere(l.Welcome.Group, l.Welcome.Term); found {
			f.leave(l, &wire.Redirected{To: to})
		}
	}
}

// untilElected returns a context that ends when this node is elected, too.
func (f *Finder) untilElected(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	f.mu.Lock()
	f.onElected = cancel
	f.mu.Unlock()
	return ctx, cancel
}

// lead makes this node host, which was elected, and connects it to itself.
func (s *search) lead(ctx context.Context, term uint64) (*Conn, error) {
	f := s.f
	own := f.Hello().LastRound.Facts
	in, err := f.group.Inherited(s.last.HostNode, own.Generation, s.evidence.Proves())
	if err != nil {
		f.Log.Error("what the voters keep cannot be read: this node hosts with what it knows itself", "error", err)
		in.Facts = own
	}
	next := rendezvous.Succession{Term: term, From: in.From, Facts: in.Facts, Silent: in.Silent}
	if in.Missing {
		next.Grace = max(f.Params.LeaseTimeout-in.Silence, f.Params.LeaseTimeout/leastSeat)
	}
	text := s.deadText()
	if next.Silent {
		text = fmt.Sprintf("the control plane's host is silent for %s: this node was elected and hosts now", wording.Seconds(in.Silence))
	}
	return s.host(ctx, next, max(in.Silence, s.since(s.begun)), text)
}

// leastSeat is the part of a lease for which a silent host's place waits at least, and with it all
// members' on their way to the next host.
const leastSeat = 4

// HasVoters reports whether others may elect a host in the place of one that is silent: not of no finder.
func (f *Finder) HasVoters() bool { return f != nil && f.group != nil && f.group.HasVoters() }

// LookElsewhere asks the standbys who hosts because the host of a connection is silent. It does
// not wait. The connection is kept until a standby names a host of a later term.
func (f *Finder) LookElsewhere(l *Conn) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.looking || f.current != l || f.life.Err() != nil {
		return
	}
	f.looking = true
	f.helpers.Go(func() {
		if to := f.askStandbys(f.askPatience(), l.Welcome, l.Addr); to.Host != "" {
			f.leave(l, &wire.Redirected{To: to})
		}
		f.mu.Lock()
		f.looking = false
		f.mu.Unlock()
	})
}

// askStandbys asks all of them at once who hosts, and returns the first answer that names a host of a later term than a
// connection's.
func (f *Finder) askStandbys(patience time.Duration, w wire.Welcome, host netip.AddrPort) (to wire.Redirect) {
	ctx, cancel := context.WithTimeout(f.life, patience)
	defer cancel()
	var addrs []netip.AddrPort
	for _, text := range f.group.Current().Servers {
		if addr, err := netip.ParseAddrPort(text); err == nil && addr != host && text != f.group.Self() && !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	answers := make(chan wire.Redirect, len(addrs))
	for _, addr := range addrs {
		go func() { answers <- f.whoHosts(ctx, addr) }()
	}
	for range addrs {
		if said := <-answers; to.Host == "" && said.Host != "" && said.Group == w.Group && said.Term > w.Term && succession.Believable(said.Term) {
			to = said
			cancel() // the others end, too
		}
	}
	return to
}

// askPatience is how long one standby may take to say who hosts.
func (f *Finder) askPatience() time.Duration {
	return max(f.Params.LeaseTimeout/10, 200*time.Millisecond)
}

// whoHosts asks a standby who hosts. The answer is zero if the standby gives none.
func (f *Finder) whoHosts(ctx context.Context, addr netip.AddrPort) (to wire.Redirect) {
	raw, err := f.network.dial(ctx, addr)
	if err != nil {
		return to
	}
	conn, err := f.askWho(ctx, raw, true)
	if err != nil {
		return to
	}
	defer conn.Close()
	said, err := conn.NextFrame(wire.MaxHelloFrame)
	if answer, ok := said.(wire.Probed); ok && err == nil && answer.Err == nil {
		to = answer.Target
	}
	return to
}
