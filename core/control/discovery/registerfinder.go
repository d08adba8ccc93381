package discovery

import (
	"cmp"
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/election/register"
	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/core/succession"
	"rallypoint/internal/backoff"
)

// RegisterConfig says for which node a RegisterFinder searches, and in which register. Config.Servers
// is not used.
type RegisterConfig struct {
	Config
	Register register.Register
	// OwnHost returns the address, or the name, by which other nodes reach this process. It is called
	// once the register was read.
	OwnHost func() string
	// Close, if set, ends the register.
	Close func()
}

// RegisterFinder finds the control plane of a node's run by the record that its leader keeps in a
// register, or leads the run. It is for one goroutine at a time, as Finder is.
type RegisterFinder struct {
	RegisterConfig
	elector *register.Elector
	network network

	life    context.Context // of the helpers; ends with Close
	cancel  context.CancelFunc
	helpers sync.WaitGroup
	begun   bool

	servers *peer.Check   // whose control plane is believed; nil: every user's
	token   *secret.Token // nil: none; set by Find

	// Of the goroutine that searches.
	pause      *backoff.Backoff
	unanswered int          // hellos in a row that a leader did not answer
	listener   net.Listener // for the control plane that this process may lead; nil: there is none
	addr       string       // where others reach it

	following
	hosting   Host // nil: this process does not lead
	listening []netip.AddrPort
	followed  wire.Welcome      // of the last connection
	ended     *rendezvous.Ended // how the run was closed when this process began to lead it
}

// NewRegister makes a finder, which touches neither network nor register before Find.
func NewRegister(cfg RegisterConfig) *RegisterFinder {
	f := &RegisterFinder{RegisterConfig: cfg, network: systemNetwork()}
	p := &f.Params
	f.elector = register.New(register.Config{Register: cfg.Register, Place: p.Endpoint, RunID: p.RunID, Node: f.Node, Lease: p.LeaseTimeout})
	if p.TokenFile == "" && p.OneMachine() {
		f.servers = peer.NewCheck(p, &net.TCPAddr{})
	}
	f.pause = newBackoff(p.Max)
	f.life, f.cancel = context.WithCancel(context.Background())
	return f
}

// Find implements client.Finder. A register that cannot be reached is not waited for, unlike a control
// plane that another node is about to host.
func (f *RegisterFinder) Find(ctx context.Context) (*Conn, error) {
	if f.Params.TokenFile != "" && f.token == nil {
		token, err := secret.OpenToken(f.Params.TokenFile, f.Log)
		if err != nil {
			return nil, err
		}
		f.token = token
	}
	start := f.network.now()
	if err := f.reach(ctx, start); err != nil {
		return nil, err
	}
	if !f.begun {
		f.begun = true
		f.helpers.Go(func() { f.elector.Run(f.life) })
		f.helpers.Go(f.obey)
	}
	s := &registerSearch{f: f, begun: start}
	told := &registerProgress{f: f, start: start}
	for {
		l, err := s.attempt(ctx)
		switch {
		case err == nil:
			return f.found(l), nil
		case isRefusal(err):
			f.resign(ctx)
			return nil, err
		}
		told.tell(err)
		if !s.wait(ctx) {
			f.resign(ctx)
			return nil, f.notFound(ctx, err)
		}
	}
}

// reach reads the register for the first time.
func (f *RegisterFinder) reach(ctx context.Context, start time.Time) error {
	reading, cancel := context.WithTimeout(ctx, f.Params.ReadTimeout)
	defer cancel()
	var last error
	for {
		err := f.elector.Look(reading)
		if err != nil && last != nil && reading.Err() != nil { // an attempt that its end has broken off says less
			err = last
		}
		last = err
		switch {
		case err == nil:
			return nil
		case isFinal(err), errors.As(err, new(*register.Unreachable)):
			return registerError(f, start, err)
		case ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled):
			return rendezvous.Errorf(rendezvous.CodeCanceled, "run %q: canceled while it was opening %s: %v", f.Params.RunID, f.Params.Endpoint, err)
		case !f.pause.Wait(reading):
			return registerError(f, start, err)
		}
	}
}

// isFinal reports whether an error of a register does not pass.
func isFinal(err error) bool {
	refusal, ok := errors.AsType[*rendezvous.Error](err)
	return ok && !refusal.Code.Retryable()
}

// registerError is the error of a register that cannot be used, which may say that itself.
func registerError(f *RegisterFinder, start time.Time, err error) error {
	if errors.As(err, new(*rendezvous.Error)) {
		return err
	}
	return rendezvous.Errorf(rendezvous.CodeConnection, "run %q: cannot use %s, tried for %v: %v",
		f.Params.RunID, f.Params.Endpoint, f.network.since(start).Round(10*time.Millisecond), err)
}

// notFound is the error of a search that ran out of time.
func (f *RegisterFinder) notFound(ctx context.Context, last error) error {
	code, what := rendezvous.CodeConnection, "no control plane found by "+f.Params.Endpoint
	if errors.Is(ctx.Err(), context.Canceled) {
		code, what = rendezvous.CodeCanceled, "looking for the control plane by "+f.Params.Endpoint+" was canceled"
	}
	return rendezvous.Errorf(code, "run %q: %s: %v", f.Params.RunID, what, last)
}

// found notes which leader this node is connected to.
func (f *RegisterFinder) found(l *Conn) *Conn {
	f.pause.Reset()
	f.closeListener()
	f.follows(l)
	return l
}

func (f *RegisterFinder) follows(l *Conn) {
	f.mu.Lock()
	f.current, f.followed = l, l.Welcome
	f.mu.Unlock()
}

// Again implements client.Finder.
func (f *RegisterFinder) Again(ctx context.Context, l *Conn, cause error, told bool) (*Conn, error) {
	f.mu.Lock()
	leaving := f.leaving
	cause = cmp.Or(f.left, cause)
	f.current, f.left = nil, nil
	f.mu.Unlock()
	if leaving || f.network.since(l.opened) < time.Second && !f.pause.Wait(ctx) {
		return nil, context.Canceled
	}
	s := &registerSearch{f: f, begun: f.network.now(), last: l.Welcome, evidence: succession.Evidence{Ended: store.EndedByPeer(cause), Direct: l.direct()}}
	to, orderly := errors.AsType[*wire.Redirected](cause)
	if orderly {
		f.Log.Debug("the control plane sends this node on", "to", to.To.Host)
	}
	lost, denied := !told && !orderly, false
	report := func(err error) {
		f.Observer.ConnectionChanged(rendezvous.Errorf(rendezvous.CodeConnection, "run %q: %v", f.Params.RunID, err))
	}
	if lost {
		report(cause)
	}
	for {
		l, err := s.attempt(ctx)
		if err == nil {
			if lost {
				f.Observer.ConnectionChanged(nil)
			}
			s.succeeded(l)
			return f.found(l), nil
		}
		if refusal, ok := errors.AsType[*rendezvous.Error](err); ok && refusal.Code != rendezvous.CodeAuth {
			return nil, refusal
		} else if ok && !denied { // the token is being changed, perhaps
			denied = true
			f.Log.Warn(refusal.Text + "; trying on")
		}
		if !lost && ctx.Err() == nil {
			lost = true
			report(err)
		}
		if !s.wait(ctx) {
			return nil, ctx.Err()
		}
	}
}

// Answer implements client.Finder: a leader asks its nodes nothing.
func (f *RegisterFinder) Answer(*Conn, wire.Frame) wire.Frame { return nil }

// Hosting implements client.Finder.
func (f *RegisterFinder) Hosting() bool { return f.host() != nil }

func (f *RegisterFinder) host() Host {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.hosting
}

// HasVoters implements client.Finder: nobody is asked for a vote.
func (f *RegisterFinder) HasVoters() bool { return false }

// LookElsewhere implements client.Finder: obey does.
func (f *RegisterFinder) LookElsewhere(*Conn) {}

// Hint implements client.Finder.
func (f *RegisterFinder) Hint(p rendezvous.Progress) rendezvous.Progress { return p }

// Close implements client.Finder.
func (f *RegisterFinder) Close() {
	f.cancel()
	f.helpers.Wait()
	f.mu.Lock()
	host := f.hosting
	f.hosting = nil
	f.mu.Unlock()
	if host != nil {
		_ = host.Close()
	}
	f.closeListener()
	if f.RegisterConfig.Close != nil {
		f.RegisterConfig.Close()
	}
}

// openConn says hello on a new connection.
func (f *RegisterFinder) openConn(ctx context.Context, raw net.Conn) (*Conn, error) {
	h := f.Hello()
	h.InHost, h.Machine = f.Hosting(), standby.Machine()
	f.mu.Lock()
	h.Group, h.Term = f.followed.Group, f.followed.Term
	f.mu.Unlock()
	h.Features = append(h.Features, wire.FeatureSuccession)
	return openConn(ctx, raw, h, f.token, func(conn net.Conn) error { return believe(f.servers, conn) })
}

// helloOn is openConn after so many hellos in a row without an answer. silent tells that this one had none either.
func (f *RegisterFinder) helloOn(ctx context.Context, conn net.Conn, unanswered int) (l *Conn, silent bool, err error) {
	return helloInTime(ctx, f.Params.Max, unanswered, func(ctx context.Context) (*Conn, error) { return f.openConn(ctx, conn) })
}
