package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

// skippedTime is a clock that is moved on by whatever waits for it.
type skippedTime struct {
	mu     sync.Mutex
	now    time.Time
	waited []time.Duration
	end    func() // called by the wait after so many
	after  int
}

// skipTime has a node live by such a clock, and reach no other machine: each dial ends
// with an error. ctx ends with the wait after so many.
func skipTime(t *testing.T, c *node, after int, dial error) (clock *skippedTime, ctx context.Context) {
	ctx, cancel := context.WithCancel(controltest.Context(t))
	clock = &skippedTime{now: time.Now(), end: cancel, after: after}
	c.network.now = func() time.Time {
		clock.mu.Lock()
		defer clock.mu.Unlock()
		return clock.now
	}
	c.network.timer = func(d time.Duration) (<-chan time.Time, func()) {
		clock.mu.Lock()
		defer clock.mu.Unlock()
		fired := make(chan time.Time, 1)
		if len(clock.waited) == clock.after {
			clock.end()
			return fired, func() {}
		}
		clock.waited = append(clock.waited, d)
		clock.now = clock.now.Add(d)
		fired <- clock.now
		return fired, func() {}
	}
	c.network.dial = func(context.Context, netip.AddrPort) (net.Conn, error) { return nil, dial }
	return clock, ctx
}

func (s *skippedTime) want(t *testing.T, waits ...time.Duration) {
	t.Helper()
	if !slices.Equal(s.waited, waits) {
		t.Errorf("it waited for %v, want %v", s.waited, waits)
	}
}

func newWaiter(t *testing.T) *node {
	return newNode(t, controltest.Params("192.0.2.1:1", 2), controltest.NewObserver())
}

// TestProbingSlowsDown: ten times in the first second, then each second.
func TestProbingSlowsDown(t *testing.T) {
	c := newWaiter(t)
	clock, ctx := skipTime(t, c, 13, syscall.ECONNREFUSED)
	newProber(c.Finder, params.HostPort{Host: "192.0.2.1", Port: 1}).run(ctx)
	want := slices.Repeat([]time.Duration{probeOften}, 10)
	clock.want(t, append(want, probeSeldom, probeSeldom, probeSeldom)...)
}

// TestProbeOfAServerThatEnds: a host that ends cuts the connections of its successor, which is
// no warning; one of a program that cuts each is, once.
func TestProbeOfAServerThatEnds(t *testing.T) {
	log, lines := testkit.NewLog(t)
	c := newWaiter(t)
	c.Log = log
	p, addr := newProber(c.Finder, params.HostPort{Host: "192.0.2.1", Port: 1}), netip.MustParseAddrPort("192.0.2.1:1")
	probe := func(ends bool) {
		c.network.dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
			if !ends {
				return nil, syscall.ECONNREFUSED
			}
			ours, theirs := net.Pipe()
			go func() { // ends with the question
				_, _ = theirs.Read(make([]byte, wire.ReadBuffer))
				_ = theirs.Close()
			}()
			return ours, nil
		}
		p.probe(controltest.Context(t), addr)
	}
	warned := func() int { return len(lines.With("does not lead to this job's control plane")) }
	probe(true)
	probe(false)
	probe(true)
	if warned() != 0 {
		t.Errorf("it warns of a server that ends: %s", lines)
	}
	probe(true)
	probe(true)
	if warned() != 1 {
		t.Errorf("it does not warn once: %s", lines)
	}
	probe(false)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	p.told = ""
	c.network.dial = func(context.Context, netip.AddrPort) (net.Conn, error) {
		ours, _ := net.Pipe()
		return ours, nil
	}
	p.probe(ended, addr)
	if warned() != 1 {
		t.Errorf("it warns of its own end: %s", lines)
	}
}

// TestProbeOfAnotherGroup: a server at the endpoint may wait in another group, whose host is elsewhere.
// That host is asked, and yields, or there would be two groups for good.
func TestProbeOfAnotherGroup(t *testing.T) {
	p := controltest.Params(fmt.Sprint("127.0.0.1:", testkit.FreePort(t)), 2)
	host := connected(t, p, controltest.NewObserver())
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	startWaiting(t, l, p, "waits", host.group.Current().Group, p.Endpoint)

	c := newNode(t, p, controltest.NewObserver())
	c.group.Found(time.Now())
	c.group.SetRound()
	prober := newProber(c.Finder, params.HostPort{Host: "127.0.0.1", Port: 1})
	prober.look(c.life, netip.MustParseAddrPort(l.Addr().String()))
	testkit.Eventually(t, "the host of the other group yields", func() bool { return !host.group.Hosting() })
	c.cancel()
	c.Finder.cancel()
	prober.wg.Wait()
}

// TestDialsOfTheEvidenceArePaced: three refused dials in a row, prove that the process
// is dead; a time-out proves nothing.
func TestDialsOfTheEvidenceArePaced(t *testing.T) {
	addr := netip.MustParseAddrPort("192.0.2.1:1")
	for _, dial := range []syscall.Errno{syscall.ECONNREFUSED, syscall.ETIMEDOUT} {
		var want []time.Duration
		dead := dial == syscall.ECONNREFUSED
		if dead {
			want = slices.Repeat([]time.Duration{succession.DialEvery}, succession.Dials-1)
		}
		c := newWaiter(t)
		clock, ctx := skipTime(t, c, 10, dial)
		s := &search{f: c.Finder, addr: addr, evidence: succession.Evidence{Ended: true, Direct: true}}
		if l, _ := s.gather(ctx); l != nil || s.evidence.Proves() != dead || s.proven.IsZero() == dead {
			t.Errorf("%v: connection %v, evidence %+v since %v", dial, l, s.evidence, s.proven)
		}
		clock.want(t, want...)
	}
}

// TestLivenessIsTriedAgain: a standby that cannot be reached is dialled each second.
func TestLivenessIsTriedAgain(t *testing.T) {
	c := newWaiter(t)
	clock, ctx := skipTime(t, c, 3, syscall.EHOSTUNREACH)
	c.watchStandby(ctx, wire.StandbyNode{Node: "a", Addr: "192.0.2.1:1"})
	clock.want(t, redialLiveness, redialLiveness, redialLiveness)
}

// TestProofIsNotLost: a standby that has ended its connection is proven dead by dials that are refused, also where
// others have failed before: its listener was being closed, or the network was cut for a while.
func TestProofIsNotLost(t *testing.T) {
	p := controltest.Params(fmt.Sprint("127.0.0.1:", testkit.FreePort(t)), 2)
	host := connected(t, p, controltest.NewObserver())
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	waiting := startWaiting(t, l, p, "a", host.group.Current().Group, p.Endpoint)

	c := newNode(t, p, controltest.NewObserver())
	c.group.Follow(wire.Welcome{Group: host.group.Current().Group, Term: 1}, p.Endpoint)
	dial := c.network.dial
	fails := []error{syscall.ECONNRESET, syscall.ETIMEDOUT, syscall.ECONNREFUSED, syscall.ETIMEDOUT} // then refused for good
	c.network.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		conn, err := dial(ctx, to)
		if errors.Is(err, syscall.ECONNREFUSED) && len(fails) > 0 {
			err, fails = fails[0], fails[1:]
		}
		return conn, err
	}
	c.network.timer = func(time.Duration) (<-chan time.Time, func()) {
		now := make(chan time.Time)
		close(now)
		return now, func() {}
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.watchStandby(c.life, wire.StandbyNode{Node: "a", Addr: l.Addr().String()})
	}()
	testkit.Eventually(t, "they are connected", func() bool { return slices.Contains(c.group.Report().Connected, "a") })
	waiting.Close()
	testkit.Eventually(t, "its death is proven", func() bool { return slices.Contains(c.group.Died(), "a") })
	c.Finder.cancel()
	<-done
}
