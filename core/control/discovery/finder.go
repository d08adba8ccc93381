package discovery

import (
	"context"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/internal/backoff"
)

// Config says for which node a Finder searches.
type Config struct {
	Params   params.Params
	Servers  params.Servers  // what Params.Endpoint says
	Node     string          // its id
	Observer member.Observer // is told for what the search waits, and when the control plane is out of reach
	Log      *slog.Logger
	Start    StartHost // starts a control plane in this process; nil: never

	// Hello returns the node's present hello, to which the finder adds its knowledge of the
	// servers.
	Hello func() wire.Hello
}

// Finder finds the control plane of a node's run. Find comes first, then Again after each
// connection that has ended; these and Answer are called by one goroutine at a time.
type Finder struct {
	Config
	network network

	life    context.Context // of the helpers; ends with Close
	cancel  context.CancelFunc
	helpers sync.WaitGroup // liveness connections and probing

	group   *standby.Group // what is known of the servers of the run; nil: one node is all
	servers *peer.Check    // whose control plane is believed; nil: every user's
	token   *secret.Token  // nil: none; set by Find

	// Of the goroutine that searches.
	endpoint   endpoint
	listening  []netip.AddrPort // of the server in this process
	atEndpoint bool             // that server is where the endpoint points to
	bound      time.Time        // when bindEndpoint tried last
	pause      *backoff.Backoff // between attempts, once a connection is gone
	ignoring   string           // why a redirect was not followed, as it was logged last
	moved      int              // connections in a row that were opened, and ended by a redirect at once
	unanswered atomic.Int32     // hellos in a row that a server did not answer, since the last welcome

	following
	hosting Host // nil: this process does not host
	waiting Host // the server in this process that stands by; nil: there is none
	probing context.CancelFunc
	warning string

	onElected    func() // ends a wait of the search; nil: there was none
	looking      bool   // standbys are being asked who hosts
	transferring bool   // this node is becoming the host because the one before asks it to
}

// New makes a finder, which touches no network before Find.
func New(cfg Config) *Finder {
	f := &Finder{Config: cfg, network: systemNetwork(), endpoint: newEndpoint(cfg.Servers)}
	p := &f.Params
	if f.Start == nil || f.endpoint.list != nil && p.IsHost == nil {
		p.IsHost = new(false)
	}
	if p.Max > 1 || f.endpoint.list != nil {
		f.group = standby.NewGroup(p.RunID, f.Node, p.LeaseTimeout, p.NoQuorum)
	}
	if p.TokenFile == "" && p.OneMachine() && (p.IsHost == nil || *p.IsHost) {
		f.servers = peer.NewCheck(p, &net.TCPAddr{})
	}
	f.pause = newBackoff(p.Max)
	f.life, f.cancel = context.WithCancel(context.Background())
	return f
}

// Find finds the control plane or starts to host it. Refusals are *rendezvous.Errors. If ctx ends
// first, the error says what was tried, and Find may be called again.
func (f *Finder) Find(ctx context.Context) (*Conn, error) {
	if f.Params.TokenFile != "" && f.token == nil {
		token, err := secret.OpenToken(f.Params.TokenFile, f.Log)
		if err != nil {
			return nil, err
		}
		f.token = token
	}
	l, err := f.findOrHost(ctx)
	if err != nil {
		f.stopHosting()
		f.setListening(nil)
		f.atEndpoint = false
		f.endpoint.hosted = nil
		if f.group != nil {
			f.group.StepDown(wire.Redirect{}) // the next Find begins without a group
		}
		return nil, err
	}
	f.follows(l)
	if f.group != nil && f.Start != nil {
		f.helpers.Go(f.keepLiveness)
		if !f.Params.NoQuorum {
			f.helpers.Go(func() { f.group.TakePart(f.life, f.obey, func() {}) })
		}
	}
	return l, nil
}

// Again finds the control plane after cause has ended a connection. told means that the
// control plane has said why, so that its loss is no news for the observer. The error is a
// refusal, or tells that the search has ended with ctx or for Leave.
func (f *Finder) Again(ctx context.Context, l *Conn, cause error, told bool) (*Conn, error) {
	f.mu.Lock()
	leaving := f.leaving
	if f.left != nil {
		cause = f.left
	}
	f.current, f.left = nil, nil
	f.mu.Unlock()
	if leaving || !f.pace(ctx, l, cause) {
		return nil, context.Canceled
	}
	f.resign()
	s := f.newSearch(l, cause)
	l, err := s.reconnect(ctx, cause, told)
	if err != nil {
		return nil, err
	}
	f.follows(l)
	s.succeeded(l)
	s.proveLater()
	return l, nil
}

// follows notes which server this node is connected to.
func (f *Finder) follows(l *Conn) {
	f.mu.Lock()
	f.current = l
	f.mu.Unlock()
	if f.group != nil && l.Welcome.Group != "" {
		f.group.Follow(l.Welcome, l.Addr.String())
	}
}

// Answer returns the reply to a frame with which the host lists the standbys, or asks this node
// to be one; nil if there is none. From time to time it tries to listen at the endpoint.
func (f *Finder) Answer(l *Conn, said wire.Frame) wire.Frame {
	if f.group == nil {
		return nil
	}
	switch said := said.(type) {
	case wire.Beat:
		f.bindEndpoint(l)
	case wire.Standbys:
		return f.listed(l, said)
	case wire.Transfer:
		return f.transfer(l, said)
	}
	return nil
}

// Hosting reports whether the control plane runs in this process.
func (f *Finder) Hosting() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hosting != nil
}

// Leave gives a control plane in this process to a standby, or waits until no other node
// is connected to it, at most until ctx ends. This node searches no more after it has given it away.
func (f *Finder) Leave(ctx context.Context) {
	f.mu.Lock()
	host := f.hosting
	f.leaving = host != nil && f.group != nil && ctx.Err() == nil
	handOn := f.leaving
	f.mu.Unlock()
	if host == nil && f.group != nil {
		f.group.Close() // the others need not prove that this node votes no more
	}
	if host == nil || handOn && host.Transfer(ctx) {
		return
	}
	if err := host.WaitIdle(ctx, f.Hello().Session); err != nil {
		f.Log.Warn("the control plane in this process ends while other nodes are connected", "waited for them", err)
	}
}

// Close ends the liveness connections, the probing, and the server in this process. The search
// must have ended.
func (f *Finder) Close() {
	f.cancel()
	f.helpers.Wait()
	if f.group != nil {
		f.group.Close()
	}
	f.stopHosting()
}

// called is a node's name in log lines: its machine, unless that is this node's, too.
func (f *Finder) called(node string) string {
	if machine := rendezvous.MachineOf(node); machine != rendezvous.MachineOf(f.Node) {
		return machine
	}
	return node
}
