package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"syscall"
	"time"

	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/succession"
	"rallypoint/internal/backoff"
	"rallypoint/internal/wording"
)

const (
	// evidencePatience limits one new dial to a host whose connection has ended, hello included.
	evidencePatience = 2 * time.Second
	// recheck is how often a waiting standby, and a node whose servers are silent, dials the host
	// again.
	recheck = 200 * time.Millisecond
	// reachEvery is how often the standby that goes first is dialled.
	reachEvery = 50 * time.Millisecond
	// gatherTries bounds the dials to a host that lets this node in and ends each connection: 2 s.
	gatherTries = 100
	// lookPatience bounds the last look at the other standbys before a takeover.
	lookPatience = 300 * time.Millisecond
	// askEvery is how often a standby that waits for voters asks all servers, and the endpoint.
	askEvery = time.Second
	// silenceEvery is how often the silence of the host is logged.
	silenceEvery = 10 * time.Second
)

// errEarlier is why a server is not followed.
var errEarlier = errors.New("it is a server of an earlier term, which another one has succeeded")

// errSuperseded is why this node does not host after all.
var errSuperseded = errors.New("another node hosts the control plane by now")

// search is how a node finds its control plane again after a connection to it is gone.
// It belongs to the goroutine that calls Again.
type search struct {
	f        *Finder
	last     wire.Welcome   // of the connection that is gone
	addr     netip.AddrPort // of the server that was dialled
	begun    time.Time
	evidence succession.Evidence
	proven   time.Time      // when the evidence was complete; zero: it is not
	to       netip.AddrPort // where the last redirect points to; zero: nowhere
	orderly  bool           // the server itself has named its successor
	asked    bool           // all that stand by were asked once
	told     string         // why no takeover follows, as it was logged last
	silent   time.Time      // when the log told last that the host is silent
	first    bool
	hostErr  error // how the last hello to the host that is gone has ended

	patience time.Duration // for how long those that were asked last hold this node up: see heldUpBy
	refused  time.Time     // since then nobody does for good; zero: somebody does
}

func (f *Finder) newSearch(l *Conn, cause error) *search {
	s := &search{f: f, last: l.Welcome, addr: l.Addr, begun: f.network.now(), first: true}
	s.evidence = succession.Evidence{Ended: store.EndedByPeer(cause), Direct: l.direct(), Silent: l.WasSilent}
	s.silent = s.begun
	if to, ok := errors.AsType[*wire.Redirected](cause); ok {
		s.orderly, s.evidence.Ended = true, true // it says itself that it does not host
		switch {
		case f.Hosting():
		case to.To.Host == l.Addr.String():
			f.ignored(inACircle, to.To)
		default:
			s.to = f.accept(to.To)
		}
	}
	return s
}

// gone says that nobody is left, if all have refused for a lease whom this node has asked: those that it knows, and
// the endpoint. A lease is the time that a healthy job takes to have another host that this node finds, and to lose
// a node that a firewall refuses. So it does if this node votes, no leader can be elected for a lease since the others are
// gone, and it may not found the control plane anew, whoever else waits for one. The error is nil where nobody votes,
// and while this node may take the control plane over, or found it anew, since it has proof that the others are dead.
// Nodes that wait as this one does are asked, too, and hold it up no longer than one of them may take to take over.
func (s *search) gone() error {
	f := s.f
	since := time.Duration(0)
	switch {
	case s.patience == forever:
		s.refused = time.Time{}
	case s.refused.IsZero():
		s.refused = f.network.now()
	default:
		since = s.since(s.refused)
	}
	stranded, patience := f.group.Stranded()
	proof := stranded > 0 && patience > 0 || !f.group.Votes() && !s.evidence.Silent && s.evidence.Proves()
	limit := max(s.patience, f.Params.LeaseTimeout)
	if patience == 0 && stranded > since {
		since, limit = stranded, f.Params.LeaseTimeout
	}
	if !s.last.Embedded || !f.HasVoters() || proof || since < limit {
		return nil
	}
	f.group.Close()
	return rendezvous.Errorf(rendezvous.CodeConnection,
		"run %q: nobody is left who could host it: for %s the addresses have refused connections where that could be; it has ended while this node was cut off, the other nodes have died, or a firewall rejects what this machine sends; to continue it, start its nodes again",
		f.Params.RunID, wording.Seconds(since))
}

// forever is the patience with a server that may know more, or is silent.
const forever = time.Duration(math.MaxInt64)

// heldUpBy is for how long a server that has answered so keeps this node from giving the run up: not at all if it
// refuses; until it may have taken over if it waits for a host as this node does, of which neither votes, nor takes over
// what the voters may have ended; else for good.
func (s *search) heldUpBy(a helloAnswer) time.Duration {
	to, moved := errors.AsType[*wire.Redirected](a.err)
	switch g := s.f.group; {
	case errors.Is(a.err, syscall.ECONNREFUSED), s.f.own(a.addr):
		return 0
	case moved && to.To.Host == "" && s.evidence.Silent && g != nil && !g.Votes() && g.StandsWithoutVote(a.addr.String()):
		return (1 + succession.GiveUp) * s.f.Params.LeaseTimeout
	}
	return forever
}

// pace keeps a node from going round among servers that let it in and end the connection
// at once. It reports false if ctx ends.
func (f *Finder) pace(ctx context.Context, l *Conn, cause error) bool {
	if time.Since(l.opened) > time.Second {
		f.pause.Reset()
		f.moved, f.ignoring = 0, ""
		return true
	}
	var to *wire.Redirected
	if errors.As(cause, &to) {
		f.moved++
	}
	if to != nil && f.moved >= wire.MaxRedirects && f.ignoring == "" {
		f.ignoring = "again and again"
		f.Log.Warn("servers redirect this node again and again; trying on, with pauses", "redirects", f.moved, "from", l.Addr.String(), "host", to.To.Host)
	}
	return f.pause.Wait(ctx)
}

// accept returns where a redirect leads; the zero address if it leads nowhere: it names no
// address, this process, or an earlier server of the group.
func (f *Finder) accept(to wire.Redirect) netip.AddrPort {
	if to.Host == "" || f.group == nil {
		return netip.AddrPort{}
	}
	wrong, addr := "", to.Addr()
	current := f.group.Current()
	switch {
	case !addr.IsValid():
		wrong = "its address is none"
	case !succession.Believable(to.Term):
		wrong = fmt.Sprintf("there is no term %d", to.Term)
	case to.Host == f.group.Self():
		wrong = "it points to this process"
	case to.Group == current.Group && to.Term < current.Term:
		wrong = fmt.Sprintf("its term %d is over", to.Term)
	}
	if wrong != "" {
		f.ignored(wrong, to)
		return netip.AddrPort{}
	}
	return addr
}

const inACircle = "it points back to a server that sends this node on"

// ignored tells, once in a row, that a redirect is not followed.
func (f *Finder) ignored(why string, to wire.Redirect) {
	if f.ignoring != why {
		f.ignoring = why
		f.Log.Warn("ignored a redirect: "+why, "host", to.Host, "term", to.Term)
	}
}

// attempt tries once to reach the control plane, or takes it over.
func (s *search) attempt(ctx context.Context) (*Conn, error) {
	f := s.f
	if f.Hosting() || f.group == nil || s.last.Group == "" {
		if err := f.resolve(ctx); err != nil {
			return nil, err
		}
		return f.dialHello(ctx, f.targets())
	}
	parent := ctx
	ctx, done := f.untilElected(ctx)
	defer done()
	if term := f.group.Elected(); term > 0 {
		return s.lead(parent, term)
	}
	if f.foundAnew() {
		return f.dialHello(parent, f.targets())
	}
	if s.first {
		s.first = false
		f.group.Lost(s.evidence, s.last.Group, s.last.Term)
		f.group.Ask()
	}
	if to := s.to; to.IsValid() {
		s.to = netip.AddrPort{}
		if l, err := s.race(ctx, []netip.AddrPort{to}); err == nil {
			return l, nil
		}
	}
	if l, decided, err := s.succeed(ctx); decided {
		return l, err
	}
	return s.askAll(ctx)
}

// succeed is a standby's way: it gathers evidence and decides, in a loop until it is
// connected. It reports false if there is nothing to decide: this node does not stand by,
// cannot tell, or waits for voters, and the others of the job may have founded another group.
func (s *search) succeed(ctx context.Context) (l *Conn, decided bool, err error) {
	f := s.f
	begun, looked := f.network.now(), false
	for ctx.Err() == nil {
		waited := time.Duration(0)
		if !s.proven.IsZero() {
			waited = s.since(s.proven)
		}
		changed := f.group.Changed()
		if to := f.group.Newer(s.last.Group, s.last.Term); to != "" {
			if l, _ = s.reach(ctx, to, true); l != nil {
				return l, true, nil
			} // it may be dead, too
		}
		v, standsBy := f.group.Input(s.evidence, s.last.Term, waited)
		if !standsBy {
			return nil, false, nil
		}
		switch d := succession.Decide(v); d.Act {
		case succession.TakeOver:
			if !looked { // one of them may have taken over while this process was stopped
				looked = true
				if to := f.accept(f.askStandbys(lookPatience, s.last, s.addr)); to.IsValid() {
					if l, err = s.race(ctx, []netip.AddrPort{to}); l != nil || isRefusal(err) {
						return l, true, err
					}
				}
				continue
			}
			l, err = s.takeOver(ctx, d.Term, v.Waited >= v.Lease)
			return l, true, err
		case succession.Gather:
			// A process without the token has the host's port now, perhaps: others are asked
			// beside it.
			if l, err = s.gather(ctx); l != nil || isRefusal(err) && !isAuth(err) {
				return l, true, err
			}
			if !s.evidence.Proves() {
				return nil, false, nil
			}
			continue
		case succession.Follow:
			if l, err = s.reach(ctx, f.group.AddrOf(d.Node), d.Term > 0); l != nil || isRefusal(err) {
				return l, true, err
			}
			f.network.await(ctx, changed, reachEvery)
			continue
		case succession.Wait:
			if v.Votes {
				s.tellCandidate()
			}
		default:
			if s.evidence.Ended {
				s.tellOnce("this node does not take the control plane over: " + d.Why)
			}
			return nil, false, nil
		}
		f.network.await(ctx, changed, recheck)
		if f.group.Elected() > 0 {
			return nil, true, errElected
		}
		if l, _, err = s.dialOnce(ctx); l != nil || isRefusal(err) && !isAuth(err) {
			return l, true, err
		}
		if f.HasVoters() && s.since(begun) >= askEvery {
			return nil, false, nil
		}
	}
	return nil, true, ctx.Err()
}

// tellCandidate logs that this node votes, and campaigns.
func (s *search) tellCandidate() {
	text := "the host seems dead from here, and this node is a candidate"
	if awaited := s.f.group.Awaited(); awaited != nil {
		text += "; it waits for the votes of " + wording.Names(awaited)
	}
	if since, patience := s.f.group.Stranded(); since > 0 && patience > 0 {
		text += "; the voters that are left are no majority, and if nobody hosts it founds the control plane anew after " + wording.Seconds(patience)
	}
	s.tellOnce(text)
}

// tellOnce logs a text, unless it was the last one.
func (s *search) tellOnce(text string) {
	if s.told != text {
		s.told = text
		s.f.Log.Warn(text)
	}
}

// takeOver makes this node host without a vote. waited tells that others had their turn before.
func (s *search) takeOver(ctx context.Context, term uint64, waited bool) (*Conn, error) {
	f := s.f
	if waited {
		f.Log.Warn("the standbys that go first do not answer: this node takes over", "waited", s.since(s.proven).Round(time.Millisecond))
	}
	return s.host(ctx, rendezvous.Succession{Term: term, From: s.last.HostNode, Facts: f.Hello().LastRound.Facts, Alone: true}, s.since(s.begun), s.deadText())
}

// host makes this node host, after took without a host, and connects it to itself.
func (s *search) host(ctx context.Context, next rendezvous.Succession, took time.Duration, text string) (*Conn, error) {
	f := s.f
	if !f.takeOver(next, took) {
		return nil, errSuperseded
	}
	f.Log.Warn(text, "host", f.called(cmp.Or(next.From, s.last.HostNode)), "term", next.Term)
	return f.dialHello(ctx, f.targets())
}

func (s *search) deadText() string {
	return fmt.Sprintf("the control plane's host is dead (its process ended %s ago): this node hosts now", s.ago())
}

// gather dials the host until the evidence is complete or points elsewhere. A connection
// is returned if the host, or one that was started in its place, answers.
func (s *search) gather(ctx context.Context) (*Conn, error) {
	for tries := 0; ctx.Err() == nil && tries < gatherTries; tries++ {
		l, dial, err := s.dialOnce(ctx)
		switch {
		case l != nil || isRefusal(err):
			return l, err
		case dial == succession.DialSilent || dial == succession.DialAnswered:
			return nil, err
		case s.evidence.Proves():
			s.proven = s.f.network.now()
			return nil, nil
		}
		s.f.network.sleep(ctx, succession.DialEvery)
	}
	return nil, ctx.Err()
}

// dialOnce dials the address of the host that is gone, and counts how that ends.
func (s *search) dialOnce(ctx context.Context) (*Conn, succession.Dial, error) {
	ctx, cancel := context.WithTimeout(ctx, evidencePatience)
	defer cancel()
	l, err := s.f.sayHello(ctx, s.addr)
	if to, moved := errors.AsType[*wire.Redirected](err); moved {
		s.to = s.f.accept(to.To)
	}
	dial := dialOf(err)
	if s.evidence.Observe(dial); s.evidence.Proves() {
		s.f.group.Proven(s.last.HostNode)
	}
	return l, dial, err
}

// reach says hello to a standby that hosts, or is about to: while that one is silent to the
// host that is gone, too, which may be started again.
func (s *search) reach(ctx context.Context, to string, hosts bool) (*Conn, error) {
	addr, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, err
	}
	list := []netip.AddrPort{addr}
	if !hosts {
		list = append(list, s.addr)
	}
	ctx, cancel := context.WithTimeout(ctx, standby.HoldHello+evidencePatience)
	defer cancel()
	return s.race(ctx, list)
}

// askAll tries the lost server again and all standbys, then the endpoint. A server whose process
// is most likely dead comes after the first standby: it may have been started again while the
// standbys are silent.
func (s *search) askAll(ctx context.Context) (*Conn, error) {
	f := s.f
	if !s.asked {
		s.asked = true
		// The nodes of a large job do not all come at one time.
		if !f.network.sleep(ctx, backoff.Below(min(time.Duration(f.Params.Max)*reconnectPerNode, reconnectSpread))) {
			return nil, ctx.Err()
		}
	}
	var others []netip.AddrPort
	for _, text := range append(f.group.Current().Servers, s.last.Servers...) {
		if addr, err := netip.ParseAddrPort(text); err == nil && text != f.group.Self() {
			others = append(others, addr)
		}
	}
	if len(others) > 2 {
		backoff.Shuffle(others[1:])
	}
	place := 0
	if s.evidence.Ended && s.evidence.Direct { // a standby knows, if it lives
		place = min(1, len(others))
	}
	list := slices.Insert(others, place, s.addr)
	resolveErr := f.resolve(ctx)
	if isRefusal(resolveErr) {
		return nil, resolveErr
	}
	if resolveErr == nil {
		list = append(list, f.targets()...)
	}
	if s.patience = 0; resolveErr != nil {
		s.patience = forever
	}
	l, err := s.race(ctx, list)
	if err != nil {
		s.notice()
		err = cmp.Or(s.gone(), err)
	}
	return l, err
}

// notice logs from time to time that the host is silent, and what that means. It also notices
// when a silent host dies.
func (s *search) notice() {
	err := s.hostErr
	if store.EndedByPeer(err) && !s.evidence.Ended {
		s.evidence.Ended = true // a connection to it stood, and was ended by its side
		s.f.group.Lost(s.evidence, s.last.Group, s.last.Term)
		s.f.group.Ask()
	}
	if err == nil || errors.Is(err, syscall.ECONNREFUSED) || store.EndedByPeer(err) || errors.As(err, new(*wire.Redirected)) || s.since(s.silent) < silenceEvery {
		return
	}
	s.silent = s.f.network.now()
	next := "no node takes over without proof; restart it, or end the job"
	if voters := s.f.group.Voters(); voters != nil {
		next = "a majority of it and the voters " + wording.Names(voters) + " may elect another one; start again those of them that are down"
	}
	s.f.Log.Warn(fmt.Sprintf("the host is silent for %s: its machine or network is down, or the process is stopped; %s", s.ago(), next), "host", s.f.called(s.last.HostNode))
}

func (s *search) since(t time.Time) time.Duration { return s.f.network.since(t) }

// ago is the time since the connection was lost as the log shows it.
func (s *search) ago() string { return wording.Seconds(s.since(s.begun)) }

// mayStartAgain reports whether a host is started again at an address: where it has hosted, and
// at the endpoint.
func (s *search) mayStartAgain(addr netip.AddrPort) bool {
	return addr == s.addr || slices.Contains(s.f.targets(), addr)
}

func (f *Finder) wrong(l *Conn, addr netip.AddrPort) error {
	if f.endpoint.list != nil && (l.Welcome.Group == "" || l.Welcome.Embedded) {
		return rendezvous.Errorf(rendezvous.CodeInvalid,
			"the endpoint %q is a list of servers, but the one at %s has no peers, so that nodes would meet at different ones: start all with `rallypoint serve --peers %s`, or name one of them alone",
			f.Params.Endpoint, addr, f.endpoint.String())
	}
	if f.group == nil {
		return nil
	}
	current := f.group.Current()
	if l.Welcome.Group == current.Group && l.Welcome.Term < current.Term || l.Welcome.Group != "" && !succession.Believable(l.Welcome.Term) {
		return errEarlier
	}
	return nil
}

// succeeded tells that another server hosts than before.
func (s *search) succeeded(l *Conn) {
	w := l.Welcome
	host := "node " + s.f.called(w.HostNode)
	if !w.Embedded {
		host = "server " + w.HostNode // of several
	}
	switch {
	case s.f.moved > wire.MaxRedirects: // which was told
	case s.last.HostNode == s.f.Node && s.f.Hello().LastRound.Round == 0: // as its server has told
	case s.f.Hosting() || w.Group == "" || w.Group == s.last.Group && w.Term == s.last.Term:
	case s.orderly:
		s.f.Log.Info(host+" hosts the control plane now", "address", l.Addr.String(), "term", w.Term)
	case w.Group == s.last.Group && s.evidence.Ended:
		s.f.Log.Warn(fmt.Sprintf("the control plane's host is dead (its process ended %s ago): %s hosts now", s.ago(), host),
			"address", l.Addr.String(), "term", w.Term)
	default:
		s.f.Log.Warn(host+" hosts the control plane now", "address", l.Addr.String(), "term", w.Term)
	}
	if w.Embedded && !s.last.Embedded {
		s.f.Log.Warn("the control plane at " + s.f.endpoint.String() + " was a server of its own, and now a node of this run hosts it; " +
			"start nodes whose endpoint is meant for `rallypoint serve` with is_host=0, so that none of them takes its place while it is down")
	}
}
