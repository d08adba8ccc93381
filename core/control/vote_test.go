package control

import (
	"io"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/standby"
	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/rendezvous"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

// TestHostIsElected: where nodes vote, the host's death is followed by an election. The next host
// has the majority's facts, says nothing before a majority has accepted its own, and the
// others come to it.
func TestHostIsElected(t *testing.T) {
	p := elastic(t, 3)
	nodes := form(t, p, 3)
	voted := func(s *Server, voters int) bool {
		r := s.cfg.Group.VoteReport()
		return r.Majority && len(r.Voters) == voters && !slices.ContainsFunc(r.Voters, func(v standby.VoterReport) bool { return !v.Reachable })
	}
	host := nodes[0].server()
	testkit.Eventually(t, "the host hears both voters, which know that they vote", func() bool {
		return voted(host, 2) && !slices.ContainsFunc(nodes, func(n *plane) bool { return !n.server().cfg.Group.Votes() })
	})
	st := host.Status()
	if s := st.Server.Succession; len(s.Voters) != 2 || s.Majority == nil || !*s.Majority || s.Missing != "" || s.Elections != 0 {
		t.Errorf("succession: %+v", s)
	}
	before := host.cfg.Group.Current().Term
	nodes[0].kill()
	left := nodes[1:]
	for _, n := range left {
		n.mustRegroup()
	}
	regroup(t, left)
	if got := hosts(left); len(got) != 1 {
		t.Fatalf("hosts: %v", got)
	}
	next := left[slices.IndexFunc(left, (*plane).Hosting)].server()
	if r := next.cfg.Group.VoteReport(); r.Elections != 1 || r.Silent {
		t.Errorf("the next host: %+v", r)
	}
	if term := next.cfg.Group.Current().Term; term <= before {
		t.Errorf("term %d after term %d", term, before)
	}
	testkit.Eventually(t, "of two nodes only the host votes", func() bool { return voted(next, 0) })
}

// TestAskerIsNoHost: a node asks the servers who hosts, since its host is silent, and is told by the vote meanwhile. The
// host does not step down before one that names it.
func TestAskerIsNoHost(t *testing.T) {
	p := elastic(t, 2)
	a := newPlane(t, "a", p).connect()
	host := a.server()
	n := dialNode(t, host.Addr().String())
	answer, _ := n.greet(wire.Probe{RunID: "run", Policy: p.Policy, Round: true, Node: "z", Target: host.cfg.Group.Current()}).(wire.Probed)
	if answer.Err != nil || answer.Yields || answer.Node == "" || answer.Target.Term != 1 || !a.Hosting() {
		t.Errorf("it answers %+v; hosts %v", answer, a.Hosting())
	}
}

// TestDeposedHostLearnsWhoHosts: a host that only knows that another one was elected is told who by that one's probe of
// the endpoint.
func TestDeposedHostLearnsWhoHosts(t *testing.T) {
	p := elastic(t, 2)
	s := newPlane(t, "a", p).connect().server()
	to := wire.Redirect{Group: s.cfg.Group.Current().Group, Term: 2}
	s.StepDown(to, "another node was elected")
	to.Host, to.Node = "127.0.0.1:9", "b"
	dialNode(t, s.Addr().String()).greet(wire.Probe{RunID: "run", Policy: p.Policy, Round: true, Node: "b", Target: to})
	if now := s.cfg.Group.Current(); now.Host != to.Host {
		t.Errorf("it follows %+v", now)
	}
}

// TestDeadNodeIsLostAtOnce: of a node that stands by, the host can prove that its process is dead. It
// does not wait for it to come back.
func TestDeadNodeIsLostAtOnce(t *testing.T) {
	p := elastic(t, 3)
	p.ReconnectGrace, p.LeaseTimeout = time.Hour, time.Hour
	nodes := form(t, p, 3)
	testkit.Eventually(t, "the host has opened connections to both others", func() bool { return len(nodes[0].server().cfg.Group.Voters()) == 2 })
	nodes[2].kill()
	regroup(t, nodes[:2])
}

// TestDeathThatIsProvenFirst: it is proven that a node's process is dead before the end of the node's connection is read.
// The node is lost with that all the same, and nobody waits for it to come back.
func TestDeathThatIsProvenFirst(t *testing.T) {
	p := elastic(t, 2)
	p.ReconnectGrace, p.LeaseTimeout = time.Hour, time.Hour
	host, node := newPlane(t, "a", p).connect(), dialNode(t, p.Endpoint)
	node.enter(testHello("b", "b", p))
	joined := host.Start(controltest.Join())
	node.ask(1, controltest.Join())
	if o := controltest.Outcome(t, joined); o.World != 2 {
		t.Fatalf("%+v", o)
	}
	s := host.server()
	l := s.cfg.Group.Dial("b")
	defer s.cfg.Group.Drop(l)
	s.cfg.Group.Attempted(l, true, io.EOF)
	for range succession.Dials {
		s.cfg.Group.Attempted(l, false, syscall.ECONNREFUSED)
	}
	s.Confirmed()
	node.conn.Close()
	host.obs.Await(t, "that the node is lost", func(e any) bool {
		n, is := e.(rendezvous.MembershipUpdate)
		return is && n.Waiting > 0
	})
}

// TestBadVotes: messages of another group, of a voter that is not at the other end, and of a
// term that cannot be end no term. They are counted, and told.
func TestBadVotes(t *testing.T) {
	nodes := form(t, elastic(t, 3), 3)
	host := nodes[0].server()
	group := host.cfg.Group.Current().Group
	testkit.Eventually(t, "two nodes vote beside the host", func() bool { return len(host.cfg.Group.Voters()) == 2 })
	n := dialNode(t, host.Addr().String())
	word, _ := n.greet(wire.Liveness{RunID: "run", Group: group, Node: "evil", Voter: "evil"}).(wire.Liveness)
	evil := raft.New(raft.ParseVoter("evil"), time.Second, 0, nil)
	evil.Begin(word.Cluster, 1<<20, []raft.Voter{raft.ParseVoter("evil"), raft.ParseVoter(word.Voter)}, nil, 0)
	ask := evil.Messages()[0]
	counted := func() uint64 { return host.metrics.refused[refusedStandby].Load() }
	for _, spoil := range []func(f *wire.Vote){
		func(f *wire.Vote) { f.Group = "other" },
		func(f *wire.Vote) { f.From = raft.ParseVoter("b") },
		func(f *wire.Vote) { f.Cluster = "" },
		func(f *wire.Vote) { f.Data = []byte("not of raft") },
		func(*wire.Vote) {}, // of a term that is too far ahead
	} {
		f, before := wire.Vote{Group: group, Message: ask}, counted()
		spoil(&f)
		n.send(f)
		testkit.Eventually(t, "the message is counted", func() bool { return counted() == before+1 })
	}
	nodes[0].lines.Await(t, "ignored a message of the vote", 1)
	evil = raft.New(raft.ParseVoter("evil"), time.Second, 0, nil)
	evil.Begin(word.Cluster, 9, []raft.Voter{raft.ParseVoter("evil"), raft.ParseVoter(word.Voter)}, nil, 0)
	n.send(wire.Vote{Group: group, Message: evil.Messages()[0]}) // it may speak, and does not vote
	regroup(t, nodes)
	if r := host.cfg.Group.Report(); r.Term != 1 || !r.Hosting {
		t.Errorf("%+v", r)
	}
}

// TestDesertedHost: a host whose voters have fallen silent, and whose machines refuse connections by now, ends. Its
// calls fail by what it knows, and its workers end: the others, if they live, are in a round without it.
func TestDesertedHost(t *testing.T) {
	p := elastic(t, 3)
	p.LeaseTimeout = time.Second
	a := newPlane(t, "a", p).connect()
	g := a.server().cfg.Group
	links := map[string]*standby.Link{"b": g.Dial("b"), "c": g.Dial("c")}
	for node, other := range map[string]string{"b": "c", "c": "b"} {
		g.Opened(links[node], discard{})
		g.Hear(links[node], wire.Liveness{RunID: "run", Group: g.Current().Group, Node: node, Voter: node, Linked: []string{other}})
	}
	g.SetEligible([]string{"b", "c"})
	if !g.Votes() {
		t.Fatal("no voters")
	}
	silent := time.Now()
	for _, l := range links {
		g.Attempted(l, true, net.ErrClosed)
	}
	testkit.Eventually(t, "they are silent for more than half a lease", func() bool { return time.Since(silent) > p.LeaseTimeout*3/4 })
	for _, l := range links {
		g.Attempted(l, false, syscall.ECONNREFUSED)
	}
	_, err := a.Start(rendezvous.AwaitPeers{}).Wait(controltest.Context(t))
	controltest.WantCode(t, err, rendezvous.CodeConnection, "nobody is left")
	if _, err = a.Start(controltest.Join()).Wait(controltest.Context(t)); rendezvous.CodeOf(err) != rendezvous.CodeConnection || a.Hosting() {
		t.Errorf("%v; hosts %v", err, a.Hosting())
	}
	if !slices.ContainsFunc(a.obs.All(), controltest.IsDropped) {
		t.Error("the workers were not told")
	}
}

type discard struct{}

func (discard) Send(wire.Frame) bool { return true }

// handingOn is a host that may be about to hand on: it proposes nothing to its voters.
func handingOn(t *testing.T) (nodes []*plane, r *run, g *standby.Group) {
	t.Helper()
	nodes = form(t, elastic(t, 3), 3)
	host := nodes[0].server()
	r, g = host.lookUp("run"), host.cfg.Group
	testkit.Eventually(t, "a voter has accepted all", func() bool {
		voters := g.Voters()
		return len(voters) == 2 && g.BeginTransfer(voters[0])
	})
	return nodes, r, g
}

// awaiting is how much nodes are not told yet.
func (r *run) awaiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.uncommitted.queue)
}

// TestHandingOnSaysNothing: while another node may be elected that does not know of it, nodes are told nothing new. If none is,
// they are told it, also where something else has been proposed before.
func TestHandingOnSaysNothing(t *testing.T) {
	nodes, r, g := handingOn(t)
	finish := nodes[1].Start(rendezvous.Finish{})
	testkit.Eventually(t, "a node has finished", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return r.machine.Facts().Finished
	})
	if r.awaiting() == 0 {
		t.Error("a node was told what no voter knows")
	}
	r.mu.Lock()
	g.EndTransfer()
	r.submitLocked(rendezvous.Cordon{Node: "x", By: "admin", Reason: "its disk"}, nil)
	r.unlock()
	if _, err := finish.Wait(controltest.Context(t)); err != nil {
		t.Error(err)
	}
}

// TestRequestToAHostThatIsDeposed: an administrator whose request no voter has is not told that it was carried out.
func TestRequestToAHostThatIsDeposed(t *testing.T) {
	nodes, r, g := handingOn(t)
	answer := make(chan *rendezvous.Error, 1)
	go func() {
		_, err := r.applyAdmin(rendezvous.Cordon{Node: "x", By: "admin", Reason: "its disk"})
		answer <- err
	}()
	testkit.Eventually(t, "the answer waits", func() bool { return r.awaiting() > 0 })
	now := g.Current()
	nodes[0].server().StepDown(wire.Redirect{Group: now.Group, Term: now.Term + 1}, "another node was elected")
	if err := <-answer; err == nil || err.Code != rendezvous.CodeConnection || !strings.Contains(err.Text, "ask again") {
		t.Errorf("the answer is %v", err)
	}
}
