package peers

import (
	"context"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/journal"
	"rallypoint/core/control/standby"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server is one of several, in this process.
type server struct {
	t       *testing.T
	name    string
	group   *standby.Peers
	replica *journal.Replica
	host    *control.Server
	peers   *Peers
	lines   *testkit.Log
	closed  bool
}

// trio are servers that have each other as peers.
type trio struct {
	t       *testing.T
	lease   time.Duration
	names   []string
	token   string   // file; "": none
	dirs    []string // of data; nil: none
	servers []*server
}

func listen(t *testing.T, addr string) net.Listener {
	t.Helper()
	return testkit.Must(net.Listen("tcp", addr))(t)
}

// newTrio reserves addresses for n servers, none of which runs.
func newTrio(t *testing.T, n int, lease time.Duration) *trio {
	t.Helper()
	tr := &trio{t: t, lease: lease, servers: make([]*server, n)}
	var reserved []net.Listener
	for range n {
		l := listen(t, "127.0.0.1:0")
		reserved = append(reserved, l)
		tr.names = append(tr.names, l.Addr().String())
	}
	for _, l := range reserved {
		l.Close()
	}
	slices.Sort(tr.names)
	return tr
}

// started are servers of which one leads.
func started(t *testing.T, n int, lease time.Duration) *trio {
	t.Helper()
	tr := newTrio(t, n, lease)
	tr.startAll()
	return tr
}

func (tr *trio) startAll() {
	tr.t.Helper()
	for i := range tr.servers {
		tr.start(i)
	}
	tr.leader()
	tr.allVote()
}

// start runs a server that knows nothing.
func (tr *trio) start(i int) *server {
	tr.t.Helper()
	log, lines := testkit.NewLog(tr.t)
	s := &server{t: tr.t, name: tr.names[i], lines: lines}
	dir := ""
	if tr.dirs != nil {
		dir = tr.dirs[i]
	}
	replica := testkit.Must(control.NewReplica(dir, s.name, journal.Options{}))(tr.t)
	s.replica = replica
	s.group = testkit.Must(standby.NewPeers(tr.names, s.name, tr.lease, replica, 1<<30))(tr.t)
	var token *secret.Token
	if tr.token != "" {
		token = testkit.Must(secret.OpenToken(tr.token, nil))(tr.t)
	}
	s.host = control.Start(control.Config{Fixed: true, Log: log, Peers: s.group, Token: token}, listen(tr.t, s.name))
	s.peers = testkit.Must(Start(Config{Group: s.group, Lease: tr.lease, Token: token, Host: s.host, Log: log, silent: 50 * time.Millisecond}))(tr.t)
	tr.t.Cleanup(s.kill)
	tr.servers[i] = s
	return s
}

// kill is what the kernel makes of a process's connections when it dies.
func (s *server) kill() {
	if !s.closed {
		s.closed = true
		s.peers.cancel()
		s.host.Close()
		s.peers.running.Wait()
		s.replica.Close()
	}
}

// leader waits until one server leads with a majority, and returns its place.
func (tr *trio) leader() (place int) {
	tr.t.Helper()
	testkit.Eventually(tr.t, "a server leads", func() bool {
		place = slices.IndexFunc(tr.servers, func(s *server) bool { return s != nil && !s.closed && s.group.Hosting() && s.group.Committed(0) })
		return place >= 0
	})
	return place
}

// allVote waits until every server that runs votes, and knows who leads.
func (tr *trio) allVote() {
	tr.t.Helper()
	testkit.Eventually(tr.t, "all servers are ready", func() bool {
		return !slices.ContainsFunc(tr.servers, func(s *server) bool { return s != nil && !s.closed && s.group.Ready() != "" })
	})
}

func (tr *trio) endpoint() string { return strings.Join(tr.names, ",") }

// node is one node's client.
type node struct {
	*client.Client
	obs *controltest.Observer
	in  rendezvous.Outcome
}

func (tr *trio) params(nodes int) params.Params {
	p := controltest.Params(tr.endpoint(), nodes)
	p.LeaseTimeout, p.TokenFile = tr.lease, tr.token
	return p
}

func (tr *trio) connect(p params.Params, id string) *node {
	tr.t.Helper()
	p.NodeID = id
	log, _ := testkit.NewLog(tr.t)
	n := &node{obs: controltest.NewObserver()}
	n.Client = client.New(p, n.obs, log, nil)
	tr.t.Cleanup(func() {
		canceled, cancel := context.WithCancel(context.Background())
		cancel()
		n.Close(canceled)
	})
	if err := n.Connect(controltest.Context(tr.t)); err != nil {
		tr.t.Fatal(err)
	}
	return n
}

// form lets nodes join a round.
func form(t *testing.T, nodes []*node) {
	t.Helper()
	ctx := controltest.Context(t)
	done := make(chan error, len(nodes))
	for _, n := range nodes {
		call := n.Start(controltest.Join())
		go func() {
			o, err := controltest.AwaitOutcome(ctx, call)
			n.in = o
			n.SetLastRound(o.LastRound())
			done <- err
		}()
	}
	for range nodes {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
}

// undisturbed checks that no node was told anything for which its workers would have to stop.
func undisturbed(t *testing.T, nodes []*node) {
	t.Helper()
	for _, n := range nodes {
		for _, e := range n.obs.All() {
			switch e := e.(type) {
			case *rendezvous.Error:
				t.Errorf("a node was told %v", e)
			case rendezvous.MembershipUpdate:
				if e.Waiting > 0 {
					t.Errorf("a node was told %+v", e)
				}
			}
		}
	}
}

// serves waits until a server has these nodes in their round.
func (s *server) serves(nodes []*node) {
	s.t.Helper()
	testkit.Eventually(s.t, "all nodes are in their round", func() bool {
		st, there := s.host.RunStatus("run")
		if !there || len(st.Runs) != 1 || len(st.Runs[0].Members) != len(nodes) || st.Runs[0].Round != nodes[0].in.Round {
			return false
		}
		return !slices.ContainsFunc(st.Runs[0].Members, func(m control.MemberStatus) bool { return !m.Alive })
	})
}

// set writes a key of the agents, and get reads one.
func (n *node) set(t *testing.T, key string, value []byte) {
	t.Helper()
	_, err := n.Start(rendezvous.KeyRequest{Round: n.in.Round, Op: store.OpSet, Keys: []string{key}, Values: [][]byte{value}}).Wait(controltest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
}

func (n *node) get(t *testing.T, key string) []byte {
	t.Helper()
	result, err := n.Start(rendezvous.KeyRequest{Round: n.in.Round, Op: store.OpGet, Keys: []string{key}}).Wait(controltest.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	return result.(rendezvous.KeyResult).Values[0]
}

// stored are servers with data directories, none of which runs.
func stored(t *testing.T, n int, lease time.Duration) *trio {
	t.Helper()
	tr := newTrio(t, n, lease)
	for range n {
		tr.dirs = append(tr.dirs, t.TempDir())
	}
	return tr
}

func (tr *trio) killAll() {
	for _, s := range tr.servers {
		s.kill()
	}
}

// copied is a copy of a server's data directory.
func (tr *trio) copied(i int) string {
	tr.t.Helper()
	dir := tr.t.TempDir()
	if err := tr.servers[i].replica.Copy(filepath.Join(dir, journal.FileName)); err != nil {
		tr.t.Fatal(err)
	}
	return dir
}
