package control

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/discovery"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

// plane is one node's process as far as the control plane is concerned: its client and
// the servers that were started for it.
type plane struct {
	*client.Client
	t     *testing.T
	name  string
	obs   *controltest.Observer
	lines *testkit.Log
	in    rendezvous.Outcome

	mu      sync.Mutex
	servers []*Server
}

func newPlane(t *testing.T, name string, p params.Params) *plane {
	t.Helper()
	return newPlaneThat(t, name, p, nil, nil)
}

// newPlaneThat makes a plane whose process does something when it listens, or when it has begun
// to host at the endpoint, before its client connects to it.
func newPlaneThat(t *testing.T, name string, p params.Params, listens, hosts func(n *plane)) *plane {
	t.Helper()
	log, lines := testkit.NewLog(t)
	n := &plane{t: t, name: name, obs: controltest.NewObserver(), lines: lines}
	if hosts != nil {
		log = slog.New(handlerThat{log.Handler(), func() { hosts(n) }})
	}
	p.NodeID = name
	n.Client = client.New(p, n.obs, log, func(cfg discovery.HostConfig, listeners ...net.Listener) discovery.Host {
		s := Start(Config{RunID: cfg.Params.RunID, Fixed: cfg.Fixed, Token: cfg.Token, Log: cfg.Log, Group: cfg.Group}, listeners...)
		n.mu.Lock()
		n.servers = append(n.servers, s)
		n.mu.Unlock()
		if listens != nil {
			listens(n)
		}
		return s
	})
	t.Cleanup(n.kill)
	return n
}

func (p *plane) connect() *plane {
	p.t.Helper()
	if err := p.Connect(controltest.Context(p.t)); err != nil {
		p.t.Fatal(err)
	}
	return p
}

// handlerThat is a log that does something at the line of a process that begins to host.
type handlerThat struct {
	slog.Handler
	hosts func()
}

func (h handlerThat) Handle(ctx context.Context, r slog.Record) error {
	err := h.Handler.Handle(ctx, r)
	if r.Message == "hosting the control plane in this process" {
		h.hosts()
	}
	return err
}

// server is the last server of the process, once it has one.
func (p *plane) server() *Server {
	p.t.Helper()
	for end := time.Now().Add(testkit.Patience); time.Now().Before(end); time.Sleep(time.Millisecond) {
		p.mu.Lock()
		if len(p.servers) > 0 {
			defer p.mu.Unlock()
			return p.servers[len(p.servers)-1]
		}
		p.mu.Unlock()
	}
	p.t.Fatalf("node %s never listens", p.name)
	return nil
}

// kill is what the kernel makes of a process's connections and listeners when it dies.
func (p *plane) kill() {
	p.mu.Lock()
	servers := slices.Clone(p.servers)
	p.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range servers {
		wg.Go(func() { s.Close() })
	}
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	p.Close(canceled)
	wg.Wait()
}

// awaitStandbys waits until so many of the nodes stand by, know it, and have opened their
// connections to those before them, by which alone they can prove a death.
func awaitStandbys(t *testing.T, nodes []*plane, n int) {
	t.Helper()
	byName := map[string]*plane{}
	var host *plane
	for _, node := range nodes {
		byName[node.name] = node
		if node.Hosting() {
			host = node
		}
	}
	until := func(node *plane, ready func(standby.Report) bool) (r standby.Report) {
		s := node.server()
		for end := time.Now().Add(testkit.Patience); ; time.Sleep(time.Millisecond) {
			if r = s.cfg.Group.Report(); ready(r) {
				return r
			}
			if time.Now().After(end) {
				t.Fatalf("node %s knows %+v", node.name, r)
			}
		}
	}
	list := until(host, func(r standby.Report) bool { return len(r.Standbys) == n }).Standbys
	for i, s := range list {
		until(byName[s.Node], func(r standby.Report) bool {
			opened := r.Connected
			if g := byName[s.Node].server().cfg.Group; g.Quorum() {
				opened = g.Liveness().Linked
			}
			return len(r.Standbys) == n && !slices.ContainsFunc(list[:i], func(b wire.StandbyNode) bool { return !slices.Contains(opened, b.Node) })
		})
	}
}

// form starts nodes at one endpoint, the first one hosts, and forms a round of them.
func form(t *testing.T, p params.Params, n int) []*plane {
	t.Helper()
	var nodes []*plane
	for i := range n {
		nodes = append(nodes, newPlane(t, string(rune('a'+i)), p).connect())
	}
	regroup(t, nodes)
	if !nodes[0].Hosting() {
		t.Fatal("the first node does not host")
	}
	awaitStandbys(t, nodes, min(n-1, succession.MaxStandbys))
	return nodes
}

// regroup lets nodes join their next round.
func regroup(t *testing.T, nodes []*plane) {
	t.Helper()
	ctx := controltest.Context(t)
	var wg sync.WaitGroup
	for _, n := range nodes {
		call := n.Start(controltest.Join())
		wg.Go(func() {
			o, err := controltest.AwaitOutcome(ctx, call)
			if err != nil {
				t.Errorf("node %s: %v", n.name, err)
			}
			n.in = o
			n.SetLastRound(o.LastRound())
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for _, n := range nodes {
		if n.in.World != len(nodes) || n.in.Round != nodes[0].in.Round || n.in.Generation != nodes[0].in.Generation {
			t.Fatalf("node %s is in %+v, node %s in %+v", n.name, n.in, nodes[0].name, nodes[0].in)
		}
	}
}

// mustRegroup waits until a server of a generation that is not known yet makes the node regroup.
func (p *plane) mustRegroup() {
	p.t.Helper()
	p.obs.Await(p.t, "that it must regroup", p.regroups)
}

// regroups reports whether an event of the node is such a server's word.
func (p *plane) regroups(e any) bool {
	u, ok := e.(rendezvous.MembershipUpdate)
	return ok && u.Waiting > 0 && u.Facts.Generation != p.in.Generation
}

func elastic(t *testing.T, n int) params.Params {
	p := controltest.Params(fmt.Sprintf("127.0.0.1:%d", testkit.FreePort(t)), n)
	p.Min = 1
	return p
}

func hosts(nodes []*plane) (names []string) {
	for _, n := range nodes {
		if n.Hosting() {
			names = append(names, n.name)
		}
	}
	return names
}

// awaitLivingVoters waits until the first node, which hosts, has put others in the place of voters that are
// dead: who is killed before that may leave no majority.
func awaitLivingVoters(t *testing.T, nodes []*plane) {
	t.Helper()
	g := nodes[0].server().cfg.Group
	testkit.Eventually(t, "all voters live", func() bool {
		r := g.VoteReport()
		return r.Majority && !slices.ContainsFunc(r.Voters, func(v standby.VoterReport) bool {
			return !v.Reachable || !slices.ContainsFunc(nodes, func(n *plane) bool { return n.name == v.Node })
		})
	})
}

// hostKilled returns what is left of a job that needs three nodes when its host was killed.
func hostKilled(t *testing.T) (p params.Params, left []*plane) {
	t.Helper()
	p = elastic(t, 3)
	p.Min = 3
	nodes := form(t, p, 3)
	nodes[0].kill()
	for _, n := range nodes[1:] {
		n.mustRegroup()
	}
	return p, nodes[1:]
}

// waitingServer returns a node's server in waiting, whose host lives.
func waitingServer(t *testing.T) (nodes []*plane, addr string) {
	nodes = form(t, elastic(t, 3), 3)
	return nodes, nodes[1].server().Addr().String()
}
