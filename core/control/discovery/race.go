package discovery

import (
	"context"
	"errors"
	"net/netip"
	"syscall"
	"time"

	"rallypoint/core/control/wire"
)

// The race among servers: the next one is tried when the one before has failed, or has
// not answered for raceStagger; in a large job for as long as a server may need for all its
// nodes, or each of them would dial each server, and by that delay the answer further.
const (
	raceStagger      = 50 * time.Millisecond
	longestStagger   = 2 * time.Second
	reconnectPerNode = 20 * time.Microsecond
	reconnectSpread  = 200 * time.Millisecond
)

func (f *Finder) raceStagger() time.Duration {
	return max(raceStagger, min(crowdTime(f.Params.Max), longestStagger))
}

// helloAnswer is how one server has answered.
type helloAnswer struct {
	addr netip.AddrPort
	l    *Conn
	err  error
}

// race says hello to servers until one welcomes this node, and follows redirects. Each
// address is asked once; where a host may be started again, repeatedly while it refuses and
// the others are silent. The error is that of the host, if it was asked, else of the first.
func (s *search) race(ctx context.Context, to []netip.AddrPort) (*Conn, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	r := &race{
		s: s, ctx: ctx, to: to, answers: make(chan helloAnswer, len(to)+wire.MaxRedirects),
		visited: map[netip.AddrPort]bool{}, redirects: map[netip.AddrPort]bool{},
	}
	stagger, stop := s.f.network.timer(s.f.raceStagger())
	defer func() { stop() }()
	r.next()
	var failure error
	for r.pending > 0 {
		select {
		case <-stagger:
			stagger, stop = s.f.network.timer(r.again())
			r.next()
		case a := <-r.answers:
			r.pending--
			if a.addr == s.addr {
				s.hostErr = a.err
			}
			s.patience = max(s.patience, s.heldUpBy(a))
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
		l, err := r.s.f.sayHello(r.ctx, addr)
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
		return r.s.f.raceStagger()
	}
	for _, addr := range r.refused {
		delete(r.visited, addr)
	}
	r.to, r.refused = r.refused, nil
	return max(r.s.f.raceStagger(), recheck)
}

// failed looks at an answer that is no welcome; true: it names a server, which is asked now.
func (r *race) failed(a helloAnswer) (follows bool) {
	var moved *wire.Redirected
	switch {
	case errors.As(a.err, &moved) && moved.To.Host == "":
		r.refused = append(r.refused, a.addr) // it will know, while others are silent
	case errors.As(a.err, &moved):
		r.redirects[a.addr] = true
		addr := r.s.f.accept(moved.To)
		if r.redirects[addr] {
			r.s.f.ignored(inACircle, moved.To)
		}
		if addr.IsValid() && r.hops < wire.MaxRedirects {
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
			late.l.Close()
		}
	}
}
