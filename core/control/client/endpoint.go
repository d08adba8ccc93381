package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"syscall"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/backoff"
)

// DefaultPort is the control plane's port where the endpoint has none.
const DefaultPort = 29400

// How often the client resolves an endpoint's name again: while no control plane
// answers there, and while the name is not known.
const (
	resolveEvery  = 5 * time.Second
	resolveFailed = time.Second
)

// endpoint is where the control plane is looked for.
type endpoint struct {
	host     string
	port     int
	addrs    []netip.Addr
	resolved time.Time        // when the resolver was asked last
	failure  error            // its last answer, if there are no addresses
	hosted   []netip.AddrPort // of the control plane in this process; nil: not here
}

// name is the endpoint as people write it.
func (e *endpoint) name() string { return net.JoinHostPort(e.host, strconv.Itoa(e.port)) }

// targets are the addresses to dial.
func (e *endpoint) targets() []netip.AddrPort {
	if e.hosted != nil {
		return e.hosted
	}
	list := make([]netip.AddrPort, len(e.addrs))
	for i, a := range e.addrs {
		list[i] = netip.AddrPortFrom(a, uint16(e.port))
	}
	return list
}

// resolve brings the endpoint's addresses up to date. Old ones serve on if the
// resolver fails for a while.
func (c *Client) resolve(ctx context.Context, s *endpoint) error {
	age := time.Since(s.resolved)
	if s.hosted != nil || s.addrs != nil && age < resolveEvery || s.failure != nil && age < resolveFailed {
		return s.failure
	}
	addrs, err := c.network.lookup(ctx, s.host)
	s.resolved = time.Now()
	switch {
	case err != nil && s.addrs == nil:
		var name *net.DNSError // says the name again, and which server was asked
		if errors.As(err, &name) {
			err = errors.New(name.Err)
		}
		s.failure = fmt.Errorf("cannot resolve %q: %w", s.host, err)
		return s.failure
	case err != nil:
		return nil
	}
	if refusal := checkWildcard(c.params.Endpoint, addrs); refusal != nil {
		return refusal
	}
	s.addrs, s.failure = addrs, nil
	return nil
}

// findOrHost finds the control plane or starts to host it: connect first, then bind.
func (c *Client) findOrHost(ctx context.Context) (*clientConn, error) {
	start := time.Now()
	s := &c.endpoint
	if s.host == "" {
		host, port, err := params.ParseEndpoint(c.params.Endpoint, DefaultPort)
		if err != nil {
			return nil, err
		}
		s.host, s.port = host, port
	}
	if err := c.checkPort(s); err != nil {
		return nil, err
	}
	told := &connectProgress{client: c, start: start}
	foreign := &foreignWarning{client: c, start: start}
	pause := c.newBackoff()
	var last error
	for {
		l, err := c.tryOnce(ctx, s, foreign)
		if err == nil {
			return l, nil
		}
		var refusal *rendezvous.Error
		if errors.As(err, &refusal) {
			return nil, refusal
		}
		if last == nil || ctx.Err() == nil { // an attempt that ctx has ended says less
			last = err
		}
		told.tell(s, last)
		foreign.failed(s, last)
		if !pause.Wait(ctx) {
			return nil, c.notFound(ctx, s, last, time.Since(start))
		}
	}
}

// checkPort refuses an endpoint whose port only this process could know.
func (c *Client) checkPort(s *endpoint) error {
	host := c.params.IsHost
	switch {
	case s.port != 0, host != nil && *host:
		return nil
	case host != nil:
		return rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q has port 0, which only its host could know, and is_host=0: give the port of the control plane", c.params.Endpoint)
	case c.params.Max > 1:
		return rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q has port 0, so that other nodes could not find it, but the run has up to %d nodes: give a port", c.params.Endpoint, c.params.Max)
	}
	return nil
}

// tryOnce makes one attempt. An error other than a *rendezvous.Error may pass.
func (c *Client) tryOnce(ctx context.Context, s *endpoint, foreign *foreignWarning) (*clientConn, error) {
	isHost := c.params.IsHost
	if isHost != nil && *isHost && s.hosted == nil {
		return c.hostAnyway(ctx, s, foreign)
	}
	if err := c.resolve(ctx, s); err != nil {
		return nil, err
	}
	c.noteLoopback(s)
	var err error
	if s.port != 0 || s.hosted != nil {
		var l *clientConn
		if l, err = foreign.dial(ctx, s, s.targets()); err == nil {
			return l, nil
		}
	}
	if s.hosted != nil || isHost != nil || ctx.Err() != nil || s.port != 0 && !errors.Is(err, syscall.ECONNREFUSED) {
		return nil, err
	}
	where := elect(s.host, s.addrs, c.network.locals)
	switch {
	case !where.candidate && s.port == 0:
		return nil, rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q has port 0, which only its host could know, and is not this machine: %s resolves to %s; %s",
			c.params.Endpoint, s.host, listed(s.addrs), where.why)
	case !where.candidate:
		return nil, err
	}
	if bindErr := c.startHosting(ctx, s, where); bindErr != nil {
		if s.port == 0 {
			return nil, rendezvous.Errorf(rendezvous.CodeConnection, "cannot host the control plane at %s: %v", s.name(), bindErr)
		}
		// In use: another process of this machine was quicker.
		return nil, fmt.Errorf("%w; hosting it here: %w", err, bindErr)
	}
	return c.dialHello(ctx, s.targets())
}

// dialHello connects to one of the addresses, says hello, and follows a redirect.
func (c *Client) dialHello(ctx context.Context, to []netip.AddrPort) (*clientConn, error) {
	conn, err := c.network.dialAny(ctx, to)
	if err != nil {
		return nil, err
	}
	l, err := c.openConn(ctx, conn)
	return c.follow(ctx, l, err)
}

// follow goes where the answer to a hello has sent this node, if it has.
func (c *Client) follow(ctx context.Context, l *clientConn, err error) (*clientConn, error) {
	var moved *redirected
	if errors.As(err, &moved) {
		if addr, err := netip.ParseAddrPort(c.accept(moved.to)); err == nil {
			return (&search{c: c}).race(ctx, []netip.AddrPort{addr})
		}
	}
	return l, err
}

// noteLoopback remembers that other machines cannot reach the endpoint.
func (c *Client) noteLoopback(s *endpoint) {
	if c.params.Max == 1 || !loopbackName(s.host) {
		return
	}
	c.mu.Lock()
	c.warning = fmt.Sprintf("the endpoint %s is this machine's loopback, which nodes on other machines cannot reach; give the name or address of the host if there are others", s.name())
	c.mu.Unlock()
}

// hinted adds to what a node waits for what is odd about the endpoint: a node that is
// missing may look for it on its own machine.
func (c *Client) hinted(p rendezvous.Progress) rendezvous.Progress {
	if w := c.Warning(); w != "" && !p.Spare {
		p.Detail = strings.TrimPrefix(p.Detail+"; "+w, "; ")
	}
	return p
}

// notFound is the error of a search that ran out of time.
func (c *Client) notFound(ctx context.Context, s *endpoint, last error, tried time.Duration) error {
	if errors.Is(ctx.Err(), context.Canceled) {
		return rendezvous.Errorf(rendezvous.CodeCanceled, "run %q: connecting to the control plane at %s was canceled after %s; last error: %v",
			c.params.RunID, s.name(), tried.Round(time.Millisecond), last)
	}
	return rendezvous.Errorf(rendezvous.CodeConnection, "run %q: no control plane found at %s, tried for %s; last error: %v; %s",
		c.params.RunID, s.name(), tried.Round(time.Millisecond), last, c.compared(s))
}

// compared says why this process does not host, and what to do.
func (c *Client) compared(s *endpoint) string {
	const check = "check that the host's node runs and that the endpoint is right"
	switch {
	case c.params.IsHost != nil && *c.params.IsHost:
		return "this node is to host it (is_host=1)"
	case c.params.IsHost != nil:
		return "this node is not to host it (is_host=0); " + check
	case s.addrs == nil:
		return "without an address it is not known which machine hosts; check the name, or give is_host=1 to the one node that is to host"
	}
	var parts []string
	if !loopbackName(s.host) || len(s.addrs) > 1 {
		parts = append(parts, fmt.Sprintf("%s resolves to %s", s.host, listed(s.addrs)))
	}
	where := elect(s.host, s.addrs, c.network.locals)
	parts = append(parts, where.why)
	if where.candidate {
		return strings.Join(parts, "; ") + "; check which program holds the port"
	}
	parts = append(parts, "so another machine is to host", check,
		"if the endpoint is this machine under an address that its interfaces do not carry (NAT, floating), give is_host=1 to this one node")
	return strings.Join(parts, "; ")
}

// connectProgress tells the observer what findOrHost waits for, in the rhythm of a
// server's progress.
type connectProgress struct {
	client *Client
	start  time.Time
	last   time.Time
	text   rendezvous.Progress
}

func (c *connectProgress) tell(s *endpoint, err error) {
	now := time.Now()
	if now.Sub(c.start) < wire.ProgressFirst || now.Sub(c.last) < wire.ProgressEvery {
		return
	}
	text := rendezvous.Progress{Headline: "looking for the control plane at " + s.name(), Detail: err.Error()}
	if text != c.text {
		c.last, c.text = now, text
		c.client.obs.Progressed(text)
	}
}

// reconnect finds the control plane again after err has ended a connection. The
// observer hears of the loss at once, or, if the control plane itself has ended
// the connection, only if the first attempt fails. The error is a refusal, or
// that of the client's end; an authentication that fails is tried on, since this
// node was let in before.
func (c *Client) reconnect(pause *backoff.Backoff, s *search, err error, expected bool) (*clientConn, error) {
	lost, denied := !expected && !s.orderly, false
	if lost {
		c.reportLoss(err)
	}
	for {
		l, err := s.attempt(c.life)
		if err == nil {
			if lost {
				c.obs.ConnectionChanged(nil)
			}
			return l, nil
		}
		var refusal *rendezvous.Error
		if errors.As(err, &refusal) && refusal.Code != rendezvous.CodeAuth {
			return nil, refusal
		}
		if refusal != nil && !denied { // the token is being changed, perhaps
			denied = true
			c.log.Warn(refusal.Text + "; trying on")
		}
		if !lost && c.life.Err() == nil {
			lost = true
			c.reportLoss(err)
		}
		if !pause.Wait(c.life) {
			return nil, c.life.Err()
		}
	}
}

func (c *Client) rejoin(ctx context.Context) (*clientConn, error) {
	if err := c.resolve(ctx, &c.endpoint); err != nil {
		return nil, err
	}
	return c.dialHello(ctx, c.endpoint.targets())
}

func (c *Client) reportLoss(err error) {
	c.obs.ConnectionChanged(rendezvous.Errorf(rendezvous.CodeConnection, "run %q: the control plane at %s is out of reach, trying on: %v",
		c.params.RunID, c.endpoint.name(), err))
}
