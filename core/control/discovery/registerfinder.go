package discovery

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/register"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/succession"
	"rallypoint/internal/host"
)

// RegisterConfig says for which node a RegisterFinder searches, and in which register.
type RegisterConfig struct {
	Config
	Register register.Register
	// OwnHost returns the address, or the name, by which other nodes reach this process. It is called
	// once the register was read.
	OwnHost func() string
	// Close, if set, ends the register.
	Close func()
}

// RegisterFinder is the client.Finder that finds the control plane of a node's run by the record that its leader keeps
// in a register, or leads the run. It is for one goroutine at a time, as Finder is.
type RegisterFinder struct {
	seeker
	noStandbys
	elector *register.Elector
	ownHost func() string
	end     func() // ends the register; nil: nothing does
	begun   bool

	// Of the goroutine that searches.
	listener net.Listener // for the control plane that this process may lead; nil: there is none
	addr     string       // where others reach it

	// Guarded by mu.
	last wire.Welcome // of the last connection
}

// NewRegister makes a finder, which touches neither network nor register before Find.
func NewRegister(cfg RegisterConfig) *RegisterFinder {
	f := &RegisterFinder{ownHost: cfg.OwnHost, end: cfg.Close}
	f.begin(cfg.Config, f, true)
	p := &f.Params
	f.elector = register.New(register.Config{Register: cfg.Register, Place: p.Endpoint, RunID: p.RunID, Node: f.Node, Lease: p.LeaseTimeout})
	return f
}

// Find implements client.Finder. A register that cannot be reached is not waited for, unlike a control
// plane that another node is about to host.
func (f *RegisterFinder) Find(ctx context.Context) (*Conn, error) {
	if err := f.openToken(); err != nil {
		return nil, err
	}
	start := f.network.now()
	told := &progress{observer: f.Observer, headline: "looking for the control plane by " + f.Params.Endpoint, start: start}
	if err := f.reach(ctx, start, told); err != nil {
		return nil, err
	}
	if !f.begun {
		f.begun = true
		f.helpers.Go(func() { f.elector.Run(f.life) })
		f.helpers.Go(f.obey)
	}
	s := &registerSearch{f: f, begun: start}
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
func (f *RegisterFinder) reach(ctx context.Context, start time.Time, told *progress) error {
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
		}
		told.tell(err)
		if !f.pause.Wait(reading) {
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

func (f *RegisterFinder) followed(l *Conn) {
	f.mu.Lock()
	f.last = l.Welcome
	f.mu.Unlock()
}

func (f *RegisterFinder) introduce(h *wire.Hello) {
	f.mu.Lock()
	h.InHost, h.Group, h.Term = f.hosting != nil, f.last.Group, f.last.Term
	f.mu.Unlock()
	h.Machine = host.Boot()
	h.Features = append(h.Features, wire.FeatureSuccession)
}

func (f *RegisterFinder) wrong(l *Conn, _ netip.AddrPort) error {
	if r := f.elector.Leadership().Record; r != nil && (l.Welcome.Group != r.Group || l.Welcome.Term < r.Term) {
		return errAnotherJob
	}
	return nil
}

func (f *RegisterFinder) Again(ctx context.Context, l *Conn, cause error, told bool) (*Conn, error) {
	second, cause, searches := f.lost(l, cause)
	if second != nil {
		return second, nil
	}
	if !searches || f.network.since(l.opened) < time.Second && !f.pause.Wait(ctx) {
		return nil, context.Canceled
	}
	s := &registerSearch{f: f, begun: f.network.now(), last: l.Welcome, evidence: succession.Evidence{Ended: store.EndedByPeer(cause), Direct: l.direct()}}
	to, orderly := errors.AsType[*wire.Redirected](cause)
	if orderly {
		f.Log.Debug("the control plane sends this node on", "to", to.To.Host)
	}
	l, err := f.reconnect(ctx, cause, told || orderly, s.attempt, s.wait)
	if err != nil {
		return nil, err
	}
	s.succeeded(l)
	return f.found(l), nil
}

func (f *RegisterFinder) Close() {
	f.cancel()
	f.helpers.Wait() // nothing else writes to the register from here on
	f.resign(context.Background())
	if f.end != nil {
		f.end()
	}
}
