package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	rallypoint "rallypoint"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/training"
	"rallypoint/internal/backoff"
	"rallypoint/internal/host"
)

var errClientClosed = rendezvous.Errorf(rendezvous.CodeCanceled, "the connection to the control plane was closed by this process")

// Client is a node's way to a hosted control plane: a member.ControlPlane. Connect
// finds the control plane or starts to host it; from then on one goroutine keeps
// the connection, reconnects when it breaks, and calls the Observer. The loss and
// the recovery of the control plane are the Observer's to log.
type Client struct {
	params  params.Params
	obs     member.Observer
	log     *slog.Logger
	host    StartHost // nil: never hosts
	network network

	session     rendezvous.SessionID
	node        string
	incarnation uint64
	label       string

	life   context.Context // ends with Close
	cancel context.CancelFunc

	group      *standby.Group   // what is known of the servers of the run; nil: one node is all
	listening  []netip.AddrPort // of the server in this process; of the goroutine that connects
	atEndpoint bool             // that server is where the endpoint points to
	probing    context.CancelFunc
	helpers    sync.WaitGroup // liveness connections and probing

	connecting sync.Mutex    // held by Connect, and by Close to wait for it
	token      *secret.Token // nil: none; set by Connect
	looping    chan struct{} // closed when loop has ended; nil: it has not begun

	mu         sync.Mutex
	conn       *clientConn // nil: not connected
	calls      member.Calls
	claim      rendezvous.LastRound
	facts      rendezvous.Facts // what the control plane told last
	seen       string
	hosting    Host // nil: this process does not host
	waiting    Host // the server in this process that stands by; nil: there is none
	byNode     bool // the control plane is in the process of a node of this run
	endpoint   endpoint
	servers    *peer.Check // whose control plane is believed; nil: every user's
	warning    string
	ignoring   string                  // why a redirect was not followed, as it was logged last; of loop
	moved      int                     // connections in a row that were opened, and ended by a redirect at once; of loop
	unanswered atomic.Int32            // hellos in a row that a server did not answer, since the last welcome
	leaving    bool                    // this node goes, and its control plane with it
	final      *rendezvous.Error       // nothing is answered any more
	training   func() *training.Report // of CarryTraining; nil: none
}

var (
	_ member.ControlPlane    = (*Client)(nil)
	_ member.TrainingCarrier = (*Client)(nil)
)

// New makes a client that is not connected yet. The Observer's methods are
// called by one goroutine at a time, Connect's or the client's own; they must not
// block and must not call Close. A nil log discards. The client starts a control
// plane in this process by start; without one it never does, whatever
// Params.IsHost says.
func New(p params.Params, obs member.Observer, log *slog.Logger, start StartHost) *Client {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if start == nil {
		never := false
		p.IsHost = &never
	}
	c := &Client{
		params: p, obs: obs, log: log, host: start, network: systemNetwork(),
		session: rendezvous.SessionID(rand.Text()),
		label:   host.Process(),
	}
	c.node, c.incarnation = p.Identity()
	if p.Max > 1 {
		c.group = standby.NewGroup(p.RunID, c.node, p.LeaseTimeout, p.NoQuorum)
	}
	if p.TokenFile == "" && p.OneMachine() && (p.IsHost == nil || *p.IsHost) {
		c.servers = peer.NewCheck(&p, &net.TCPAddr{})
	}
	c.life, c.cancel = context.WithCancel(context.Background())
	return c
}

// Connect is member.ControlPlane's. Refusals (ErrInvalid, ErrMismatch, ErrTenant,
// ErrNodeInUse, ErrAuth, ErrState for an incompatible release) are returned at once. When
// ctx ends first the error is ErrConnection after its deadline, ErrCanceled
// otherwise; it says what was tried, and Connect may be called again. Once it
// has succeeded, calling it again does nothing.
func (c *Client) Connect(ctx context.Context) error {
	c.connecting.Lock()
	defer c.connecting.Unlock()
	if c.life.Err() != nil {
		return errClientClosed
	}
	if c.looping != nil {
		return nil
	}
	if err := c.params.Validate(); err != nil {
		return err
	}
	if c.params.TokenFile != "" && c.token == nil {
		token, err := secret.OpenToken(c.params.TokenFile, c.log)
		if err != nil {
			return err
		}
		c.token = token
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stop := context.AfterFunc(c.life, cancel)
	defer stop()
	l, err := c.findOrHost(ctx)
	if err != nil {
		c.stopHosting()
		c.endpoint.hosted = nil
		return err
	}
	c.adopt(l)
	c.obs.Updated(l.welcome.Notice)
	c.looping = make(chan struct{})
	if c.group != nil && c.host != nil {
		c.helpers.Go(c.keepLiveness)
	}
	go func() {
		defer close(c.looping)
		c.loop(l)
	}()
	return nil
}

// Start is member.ControlPlane's. Calls before Connect are kept for it; after Close
// or a refusal they fail at once.
func (c *Client) Start(ev rendezvous.Event) *member.Call {
	c.mu.Lock()
	defer c.mu.Unlock()
	p := c.calls.Add(ev)
	f, ok := wire.NewRequest(ev, 0, 0)
	err := c.final
	if err == nil && !ok {
		err = rendezvous.Errorf(rendezvous.CodeInternal, "a %T is no request", ev)
	}
	if err == nil {
		err = f.CheckSize()
	}
	if err != nil {
		c.calls.Take(p.Call.Number)
		p.Call.Finish(nil, err)
		return p.Call
	}
	if c.conn != nil {
		c.conn.out.Send(c.frameLocked(p))
	}
	return p.Call
}

// frameLocked is the pending request as it is sent now.
func (c *Client) frameLocked(p *member.PendingCall) wire.Request {
	f, _ := wire.NewRequest(p.Event, p.Call.Number, c.calls.Acked())
	return f
}

// SetLastRound is member.ControlPlane's.
func (c *Client) SetLastRound(claim rendezvous.LastRound) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.claim = claim
}

// CarryTraining is member.TrainingCarrier's.
func (c *Client) CarryTraining(report func() *training.Report) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.training = report
	if c.conn != nil {
		c.conn.carryTraining(report)
	}
}

// SeenAddr is member.ControlPlane's.
func (c *Client) SeenAddr() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// Hosting is member.ControlPlane's.
func (c *Client) Hosting() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.hosting != nil
}

// HostedByNode is member.ControlPlane's.
func (c *Client) HostedByNode() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.byNode
}

// Warning returns what is odd about the endpoint; "" if nothing is. It is known after
// Connect, and stands in the progress of a node that waits.
func (c *Client) Warning() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.warning
}

// Node returns this node's id, drawn at random if Params has none.
func (c *Client) Node() string { return c.node }

// called is what log lines call a node: its machine, unless it is this node's, too.
func (c *Client) called(node string) string {
	if machine := rendezvous.MachineOf(node); machine != rendezvous.MachineOf(c.node) {
		return machine
	}
	return node
}

// Session returns the id of this client's session, drawn at random.
func (c *Client) Session() rendezvous.SessionID { return c.session }

// Close is member.ControlPlane's. It returns nil, after ctx has ended at the latest
// within a second.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	host := c.hosting
	c.mu.Unlock()
	if host != nil && !c.handOn(ctx, host) {
		if err := host.WaitIdle(ctx, c.session); err != nil {
			c.log.Warn("the control plane in this process ends while other nodes are connected", "waited for them", err)
		}
	}
	c.fail(errClientClosed)
	c.mu.Lock()
	l := c.conn
	c.mu.Unlock()
	if l != nil {
		l.sayGoodbye(ctx)
	}
	c.cancel()
	c.connecting.Lock()
	defer c.connecting.Unlock()
	if c.looping != nil {
		<-c.looping
	}
	c.stopProbing()
	c.helpers.Wait()
	c.stopHosting()
	return nil
}

func (c *Client) stopHosting() {
	c.mu.Lock()
	hosts := []Host{c.hosting, c.waiting}
	c.hosting, c.waiting = nil, nil
	c.mu.Unlock()
	if c.group != nil {
		c.group.Close()
	}
	for _, host := range hosts {
		if host != nil {
			_ = host.Close()
		}
	}
}

// fail ends all calls, now and later; the first reason is kept.
func (c *Client) fail(err *rendezvous.Error) {
	c.mu.Lock()
	if c.final == nil {
		c.final = err
	}
	pending := c.calls.Clear()
	c.mu.Unlock()
	for _, p := range pending {
		p.Call.Finish(nil, c.final)
	}
}

// hello is what this node says of itself now.
func (c *Client) hello() wire.Hello {
	c.mu.Lock()
	defer c.mu.Unlock()
	claim := c.claim
	claim.Facts = c.facts
	h := wire.Hello{
		Version: wire.ProtocolVersion, Features: []string{wire.FeatureEcho}, Software: rallypoint.Version(),
		RunID: c.params.RunID, Session: c.session, Node: c.node, Named: c.params.NodeID != "",
		Incarnation: c.incarnation, Label: c.label, HostName: c.params.Machine(), Topology: c.params.Topology, Policy: c.params.Policy, Claim: claim,
		InHost: c.hosting != nil, BeginAgain: c.params.BeginAgain,
	}
	if c.group == nil {
		return h
	}
	to := c.group.Current()
	h.Group, h.Term, h.Servers = to.Group, to.Term, to.Servers
	h.Machine = standby.Machine()
	h.Features = append(h.Features, wire.FeatureSuccession)
	if never := c.params.IsHost; c.host != nil && c.hosting == nil && (never == nil || *never) {
		h.Features = append(h.Features, wire.FeatureStandby)
	}
	return h
}

// adopt makes a connection the current one and sends again what has no answer yet.
func (c *Client) adopt(l *clientConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.conn, c.seen, c.byNode = l, l.welcome.SeenAddr, l.welcome.Embedded
	c.facts = l.welcome.Notice.Facts
	if c.group != nil && l.welcome.Group != "" {
		c.group.Follow(l.welcome, l.addr.String())
	}
	l.carryTraining(c.training)
	for _, p := range c.calls.Pending() {
		l.out.Send(c.frameLocked(p))
	}
}

// loop keeps the connection until Close or a refusal.
func (c *Client) loop(l *clientConn) {
	pause := c.newBackoff()
	for {
		dropped, err := c.read(l)
		c.mu.Lock()
		c.conn = nil
		c.mu.Unlock()
		err = l.brokenBy(err)
		l.close()
		if c.ended() {
			return
		}
		if !c.pace(l, err, pause) {
			c.giveUp(c.life.Err())
			return
		}
		c.resign()
		s := c.newSearch(l, err)
		if l, err = c.reconnect(pause, s, err, dropped); err != nil {
			c.giveUp(err)
			return
		}
		c.adopt(l)
		s.succeeded(l)
		c.resumed(l.welcome, s.last, dropped)
	}
}

// pace keeps a client from going round among servers that let it in and end the connection
// at once. It reports false if the client ends.
func (c *Client) pace(l *clientConn, cause error, pause *backoff.Backoff) bool {
	if time.Since(l.opened) > time.Second {
		pause.Reset()
		c.moved, c.ignoring = 0, ""
		return true
	}
	var to *redirected
	if errors.As(cause, &to) {
		c.moved++
	}
	if to != nil && c.moved >= maxRedirects && c.ignoring == "" {
		c.ignoring = "again and again"
		c.log.Warn("servers redirect this node again and again; trying on, with pauses", "redirects", c.moved, "from", l.addr.String(), "host", to.to.Host)
	}
	return pause.Wait(c.life)
}

// ended reports whether nothing is answered any more.
func (c *Client) ended() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.final != nil || c.leaving
}

// resumed tells the observer what the welcome of a reconnect means.
func (c *Client) resumed(w, last wire.Welcome, dropped bool) {
	if w.Embedded && !last.Embedded {
		c.log.Warn("the control plane at " + c.endpoint.name() + " was a server of its own, and now a node of this run hosts it; " +
			"start nodes whose endpoint is meant for `rallypoint serve` with is_host=0, so that none of them takes its place while it is down")
	}
	c.mu.Lock()
	claim := c.claim
	c.mu.Unlock()
	succeeded := w.Group != "" && w.Group == last.Group && w.Term > last.Term // it knows the round from those who come
	lost := w.Server == last.Server || w.Notice.Waiting > 0 && !succeeded
	if !w.Resumed && claim.Round > 0 && lost && !dropped {
		reason := w.Notice.Reason
		if reason == "" {
			reason = "it was away for too long"
		}
		c.obs.Dropped(rendezvous.Errorf(rendezvous.CodeEvicted, "run %q: node %s is not in round %d any more: %s",
			c.params.RunID, c.node, claim.Round, reason))
	}
	c.obs.Updated(w.Notice)
}

// giveUp ends a client that cannot come back.
func (c *Client) giveUp(err error) {
	var refusal *rendezvous.Error
	if c.life.Err() != nil || !errors.As(err, &refusal) {
		return
	}
	c.fail(refusal)
	c.obs.Dropped(refusal)
}

// read serves one connection until it breaks; dropped tells that the control
// plane has said why.
func (c *Client) read(l *clientConn) (dropped bool, err error) {
	stop := context.AfterFunc(c.life, func() { l.conn.Close() })
	defer stop()
	for {
		f, err := l.frames.NextFrame(wire.MaxFrame)
		if err != nil {
			return dropped, err
		}
		switch f := f.(type) {
		case wire.Reply:
			c.answered(f)
		case wire.Notice:
			c.mu.Lock()
			c.facts = f.Notice.Facts
			c.mu.Unlock()
			c.obs.Updated(f.Notice)
		case wire.Progress:
			c.obs.Progressed(c.hinted(f.Progress))
		case wire.Drop:
			dropped = true
			if f.Err == nil {
				f.Err = rendezvous.ErrEvicted
			}
			c.obs.Dropped(f.Err)
		case wire.Goodbye:
			return dropped, errors.New("the control plane said goodbye")
		case wire.Standbys:
			c.listed(f, l)
		case wire.Redirect:
			return dropped, &redirected{f}
		case wire.Transfer:
			c.transfer(f, l)
		case wire.Beat, wire.Unknown:
		default:
			return dropped, fmt.Errorf("%w: a frame %q from the control plane", wire.ErrMalformed, wire.NameOf(f))
		}
	}
}

func (c *Client) answered(f wire.Reply) {
	c.mu.Lock()
	p := c.calls.Take(f.Number)
	if o, ok := f.Result.(rendezvous.Outcome); ok && p != nil {
		c.claim, c.facts = o.LastRound(), o.Facts() // this node may have to say hello before it has returned it
	}
	c.mu.Unlock()
	switch {
	case p == nil: // answered before, on another connection
	case f.Err != nil:
		p.Call.Finish(nil, f.Err)
	default:
		p.Call.Finish(f.Result, nil)
	}
}
