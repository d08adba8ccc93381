package client

import (
	"bufio"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
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
func (c *Client) startProbing() {
	c.stopProbing()
	if c.endpoint.port == 0 || c.host == nil {
		return
	}
	ctx, cancel := context.WithCancel(c.life)
	c.mu.Lock()
	c.probing = cancel
	c.mu.Unlock()
	p := newProber(c, c.endpoint.host, uint16(c.endpoint.port))
	c.helpers.Go(func() { p.run(ctx) })
}

func (c *Client) stopProbing() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probing != nil {
		c.probing()
		c.probing = nil
	}
}

// prober looks at the addresses of the endpoint while this process hosts.
type prober struct {
	c    *Client
	host string
	port uint16
	wg   sync.WaitGroup

	mu    sync.Mutex
	begun time.Time // when the last server of the group at the endpoint was gone
	held  map[netip.AddrPort]bool
	cut   map[netip.AddrPort]bool // the last connection to it ended without an answer
	told  string                  // the last refusal, as it was logged
}

func newProber(c *Client, host string, port uint16) *prober {
	return &prober{c: c, host: host, port: port, held: map[netip.AddrPort]bool{}, cut: map[netip.AddrPort]bool{}}
}

func (p *prober) run(ctx context.Context) {
	defer p.wg.Wait()
	p.begun = p.c.network.now()
	for ctx.Err() == nil {
		addrs, err := p.c.network.lookup(ctx, p.host)
		if err == nil {
			for _, a := range addrs {
				p.look(ctx, netip.AddrPortFrom(a, p.port))
			}
		}
		for _, a := range p.c.group.Passed() {
			p.look(ctx, a)
		}
		p.mu.Lock()
		pause := probeSeldom
		if p.c.network.since(p.begun) < probeFirst {
			pause = probeOften
		}
		p.mu.Unlock()
		p.c.network.sleep(ctx, pause)
	}
}

// look probes one address in a goroutine of its own, unless a server of the group holds it.
func (p *prober) look(ctx context.Context, addr netip.AddrPort) {
	if p.own(addr) {
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
			p.begun = p.c.network.now()
		}
	})
}

// own reports whether an address is that of the server in this process.
func (p *prober) own(addr netip.AddrPort) bool {
	return p.c.group.Self() == addr.String() || slices.Contains(ownAddrs(p.c.group.Listening()), addr)
}

// probe asks the server at an address who it is. It returns when there is none, or when
// one that belongs to the group is gone again; that it reports.
func (p *prober) probe(ctx context.Context, addr netip.AddrPort) (held bool) {
	c := p.c
	dctx, cancel := context.WithTimeout(ctx, probeSeldom)
	raw, err := c.network.dial(dctx, addr)
	cancel()
	if err != nil {
		p.isCut(addr, false)
		return false
	}
	conn := wire.NewConn(raw)
	defer conn.Close()
	release := context.AfterFunc(ctx, func() { conn.Close() })
	defer release()
	wire.SetUserTimeout(conn, c.params.LeaseTimeout)
	conn.SetDeadline(time.Now().Add(handshakeTimeout))
	frames := wire.FrameReader{In: bufio.NewReaderSize(conn, wire.ReadBuffer)}
	mine := c.group.Standing()
	question := wire.Probe{
		Software: rallypoint.Version(), RunID: c.params.RunID, Policy: c.params.Policy, Round: mine.Round, Node: mine.Node, Target: c.group.Current(),
	}
	_, err = wire.ClientHandshake{Token: c.token, Addr: conn.RemoteAddr()}.Run(conn, &frames, wire.AppendFrame(nil, question))
	if err != nil {
		p.unanswered(ctx, addr, err)
		return false
	}
	if err := c.believe(conn); err != nil {
		p.refused(addr, err.Error())
		return false
	}
	f, err := frames.NextFrame(wire.MaxHelloFrame)
	if err != nil {
		p.unanswered(ctx, addr, fmt.Errorf("it does not answer: %w", wire.NoEOF(err)))
		return false
	}
	p.isCut(addr, false)
	answer, ok := f.(wire.Probed)
	switch {
	case !ok:
		p.refused(addr, "it answers with a frame "+wire.NameOf(f))
		return false
	case answer.Err != nil:
		p.refused(addr, answer.Err.Text)
		return false
	case !answer.Yields:
		theirs := succession.Standing{Group: answer.Target.Group, Term: answer.Target.Term, Node: answer.Node, Round: answer.Round}
		if mine != theirs && succession.Believable(theirs.Term) && succession.Yields(mine, theirs) {
			answer.Target.Host = standby.PlainAddr(addr).String()
			c.stepDown(answer.Target, "node "+answer.Node+" hosts this run at "+addr.String())
		}
		return false
	}
	conn.SetDeadline(time.Time{})
	_, _ = frames.NextFrame(wire.MaxHelloFrame) // until it ends
	return true
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

// refused logs, once for the same reason, that what is at the endpoint does not yield.
func (p *prober) refused(addr netip.AddrPort, why string) {
	p.mu.Lock()
	told := p.told
	p.told = why
	p.mu.Unlock()
	if told != why {
		p.c.log.Warn("the endpoint does not lead to this job's control plane: "+why, "address", addr.String())
	}
}
