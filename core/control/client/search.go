package client

import (
	"context"
	"errors"
	"fmt"
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
	// evidencePatience bounds one fresh dial to a host whose connection has ended, hello
	// included.
	evidencePatience = 2 * time.Second
	// recheck is how often a standby that waits, and a node whose servers keep silent, looks at
	// the host once more.
	recheck = 200 * time.Millisecond
	// firstAnswer is about how long a server that is found again may take to answer a hello,
	// beside what all nodes of the job take. It doubles with each one that has no answer, up
	// to handshakeTimeout.
	firstAnswer = 2 * time.Second
	// silenceEvery is how often the log tells that the host is silent.
	silenceEvery = 10 * time.Second
)

// redirected is the error of a connection whose server has named another one.
type redirected struct{ to wire.Redirect }

func (r *redirected) Error() string {
	if r.to.Host == "" {
		return "it is not known yet which node hosts the control plane"
	}
	return "node " + r.to.Node + " hosts the control plane, at " + r.to.Host
}

// errEarlier is why a server is not followed.
var errEarlier = errors.New("it is a server of an earlier term, which another one has succeeded")

// search is how a client finds its control plane again after a connection to it is gone.
// It belongs to the goroutine of loop.
type search struct {
	c        *Client
	last     wire.Welcome   // of the connection that is gone
	addr     netip.AddrPort // of the server that was dialled
	begun    time.Time
	evidence succession.Evidence
	proven   time.Time // when the evidence was complete; zero: it is not
	to       string    // where the last redirect points to; "": nowhere
	orderly  bool      // the server itself has named its successor
	asked    bool      // all that stand by were asked once
	told     string    // why no takeover follows, as it was logged last
	silent   time.Time // when the log told last that the host is silent
	first    bool
	hostErr  error  // how the last hello to the host that is gone has ended
	unlook   func() // ends what look has opened; nil: it was not called
}

func (c *Client) newSearch(l *clientConn, cause error) *search {
	s := &search{c: c, last: l.welcome, addr: l.addr, begun: c.network.now(), first: true}
	s.evidence = succession.Evidence{Ended: store.EndedByPeer(cause), Direct: l.direct()}
	s.silent = s.begun
	var to *redirected
	if errors.As(cause, &to) {
		s.orderly, s.evidence.Ended = true, true // it says itself that it does not host
		switch {
		case c.endpoint.hosted != nil:
		case to.to.Host == l.addr.String():
			c.ignored(inACircle, to.to)
		default:
			s.to = c.accept(to.to)
		}
	}
	return s
}

// direct reports whether the address dialled is the one that the server sees itself.
func (c *clientConn) direct() bool {
	return c.addr.IsValid() && standby.PlainAddr(c.addr).String() == c.welcome.Addr
}

// accept returns where a redirect leads; "" if it leads nowhere: it names no address, this
// process, or an earlier server of the group.
func (c *Client) accept(to wire.Redirect) string {
	if to.Host == "" || c.group == nil {
		return ""
	}
	wrong := ""
	addr, err := netip.ParseAddrPort(to.Host)
	current := c.group.Current()
	switch {
	case err != nil || addr.Addr().IsUnspecified() || addr.Addr().IsMulticast() || addr.Port() == 0:
		wrong = "its address is none"
	case !succession.Believable(to.Term):
		wrong = fmt.Sprintf("there is no term %d", to.Term)
	case to.Host == c.group.Self():
		wrong = "it points to this process"
	case to.Group == current.Group && to.Term < current.Term:
		wrong = fmt.Sprintf("its term %d is over", to.Term)
	}
	if wrong != "" {
		c.ignored(wrong, to)
		return ""
	}
	return to.Host
}

const inACircle = "it points back to a server that sends this node on"

// ignored tells, once in a row, that a redirect is not followed.
func (c *Client) ignored(why string, to wire.Redirect) {
	if c.ignoring != why {
		c.ignoring = why
		c.log.Warn("ignored a redirect: "+why, "host", to.Host, "term", to.Term)
	}
}

// attempt tries once to reach the control plane, or takes it over.
func (s *search) attempt(ctx context.Context) (*clientConn, error) {
	c := s.c
	if c.endpoint.hosted != nil {
		return c.dialHello(ctx, c.endpoint.hosted)
	}
	if c.group == nil || s.last.Group == "" {
		return c.rejoin(ctx)
	}
	if s.first {
		s.first = false
		c.group.Lost(s.evidence, s.last.Group, s.last.Term)
		c.group.Ask()
	}
	if to := s.to; to != "" {
		s.to = ""
		if addr, err := netip.ParseAddrPort(to); err == nil {
			if l, err := s.race(ctx, []netip.AddrPort{addr}); err == nil {
				return l, nil
			}
		}
	}
	l, decided, err := s.succeed(ctx)
	if s.unlook != nil {
		s.unlook()
		s.unlook = nil
	}
	if decided {
		return l, err
	}
	return s.askAll(ctx)
}

// succeed is a standby's way: it gathers evidence and decides, again and again, until it
// is connected. It reports false if nothing is to be decided: this node does not stand by,
// or cannot tell.
func (s *search) succeed(ctx context.Context) (l *clientConn, decided bool, err error) {
	c := s.c
	for ctx.Err() == nil {
		waited := time.Duration(0)
		if !s.proven.IsZero() {
			waited = s.since(s.proven)
		}
		changed := c.group.Changed()
		if to := c.group.Newer(s.last.Group, s.last.Term); to != "" {
			if l, _ = s.reach(ctx, to, true); l != nil {
				return l, true, nil
			} // it may be dead, too
		}
		v, standsBy := c.group.View(s.evidence, s.last.Term, waited)
		if !standsBy {
			return nil, false, nil
		}
		switch d := succession.Decide(v); d.Act {
		case succession.TakeOver:
			if s.unlook == nil {
				s.unlook = c.look(ctx)
				continue
			}
			l, err = s.takeOver(ctx, d.Term, v.Waited >= v.Lease)
			return l, true, err
		case succession.Gather:
			// What does not know the token has the host's port now, perhaps, and is not asked alone.
			if l, err = s.gather(ctx); l != nil || isRefusal(err) && !isAuth(err) {
				return l, true, err
			}
			if !s.evidence.Proves() {
				return nil, false, nil
			}
		case succession.Follow:
			if l, err = s.reach(ctx, c.group.AddrOf(d.Node), d.Term > 0); l != nil || isRefusal(err) {
				return l, true, err
			}
			s.pause(ctx, changed, succession.DialEvery)
		case succession.Wait:
			s.pause(ctx, changed, recheck)
			if l, _, err = s.dialOnce(ctx); l != nil || isRefusal(err) && !isAuth(err) {
				return l, true, err
			}
		default:
			if s.evidence.Ended && s.told != d.Why {
				s.told = d.Why
				c.log.Warn("this node does not take the control plane over: " + d.Why)
			}
			return nil, false, nil
		}
	}
	return nil, true, ctx.Err()
}

// takeOver makes this node host, and connects it to itself. waited tells that others had
// their turn before.
func (s *search) takeOver(ctx context.Context, term uint64, waited bool) (*clientConn, error) {
	c := s.c
	if waited {
		c.log.Warn("the standbys that go first do not answer: this node takes over", "waited", s.since(s.proven).Round(time.Millisecond))
	}
	c.takeOver(term, s.since(s.begun), false)
	c.log.Warn(fmt.Sprintf("the control plane's host is dead (its process ended %s ago): this node hosts now", s.ago()),
		"host", c.called(s.last.HostNode), "term", term)
	return c.dialHello(ctx, c.endpoint.hosted)
}

func isRefusal(err error) bool {
	var refusal *rendezvous.Error
	return errors.As(err, &refusal)
}

// pause waits until a word changes, at most for d.
func (s *search) pause(ctx context.Context, changed <-chan struct{}, d time.Duration) {
	fired, stop := s.c.network.timer(d)
	defer stop()
	select {
	case <-changed:
	case <-fired:
	case <-ctx.Done():
	}
}

// gather dials the host until the evidence is complete or points elsewhere. A connection
// is returned if the host, or one that was started in its place, answers.
func (s *search) gather(ctx context.Context) (*clientConn, error) {
	for tries := 0; ctx.Err() == nil && tries < 40; tries++ {
		l, dial, err := s.dialOnce(ctx)
		switch {
		case l != nil || isRefusal(err):
			return l, err
		case dial == succession.DialSilent || dial == succession.DialAnswered:
			return nil, err
		case s.evidence.Proves():
			s.proven = s.c.network.now()
			return nil, nil
		}
		s.c.network.sleep(ctx, succession.DialEvery)
	}
	return nil, ctx.Err()
}

// dialOnce dials the address of the host that is gone, and counts how that ends.
func (s *search) dialOnce(ctx context.Context) (*clientConn, succession.Dial, error) {
	ctx, cancel := context.WithTimeout(ctx, evidencePatience)
	defer cancel()
	dial := succession.DialSilent
	l, err := s.c.sayHello(ctx, s.addr)
	var to *redirected
	switch {
	case err == nil, isRefusal(err):
		dial = succession.DialAnswered
	case errors.As(err, &to):
		dial, s.to = succession.DialAnswered, s.c.accept(to.to)
	case errors.Is(err, syscall.ECONNREFUSED):
		dial = succession.DialRefused
	case store.EndedByPeer(err):
		dial = succession.DialBroken
	}
	s.evidence.Observe(dial)
	return l, dial, err
}

// reach says hello to a standby that hosts, or is about to: while that one is silent to the
// host that is gone, too, which may be started again.
func (s *search) reach(ctx context.Context, to string, hosts bool) (*clientConn, error) {
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

// askAll tries the server that is gone once more and all that stand by, then the endpoint. One
// whose process is dead, most likely, has its turn behind the first standby: it may have been
// started again while the standbys are silent.
func (s *search) askAll(ctx context.Context) (*clientConn, error) {
	c := s.c
	if !s.asked {
		s.asked = true
		// The nodes of a large job do not all come at one time.
		if !c.network.sleep(ctx, backoff.Below(min(time.Duration(c.params.Max)*reconnectPerNode, reconnectSpread))) {
			return nil, ctx.Err()
		}
	}
	var others []netip.AddrPort
	for _, text := range append(c.group.Current().Servers, s.last.Servers...) {
		if addr, err := netip.ParseAddrPort(text); err == nil && text != c.group.Self() {
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
	resolveErr := c.resolve(ctx, &c.endpoint)
	if isRefusal(resolveErr) {
		return nil, resolveErr
	}
	if resolveErr == nil {
		list = append(list, c.endpoint.targets()...)
	}
	l, err := s.race(ctx, list)
	if err != nil {
		s.notice()
	}
	return l, err
}

// notice tells from time to time that the host is silent, and what that means; and it sees
// a host that was silent die.
func (s *search) notice() {
	err := s.hostErr
	var moved *redirected
	if store.EndedByPeer(err) && !s.evidence.Ended {
		s.evidence.Ended = true // a connection to it stood, and was ended by its side
		s.c.group.Lost(s.evidence, s.last.Group, s.last.Term)
		s.c.group.Ask()
	}
	if err == nil || errors.Is(err, syscall.ECONNREFUSED) || store.EndedByPeer(err) || errors.As(err, &moved) || s.since(s.silent) < silenceEvery {
		return
	}
	s.silent = s.c.network.now()
	s.c.log.Warn(fmt.Sprintf("the host is silent for %s: its machine or network is down, or the process is stopped; no node takes over without proof; restart it, or end the job",
		s.ago()), "host", s.c.called(s.last.HostNode))
}

func (s *search) since(t time.Time) time.Duration { return s.c.network.since(t) }

// ago is the time since the connection was lost as the log shows it.
func (s *search) ago() string { return wording.Seconds(s.since(s.begun)) }

// The race among servers: the next one is tried when the one before has failed, or has
// not answered for raceStagger; in a large job for as long as a server may need for all its
// nodes, or each of them would dial each server, and by that delay the answer further.
const (
	raceStagger      = 50 * time.Millisecond
	longestStagger   = 2 * time.Second
	maxRedirects     = 8
	reconnectPerNode = 20 * time.Microsecond
	reconnectSpread  = 200 * time.Millisecond
)

func (c *Client) raceStagger() time.Duration {
	return max(raceStagger, min(c.crowdTime(), longestStagger))
}

// helloAnswer is how one server has answered.
type helloAnswer struct {
	addr netip.AddrPort
	l    *clientConn
	err  error
}

// race says hello to servers until one welcomes this node, and follows redirects. Each
// address is asked once; where a host may be started again, again and again while it refuses
// and others keep silent. The error is that of the host, if it was asked, else of the first.
func (s *search) race(ctx context.Context, to []netip.AddrPort) (*clientConn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &race{
		s: s, ctx: ctx, to: to, answers: make(chan helloAnswer, len(to)+maxRedirects),
		visited: map[netip.AddrPort]bool{}, redirects: map[netip.AddrPort]bool{},
	}
	stagger, stop := s.c.network.timer(s.c.raceStagger())
	defer func() { stop() }()
	r.next()
	var failure error
	for r.pending > 0 {
		select {
		case <-stagger:
			stagger, stop = s.c.network.timer(r.again())
			r.next()
		case a := <-r.answers:
			r.pending--
			if a.addr == s.addr {
				s.hostErr = a.err
			}
			if a.err == nil || isRefusal(a.err) && !isAuth(a.err) {
				cancel()
				r.closeLate()
				return a.l, a.err
			}
			if r.failed(a) {
				continue
			}
			if failure == nil || a.addr == s.addr {
				failure = a.err
			}
			r.next()
		}
	}
	if failure == nil {
		failure = ctx.Err()
	}
	return nil, failure
}

// race is the state of one; it belongs to the goroutine of its search.
type race struct {
	s         *search
	ctx       context.Context
	to        []netip.AddrPort // to be asked
	answers   chan helloAnswer // has room for all that are pending
	pending   int
	visited   map[netip.AddrPort]bool
	redirects map[netip.AddrPort]bool // they have sent this node on
	hops      int
	refused   []netip.AddrPort // to be asked again when the others were
}

// start asks one server, unless it was asked before.
func (r *race) start(addr netip.AddrPort) bool {
	if r.visited[addr] {
		return false
	}
	r.visited[addr] = true
	r.pending++
	go func() {
		l, err := r.s.c.sayHello(r.ctx, addr)
		r.answers <- helloAnswer{addr, l, err}
	}()
	return true
}

// next asks the next server, if there is one.
func (r *race) next() {
	for len(r.to) > 0 {
		addr := r.to[0]
		r.to = r.to[1:]
		if r.start(addr) {
			return
		}
	}
}

// again has those asked that have refused, when all were asked. The result is when the next
// server has its turn.
func (r *race) again() time.Duration {
	if len(r.to) > 0 {
		return r.s.c.raceStagger()
	}
	for _, addr := range r.refused {
		delete(r.visited, addr)
	}
	r.to, r.refused = r.refused, nil
	return max(r.s.c.raceStagger(), recheck)
}

// failed looks at an answer that is no welcome; true: it names a server, which is asked now.
func (r *race) failed(a helloAnswer) (follows bool) {
	var moved *redirected
	switch {
	case errors.As(a.err, &moved):
		r.redirects[a.addr] = true
		addr, err := netip.ParseAddrPort(r.s.c.accept(moved.to))
		if err == nil && r.redirects[addr] {
			r.s.c.ignored(inACircle, moved.to)
		}
		if err == nil && r.hops < maxRedirects {
			r.hops++
			return r.start(addr)
		}
	case errors.Is(a.err, syscall.ECONNREFUSED) && r.s.mayStartAgain(a.addr):
		r.refused = append(r.refused, a.addr)
	}
	return false
}

// closeLate ends the connections to servers that have answered too late.
func (r *race) closeLate() {
	for ; r.pending > 0; r.pending-- {
		if late := <-r.answers; late.l != nil {
			late.l.close()
		}
	}
}

// mayStartAgain reports whether a host is started again at an address: where it has hosted, and
// at the endpoint.
func (s *search) mayStartAgain(addr netip.AddrPort) bool {
	return addr == s.addr || slices.Contains(s.c.endpoint.targets(), addr)
}

func isAuth(err error) bool {
	var refusal *rendezvous.Error
	return errors.As(err, &refusal) && refusal.Code == rendezvous.CodeAuth
}

// sayHello says hello to one server. It does not go back to an earlier server of the group.
func (c *Client) sayHello(ctx context.Context, addr netip.AddrPort) (*clientConn, error) {
	dialCtx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	conn, err := c.network.dial(dialCtx, addr)
	if err != nil {
		return nil, err
	}
	// A kernel whose queue of new connections is full drops them, those that this side takes
	// for open included, and retries in step with all others of the crowd. A new connection
	// after a random time is let in sooner.
	patience := backoff.Jitter((firstAnswer + min(c.crowdTime(), handshakeTimeout)) << min(c.unanswered.Load(), 8))
	helloCtx, cancelHello := context.WithTimeout(ctx, min(patience, handshakeTimeout))
	defer cancelHello()
	l, err := c.openConn(helloCtx, conn)
	if err != nil {
		if helloCtx.Err() != nil && ctx.Err() == nil {
			c.unanswered.Add(1)
		}
		return nil, err
	}
	c.unanswered.Store(0)
	current := c.group.Current()
	if l.welcome.Group == current.Group && l.welcome.Term < current.Term || l.welcome.Group != "" && !succession.Believable(l.welcome.Term) {
		l.close()
		return nil, errEarlier
	}
	return l, nil
}

// succeeded tells that another server hosts than before.
func (s *search) succeeded(l *clientConn) {
	w := l.welcome
	switch {
	case s.c.moved > maxRedirects: // which was told
	case s.c.Hosting() || w.Group == "" || w.Group == s.last.Group && w.Term == s.last.Term:
	case s.orderly:
		s.c.log.Info("node "+s.c.called(w.HostNode)+" hosts the control plane now", "address", l.addr.String(), "term", w.Term)
	case w.Group == s.last.Group && s.evidence.Ended:
		s.c.log.Warn(fmt.Sprintf("the control plane's host is dead (its process ended %s ago): node %s hosts now", s.ago(), s.c.called(w.HostNode)),
			"address", l.addr.String(), "term", w.Term)
	default:
		s.c.log.Warn("node "+s.c.called(w.HostNode)+" hosts the control plane now", "address", l.addr.String(), "term", w.Term)
	}
}
