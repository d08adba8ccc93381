package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/election"
	"rallypoint/core/election/register"
	"rallypoint/core/member"
	"rallypoint/core/peer"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/core/succession"
	"rallypoint/internal/backoff"
	"rallypoint/internal/wording"
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
	pause    *backoff.Backoff
	listener net.Listener // for the control plane that this process may lead; nil: there is none
	addr     string       // where others reach it

	mu        sync.Mutex
	hosting   Host // nil: this process does not lead
	listening []netip.AddrPort
	current   *Conn        // the last one that was found; nil: a search is under way
	followed  wire.Welcome // of the last one
	left      error        // why current was ended here; nil: it was not
	leaving   bool
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
	f.pause = backoff.New(firstPause, min(max(time.Duration(p.Max)*capPerNode, shortCap), longestPause))
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
			return nil, f.notFound(ctx, err, f.network.since(start))
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
	if own, ok := errors.AsType[*rendezvous.Error](err); ok {
		return own
	}
	return rendezvous.Errorf(rendezvous.CodeConnection, "run %q: cannot use %s, tried for %v: %v",
		f.Params.RunID, f.Params.Endpoint, f.network.since(start).Round(10*time.Millisecond), err)
}

// notFound is the error of a search that ran out of time.
func (f *RegisterFinder) notFound(ctx context.Context, last error, tried time.Duration) error {
	code, what := rendezvous.CodeConnection, "no control plane found by "+f.Params.Endpoint
	if errors.Is(ctx.Err(), context.Canceled) {
		code, what = rendezvous.CodeCanceled, "looking for the control plane by "+f.Params.Endpoint+" was canceled"
	}
	return rendezvous.Errorf(code, "run %q: %s, tried for %s; last error: %v", f.Params.RunID, what, tried.Round(time.Millisecond), last)
}

// found notes which leader this node is connected to.
func (f *RegisterFinder) found(l *Conn) *Conn {
	f.pause.Reset()
	f.closeListener()
	f.mu.Lock()
	f.current, f.followed = l, l.Welcome
	f.mu.Unlock()
	return l
}

// Beside implements client.Finder.
func (f *RegisterFinder) Beside(ctx context.Context, l *Conn, silent func() bool) (*Conn, error) {
	if f.Hosting() {
		return nil, errNotBeside
	}
	conn, err := f.network.dialBeside(ctx, l, silent)
	if err != nil {
		return nil, err
	}
	return f.openConn(ctx, conn)
}

// Replace implements client.Finder.
func (f *RegisterFinder) Replace(l, next *Conn) bool {
	if next == nil {
		return false
	}
	f.mu.Lock()
	follows := f.current == l && f.left == nil && !f.leaving
	if follows {
		f.current, f.followed = next, next.Welcome
	}
	f.mu.Unlock()
	if !follows {
		_ = next.Close()
		return false
	}
	f.Log.Warn(secondConnection(l))
	return true
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
		case leaving:
		case deposed && host != nil:
			host.StepDown(to, fmt.Sprintf("node %s leads in term %d", to.Node, to.Term))
			f.helpers.Go(func() { _ = host.Close() })
		case host != nil:
			host.Confirmed()
		case l != nil:
			if why := f.gone(l.Welcome); why != nil {
				f.end(l, why)
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
	v := f.elector.View()
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

// end ends the connection to a leader. Again gets the reason.
func (f *RegisterFinder) end(l *Conn, why error) {
	f.mu.Lock()
	current := f.current == l && f.left == nil
	if current {
		f.left = why
	}
	f.mu.Unlock()
	if current {
		l.Close()
	}
}

func (f *RegisterFinder) mayLead() bool {
	return f.Start != nil && (f.Params.IsHost == nil || *f.Params.IsHost)
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

// Leave implements client.Finder.
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
	f.leaveRecord(ctx, host.Remains(own))
}

// farewell is how long a leader that leaves tries at most to say so in the register, whatever is left
// of its caller's time.
const farewell = time.Second

// leaveRecord says in the register that this process leads no more.
func (f *RegisterFinder) leaveRecord(ctx context.Context, rest election.Remains) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), farewell)
	defer cancel()
	phase := register.Left
	if rest.Over {
		phase = register.Over
		if rest.Ended != nil && rest.Rests && f.ended != nil {
			rest.Ended = register.Later(f.ended)
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

// resign gives up what a search has begun whose caller gives up.
func (f *RegisterFinder) resign(ctx context.Context) {
	f.closeListener()
	f.mu.Lock()
	host := f.hosting
	f.hosting = nil
	f.mu.Unlock()
	if host != nil {
		f.leaveRecord(ctx, host.Remains(f.Hello().Session))
		_ = host.Close()
	}
	f.elector.StepDown(wire.Redirect{})
}

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

// registerSearch is one search for the leader. It belongs to the goroutine of Find or Again.
type registerSearch struct {
	f        *RegisterFinder
	begun    time.Time
	last     wire.Welcome // of the connection that is gone; zero: there was none
	evidence succession.Evidence
	dead     string // the leader whose process is proven dead; "": none
	asked    string // the leader that was dialled last
	seen     <-chan struct{}
}

// errAgain is why an attempt is followed by another one at once.
var errAgain = errors.New("another process leads by now")

// wait waits for the next attempt; it reports false if ctx has ended.
func (s *registerSearch) wait(ctx context.Context) bool {
	if ctx.Err() != nil {
		return false
	}
	fired, stop := s.f.network.timer(s.f.pause.Next())
	defer stop()
	select {
	case <-s.seen:
	case <-fired:
	case <-ctx.Done():
		return false
	}
	return true
}

// attempt tries once to reach the leader, or to lead.
func (s *registerSearch) attempt(ctx context.Context) (*Conn, error) {
	f := s.f
	for {
		s.seen = f.elector.Changed()
		if f.host() != nil {
			return f.dialOwn(ctx)
		}
		if err := f.elector.Look(ctx); err != nil {
			return nil, fmt.Errorf("reading %s: %w", f.Params.Endpoint, notFinal(err))
		}
		v := f.elector.View()
		r := v.Record
		var l *Conn
		var err error
		switch {
		case v.Leads: // the answer to its attempt was lost
			f.startHost(ctx, nil)
			continue
		case r == nil || r.Phase != register.Leads || v.Silent || r.Leader == s.dead:
			err = s.stand(ctx, v)
		default:
			l, err = s.ask(ctx, r)
		}
		if !errors.Is(err, errAgain) || ctx.Err() != nil {
			return l, err
		}
	}
}

// notFinal makes an error one that may pass: this node has used the register before.
func notFinal(err error) error {
	if refusal, ok := errors.AsType[*rendezvous.Error](err); ok {
		return errors.New(refusal.Text)
	}
	return err
}

// ask says hello to the leader that the record names.
func (s *registerSearch) ask(ctx context.Context, r *register.Record) (*Conn, error) {
	f := s.f
	if s.asked != r.Leader {
		s.asked = r.Leader
		if r.Group != s.last.Group || r.Term != s.last.Term { // it is not the one whose connection has ended
			s.evidence = succession.Evidence{}
		}
		if s.evidence.Refused = 0; r.Here() { // a refusal by this machine itself is not a firewall's
			s.evidence.Ended, s.evidence.Direct = true, true
		}
	}
	for {
		l, dial, err := f.dial(ctx, r)
		if err == nil || isRefusal(err) {
			return l, err
		}
		s.evidence.Observe(dial)
		switch {
		case s.evidence.Proves():
			s.dead = r.Leader
			return nil, errAgain
		case dial == succession.DialRefused && s.evidence.Ended && s.evidence.Direct:
			if !f.network.sleep(ctx, succession.DialEvery) {
				return nil, ctx.Err()
			}
			continue
		}
		return nil, fmt.Errorf("node %s leads the run in term %d, and this node cannot reach its control plane at %s, tried for %s: %w; its port has to be open to all nodes of the run",
			rendezvous.MachineOf(r.Node), r.Term, r.Addr, wording.Seconds(f.network.since(s.begun)), err)
	}
}

// turn is after how long this node stands for leader: the members of the last round one after the
// other, so that not all write at one time.
func (s *registerSearch) turn() time.Duration {
	last := s.f.Hello().LastRound
	if last.Round == 0 || last.Rank < 0 {
		return longestTurn
	}
	return min(time.Duration(last.Rank)*turnPerRank, longestTurn)
}

const (
	turnPerRank = 2 * time.Millisecond
	longestTurn = 200 * time.Millisecond
)

// stand tries to have this process lead.
func (s *registerSearch) stand(ctx context.Context, v register.View) error {
	f := s.f
	from := v.Record
	if !f.mayLead() {
		return fmt.Errorf("no node leads the run, and this one may not (is_host=0)")
	}
	if from != nil && from.Phase != register.Over {
		fired, stop := f.network.timer(s.turn())
		defer stop()
		select {
		case <-s.seen:
			return errAgain
		case <-fired:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := f.listen(ctx); err != nil {
		return fmt.Errorf("no node leads the run, and this one cannot: %w", err)
	}
	took := time.Duration(0)
	if s.last.Group != "" {
		took = f.network.since(s.begun)
	}
	standing, cancel := context.WithTimeout(f.life, max(f.Params.LeaseTimeout, time.Second)) // not ctx: its end would leave open who leads
	defer cancel()
	led, ended, err := f.elector.Stand(standing, f.addr, s.dead, took)
	switch {
	case err != nil:
		return fmt.Errorf("writing to %s: %w", f.Params.Endpoint, notFinal(err))
	case !led:
		return errAgain
	}
	f.startHost(ctx, ended)
	s.tell(from, v.Silent)
	return errAgain
}

// tell logs that this node leads in the place of another one.
func (s *registerSearch) tell(from *register.Record, silent bool) {
	f := s.f
	to := f.elector.Current()
	if from == nil || from.Phase == register.Over {
		f.Log.Log(context.Background(), f.Params.EventLevel(), "hosting the control plane in this process", "endpoint", f.Params.Endpoint, "listening", to.Host)
		return
	}
	host := rendezvous.MachineOf(from.Node)
	switch {
	case from.Phase == register.Left:
		f.Log.Info("the host leaves: this node hosts now", "host", host, "term", to.Term)
	case silent && from.Leader != s.dead:
		f.Log.Warn("the control plane's host has not written to the register for a lease: this node hosts now", "host", host, "term", to.Term)
	default:
		f.Log.Warn("the control plane's host is dead: this node hosts now", "host", host, "term", to.Term)
	}
}

// succeeded tells that another process leads than before.
func (s *registerSearch) succeeded(l *Conn) {
	if w := l.Welcome; !s.f.Hosting() && (w.Group != s.last.Group || w.Term != s.last.Term) {
		s.f.Log.Warn("node "+rendezvous.MachineOf(w.HostNode)+" hosts the control plane now", "address", l.Addr.String(), "term", w.Term)
	}
}

// listen opens the listener of the control plane that this process may lead, unless it is open.
func (f *RegisterFinder) listen(ctx context.Context) error {
	if f.listener != nil {
		return nil
	}
	host := f.OwnHost()
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
func (f *RegisterFinder) startHost(ctx context.Context, ended *rendezvous.Ended) {
	if err := f.listen(ctx); err != nil { // the listener of an attempt whose answer was late is closed
		f.Log.Warn("this node is to host the control plane, and cannot", "error", err)
		_, _ = f.elector.Leave(ctx, register.Left, nil)
		f.elector.StepDown(wire.Redirect{})
		return
	}
	listening := listenAddrs([]net.Listener{f.listener})
	host := f.Start(HostConfig{
		Params: f.Params, Node: f.Node, Token: f.token, HTTPNames: []string{f.OwnHost(), f.Params.AdvertiseAddr}, Log: f.Log, Elector: f.elector, Ended: ended,
	}, f.listener)
	f.listener = nil
	f.mu.Lock()
	f.hosting, f.listening, f.ended = host, listening, ended
	f.mu.Unlock()
}

// dialOwn connects to the control plane of this process.
func (f *RegisterFinder) dialOwn(ctx context.Context) (*Conn, error) {
	f.mu.Lock()
	to := ownAddrs(f.listening)
	f.mu.Unlock()
	conn, err := f.network.dialAny(ctx, to)
	if err != nil {
		return nil, err
	}
	return f.openConn(ctx, conn)
}

// dial says hello to the leader of a record, and says how the dial has ended.
func (f *RegisterFinder) dial(ctx context.Context, r *register.Record) (*Conn, succession.Dial, error) {
	host, port, _ := net.SplitHostPort(r.Addr)
	number, _ := strconv.ParseUint(port, 10, 16)
	addrs, err := f.network.lookup(ctx, host)
	if err != nil {
		return nil, succession.DialSilent, err
	}
	to := make([]netip.AddrPort, len(addrs))
	for i, a := range addrs {
		to[i] = netip.AddrPortFrom(a, uint16(number))
	}
	conn, err := f.network.dialAny(ctx, to)
	if err == nil {
		var l *Conn
		if l, err = f.openConn(ctx, conn); err == nil {
			return l, succession.DialAnswered, nil
		}
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return nil, succession.DialRefused, err
	case isRefusal(err), errors.As(err, new(*wire.Redirected)):
		return nil, succession.DialAnswered, err
	case store.EndedByPeer(err):
		return nil, succession.DialBroken, err
	}
	return nil, succession.DialSilent, err
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

// registerProgress tells the observer what Find waits for.
type registerProgress struct {
	f     *RegisterFinder
	start time.Time
	last  time.Time
	text  rendezvous.Progress
}

func (p *registerProgress) tell(err error) {
	text := rendezvous.Progress{Headline: "looking for the control plane by " + p.f.Params.Endpoint, Detail: err.Error()}
	tellProgress(p.f.Observer, &p.last, &p.text, p.start, text)
}

// tellProgress tells the observer of a search for what it waits, at the intervals of a server's progress.
func tellProgress(o member.Observer, last *time.Time, told *rendezvous.Progress, start time.Time, text rendezvous.Progress) {
	now := time.Now()
	if now.Sub(start) < wire.ProgressFirst || now.Sub(*last) < wire.ProgressEvery || text == *told {
		return
	}
	*last, *told = now, text
	o.Progressed(text)
}
