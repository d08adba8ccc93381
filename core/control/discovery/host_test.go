package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"

	"rallypoint/core/control/controltest"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

func TestPlace(t *testing.T) {
	mine := []string{"127.0.0.1", "::1", "10.0.0.1", "10.0.0.2", "fe80::1", "fd00::1"}
	tests := map[string]struct {
		host     string
		resolved []string
		want     string // listen addresses, "*" for the wildcard, "" for no candidate
	}{
		"loopback address":                   {"127.0.0.1", []string{"127.0.0.1"}, "127.0.0.1"},
		"another loopback address":           {"127.8.7.6", []string{"127.8.7.6"}, "127.8.7.6"},
		"IPv6 loopback":                      {"::1", []string{"::1"}, "::1"},
		"localhost":                          {"localhost", []string{"127.0.0.1", "::1"}, "127.0.0.1 ::1"},
		"below localhost":                    {"a.localhost.", []string{"127.0.0.1"}, "127.0.0.1"},
		"own address":                        {"10.0.0.1", []string{"10.0.0.1"}, "10.0.0.1"},
		"own address, IPv6":                  {"fd00::1", []string{"fd00::1"}, "fd00::1"},
		"own address with a zone":            {"fe80::1%eth0", []string{"fe80::1%eth0"}, "fe80::1%eth0"},
		"name of this machine":               {"me", []string{"10.0.0.2"}, "10.0.0.2"},
		"name of this machine, two families": {"me", []string{"10.0.0.1", "fd00::1"}, "10.0.0.1 fd00::1"},
		"name that is loopback here":         {"me", []string{"127.0.1.1"}, "*"},
		"name that is loopback here, too":    {"me", []string{"127.0.1.1", "10.0.0.1"}, "*"},
		"another machine":                    {"10.0.0.9", []string{"10.0.0.9"}, ""},
		"one of several machines, lowest":    {"all", []string{"10.0.0.2", "10.0.0.8", "10.0.0.9"}, "10.0.0.2"},
		"one of several machines, not it":    {"all", []string{"10.0.0.0", "10.0.0.2", "10.0.0.9"}, ""},
		"several other machines":             {"all", []string{"10.0.0.7", "10.0.0.8"}, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := elect(test.host, addrs(test.resolved...), func() ([]netip.Addr, error) { return addrs(mine...), nil })
			text := strings.ReplaceAll(listed(got.listen), ", ", " ")
			if got.wildcard {
				text = "*"
			}
			if got.candidate != (test.want != "") || text != test.want {
				t.Errorf("got %+v, want %q", got, test.want)
			}
			if got.why == "" {
				t.Error("it does not say why")
			}
		})
	}
	got := elect("10.0.0.1", addrs("10.0.0.1"), func() ([]netip.Addr, error) { return nil, errors.New("netlink is broken") })
	if got.candidate || !strings.Contains(got.why, "netlink is broken") {
		t.Errorf("got %+v without interfaces", got)
	}
}

// fakeNet is several machines with addresses and names of their own, on top of
// this machine's loopback.
type fakeNet struct {
	mu       sync.Mutex
	open     map[netip.AddrPort]net.Listener // by address; loopback ones carry the machine in their zone
	nextPort uint16
}

func addrs(texts ...string) []netip.Addr {
	var list []netip.Addr
	for _, text := range texts {
		list = append(list, netip.MustParseAddr(text))
	}
	return list
}

var errNoSuchHost = &net.DNSError{Err: "no such host", Name: "later", Server: "10.0.0.1:53", IsNotFound: true}

func newFakeNet() *fakeNet {
	return &fakeNet{open: map[netip.AddrPort]net.Listener{}, nextPort: 40000}
}

// fakeMachine is one machine of it.
type fakeMachine struct {
	net   *fakeNet
	name  string
	addrs []netip.Addr
	names map[string][]netip.Addr // what its resolver knows
	binds int                     // attempts to listen, but on loopback, where standbys do
	nat   map[netip.Addr]netip.Addr
}

func (f *fakeNet) machine(name string, names map[string][]netip.Addr, own ...string) *fakeMachine {
	return &fakeMachine{net: f, name: name, addrs: addrs(own...), names: names}
}

// at is where a machine finds an address: loopback is each machine's own.
func (f *fakeMachine) at(to netip.AddrPort) netip.AddrPort {
	addr := to.Addr()
	if real, ok := f.nat[addr]; ok {
		addr = real
	}
	if addr.IsLoopback() {
		addr = netip.AddrFrom16(addr.As16()).WithZone(f.name)
	}
	return netip.AddrPortFrom(addr, to.Port())
}

func (f *fakeMachine) network() network {
	n := systemNetwork() // for the time
	n.resolve, n.locals, n.dial, n.listen = f.resolve, f.locals, f.dial, f.listen
	return n
}

func (f *fakeMachine) resolve(_ context.Context, host string) ([]netip.Addr, error) {
	if found := f.names[host]; found != nil {
		return found, nil
	}
	return nil, errNoSuchHost
}

func (f *fakeMachine) locals() ([]netip.Addr, error) {
	return append(addrs("127.0.0.1", "::1"), f.addrs...), nil
}

func (f *fakeMachine) dial(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
	f.net.mu.Lock()
	l := f.net.open[f.at(to)]
	f.net.mu.Unlock()
	if l == nil {
		return nil, fmt.Errorf("dial %s: %w", to, syscall.ECONNREFUSED)
	}
	var d net.Dialer
	return d.DialContext(ctx, "tcp", l.Addr().String())
}

func (f *fakeMachine) listen(ctx context.Context, address string) (net.Listener, error) {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if !loopbackName(host) {
		f.binds++
	}
	var number uint16
	fmt.Sscan(port, &number)
	if number == 0 {
		f.net.nextPort++
		number = f.net.nextPort
	}
	hosts := append(addrs("127.0.0.1", "::1", "127.0.1.1"), f.addrs...)
	shown := netip.IPv6Unspecified()
	if host != "" {
		hosts = addrs(host)
		shown = hosts[0]
	}
	for _, h := range hosts {
		if f.net.open[f.at(netip.AddrPortFrom(h, number))] != nil {
			return nil, fmt.Errorf("listen %s: %w", address, syscall.EADDRINUSE)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	for _, h := range hosts {
		f.net.open[f.at(netip.AddrPortFrom(h, number))] = l
	}
	return &fakeListener{l, f.net, netip.AddrPortFrom(shown, number)}, nil
}

// fakeListener shows its address in the fake net.
type fakeListener struct {
	net.Listener
	net  *fakeNet
	addr netip.AddrPort
}

func (f *fakeListener) Addr() net.Addr { return net.TCPAddrFromAddrPort(f.addr) }

func (f *fakeListener) Close() error {
	f.net.mu.Lock()
	defer f.net.mu.Unlock()
	for at, open := range f.net.open {
		if open == f.Listener {
			delete(f.net.open, at)
		}
	}
	return f.Listener.Close()
}

// node makes a node on the machine.
func (f *fakeMachine) node(t *testing.T, p params.Params, obs member.Observer) *node {
	t.Helper()
	c := newNode(t, p, obs)
	c.network = f.network()
	return c
}

// meetOn has one node on each machine start at once and meet at one server; it returns them.
func meetOn(t *testing.T, endpoint string, machines ...*fakeMachine) []*node {
	t.Helper()
	ctx := controltest.Context(t)
	nodes := make([]*node, len(machines))
	var wg sync.WaitGroup
	for i, m := range machines {
		nodes[i] = m.node(t, controltest.Params(endpoint, len(machines)), controltest.NewObserver())
		wg.Go(func() {
			if err := nodes[i].connect(ctx); err != nil {
				t.Error(err)
				return
			}
		})
	}
	wg.Wait()
	for _, n := range nodes {
		if a, b := nodes[0].on.Load(), n.on.Load(); a == nil || b == nil || a.Welcome.Server != b.Welcome.Server {
			t.Error("they are not at one server")
		}
	}
	return nodes
}

func TestTheMachineOfTheEndpointHosts(t *testing.T) {
	n := newFakeNet()
	a, b := n.machine("a", nil, "10.0.0.1"), n.machine("b", nil, "10.0.0.2")
	nodes := meetOn(t, "10.0.0.1:29400", b, a)
	if nodes[0].Hosting() || !nodes[1].Hosting() || b.binds != 0 {
		t.Errorf("hosting: %v, %v; b listened %d times", nodes[0].Hosting(), nodes[1].Hosting(), b.binds)
	}
}

func TestTheLowestOfSeveralMachinesHosts(t *testing.T) {
	n := newFakeNet()
	names := map[string][]netip.Addr{"job": addrs("10.0.0.3", "10.0.0.1", "10.0.0.2")}
	a, b, c := n.machine("a", names, "10.0.0.1"), n.machine("b", names, "10.0.0.2"), n.machine("c", names, "10.0.0.3")
	nodes := meetOn(t, "job:29400", c, b, a)
	if !nodes[2].Hosting() || b.binds+c.binds != 0 {
		t.Errorf("the lowest hosts: %v; the others listened %d times", nodes[2].Hosting(), b.binds+c.binds)
	}
}

func TestNameThatIsLoopbackHereListensOnTheWildcard(t *testing.T) {
	n := newFakeNet()
	a := n.machine("a", map[string][]netip.Addr{"a": addrs("127.0.1.1")}, "10.0.0.1")
	b := n.machine("b", map[string][]netip.Addr{"a": addrs("10.0.0.1")}, "10.0.0.2")
	nodes := meetOn(t, "a:29400", b, a)
	if hint := nodes[1].Hint(rendezvous.Progress{}).Detail; !nodes[1].Hosting() || hint != "" {
		t.Errorf("hosting: %v; hint %q", nodes[1].Hosting(), hint)
	}
}

func TestNoMachineHasTheEndpoint(t *testing.T) {
	n := newFakeNet()
	m := n.machine("a", map[string][]netip.Addr{"floating": addrs("192.0.2.1")}, "10.0.0.1", "fd00::1")
	c := m.node(t, controltest.Params("floating:29400", 2), controltest.NewObserver())
	err := c.connect(afterDials(t, c, 3))
	controltest.WantCode(t, err, rendezvous.CodeConnection, `run "run"`, "floating:29400", "192.0.2.1", "10.0.0.1", "fd00::1", "is_host=1", "refused")
	if m.binds != 0 {
		t.Error("it tried to listen")
	}
}

func TestIsHostListensOnTheWildcard(t *testing.T) {
	n := newFakeNet()
	names := map[string][]netip.Addr{"floating": addrs("192.0.2.1")}
	a, b := n.machine("a", names, "10.0.0.1"), n.machine("b", names, "10.0.0.2")
	b.nat = map[netip.Addr]netip.Addr{netip.MustParseAddr("192.0.2.1"): netip.MustParseAddr("10.0.0.1")}
	yes := true
	p := controltest.Params("floating:29400", 2)
	p.IsHost = &yes
	host := a.node(t, p, controltest.NewObserver())
	if err := host.connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	other := b.node(t, controltest.Params("floating:29400", 2), controltest.NewObserver())
	if err := other.connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	if !host.Hosting() || other.Hosting() {
		t.Error("the wrong node hosts")
	}
}

func TestIsHostDoesNotNeedTheName(t *testing.T) {
	m := newFakeNet().machine("a", nil, "10.0.0.1")
	yes := true
	p := controltest.Params("known-elsewhere:29400", 2)
	p.IsHost = &yes
	if err := m.node(t, p, controltest.NewObserver()).connect(controltest.Context(t)); err != nil {
		t.Error(err)
	}
}

func TestIsHostWithThePortTaken(t *testing.T) {
	yes := true
	t.Run("by another program", func(t *testing.T) {
		m := newFakeNet().machine("a", nil, "10.0.0.1")
		l, err := m.listen(t.Context(), ":29400")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		go func() {
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				conn.Close()
			}
		}()
		p := controltest.Params("10.0.0.1:29400", 2)
		p.IsHost = &yes
		err = m.node(t, p, controltest.NewObserver()).connect(controltest.Context(t))
		controltest.WantCode(t, err, rendezvous.CodeConnection, "is_host=1", "taken by another program", "10.0.0.1:29400")
	})
	t.Run("by another run", func(t *testing.T) {
		m := newFakeNet().machine("a", nil, "10.0.0.1")
		p := controltest.Params("10.0.0.1:29400", 2)
		if err := m.node(t, p, controltest.NewObserver()).connect(controltest.Context(t)); err != nil {
			t.Fatal(err)
		}
		p.RunID, p.IsHost = "another", &yes
		controltest.WantCode(t, m.node(t, p, controltest.NewObserver()).connect(controltest.Context(t)), rendezvous.CodeTenant)
	})
	t.Run("by this run", func(t *testing.T) {
		m := newFakeNet().machine("a", nil, "10.0.0.1")
		p := controltest.Params("10.0.0.1:29400", 2)
		p.IsHost = &yes
		if err := m.node(t, p, controltest.NewObserver()).connect(controltest.Context(t)); err != nil {
			t.Fatal(err)
		}
		second := m.node(t, p, controltest.NewObserver())
		if err := second.connect(controltest.Context(t)); err != nil || second.Hosting() {
			t.Errorf("%v, hosting: %v", err, second.Hosting())
		}
	})
	t.Run("and nothing answers", func(t *testing.T) {
		m := newFakeNet().machine("a", nil, "10.0.0.1")
		p := controltest.Params("10.0.0.1:29400", 2)
		p.IsHost = &yes
		c := m.node(t, p, controltest.NewObserver())
		c.network.listen = func(context.Context, string) (net.Listener, error) { return nil, syscall.EADDRINUSE }
		controltest.WantCode(t, c.connect(afterDials(t, c, 3)), rendezvous.CodeConnection, "is_host=1", "address already in use")
	})
}

func TestIsHostZeroNeverListens(t *testing.T) {
	m := newFakeNet().machine("a", nil, "10.0.0.1")
	c := m.node(t, controltest.Guest("10.0.0.1:29400", 2), controltest.NewObserver())
	err := c.connect(afterDials(t, c, 3))
	controltest.WantCode(t, err, rendezvous.CodeConnection, "is_host=0")
	if m.binds != 0 {
		t.Error("it tried to listen")
	}
}

func TestWildcardEndpointsAreRefused(t *testing.T) {
	m := newFakeNet().machine("a", map[string][]netip.Addr{"everywhere": addrs("0.0.0.0")}, "10.0.0.1")
	yes := true
	for _, endpoint := range []string{"0.0.0.0:29400", "[::]:29400", "::", "::ffff:0.0.0.0", "everywhere:29400"} {
		for _, isHost := range []*bool{nil, &yes} {
			p := controltest.Params(endpoint, 2)
			p.IsHost = isHost
			err := m.node(t, p, controltest.NewObserver()).connect(controltest.Context(t))
			controltest.WantCode(t, err, rendezvous.CodeInvalid, endpoint)
		}
	}
}

func TestLoopbackEndpointWarns(t *testing.T) {
	for endpoint, max := range map[string]int{"127.0.0.1": 2, "localhost": 2, "[::1]": 2, "127.0.0.2": 1} {
		m := newFakeNet().machine("a", map[string][]netip.Addr{"localhost": addrs("127.0.0.1", "::1")})
		log, lines := testkit.NewLog(t)
		obs := controltest.NewObserver()
		c := m.node(t, controltest.Params(endpoint+":29400", max), obs)
		c.Log = log
		if err := c.connect(controltest.Context(t)); err != nil {
			t.Fatal(err)
		}
		warned := strings.Contains(c.Hint(rendezvous.Progress{Headline: "h", Detail: "d"}).Detail, "d; the endpoint "+endpoint+":29400 is this machine's loopback")
		spare := c.Hint(rendezvous.Progress{Headline: "h", Spare: true}).Detail
		if warned != (max > 1) {
			t.Errorf("%s, %d nodes: warned: %v", endpoint, max, warned)
		}
		if spare != "" || strings.Contains(strings.Join(lines.All(), ""), "level=WARN") {
			t.Errorf("%s: a spare hears %q, and the log %q", endpoint, spare, lines.All())
		}
		c.close()
	}
}

func TestEndpointPortZero(t *testing.T) {
	yes, no := true, false
	for name, test := range map[string]struct {
		endpoint string
		max      int
		isHost   *bool
		code     rendezvous.Code
	}{
		"one node":              {"localhost:0", 1, nil, 0},
		"the host":              {"10.0.0.1:0", 2, &yes, 0},
		"several nodes":         {"localhost:0", 2, nil, rendezvous.CodeInvalid},
		"never host":            {"localhost:0", 1, &no, rendezvous.CodeInvalid},
		"one node, not local":   {"10.0.0.9:0", 1, nil, rendezvous.CodeInvalid},
		"one node, own address": {"10.0.0.1:0", 1, nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			m := newFakeNet().machine("a", map[string][]netip.Addr{"localhost": addrs("127.0.0.1", "::1")}, "10.0.0.1")
			p := controltest.Params(test.endpoint, test.max)
			p.Min, p.IsHost = 1, test.isHost
			c := m.node(t, p, controltest.NewObserver())
			var fixed bool
			c.Start = func(cfg HostConfig, listeners ...net.Listener) Host {
				fixed = cfg.Fixed
				return startHost(cfg, listeners...)
			}
			err := c.connect(controltest.Context(t))
			if test.code != 0 {
				controltest.WantCode(t, err, test.code)
				return
			}
			if err != nil || !c.Hosting() || fixed {
				t.Errorf("%v, hosting: %v", err, c.Hosting())
			}
		})
	}
}

func TestPortInUseThenRefused(t *testing.T) {
	m := newFakeNet().machine("a", nil, "10.0.0.1")
	c := m.node(t, controltest.Params("10.0.0.1:29400", 2), controltest.NewObserver())
	tries := 0
	c.network.listen = func(ctx context.Context, address string) (net.Listener, error) {
		if tries++; tries < 4 {
			return nil, fmt.Errorf("listen: %w", syscall.EADDRINUSE)
		}
		return m.listen(ctx, address)
	}
	if err := c.connect(controltest.Context(t)); err != nil || !c.Hosting() {
		t.Errorf("%v, hosting: %v", err, c.Hosting())
	}
}

func TestPortHeldByAProgramThatRefuses(t *testing.T) {
	m := newFakeNet().machine("a", nil, "10.0.0.1")
	c := m.node(t, controltest.Params("10.0.0.1:29400", 2), controltest.NewObserver())
	c.network.listen = func(context.Context, string) (net.Listener, error) { return nil, syscall.EADDRINUSE }
	controltest.WantCode(t, c.connect(afterDials(t, c, 3)), rendezvous.CodeConnection, "address already in use", "check which program holds the port")
}

func TestSecondAddressTaken(t *testing.T) {
	m := newFakeNet().machine("a", map[string][]netip.Addr{"localhost": addrs("127.0.0.1", "::1")})
	l, err := m.listen(t.Context(), "[::1]:29400")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c := m.node(t, controltest.Params("localhost:29400", 2), controltest.NewObserver())
	c.network.dial = func(ctx context.Context, to netip.AddrPort) (net.Conn, error) {
		if to.Addr().Is6() {
			return nil, syscall.ECONNREFUSED
		}
		return m.dial(ctx, to)
	}
	if err := c.connect(controltest.Context(t)); err != nil || !c.Hosting() {
		t.Errorf("%v, hosting: %v", err, c.Hosting())
	}
}

func TestNameIsKnownLater(t *testing.T) {
	m := newFakeNet().machine("a", map[string][]netip.Addr{}, "10.0.0.1")
	c := m.node(t, controltest.Params("later:29400", 2), controltest.NewObserver())
	ctx, expire := controltest.Expiring()
	resolve := c.network.resolve
	c.network.resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
		defer expire()
		return resolve(ctx, host)
	}
	controltest.WantCode(t, c.connect(ctx), rendezvous.CodeConnection, `cannot resolve "later": no such host;`, "is_host=1")
	m.names["later"] = addrs("10.0.0.1")
	if err := c.connect(controltest.Context(t)); err != nil {
		t.Error(err)
	}
}

func TestResolverRespectsContext(t *testing.T) {
	m := newFakeNet().machine("a", nil)
	c := m.node(t, controltest.Params("slow:29400", 2), controltest.NewObserver())
	ctx, expire := controltest.Expiring()
	c.network.resolve = func(ctx context.Context, _ string) ([]netip.Addr, error) {
		expire()
		<-ctx.Done()
		return nil, ctx.Err()
	}
	controltest.WantCode(t, c.connect(ctx), rendezvous.CodeConnection, "slow:29400")
}

func TestCanceledConnectLeavesNothing(t *testing.T) {
	m := newFakeNet().machine("a", nil, "10.0.0.1")
	c := m.node(t, controltest.Params("10.0.0.1:29400", 2), controltest.NewObserver())
	dial := c.network.dial
	ctx, cancel := context.WithCancel(context.Background())
	c.network.dial = func(dctx context.Context, to netip.AddrPort) (net.Conn, error) {
		if m.binds > 0 {
			cancel() // it hosts, and is canceled before it said hello
		}
		return dial(dctx, to)
	}
	controltest.WantCode(t, c.connect(ctx), rendezvous.CodeCanceled)
	if c.Hosting() || len(m.net.open) != 0 {
		t.Error("it still listens")
	}
}

// TestFindAgain: a search that was given up, before this node hosts or after, leaves nothing behind. The
// next one founds a group that others join: it hosts in it, and one of them takes over.
func TestFindAgain(t *testing.T) {
	for name, dials := range map[string]int{"before it hosts": 0, "when it hosts": 1} {
		t.Run(name, func(t *testing.T) {
			p := controltest.Params(fmt.Sprint("127.0.0.1:", testkit.FreePort(t)), 2)
			a := newNode(t, p, controltest.NewObserver())
			n := a.network
			controltest.WantCode(t, a.connect(afterDials(t, a, dials)), rendezvous.CodeConnection)
			a.network = n
			if to := a.group.Current(); a.group.Hosting() || to.Group != "" || len(a.group.Listening()) > 0 {
				t.Errorf("it knows %+v, listens at %v", to, a.group.Listening())
			}
			testkit.Check(t, a.connect(controltest.Context(t)))
			if said := a.group.Liveness(); said.State != uint64(succession.Leads) || said.Group == "" {
				t.Errorf("it says %+v", said)
			}
			b := connected(t, p, controltest.NewObserver())
			testkit.Eventually(t, "b stands by", func() bool { return b.group.Self() != "" && len(b.group.Report().Standbys) == 1 })
			a.close()
			testkit.Eventually(t, "b hosts", b.Hosting)
		})
	}
}

// TestFollowAgain: a search that was given up does not keep the node from standing by for the host that the next
// one finds.
func TestFollowAgain(t *testing.T) {
	p := controltest.Params(fmt.Sprint("127.0.0.1:", testkit.FreePort(t)), 2)
	b := newNode(t, p, controltest.NewObserver())
	n := b.network
	controltest.WantCode(t, b.connect(afterDials(t, b, 0)), rendezvous.CodeConnection)
	b.network = n
	a := connected(t, p, controltest.NewObserver())
	testkit.Check(t, b.connect(controltest.Context(t)))
	testkit.Eventually(t, "b stands by", func() bool { return b.group.Self() != "" && len(b.group.Report().Standbys) == 1 })
	a.close()
	testkit.Eventually(t, "b hosts", b.Hosting)
}
