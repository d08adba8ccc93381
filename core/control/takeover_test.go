package control

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

// TestEachNextHostIsKilled kills the host of seven nodes, then the next one, down to the
// last. Round numbers continue under a generation for each host.
func TestEachNextHostIsKilled(t *testing.T) {
	nodes := form(t, elastic(t, 7), 7)
	rounds := map[string]bool{}
	for len(nodes) > 1 {
		round := nodes[0].in.Round
		rounds[nodes[0].in.Generation] = true
		nodes[0].kill()
		nodes = nodes[1:]
		for _, n := range nodes {
			n.mustRegroup()
		}
		regroup(t, nodes)
		if got := hosts(nodes); len(got) != 1 {
			t.Fatalf("hosts: %v", got)
		}
		if got := nodes[0].in.Round; got != round+1 && (got <= round || got%1000 != 1) || rounds[nodes[0].in.Generation] { // nobody may vote yet
			t.Errorf("round %d of %s after round %d", nodes[0].in.Round, nodes[0].in.Generation, round)
		}
		host := slices.IndexFunc(nodes, func(n *plane) bool { return n.Hosting() })
		nodes[0], nodes[host] = nodes[host], nodes[0]
		awaitStandbys(t, nodes, min(len(nodes)-1, succession.MaxStandbys))
		awaitLivingVoters(t, nodes)
	}
}

// TestHostAndStandbysDieAtOnce kills the host and one, two, or all but one of the
// standbys at the same instant.
func TestHostAndStandbysDieAtOnce(t *testing.T) {
	for dead := 2; dead <= 4; dead++ {
		t.Run(fmt.Sprint(dead), func(t *testing.T) {
			t.Parallel()
			nodes := form(t, elastic(t, 5), 5)
			var wg sync.WaitGroup
			for _, n := range nodes[:dead] {
				wg.Go(n.kill)
			}
			wg.Wait()
			for _, n := range nodes[dead:] {
				n.mustRegroup()
			}
			regroup(t, nodes[dead:])
			if got := hosts(nodes[dead:]); len(got) != 1 {
				t.Errorf("hosts: %v", got)
			}
		})
	}
}

// TestHostKilledBeforeTheFirstRound: joins that wait are answered by the next host.
func TestHostKilledBeforeTheFirstRound(t *testing.T) {
	p := elastic(t, 3)
	p.Min, p.LastCallTimeout = 2, 10*time.Millisecond
	var nodes []*plane
	for _, name := range []string{"a", "b", "c"} {
		nodes = append(nodes, newPlane(t, name, p).connect())
	}
	awaitStandbys(t, nodes, 2)
	calls := nodes[1].Start(controltest.Join())
	nodes[0].kill()
	other := nodes[2].Start(controltest.Join())
	if one, two := controltest.Outcome(t, calls), controltest.Outcome(t, other); one.Round != 1001 || one.World != 2 || two.World != 2 || one.HostRank != one.Rank {
		t.Errorf("%+v and %+v", one, two)
	}
}

// TestTakeoverIsLogged: every survivor's log says that the host is dead, since when, and who
// hosts now, once.
func TestTakeoverIsLogged(t *testing.T) {
	nodes := form(t, elastic(t, 3), 3)
	nodes[0].kill()
	regroup(t, nodes[1:])
	const dead = "the control plane's host is dead (its process ended "
	host := hosts(nodes[1:])[0]
	for _, n := range nodes[1:] {
		now := "node " + host + " hosts now"
		if n.name == host {
			now = "this node hosts now"
		}
		n.lines.Await(t, dead, 1)
		if told := n.lines.With(dead); len(told) != 1 || !regexp.MustCompile(`\(its process ended \d+(\.\d)? s ago\): `+now).MatchString(told[0]) {
			t.Errorf("node %s: %q", n.name, told)
		}
	}
}

// TestHostLeavesInOrder: the first standby hosts before the host goes, and no node
// hears that the control plane is lost.
func TestHostLeavesInOrder(t *testing.T) {
	nodes := form(t, elastic(t, 3), 3)
	if _, err := nodes[0].Start(rendezvous.Leave{}).Wait(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	nodes[0].Close(controltest.Context(t))
	for _, n := range nodes[1:] {
		n.mustRegroup()
	}
	regroup(t, nodes[1:])
	if got := hosts(nodes[1:]); len(got) != 1 || got[0] != "b" {
		t.Errorf("hosts: %v", got)
	}
	for _, n := range nodes[1:] {
		for _, e := range n.obs.All() {
			if controltest.IsLost(e) {
				t.Errorf("node %s: %v", n.name, e)
			}
		}
	}
	for _, n := range nodes[1:] {
		n.obs.Await(t, "that the host has left", func(e any) bool {
			u, ok := e.(rendezvous.MembershipUpdate)
			return ok && strings.Contains(u.Reason, "left, and handed the control plane on")
		})
	}
	nodes[1].lines.Await(t, "the host leaves: this node hosts now", 1)
	nodes[2].lines.Await(t, "node b hosts the control plane now", 1)
}

// TestHostLeavesAndAnotherDies: the host that has left votes no more, also where its port is in use
// again, so that nothing can prove that it is gone. One more death within its lease leaves the last
// node of three to host alone.
func TestHostLeavesAndAnotherDies(t *testing.T) {
	p := elastic(t, 3)
	p.LeaseTimeout = time.Hour
	nodes := form(t, p, 3)
	testkit.Eventually(t, "two nodes vote beside the host", func() bool { return len(nodes[0].server().cfg.Group.Voters()) == 2 })
	if _, err := nodes[0].Start(rendezvous.Leave{}).Wait(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	nodes[0].Close(controltest.Context(t))
	l := testkit.Must(net.Listen("tcp", p.Endpoint))(t)
	defer l.Close()
	left := nodes[1:]
	regroup(t, left)
	if !left[0].Hosting() {
		left[0], left[1] = left[1], left[0]
	}
	left[1].kill()
	if o := controltest.Outcome(t, left[0].Start(controltest.Join())); o.World != 1 {
		t.Errorf("%+v", o)
	}
}

// TestHostThatHasEndedItsRunDoesNotTransfer: at the end of a run the host lingers.
func TestHostThatHasEndedItsRunDoesNotTransfer(t *testing.T) {
	nodes := form(t, elastic(t, 2), 2)
	if _, err := nodes[0].Start(rendezvous.Leave{Ending: rendezvous.EndSuccess}).Wait(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if nodes[0].server().Transfer(controltest.Context(t)) {
		t.Error("a run that has ended was handed on")
	}
}

// TestRestartedHostJoins starts the host again at the endpoint while its job continues
// elsewhere: it yields and joins, and newcomers find the job there.
func TestRestartedHostJoins(t *testing.T) {
	p, nodes := hostKilled(t)
	again := newPlane(t, "d", p).connect()
	nodes = append(nodes, again)
	regroup(t, nodes)
	got := hosts(nodes)
	if len(got) != 1 || again.Hosting() {
		t.Fatalf("hosts: %v", got)
	}
	again.lines.Await(t, "node "+got[0]+" hosts this run", 1)
	if warned := again.lines.With("level=WARN"); len(warned) > 0 {
		t.Errorf("it warns: %q", warned)
	}
	guest := newPlane(t, "e", p).connect() // by way of the endpoint, whose server redirects it
	if guest.Hosting() {
		t.Error("a newcomer hosts")
	}
}

// TestRestartedHostYieldsAtOnce has the next host find the one before, which was started again,
// before that one's own node has said hello to it. The node has to stand by like any other.
func TestRestartedHostYieldsAtOnce(t *testing.T) {
	yields := func(n *plane) { n.lines.Await(t, "hosts this run", 1) }
	for at, hooks := range map[string][2]func(*plane){"it listens": {yields, nil}, "it hosts": {nil, yields}} {
		t.Run(at, func(t *testing.T) {
			p, nodes := hostKilled(t)
			again := newPlaneThat(t, "again", p, hooks[0], hooks[1]).connect()
			nodes = append(nodes, again)
			regroup(t, nodes)
			if again.Hosting() {
				t.Fatal("the restarted host hosts")
			}
			awaitStandbys(t, nodes, 2)
		})
	}
}

// TestRestartedHostOfASmallerJob does the same while the others continue without it.
func TestRestartedHostOfASmallerJob(t *testing.T) {
	p := elastic(t, 3)
	p.AdmitDelay = time.Millisecond
	nodes := form(t, p, 3)
	nodes[0].kill()
	for _, n := range nodes[1:] {
		n.mustRegroup()
	}
	regroup(t, nodes[1:])
	again := newPlane(t, "d", p).connect()
	call := again.Start(controltest.Join())
	for _, n := range nodes[1:] {
		n.obs.Await(t, "that a node waits", func(e any) bool {
			u, ok := e.(rendezvous.MembershipUpdate)
			return ok && u.Waiting > 0 && u.Facts.Round == n.in.Round && u.Facts.Origin == n.in.Generation
		})
	}
	var others []*member.Call
	for _, n := range nodes[1:] {
		others = append(others, n.Start(controltest.Join()))
	}
	for _, call := range append(others, call) {
		if o := controltest.Outcome(t, call); o.World != 3 {
			t.Errorf("%+v", o)
		}
	}
	if again.Hosting() {
		t.Error("the restarted host hosts")
	}
}

// TestOtherPolicyDoesNotYield: a job of other settings at the endpoint is not ended, and
// both say so.
func TestOtherPolicyDoesNotYield(t *testing.T) {
	p := elastic(t, 2)
	nodes := form(t, p, 2)
	nodes[0].kill()
	nodes[1].mustRegroup()
	p.Max = 3
	other := newPlane(t, "other", p)
	for end := time.Now().Add(testkit.Patience); ; other = newPlane(t, "other", p) {
		err := other.Connect(controltest.Context(t))
		if err == nil {
			break
		}
		// A probe that comes before the first node's hello finds a server without settings, which yields.
		if text := err.Error(); rendezvous.CodeOf(err) != rendezvous.CodeMismatch || !strings.Contains(text, "other wants --nnodes=1:3, but the run has --nnodes=1:2") || time.Now().After(end) {
			t.Fatal(err)
		}
		other.kill()
	}
	nodes[1].lines.Await(t, "end one of the two jobs", 1)
	other.lines.Await(t, "does not yield", 1)
	if !other.Hosting() || !nodes[1].Hosting() {
		t.Errorf("hosting: %v, %v", other.Hosting(), nodes[1].Hosting())
	}
}

// TestNoTakeoverThroughAProxy: behind a proxy a refused connection proves nothing.
func TestNoTakeoverThroughAProxy(t *testing.T) {
	host := newPlane(t, "a", elastic(t, 2)).connect()
	proxy := newProxy(t, host.server().Addr().String())
	p := elastic(t, 2)
	controltest.MeetAt(&p, proxy.addr)
	second := newPlane(t, "b", p).connect()
	regroup(t, []*plane{host, second})
	awaitStandbys(t, []*plane{host, second}, 1)
	host.lines.Await(t, "round 1 is complete", 1)
	host.kill()
	proxy.stop()
	proxy.mu.Lock()
	proxy.listener.Close()
	proxy.mu.Unlock()
	second.lines.Await(t, "a proxy or address translation stands between", 1)
	if second.Hosting() {
		t.Error("it hosts")
	}
}

// TestNodeWithoutTheNewFrames stands beside new ones: it is served, is sent no frame that
// it does not know, and does not stand by.
func TestNodeWithoutTheNewFrames(t *testing.T) {
	p := elastic(t, 2)
	host := newPlane(t, "a", p).connect()
	old := dialNode(t, host.server().Addr().String())
	old.enter(testHello("old", "s", p))
	old.ask(1, controltest.Join())
	call := host.Start(controltest.Join())
	controltest.Outcome(t, call)
	old.wantReply(1)
	if r := host.server().cfg.Group.Report(); len(r.Standbys) != 0 {
		t.Errorf("standbys: %+v", r.Standbys)
	}
	host.server().StepDown(wire.Redirect{Group: "g", Term: 2, Host: "127.0.0.1:1"}, "a test")
	for {
		f, err := old.frames.NextFrame(wire.MaxFrame)
		if err != nil {
			break // its connection has ended
		}
		if _, redirect := f.(wire.Redirect); redirect {
			t.Error("it was redirected")
		}
	}
}

// TestStandbyListenerRedirects: while the host lives a hello is answered with a redirect,
// and what is no protocol of ours as at the host.
func TestStandbyListenerRedirects(t *testing.T) {
	nodes, addr := waitingServer(t)
	h := testHello("new", "s", elastic(t, 3))
	h.Features = []string{wire.FeatureSuccession}
	to, ok := dialNode(t, addr).greet(h).(wire.Redirect)
	if !ok || to.Host != nodes[0].server().Addr().String() || to.Term != 1 || len(to.Servers) != 2 {
		t.Errorf("redirected to %+v", to)
	}
	h.RunID = "other"
	if f, refused := dialNode(t, addr).greet(h).(wire.Refuse); !refused || f.Err.Code != rendezvous.CodeTenant {
		t.Errorf("another run: %+v", f)
	}
	for _, garbage := range []string{"\x00\x01", "\x16\x03\x01", "garbage", "\xd5RPT\x01", "\xd5RPT\x01\x01\x00\x00\xff\xff\xff\xff"} {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = conn.Write([]byte(garbage))
		_ = conn.(*net.TCPConn).CloseWrite()
		conn.SetReadDeadline(time.Now().Add(testkit.Patience))
		_, err = conn.Read(make([]byte, 64))
		if err == nil {
			_, err = conn.Read(make([]byte, 64))
		}
		var late net.Error
		if errors.As(err, &late) && late.Timeout() {
			t.Errorf("%q keeps its connection", garbage)
		}
		conn.Close()
	}
	if code, _, body := get(t, addr, "/healthz"); code != 200 || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	if code, _, body := get(t, addr, "/status?here=1"); code != 200 || !strings.Contains(body, `"role":"waiting"`) {
		t.Errorf("/status?here=1: %d %q", code, body)
	}
	straight := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	defer straight.CloseIdleConnections()
	for _, path := range []string{"/", "/status", "/status?rdzv_id=" + elastic(t, 3).RunID} {
		for _, accept := range []string{"", "text/html"} {
			req := testkit.Must(http.NewRequest(http.MethodGet, "http://"+addr+path, nil))(t)
			req.Header.Set("Accept", accept)
			resp := testkit.Must(straight.Do(req))(t)
			resp.Body.Close()
			if at := resp.Header.Get("Location"); resp.StatusCode != http.StatusTemporaryRedirect || at != "http://"+to.Host+path {
				t.Errorf("%s as %q: %d, to %q", path, accept, resp.StatusCode, at)
			}
		}
	}
}

// TestBadInputChangesNoHost sends each frame of succession with what no peer sends.
func TestBadInputChangesNoHost(t *testing.T) {
	nodes, addr := waitingServer(t)
	host := nodes[0].server()
	group := host.cfg.Group.Current().Group
	policy := elastic(t, 3).Policy
	far := wire.Redirect{Group: group, Term: 1<<64 - 1, Host: "127.0.0.1:9", Node: "evil"}
	many := slices.Repeat([]string{"127.0.0.1:9"}, 10_000)
	for name, f := range map[string]wire.Frame{
		"a probe of no term":      wire.Probe{RunID: "run", Policy: policy, Target: far},
		"a probe of another run":  wire.Probe{RunID: "other", Policy: policy, Target: wire.Redirect{Group: "g", Term: 9}},
		"liveness of no group":    wire.Liveness{RunID: "run", Node: "evil", State: uint64(succession.Leads), Term: 9},
		"liveness of another":     wire.Liveness{RunID: "run", Group: "g", Node: "evil", State: uint64(succession.Leads), Term: 9, Target: far},
		"liveness of no term":     wire.Liveness{RunID: "run", Group: group, Node: "evil", State: uint64(succession.Leads), Term: 1<<64 - 1, Target: far},
		"a transfer at the start": wire.Transfer{Group: group, Term: 2},
		"a standby at the start":  wire.Standby{Addr: "127.0.0.1:9"},
		"a redirect at the start": far,
		"a probe of 10 000":       wire.Probe{RunID: "run", Policy: policy, Target: wire.Redirect{Group: "g", Term: 9, Servers: many}},
		"liveness of 10 000":      wire.Liveness{RunID: "run", Group: group, Node: "evil", Target: wire.Redirect{Group: group, Term: 9, Servers: many}},
		"standbys at the start":   wire.Standbys{List: []wire.StandbyNode{{Node: "evil", Addr: "127.0.0.1:9"}}},
	} {
		for _, to := range []string{host.Addr().String(), addr} {
			n := dialNode(t, to)
			n.write(wire.AppendFrame(wire.Preamble{High: 1, Low: 1}.Bytes(), f))
			_ = n.conn.(*net.TCPConn).CloseWrite()
			_, _ = n.conn.Read(make([]byte, 4096))
			if !nodes[0].Hosting() || host.cfg.Group.Report().Term != 1 || nodes[1].Hosting() {
				t.Fatalf("%s changes the host", name)
			}
		}
	}
	// As a node: a listener that is not its own, a transfer that no node was asked for, and
	// a hello of a term that cannot be.
	h := testHello("evil", "s", elastic(t, 3))
	h.Features = []string{wire.FeatureSuccession, wire.FeatureStandby}
	h.Group, h.Term = group, 1<<64-1
	n := dialNode(t, host.Addr().String())
	n.enter(h)
	n.send(wire.Standby{Addr: "192.0.2.1:9"})
	h.Node, h.Session = "worse", "s2"
	other := dialNode(t, host.Addr().String())
	other.enter(h)
	other.send(wire.Transfer{Group: group, Term: 2, Addr: "192.0.2.1:9"})
	nodes[0].lines.Await(t, "is not its own", 1)
	nodes[0].lines.Await(t, "it was not asked to", 1)
	if r := host.cfg.Group.Report(); r.Term != 1 || len(r.Standbys) != 2 {
		t.Errorf("%+v", r)
	}
	regroup(t, nodes)
}

// TestTakeoversLeakNothing has hosts taken over again and again, by proof and by election: no
// goroutine, descriptor or memory more.
func TestTakeoversLeakNothing(t *testing.T) {
	for _, quorum := range []bool{false, true} {
		t.Run(fmt.Sprint("quorum=", quorum), func(t *testing.T) { takeoversLeakNothing(t, quorum) })
	}
}

func takeoversLeakNothing(t *testing.T, quorum bool) {
	takeovers := 15
	if long {
		takeovers = 200
	}
	p := elastic(t, 3)
	p.Min, p.NoQuorum = 3, !quorum
	nodes := form(t, p, 3)
	begun, open, held := runtime.NumGoroutine(), testkit.Descriptors(t), uint64(0)
	for i := range takeovers {
		if i == takeovers/3 { // buffers, logs and tables have their size
			held = heap()
		}
		nodes[0].kill()
		nodes = nodes[1:]
		for _, n := range nodes {
			n.mustRegroup()
		}
		nodes = append(nodes, newPlane(t, fmt.Sprint("n", i), p).connect())
		regroup(t, nodes)
		host := slices.IndexFunc(nodes, func(n *plane) bool { return n.Hosting() })
		if host < 0 {
			t.Fatal("no node hosts")
		}
		nodes[0], nodes[host] = nodes[host], nodes[0]
		awaitStandbys(t, nodes, 2)
	}
	testkit.Eventually(t, "no more goroutines are left than at the beginning", func() bool { return runtime.NumGoroutine() <= begun+20 })
	// A host that has taken over keeps up to three probes of others open, at both ends here.
	testkit.Eventually(t, "no more descriptors are open than at the beginning", func() bool { return testkit.Descriptors(t) <= open+10 })
	rest, now := uint64(takeovers-takeovers/3), heap()
	t.Logf("%d descriptors, %d at the beginning; %d bytes held, %d after a third of the takeovers", testkit.Descriptors(t), open, now, held)
	if now > held && (now-held)/rest > leftOfATakeover {
		t.Errorf("%d bytes held, %d after a third of the takeovers: %d for each", now, held, (now-held)/rest)
	}
}

// TestFirstStandbyDiesWhileItTakesOver kills the first standby at different moments after
// the host: before it hosts, when it does, and when the others are with it. The last node takes over, or founds the
// job anew where the two were a majority.
func TestFirstStandbyDiesWhileItTakesOver(t *testing.T) {
	for i := range 5 {
		after, quorum := time.Duration(i)*60*time.Millisecond, i%2 > 0
		t.Run(fmt.Sprintf("%s, quorum=%t", after, quorum), func(t *testing.T) {
			t.Parallel()
			p := elastic(t, 3)
			p.LeaseTimeout, p.NoQuorum = 3*time.Second, !quorum
			nodes := form(t, p, 3)
			first := nodes[0].server().cfg.Group.Report().Standbys[0].Node
			i := slices.IndexFunc(nodes, func(n *plane) bool { return n.name == first })
			nodes[1], nodes[i] = nodes[i], nodes[1]
			nodes[0].kill()
			time.Sleep(after) // what is tested, and nothing that is waited for
			nodes[1].kill()
			if o := controltest.Outcome(t, nodes[2].Start(controltest.Join())); o.World != 1 {
				t.Errorf("%+v", o)
			}
		})
	}
}
