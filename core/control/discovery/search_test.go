package discovery

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

// peerServer is a control plane by hand: each hello has its answer, and each connection
// stands until the test ends.
type peerServer struct {
	addr   string
	l      net.Listener
	hellos atomic.Int64
}

// serveHellos starts one. serve is called in the connection's own goroutine, behind the
// preamble.
func serveHellos(t *testing.T, serve func(n *controltest.Peer, h wire.Hello)) *peerServer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &peerServer{addr: l.Addr().String(), l: l}
	var wg sync.WaitGroup
	var mu sync.Mutex
	var conns []net.Conn
	t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for _, conn := range conns {
			conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			conns = append(conns, conn)
			mu.Unlock()
			wg.Go(func() {
				n := controltest.NewPeer(t, conn)
				h, err := n.ReadHello()
				if err != nil {
					return
				}
				s.hellos.Add(1)
				serve(n, h)
			})
		}
	})
	return s
}

// welcomeOf is that of a server which hosts a group in a term.
func welcomeOf(n *controltest.Peer, group string, term uint64, lease time.Duration) wire.Welcome {
	return wire.Welcome{
		Version: 1, Lease: int64(lease), Server: group, Group: group, Term: term, HostNode: "a", Embedded: true,
		Addr: n.Conn.LocalAddr().String(), Features: []string{wire.FeatureEcho, wire.FeatureSuccession},
	}
}

// TestSilenceOfTheHostIsLogged: while the host is silent the log says so every 10 s, and the
// only standby does not take over, nor when dials are refused after that.
func TestSilenceOfTheHostIsLogged(t *testing.T) {
	host := serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
		n.Say(welcomeOf(n, "g", 1, 60*time.Millisecond))
		n.Say(wire.Standbys{Invited: true})
		for {
			f, err := n.Frames.NextFrame(wire.MaxFrame)
			if err != nil {
				return
			}
			if s, listens := f.(wire.Standby); listens { // the last word of this host
				n.Say(wire.Standbys{List: []wire.StandbyNode{{Node: "b", Addr: s.Addr}}, Invited: true})
			}
		}
	})
	var passed, dials atomic.Int64 // of the fake clock; dials in silence
	var refused atomic.Bool
	p := controltest.Params(host.addr, 2)
	p.NodeID = "b"
	log, lines := testkit.NewLog(t)
	c := newNode(t, p, controltest.NewObserver())
	c.Log = log
	start, dial := time.Now(), c.network.dial
	c.network.now = func() time.Time { return start.Add(time.Duration(passed.Load())) }
	c.network.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		switch {
		case host.hellos.Load() == 0:
			return dial(ctx, to)
		case refused.Load():
			dials.Add(1)
			return nil, syscall.ECONNREFUSED
		}
		passed.Add(int64(3 * time.Second))
		return nil, syscall.ETIMEDOUT
	}
	if err := c.connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it stands by, so that it could take over", func() bool {
		known := c.group.Report()
		return c.group.Self() != "" && slices.ContainsFunc(known.Standbys, func(s wire.StandbyNode) bool { return s.Node == known.Node })
	})
	c.on.Load().Close() // as a node does that has heard nothing for too long
	const rest = ": its machine or network is down, or the process is stopped; no node takes over without proof; restart it, or end the job"
	for i, after := range []string{"12 s", "24 s", "36 s"} {
		lines.Await(t, "the host is silent for "+after+rest, 1)
		if told := lines.With("the host is silent"); len(told) != i+1 {
			t.Fatalf("%d lines, want %d: %q", len(told), i+1, told)
		}
	}
	refused.Store(true)
	testkit.Eventually(t, "it dials on", func() bool { return dials.Load() > 5 })
	if c.Hosting() {
		t.Error("it has taken over")
	}
}

// serveRedirects starts servers of which each names the next one as the host, and the last
// one the first, until they are good: behind a welcome, and as groups of their own.
func serveRedirects(t *testing.T, count int, welcome, groups bool, good *atomic.Bool) (servers []*peerServer) {
	t.Helper()
	ready := make(chan struct{})
	for i := range count {
		group := "g"
		if groups {
			group = string(rune('g' + i))
		}
		servers = append(servers, serveHellos(t, func(n *controltest.Peer, h wire.Hello) {
			<-ready
			w := welcomeOf(n, group, max(h.Term, 1), time.Minute)
			first := h.Group == "" // this is how the node comes into the group
			if welcome || first || good.Load() {
				n.Say(w)
			}
			if !good.Load() {
				n.Say(wire.Redirect{Group: group, Term: w.Term, Host: servers[(i+1)%count].addr, Node: "b"})
			}
			_, _ = n.Frames.NextFrame(wire.MaxFrame)
		}))
	}
	close(ready)
	return servers
}

// TestRedirectsThatLeadNowhere: a redirect to the server that sends it, and a circle of two
// servers, cost a bounded number of tries and one line in the log, whether the redirect
// answers the hello or ends a connection; a server that is found later is followed.
func TestRedirectsThatLeadNowhere(t *testing.T) {
	for _, test := range []struct {
		name    string
		servers int
		welcome bool // the redirect comes behind a welcome
		groups  bool // each server is of a group of its own
	}{
		{"to itself", 1, false, false},
		{"to itself behind a welcome", 1, true, false},
		{"to each other", 2, false, false},
		{"to each other behind a welcome", 2, true, false},
		{"to each other behind a welcome, of two groups", 2, true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var good atomic.Bool
			servers := serveRedirects(t, test.servers, test.welcome, test.groups, &good)
			log, lines := testkit.NewLog(t)
			obs := controltest.NewObserver()
			c := newNode(t, controltest.Guest(servers[0].addr, 2), obs)
			c.Log = log
			if err := c.connect(controltest.Context(t)); err != nil {
				t.Fatal(err)
			}
			hellos := func() (n int64) {
				for _, s := range servers {
					n += s.hellos.Load()
				}
				return n
			}
			lines.Await(t, "redirect", 1)
			// Pauses double from 5 ms: what has been tried bounds what time has passed.
			begun, before := time.Now(), hellos()
			testkit.Eventually(t, "it tries on", func() bool { return hellos() >= before+10 })
			if took := time.Since(begun); took < 30*time.Millisecond {
				t.Errorf("10 hellos within %v", took)
			}
			if told := lines.With("redirect"); len(told) != 1 {
				t.Errorf("%d lines: %q", len(told), told)
			}
			good.Store(true)
			testkit.Eventually(t, "it is connected", func() bool { return c.on.Load() != nil })
		})
	}
}

// TestRedirectsToNoHost: what cannot be followed is ignored, with a line.
func TestRedirectsToNoHost(t *testing.T) {
	c := newNode(t, controltest.Params("10.0.0.1:1", 2), controltest.NewObserver())
	log, lines := testkit.NewLog(t)
	c.Log = log
	c.group.Follow(wire.Welcome{Group: "g", Term: 3}, "10.0.0.1:1")
	c.group.SetSelf("10.0.0.2:1", "")
	for want, to := range map[string]wire.Redirect{
		"its address is none":               {Group: "g", Term: 4, Host: "a name:1"},
		"there is no term 1844674407370955": {Group: "g", Term: 1<<64 - 1, Host: "10.0.0.3:1"},
		"it points to this process":         {Group: "g", Term: 4, Host: "10.0.0.2:1"},
		"its term 2 is over":                {Group: "g", Term: 2, Host: "10.0.0.3:1"},
	} {
		for range 3 {
			if got := c.accept(to); got.IsValid() {
				t.Errorf("%+v leads to %s", to, got)
			}
		}
		if told := lines.With(want); len(told) != 1 {
			t.Errorf("%d lines with %q: %q", len(told), want, lines.All())
		}
	}
	for _, to := range []wire.Redirect{{Group: "g", Term: 4, Host: "10.0.0.3:1"}, {Group: "other", Term: 1, Host: "10.0.0.3:1"}} {
		if c.accept(to).String() != to.Host {
			t.Errorf("%+v leads nowhere", to)
		}
	}
	if c.accept(wire.Redirect{Group: "g", Term: 4}).IsValid() {
		t.Error("a redirect without an address leads somewhere")
	}
}

// TestNobodyIsLeftButNodesThatWait: the host was silent before its process and those of all voters were gone, so that
// they may have ended the job. Two nodes that do not vote, and answer each other, do not wait for good. One that votes is
// waited for: others may come back that elect it.
func TestNobodyIsLeftButNodesThatWait(t *testing.T) {
	for _, votes := range []bool{false, true} {
		waiting := serveHellos(t, func(n *controltest.Peer, _ wire.Hello) { n.Say(wire.Redirect{Group: "g", Term: 3}) })
		p := controltest.Params("10.0.0.1:1", 4)
		c := newNode(t, p, controltest.NewObserver())
		var passed atomic.Int64
		start, dial := time.Now(), c.network.dial
		c.network.now = func() time.Time { return start.Add(time.Duration(passed.Load())) }
		c.network.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
			if to.String() == waiting.addr {
				return dial(ctx, to)
			}
			return nil, syscall.ECONNREFUSED
		}
		last := wire.Welcome{Group: "g", Term: 3, HostNode: "a", Embedded: true}
		c.group.Follow(last, "10.0.0.1:1")
		c.group.SetSelf("10.0.0.4:1", "")
		c.group.SetList([]wire.StandbyNode{
			{Node: "b", Addr: "10.0.0.2:1", Votes: true}, {Node: c.Node, Addr: "10.0.0.4:1"}, {Node: "e", Addr: waiting.addr, Votes: votes},
		})
		s := &search{
			f: c.Finder, last: last, addr: netip.MustParseAddrPort("10.0.0.1:1"), begun: start, asked: true,
			evidence: succession.Evidence{Ended: true, Direct: true, Refused: succession.Dials, Silent: true},
		}
		for leases := range 10 {
			_, err := s.askAll(controltest.Context(t))
			ends := rendezvous.CodeOf(err) == rendezvous.CodeConnection
			if want := !votes && leases > succession.GiveUp; ends != want {
				t.Fatalf("votes %v, after %d leases: %v", votes, leases, err)
			} else if ends {
				break
			}
			passed.Add(int64(p.LeaseTimeout))
		}
		if waiting.hellos.Load() == 0 {
			t.Error("it was not asked")
		}
	}
}

// TestTenThousandStandbys: a node ends the connection to a server that sends such a list,
// and neither keeps it nor stands by.
func TestTenThousandStandbys(t *testing.T) {
	many := wire.Standbys{Invited: true}
	for range 10_000 {
		many.List = append(many.List, wire.StandbyNode{Node: "n", Addr: "127.0.0.1:9"})
	}
	ended := make(chan error, 100)
	server := serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
		n.Say(welcomeOf(n, "g", 1, time.Minute))
		n.Say(many)
		_, err := n.Frames.NextFrame(wire.MaxFrame)
		ended <- err
	})
	obs := controltest.NewObserver()
	c := newNode(t, controltest.Params(server.addr, 2), obs)
	if err := c.connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err == nil {
		t.Error("it answers")
	}
	lost := obs.Await(t, "why", controltest.IsLost).(controltest.ConnectionChange)
	if !strings.Contains(lost.Err.Error(), "a list of 10000 standbys, at most 64 are allowed") {
		t.Error(lost.Err)
	}
	if c.Hosting() || len(c.group.Report().Standbys) > 0 || c.group.Self() != "" {
		t.Errorf("it has the list, or stands by: %+v", c.group.Report())
	}
}

// TestStandbyLeavesTheHostsPort: a node of the host's machine that is asked to stand by, and
// finds the host's port free since its process has just died, listens at another one. It
// could not prove the death by dials that it answers itself.
func TestStandbyLeavesTheHostsPort(t *testing.T) {
	var host *peerServer
	ready := make(chan struct{})
	said := make(chan string, 1)
	host = serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
		<-ready
		n.Say(welcomeOf(n, "g", 1, time.Minute))
		host.l.Close()
		n.Say(wire.Standbys{Invited: true})
		for {
			f, err := n.Frames.NextFrame(wire.MaxFrame)
			if err != nil {
				return
			}
			if s, listens := f.(wire.Standby); listens {
				said <- s.Addr
			}
		}
	})
	close(ready)
	connected(t, controltest.Params(host.addr, 2), controltest.NewObserver())
	if addr := <-said; addr == host.addr || addr == "" {
		t.Errorf("it listens at %q, the host at %s", addr, host.addr)
	}
}

// TestALargeJobAsksOneServer: a node whose host has ended the connection asks the first
// standby, and no other server while that one holds its hello, as long as a server may need
// for all nodes; with few nodes it goes on to the next one soon.
func TestALargeJobAsksOneServer(t *testing.T) {
	for nodes, stagger := range map[int]time.Duration{2: 50 * time.Millisecond, 1000: 200 * time.Millisecond, 10000: 2 * time.Second, 1 << 20: 2 * time.Second} {
		t.Run(fmt.Sprint(nodes), func(t *testing.T) {
			t.Parallel()
			answer := make(chan struct{})
			defer close(answer)
			first := serveHellos(t, func(*controltest.Peer, wire.Hello) { <-answer })
			second := serveHellos(t, func(*controltest.Peer, wire.Hello) {})
			end := make(chan struct{})
			host := serveHellos(t, func(n *controltest.Peer, h wire.Hello) {
				w := welcomeOf(n, "g", 1, time.Minute)
				w.Servers = []string{first.addr, second.addr}
				n.Say(w)
				<-end
				n.Conn.Close()
			})
			var mu sync.Mutex
			var dialled []string
			var timers []time.Duration
			c := newNode(t, controltest.Guest(host.addr, nodes), controltest.NewObserver())
			dial, timer := c.network.dial, c.network.timer
			c.network.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
				mu.Lock()
				defer mu.Unlock()
				dialled = append(dialled, to.String())
				return dial(ctx, to)
			}
			c.network.timer = func(d time.Duration) (<-chan time.Time, func()) {
				mu.Lock()
				defer mu.Unlock()
				timers = append(timers, d)
				if d == stagger {
					return nil, func() {} // it never fires
				}
				return timer(0)
			}
			if err := c.connect(controltest.Context(t)); err != nil {
				t.Fatal(err)
			}
			close(end)
			testkit.Eventually(t, "it asks the first standby", func() bool { return first.hellos.Load() > 0 })
			mu.Lock()
			defer mu.Unlock()
			if want := []string{host.addr, first.addr}; !slices.Equal(dialled, want) {
				t.Errorf("it has dialled %v, want %v", dialled, want)
			}
			if !slices.Contains(timers, stagger) {
				t.Errorf("it asks the next server after one of %v, want %v", timers, stagger)
			}
		})
	}
}

// TestARestartedHostWaitsForOneServer: where all standbys hang, a host that was started again at
// its address is found after the first of them, not after the time of each.
func TestARestartedHostWaitsForOneServer(t *testing.T) {
	const nodes, stagger = 10000, 2 * time.Second
	answer := make(chan struct{})
	defer close(answer)
	var standbys []string
	var hung atomic.Int64
	for range 5 {
		standbys = append(standbys, serveHellos(t, func(*controltest.Peer, wire.Hello) { hung.Add(1); <-answer }).addr)
	}
	end := make(chan struct{})
	host := serveHellos(t, func(n *controltest.Peer, h wire.Hello) {
		w := welcomeOf(n, "g", 1, time.Minute)
		w.Servers = standbys
		n.Say(w)
		if h.Group == "" { // the one that dies
			<-end
			n.Conn.Close()
		}
		_, _ = n.Frames.NextFrame(wire.MaxFrame)
	})
	c := newNode(t, controltest.Guest(host.addr, nodes), controltest.NewObserver())
	timer, passed := c.network.timer, make(chan time.Time, 1)
	c.network.timer = func(d time.Duration) (<-chan time.Time, func()) {
		if d == stagger {
			return passed, func() {}
		}
		return timer(0)
	}
	if err := c.connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	close(end)
	testkit.Eventually(t, "it asks a standby", func() bool { return hung.Load() > 0 })
	passed <- time.Now() // once
	testkit.Eventually(t, "it finds the host", func() bool { return host.hellos.Load() == 2 })
	if n := hung.Load(); n != 1 {
		t.Errorf("it has asked %d standbys before", n)
	}
}

// TestAHostIsStartedAgainWhileStandbysHang: a host that refuses when its turn comes, and is
// started again while all standbys hang, is found before their hellos are given up.
func TestAHostIsStartedAgainWhileStandbysHang(t *testing.T) {
	answer := make(chan struct{})
	defer close(answer)
	var standbys []string
	var hung atomic.Int64
	for range 5 {
		standbys = append(standbys, serveHellos(t, func(*controltest.Peer, wire.Hello) { hung.Add(1); <-answer }).addr)
	}
	end := make(chan struct{})
	first := serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
		w := welcomeOf(n, "g", 1, time.Minute)
		w.Servers = standbys
		n.Say(w)
		<-end
		n.Conn.Close()
	})
	again := serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
		n.Say(welcomeOf(n, "another", 1, time.Minute))
		_, _ = n.Frames.NextFrame(wire.MaxFrame)
	})
	const nodes = 1 << 20 // so that hellos have 10 s
	c := newNode(t, controltest.Guest(first.addr, nodes), controltest.NewObserver())
	var refused, started atomic.Bool
	dial, timer := c.network.dial, c.network.timer
	c.network.timer = func(d time.Duration) (<-chan time.Time, func()) { return timer(min(d, 10*time.Millisecond)) }
	c.network.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		switch {
		case to.String() != first.addr || first.hellos.Load() == 0:
			return dial(ctx, to)
		case started.Load():
			return dial(ctx, netip.MustParseAddrPort(again.addr))
		}
		refused.Store(true)
		return nil, syscall.ECONNREFUSED
	}
	if err := c.connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	close(end)
	testkit.Eventually(t, "it asks the host and all standbys", func() bool { return refused.Load() && hung.Load() == 5 })
	started.Store(true)
	testkit.Eventually(t, "it finds the host", func() bool { return again.hellos.Load() > 0 })
	if n := hung.Load(); n != 5 {
		t.Errorf("it has given up %d hellos to standbys before", n-5)
	}
}

// TestAStandbyFindsAHostThatIsStartedAgain: the standby that goes first hangs, so that the
// next one would wait for a lease; it finds a host that is started again at its address before.
func TestAStandbyFindsAHostThatIsStartedAgain(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	var asked atomic.Int64
	first := serveHellos(t, func(*controltest.Peer, wire.Hello) { asked.Add(1); <-hang })
	var host *peerServer
	ready := make(chan struct{})
	host = serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
		<-ready
		n.Say(welcomeOf(n, "g", 1, time.Hour))
		n.Say(wire.Standbys{Invited: true})
		for {
			f, err := n.Frames.NextFrame(wire.MaxFrame)
			if err != nil {
				return
			}
			if s, listens := f.(wire.Standby); listens {
				n.Say(wire.Standbys{List: []wire.StandbyNode{{Node: "a", Addr: first.addr}, {Node: "b", Addr: s.Addr}}, Invited: true})
				host.l.Close()
				n.Conn.Close()
			}
		}
	})
	close(ready)
	again := serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
		n.Say(welcomeOf(n, "another", 1, time.Minute))
		_, _ = n.Frames.NextFrame(wire.MaxFrame)
	})
	p := controltest.Params(host.addr, 2)
	p.NodeID, p.LeaseTimeout = "b", time.Hour
	c := newNode(t, p, controltest.NewObserver())
	dial := c.network.dial
	c.network.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		if to.String() == host.addr && asked.Load() > 0 {
			to = netip.MustParseAddrPort(again.addr)
		}
		return dial(ctx, to)
	}
	if err := c.connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	testkit.Eventually(t, "it finds the host", func() bool { return again.hellos.Load() > 0 })
	if c.Hosting() {
		t.Error("it hosts")
	}
}

// TestNewHostDiesBeforeItHasAList: the list of a host that has just taken over is empty. A
// standby that has it when that host dies takes over by the list of the host before.
func TestNewHostDiesBeforeItHasAList(t *testing.T) {
	var host *peerServer
	host = serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
		n.Say(welcomeOf(n, "g", 1, time.Minute))
		n.Say(wire.Standbys{Invited: true})
		for {
			f, err := n.Frames.NextFrame(wire.MaxFrame)
			if err != nil {
				return
			}
			if s, listens := f.(wire.Standby); listens {
				n.Say(wire.Standbys{List: []wire.StandbyNode{{Node: "b", Addr: s.Addr}}, Invited: true})
				n.Say(wire.Standbys{Invited: true})
				host.l.Close()
				n.Conn.Close()
			}
		}
	})
	p := controltest.Params(host.addr, 2)
	p.NodeID = "b"
	c := connected(t, p, controltest.NewObserver())
	testkit.Eventually(t, "it hosts", c.Hosting)
}

// TestNextHostDiesBeforeItHasTold: the host a dies, and b hosts: its probe tells c so. It dies before c was
// connected to it. What c begins with is what a has told, so that it is a whose place in the round is lost.
func TestNextHostDiesBeforeItHasTold(t *testing.T) {
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	welcomed := make(chan net.Conn, 1)
	host := serveHellos(t, func(n *controltest.Peer, _ wire.Hello) {
		n.Say(welcomeOf(n, "g", 1, time.Minute))
		n.Say(wire.Standbys{Invited: true})
		for {
			f, err := n.Frames.NextFrame(wire.MaxFrame)
			if err != nil {
				return
			}
			if s, listens := f.(wire.Standby); listens {
				n.Say(wire.Standbys{List: []wire.StandbyNode{{Node: "b", Addr: l.Addr().String()}, {Node: "c", Addr: s.Addr}}, Invited: true})
				welcomed <- n.Conn
			}
		}
	})
	p := controltest.Params(host.addr, 3)
	p.NodeID = "c"
	b := startWaiting(t, l, p, "b", "g", host.addr)
	c := connected(t, p, controltest.NewObserver())
	a := <-welcomed
	testkit.Eventually(t, "c is connected to b", func() bool { return slices.Contains(c.group.Report().Connected, "b") })

	raw := testkit.Must(net.Dial("tcp", c.group.Self()))(t)
	probe := testkit.Must(wire.Greet(t.Context(), raw, nil, time.Minute, wire.Probe{
		RunID: p.RunID, Policy: p.Policy, Node: "b", Target: wire.Redirect{Group: "g", Term: 2, Host: l.Addr().String(), Node: "b"},
	}))(t)
	testkit.Must(probe.NextFrame(wire.MaxFrame))(t)
	probe.Close()
	testkit.Check(t, b.Close())
	host.l.Close()
	a.Close()
	testkit.Eventually(t, "c hosts", c.Hosting)
	if s, _, _ := c.group.Began(); s.From != "a" || s.Silent || s.Term != 3 {
		t.Errorf("c begins with %+v", s)
	}
}
