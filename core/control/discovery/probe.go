package discovery

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/store"
	"rallypoint/core/succession"
)

// A host that is not where the endpoint points to looks there, and at the standbys of the
// host before, for another server of its run: often in the first second, in which a
// supervisor may start the host before again.
const (
	probeOften  = 100 * time.Millisecond
	probeFirst  = time.Second
	probeSeldom = time.Second
)

// startProbing begins to look at the endpoint.
func (f *Finder) startProbing() {
	f.stopProbing()
	if f.endpoint.Port == 0 || f.Start == nil {
		return
	}
	ctx, cancel := context.WithCancel(f.life)
	f.mu.Lock()
	f.probing = cancel
	f.mu.Unlock()
	p := newProber(f, f.endpoint.HostPort)
	f.helpers.Go(func() { p.run(ctx) })
}

func (f *Finder) stopProbing() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.probing != nil {
		f.probing()
		f.probing = nil
	}
}

// prober looks at the addresses of the endpoint while this process hosts.
type prober struct {
	f  *Finder
	at params.HostPort
	wg sync.WaitGroup

	mu    sync.Mutex
	begun time.Time // when the last server of the group at the endpoint was gone
	held  map[netip.AddrPort]bool
	cut   map[netip.AddrPort]bool // the last connection to it ended without an answer
	told  string                  // the last refusal, as it was logged
}

func newProber(f *Finder, at params.HostPort) *prober {
	return &prober{f: f, at: at, held: map[netip.AddrPort]bool{}, cut: map[netip.AddrPort]bool{}}
}

func (p *prober) run(ctx context.Context) {
	defer p.wg.Wait()
	p.begun = p.f.network.now()
	for ctx.Err() == nil {
		addrs, _ := p.at.Addrs(ctx, p.f.network.resolve) // a name that is not known now is looked up again
		for _, a := range append(addrs, p.f.group.Passed()...) {
			p.look(ctx, a)
		}
		p.mu.Lock()
		pause := probeSeldom
		if p.f.network.since(p.begun) < probeFirst {
			pause = probeOften
		}
		p.mu.Unlock()
		p.f.network.sleep(ctx, pause)
	}
}

// look probes one address in a goroutine of its own, unless a server of the group holds it.
func (p *prober) look(ctx context.Context, addr netip.AddrPort) {
	if p.f.own(addr) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held[addr] {
		return
	}
	p.held[addr] = true
	p.wg.Go(func() {
		yielded := p.probe(ctx, addr)
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.held, addr)
		if yielded {
			p.begun = p.f.network.now()
		}
	})
}

// probe asks the server at an address who it is. It returns if there is none, or when a server of
// the group is gone again, which it reports.
func (p *prober) probe(ctx context.Context, addr netip.AddrPort) (held bool) {
	f := p.f
	dctx, cancel := context.WithTimeout(ctx, probeSeldom)
	raw, err := f.network.dial(dctx, addr)
	cancel()
	if err != nil {
		p.isCut(addr, false)
		return false
	}
	mine := f.group.Identity()
	conn, err := f.askWho(ctx, raw, mine.Round)
	if err != nil {
		p.unanswered(ctx, addr, err)
		return false
	}
	defer conn.Close()
	frame, err := conn.NextFrame(wire.MaxHelloFrame)
	if err != nil {
		p.unanswered(ctx, addr, fmt.Errorf("it does not answer: %w", wire.NoEOF(err)))
		return false
	}
	p.isCut(addr, false)
	answer, ok := frame.(wire.Probed)
	switch {
	case !ok:
		p.refused(addr, "it answers with a frame "+wire.NameOf(frame))
		return false
	case answer.Err != nil:
		p.refused(addr, answer.Err.Text)
		return false
	case !answer.Yields:
		theirs := succession.Identity{Group: answer.Target.Group, Term: answer.Target.Term, Node: answer.Node, Round: answer.Round}
		if mine != theirs && succession.Believable(theirs.Term) && succession.Yields(mine, theirs) {
			answer.Target.Host = standby.PlainAddr(addr).String()
			f.stepDown(answer.Target, "node "+answer.Node+" hosts this run at "+addr.String())
		}
		return false
	case answer.Target.Group != mine.Group, answer.Target.Term > mine.Term: // it waits for a host that is not where this one looks
		if host := answer.Target.Addr(); host.IsValid() && host != addr {
			p.look(ctx, host)
		}
		return false
	}
	conn.SetDeadline(time.Time{})
	_, _ = conn.NextFrame(wire.MaxHelloFrame) // until it ends
	return true
}

// askWho asks the server at the other end of a new connection who it is, as one whose control plane has had a round or
// not.
func (f *Finder) askWho(ctx context.Context, raw net.Conn, round bool) (*wire.Call, error) {
	return f.greet(ctx, raw, wire.Probe{
		Software: rallypoint.Version(), RunID: f.Params.RunID, Policy: f.Params.Policy, Round: round, Node: f.Node, Target: f.group.Current(),
	})
}

// unanswered is for a probe without an answer. The server of the host before cuts connections
// while it ends: one that is cut says nothing until the next one is, too.
func (p *prober) unanswered(ctx context.Context, addr netip.AddrPort, err error) {
	switch {
	case ctx.Err() != nil: // this process has ended it
	case store.EndedByPeer(err) && !p.isCut(addr, true):
	default:
		p.refused(addr, err.Error())
	}
}

// isCut notes whether the connection to an address has ended without an answer, and reports
// whether the one before had.
func (p *prober) isCut(addr netip.AddrPort, now bool) (before bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before = p.cut[addr]
	p.cut[addr] = now
	return before
}

// refused logs, once for each reason, that the server at the endpoint does not step down.
func (p *prober) refused(addr netip.AddrPort, why string) {
	p.mu.Lock()
	told := p.told
	p.told = why
	p.mu.Unlock()
	if told != why {
		p.f.Log.Warn("the endpoint does not lead to this job's control plane: "+why, "address", addr.String())
	}
}
