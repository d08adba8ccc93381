package discovery

import (
	"context"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/host"
)

// Finder finds the control plane of a node's run. Find comes first, then Again after each
// connection that has ended; these and Answer are called by one goroutine at a time.
type Finder struct {
	seeker
	group *standby.Group // what is known of the servers of the run; nil: one node is all

	// Of the goroutine that searches.
	endpoint   endpoint
	atEndpoint bool      // the server in this process is where the endpoint points to
	bound      time.Time // when bindEndpoint tried last
	ignoring   string    // why a redirect was not followed, as it was logged last
	moved      int       // connections in a row that were opened, and ended by a redirect at once

	// Guarded by mu.
	waiting      Host // the server in this process that stands by; nil: there is none
	probing      context.CancelFunc
	onElected    func() // ends a wait of the search; nil: there was none
	looking      bool   // standbys are being asked who hosts
	transferring bool   // this node is becoming the host because the one before asks it to
}

// New makes a finder, which touches no network before Find.
func New(cfg Config) *Finder {
	f := &Finder{endpoint: newEndpoint(cfg.Params.Servers)}
	if cfg.Start == nil || f.endpoint.list != nil && cfg.Params.IsHost == nil {
		cfg.Params.IsHost = new(false)
	}
	f.begin(cfg, f, cfg.Params.IsHost == nil || *cfg.Params.IsHost)
	p := &f.Params
	if p.Max > 1 || f.endpoint.list != nil {
		f.group = standby.NewGroup(p.RunID, f.Node, p.LeaseTimeout, p.NoQuorum)
	}
	return f
}

// Find finds the control plane or starts to host it. Refusals are *rendezvous.Errors. If ctx ends
// first, the error says what was tried, and Find may be called again.
func (f *Finder) Find(ctx context.Context) (*Conn, error) {
	if err := f.openToken(); err != nil {
		return nil, err
	}
	l, err := f.findOrHost(ctx)
	if err != nil {
		f.stopHosting()
		f.setListening(nil)
		f.atEndpoint = false
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
	second, cause, searches := f.lost(l, cause)
	if second != nil {
		return second, nil
	}
	if !searches || !f.pace(ctx, l, cause) {
		return nil, context.Canceled
	}
	f.resign()
	s := f.newSearch(l, cause)
	l, err := f.reconnect(ctx, cause, told || s.orderly, s.attempt, f.awaitAttempt)
	if err != nil {
		return nil, err
	}
	f.follows(l)
	s.succeeded(l)
	return l, nil
}

// awaitAttempt waits for the next attempt, until this node is elected.
func (f *Finder) awaitAttempt(ctx context.Context) bool {
	pause, done := f.untilElected(ctx)
	defer done()
	if f.group == nil || f.group.Elected() == 0 {
		f.pause.Wait(pause)
	}
	return ctx.Err() == nil
}

func (f *Finder) introduce(h *wire.Hello) {
	hosts := f.Hosting()
	h.InHost = hosts
	if f.group == nil {
		return
	}
	to := f.group.Current()
	h.Group, h.Term, h.Servers = to.Group, to.Term, to.Servers
	h.Machine = host.Boot()
	h.Features = append(h.Features, wire.FeatureSuccession)
	if never := f.Params.IsHost; f.Start != nil && !hosts && (never == nil || *never) {
		h.Features = append(h.Features, wire.FeatureStandby)
	}
}

func (f *Finder) followed(l *Conn) {
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
