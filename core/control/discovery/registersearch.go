package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/election/register"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/wording"
)

// registerSearch is one search for the leader. It belongs to the goroutine of Find or Again.
type registerSearch struct {
	f        *RegisterFinder
	begun    time.Time
	last     wire.Welcome // of the connection that is gone; zero: there was none
	evidence succession.Evidence
	dead     string           // the leader whose process is proven dead; "": none
	asked    string           // the leader that was dialled last
	refused  *register.Record // under which what answered at its address refused this node last; nil: none
	seen     <-chan struct{}
}

// errAgain is why an attempt is followed by another one at once.
var errAgain = errors.New("another process leads by now")

// wait waits for the next attempt; it reports false if ctx has ended.
func (s *registerSearch) wait(ctx context.Context) bool {
	return ctx.Err() == nil && s.f.network.await(ctx, s.seen, s.f.pause.Next())
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
		v := f.elector.Leadership()
		r := v.Record
		var l *Conn
		var err error
		switch {
		case v.Leads: // the answer to its attempt was lost
			f.startHost(ctx)
			continue
		case r == nil || r.Phase != register.Leads || v.Silent || r.Leader == s.dead:
			err = s.campaign(ctx, v)
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

// refusedBy reports whether a refusal is the leader's own, and not that of another job's process that has got
// the address of a dead one: it names the record's group, as leaders do, or it was given again after the leader has
// written to the register since.
func (s *registerSearch) refusedBy(r *register.Record, err error) bool {
	if by := (*refused)(nil); errors.As(err, &by) && by.group == r.Group {
		return true
	}
	last := s.refused
	if last == nil || last.Leader != r.Leader {
		s.refused = r
		return false
	}
	return r.Beat > last.Beat
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
		if err == nil || isRefusal(err) && s.refusedBy(r, err) {
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
			rendezvous.MachineOf(r.Node), r.Term, r.Addr, wording.Seconds(f.network.since(s.begun)), notFinal(err))
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

// campaign tries to have this process lead.
func (s *registerSearch) campaign(ctx context.Context, v register.Leadership) error {
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
	campaigning, cancel := context.WithTimeout(f.life, max(f.Params.LeaseTimeout, time.Second))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(farewell, cancel) })() // not at once: an answer says who leads
	led, err := f.elector.Campaign(campaigning, f.addr, s.dead, took)
	switch {
	case err != nil:
		return fmt.Errorf("writing to %s: %w", f.Params.Endpoint, notFinal(err))
	case !led:
		return errAgain
	}
	f.startHost(ctx)
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

// dial says hello to the leader of a record, and says how the dial has ended.
func (f *RegisterFinder) dial(ctx context.Context, r *register.Record) (*Conn, succession.Dial, error) {
	host, port, _ := net.SplitHostPort(r.Addr)
	number, _ := strconv.ParseUint(port, 10, 16)
	to, err := params.HostPort{Host: host, Port: int(number)}.Addrs(ctx, f.network.resolve)
	if err != nil {
		return nil, succession.DialSilent, err
	}
	l, err := f.sayHello(ctx, to...)
	return l, dialOf(err), err
}
