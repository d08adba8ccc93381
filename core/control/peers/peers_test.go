package peers

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"rallypoint/core/control"
	"rallypoint/core/control/client"
	"rallypoint/core/control/controltest"
	"rallypoint/core/control/journal"
	"rallypoint/core/control/statustext"
	"rallypoint/core/control/wire"
	"rallypoint/core/election/raft"
	"rallypoint/core/rendezvous"
	"rallypoint/core/secret"
	"rallypoint/core/store"
	"rallypoint/core/succession"
	"rallypoint/internal/testkit"
)

// TestServersSucceedEachOther: the leader dies; the others elect the next one, which has the
// round, and no node has to regroup.
func TestServersSucceedEachOther(t *testing.T) {
	tr := started(t, 3, 2*time.Second)
	nodes := []*node{tr.connect(tr.params(2), "a"), tr.connect(tr.params(2), "b")}
	form(t, nodes)
	for deaths := range 4 {
		at := tr.leader()
		before := tr.servers[at].group.Current()
		tr.servers[at].kill()
		next := tr.leader()
		after := tr.servers[next].group.Current()
		if after.Term <= before.Term || after.Group != before.Group {
			t.Fatalf("after the leader of %+v comes %+v", before, after)
		}
		tr.servers[next].serves(nodes)
		tr.start(at)
		tr.allVote()
		if deaths == 0 {
			if r := tr.servers[next].group.VoteReport(); len(r.Voters) != 2 || !r.Majority {
				t.Errorf("%+v", r)
			}
		}
	}
	undisturbed(t, nodes)
	form(t, nodes) // they can, by the last leader
}

// TestOneOfThreeWaits: one server alone founds nothing and says which ones are missing; a second
// one is enough, and the third one joins.
func TestOneOfThreeWaits(t *testing.T) {
	tr := newTrio(t, 3, time.Second)
	one := tr.start(1)
	one.lines.Await(t, fmt.Sprintf("waits for a majority of %s, %s, %s: %s and %s do not answer", tr.names[0], tr.names[1], tr.names[2], tr.names[0], tr.names[2]), 1)
	st := one.host.Status()
	if s := st.Server.Succession; s.Role != control.RoleWaiting || !strings.Contains(s.Missing, "waits for a majority") || !slices.Equal(s.Peers, tr.names) {
		t.Errorf("succession: %+v", s)
	}
	if text := statustext.Plainly(st); !strings.Contains(text, "This server leads no run: it waits for a majority of "+tr.names[0]) {
		t.Error(text)
	}
	tr.start(2)
	tr.leader()
	tr.start(0)
	tr.allVote()
	at := tr.leader()
	testkit.Eventually(t, "the leader hears both", func() bool {
		return strings.Contains(statustext.Plainly(tr.servers[at].host.Status()), fmt.Sprintf("Server %s leads (term 1); 3 of 3 servers vote", tr.names[at]))
	})
}

// TestMinoritySaysNothing: a leader whose peers are gone welcomes nobody, and sends nobody on; with
// one of them, which remembers nothing, it goes on with its runs.
func TestMinoritySaysNothing(t *testing.T) {
	tr := started(t, 3, time.Second)
	nodes := []*node{tr.connect(tr.params(2), "a"), tr.connect(tr.params(2), "b")}
	form(t, nodes)
	at := tr.leader()
	group := tr.servers[at].group.Current().Group
	var others []int
	for i := range tr.servers {
		if i != at {
			others = append(others, i)
			tr.servers[i].kill()
		}
	}
	last := tr.servers[at]
	testkit.Eventually(t, "it has no majority", func() bool { return last.group.Hosting() && !last.group.Committed(0) })
	last.lines.Await(t, "no majority: 1 of 3 voters reachable", 1)
	ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
	defer cancel()
	p := tr.params(2)
	p.NodeID, p.RunID = "c", "other"
	c := client.New(p, controltest.NewObserver(), nil, nil)
	defer c.Close(ctx)
	if err := c.Connect(ctx); err == nil {
		t.Error("a leader without a majority has welcomed a node")
	}
	last.lines.Await(t, "this process does not host the control plane any more", 1) // after a lease
	tr.start(others[0])
	next := tr.servers[tr.leader()]
	if now := next.group.Current(); now.Group != group {
		t.Errorf("the group is another one: %+v", now)
	}
	next.serves(nodes)
	undisturbed(t, nodes)
	tr.start(others[1])
	tr.allVote()
	form(t, nodes)
}

// TestTwoFoundersAreOne: servers that start at one time found one group.
func TestTwoFoundersAreOne(t *testing.T) {
	for range 5 {
		tr := started(t, 3, 400*time.Millisecond)
		var groups []string
		for _, s := range tr.servers {
			if to := s.group.Current(); !slices.Contains(groups, to.Group) {
				groups = append(groups, to.Group)
			}
		}
		if len(groups) != 1 {
			t.Errorf("groups %v", groups)
		}
		for _, s := range tr.servers {
			s.kill()
		}
	}
}

// TestHTTPLeadsToTheLeader: another server sends requests of HTTP on.
func TestHTTPLeadsToTheLeader(t *testing.T) {
	tr := started(t, 3, time.Second)
	at := tr.leader()
	for i, name := range tr.names {
		c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
		defer c.CloseIdleConnections()
		resp, err := c.Get("http://" + name + "/status?rdzv_id=x")
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		want := http.StatusTemporaryRedirect
		if i == at {
			want = http.StatusNotFound
		}
		if resp.StatusCode != want {
			t.Errorf("server %d answers %s", i, resp.Status)
		}
		if to := resp.Header.Get("Location"); i != at && to != "http://"+tr.names[at]+"/status?rdzv_id=x" {
			t.Errorf("server %d names %q", i, to)
		}
	}
}

// TestPeersWithAToken: servers prove to each other that they know it, and one that does not is none.
func TestPeersWithAToken(t *testing.T) {
	tr := newTrio(t, 3, time.Second)
	tr.token = testkit.TokenFile(t, "correct horse battery staple, and more")
	tr.startAll()
	nodes := []*node{tr.connect(tr.params(2), "a"), tr.connect(tr.params(2), "b")}
	form(t, nodes)
	at := tr.leader()
	tr.servers[at].kill()
	next := tr.leader()
	form(t, nodes)

	tr.token = testkit.TokenFile(t, "another one, which the others do not know")
	stranger := tr.start(at)
	stranger.lines.Await(t, "has another token", 1)
	testkit.Eventually(t, "the leader has a majority", func() bool { return tr.servers[next].group.VoteReport().Majority })
	if stranger.group.Ready() == "" {
		t.Error("a server with another token is ready")
	}
	if stranger.group.Hosting() {
		t.Error("a server with another token leads")
	}
}

// TestRunTokenIsNoPeers: the token of one run makes nobody a peer of the servers, whatever the run is called.
func TestRunTokenIsNoPeers(t *testing.T) {
	const token = "correct horse battery staple, and more"
	tr := newTrio(t, 3, time.Second)
	tr.token = testkit.TokenFile(t, token)
	tr.startAll()
	said := tr.servers[tr.leader()].group.Liveness()
	line := testkit.Must(secret.RunKey([]byte(token), said.RunID))(t)
	key := testkit.Must(secret.OpenToken(testkit.TokenFile(t, string(line)), nil))(t)
	ctx := controltest.Context(t)
	raw := testkit.Must(wire.Dial(ctx, tr.names[0]))(t)
	call, err := wire.Greet(ctx, raw, key, tr.lease, said)
	if err != nil {
		t.Fatal(err)
	}
	defer call.Close()
	answer, err := call.NextFrame(wire.MaxHelloFrame)
	if f, refused := answer.(wire.Refuse); err != nil || !refused || rendezvous.CodeOf(f.Err) != rendezvous.CodeAuth {
		t.Errorf("the answer is %+v, %v", answer, err)
	}
}

// TestOtherListsAreOtherGroups: a server that has another list, or another lease, says so and takes no
// part.
func TestOtherListsAreOtherGroups(t *testing.T) {
	tr := started(t, 3, time.Second)
	i := (tr.leader() + 1) % 3
	tr.servers[i].kill()
	tr.lease = 2 * time.Second
	other := tr.start(i)
	other.lines.Await(t, "does not take this server for one of its peers: start all with the same --peers and --election-timeout", 1)
	if why := other.group.Ready(); !strings.Contains(why, "does not take this server") {
		t.Error(why)
	}
}

// TestAllRunsGoOn: the next leader has every run, one without nodes included, whose rounds
// are counted on.
func TestAllRunsGoOn(t *testing.T) {
	tr := started(t, 3, 2*time.Second)
	const runs = 30
	var nodes []*node
	for i := range runs {
		p := tr.params(1)
		p.RunID = fmt.Sprint("run", i)
		n := tr.connect(p, "n")
		form(t, []*node{n})
		nodes = append(nodes, n)
	}
	gone := tr.params(1)
	gone.RunID = "gone"
	n := tr.connect(gone, "n")
	form(t, []*node{n})
	form(t, []*node{n})
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	n.Close(canceled)

	at := tr.leader()
	tr.servers[at].kill()
	next := tr.servers[tr.leader()]
	testkit.Eventually(t, "all runs are served", func() bool {
		for i, n := range nodes {
			st, there := next.host.RunStatus(fmt.Sprint("run", i))
			if !there || st.Runs[0].Round != n.in.Round || len(st.Runs[0].Members) != 1 || !st.Runs[0].Members[0].Alive {
				return false
			}
		}
		return true
	})
	if st := next.host.Status(); st.RunsTotal != runs+1 {
		t.Errorf("%d runs", st.RunsTotal)
	}
	again := tr.connect(gone, "m")
	form(t, []*node{again})
	if again.in.Round != 3 {
		t.Errorf("a run whose nodes were gone goes on with round %d", again.in.Round)
	}
}

// TestTwoOfFiveDie: of five servers two may die at once, and a third one is one too many.
func TestTwoOfFiveDie(t *testing.T) {
	tr := started(t, 5, 2*time.Second)
	nodes := []*node{tr.connect(tr.params(2), "a"), tr.connect(tr.params(2), "b")}
	form(t, nodes)
	var dead []int
	for range 2 {
		at := tr.leader()
		dead = append(dead, at)
		tr.servers[at].kill()
	}
	at := tr.leader()
	tr.servers[at].serves(nodes)
	third := (at + 1) % 5
	for slices.Contains(dead, third) {
		third = (third + 1) % 5
	}
	tr.servers[third].kill()
	testkit.Eventually(t, "two of five have no majority", func() bool { return !tr.servers[at].group.Committed(0) })
	tr.start(dead[0])
	tr.servers[tr.leader()].serves(nodes)
	undisturbed(t, nodes)
}

// TestSilentPeerIsProvenDead: a peer falls silent, and is killed while the leader's next connection to it waits
// for an answer. That the one before has ended proves its death.
func TestSilentPeerIsProvenDead(t *testing.T) {
	tr := newTrio(t, 3, time.Second)
	tr.start(0)
	tr.start(1)
	leader := tr.servers[tr.leader()]
	says := leader.group.Liveness()
	says = wire.Liveness{RunID: says.RunID, Group: says.Group, Node: tr.names[2], Voter: raft.NewVoter(3).String(), State: uint64(succession.Abstains)}
	l := listen(t, tr.names[2])
	var conns []net.Conn
	kill := func() {
		l.Close()
		for _, conn := range conns {
			conn.Close()
		}
	}
	defer kill()
	accept := func() {
		conns = append(conns, testkit.Must(l.Accept())(t))
	}
	for range 2 { // the other server's, too, which expects no answer
		accept()
		hello := wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes()
		if _, err := conns[len(conns)-1].Write(wire.AppendFrame(hello, says)); err != nil {
			t.Fatal(err)
		}
	}
	counts := func() bool { return slices.Contains(leader.group.Awaited(), tr.names[2]) }
	testkit.Eventually(t, "it votes", counts)
	accept() // after the leader has heard nothing for too long
	if !counts() {
		t.Error("it was taken for dead because it was silent")
	}
	kill()
	testkit.Eventually(t, "it is proven dead", func() bool { return !counts() })
}

// TestSuccessorKnowsEverything: also the agents' keys, many times what one message has, at servers that were started
// later and got all of it at once. No node has to tell it.
func TestSuccessorKnowsEverything(t *testing.T) {
	tr := started(t, 3, 4*time.Second)
	nodes := []*node{tr.connect(tr.params(2), "a"), tr.connect(tr.params(2), "b")}
	form(t, nodes)
	at := tr.leader()
	later := (at + 1) % 3
	tr.servers[later].kill()
	value := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	const keys = 4
	for i := range keys {
		nodes[0].set(t, fmt.Sprint("key", i), append(value, byte(i)))
	}
	tr.start(later)
	tr.allVote()
	tr.servers[(at+2)%3].kill() // now only the one that came later has it, beside the leader
	tr.start((at + 2) % 3)
	tr.allVote()
	tr.servers[at].kill()
	next := tr.servers[tr.leader()]
	next.serves(nodes)
	for i := range keys {
		if got := nodes[1].get(t, fmt.Sprint("key", i)); !bytes.Equal(got, append(value, byte(i))) {
			t.Errorf("key%d has %d bytes", i, len(got))
		}
	}
	undisturbed(t, nodes)
}

// TestNobodyWaitsWhereAllAreNew: the servers of a list that are all connected, and have no memory, do not wait
// until a leader that none of them knows would have lost its majority.
func TestNobodyWaitsWhereAllAreNew(t *testing.T) {
	tr := newTrio(t, 3, time.Hour)
	for i := range tr.servers {
		tr.start(i)
	}
	tr.leader()
}

// TestMinorityAnswersNoReads: a leader that a majority does not hear does not show what may be old.
func TestMinorityAnswersNoReads(t *testing.T) {
	tr := started(t, 3, 8*time.Second)
	n := tr.connect(tr.params(1), "a")
	form(t, []*node{n})
	n.set(t, "key", []byte("old"))
	at := tr.leader()
	for i := range tr.servers {
		if i != at {
			tr.servers[i].kill()
		}
	}
	last := tr.servers[at]
	testkit.Eventually(t, "it has no majority", func() bool { return !last.group.Committed(0) })
	if _, err := client.Ask(controltest.Context(t), last.name, nil, "run", rendezvous.CloseRun{}); err == nil || !strings.Contains(err.Error(), "no majority: 1 of 3 voters reachable") {
		t.Errorf("an administrator is told %v", err)
	}
	ctx, cancel := context.WithCancel(controltest.Context(t))
	defer cancel()
	answered := make(chan error, 1)
	call := n.Start(rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"key"}})
	go func() {
		_, err := call.Wait(ctx)
		answered <- err
	}()
	last.lines.Await(t, "this process does not host the control plane any more", 1) // after a lease
	select {
	case err := <-answered:
		t.Errorf("it was answered: %v", err)
	default:
	}
	cancel()
	<-answered
}

// TestRoundsAfterAMemoryIsLostLeaveAGap: a server goes on with what it remembers, and with others that know nothing:
// there may have been rounds of which it does not know.
func TestRoundsAfterAMemoryIsLostLeaveAGap(t *testing.T) {
	tr := started(t, 3, time.Second)
	n := tr.connect(tr.params(1), "a")
	form(t, []*node{n})
	at := tr.leader()
	for i := range tr.servers {
		if i != at {
			tr.servers[i].kill()
		}
	}
	tr.servers[at].lines.Await(t, "this process does not host the control plane any more", 1)
	tr.start((at + 1) % 3)
	tr.servers[tr.leader()].serves([]*node{n})
	form(t, []*node{n})
	if n.in.Round != 1001 {
		t.Errorf("round %d", n.in.Round)
	}
	form(t, []*node{n})
	if n.in.Round != 1002 {
		t.Errorf("then round %d", n.in.Round)
	}
}

// TestServersRememberWhatTheyHadStored: all servers end at once and are started again; nodes find their round and
// the agents' keys, and the numbers of rounds go on.
func TestServersRememberWhatTheyHadStored(t *testing.T) {
	tr := stored(t, 3, 20*time.Second) // no election times out in this test
	tr.startAll()
	p := tr.params(2)
	p.LeaseTimeout = 30 * time.Second
	nodes := []*node{tr.connect(p, "a"), tr.connect(p, "b")}
	form(t, nodes)
	before := tr.servers[tr.leader()].group.Current()
	names := map[string]bool{}
	for again := range 3 {
		nodes[0].set(t, fmt.Sprint("key", again), []byte{byte(again)})
		for _, s := range tr.servers {
			names[s.group.Liveness().Voter] = true
		}
		tr.killAll()
		tr.startAll()
		tr.servers[tr.leader()].serves(nodes)
		for i := range again + 1 {
			if got := nodes[1].get(t, fmt.Sprint("key", i)); !bytes.Equal(got, []byte{byte(i)}) {
				t.Errorf("key%d is %v", i, got)
			}
		}
	}
	if after := tr.servers[tr.leader()].group.Current(); after.Group != before.Group || after.Term <= before.Term {
		t.Errorf("%+v became %+v", before, after)
	}
	if len(names) != 3 {
		t.Errorf("%d voters", len(names))
	}
	undisturbed(t, nodes)
	form(t, nodes)
	if nodes[0].in.Round != 2 {
		t.Errorf("round %d", nodes[0].in.Round)
	}
}

// TestCopyVotesUnderAnotherName: a server that is started on an older copy of its directory has forgotten what it had
// promised. It learns what it does not know. Where all servers are copies, a new cluster begins.
func TestCopyVotesUnderAnotherName(t *testing.T) {
	tr := stored(t, 3, time.Second)
	tr.startAll()
	n := tr.connect(tr.params(1), "a")
	form(t, []*node{n})
	at := tr.leader()
	other := (at + 1) % 3
	was, copied := tr.servers[other].group.Liveness().Voter, tr.copied(other)
	form(t, []*node{n})
	tr.servers[other].kill()
	tr.dirs[other] = copied
	tr.start(other).kill() // before it has written anything
	tr.start(other)
	tr.allVote()
	if now := tr.servers[other].group.Liveness().Voter; now == was {
		t.Error("it votes under the same name")
	}
	tr.servers[tr.leader()].serves([]*node{n})
	testkit.Eventually(t, "the copy has learned of round 2", func() bool {
		runs := tr.servers[other].replica.Runs()
		return len(runs) == 1 && runs[0].Through+uint64(len(runs[0].Events)) > 0 && reflect.DeepEqual(runs, tr.servers[tr.leader()].replica.Runs())
	})
	dirs := []string{tr.copied(0), tr.copied(1), tr.copied(2)}
	form(t, []*node{n})
	tr.killAll()
	tr.dirs = dirs
	tr.startAll()
	form(t, []*node{n}) // its hello reports round 3
	if n.in.Round != 1001 {
		t.Errorf("round %d", n.in.Round)
	}
}

// TestDirectoryOfAnotherServer is refused, and the error says whose it is.
func TestDirectoryOfAnotherServer(t *testing.T) {
	dir := t.TempDir()
	testkit.Must(control.NewReplica(dir, "a:1 of a:1,b:1,c:1", journal.Options{}))(t).Close()
	if _, err := control.NewReplica(dir, "b:1 of a:1,b:1,c:1", journal.Options{}); err == nil || !strings.Contains(err.Error(), "written by the server a:1 of a:1,b:1,c:1, and this is b:1") {
		t.Error(err)
	}
	alone := t.TempDir()
	data := testkit.Must(control.OpenData(alone, journal.Options{}))(t)
	s := control.Start(control.Config{Data: data}, listen(t, "127.0.0.1:0"))
	p := controltest.Guest(s.Addr().String(), 1)
	c := client.New(p, controltest.NewObserver(), nil, nil)
	if err := c.Connect(controltest.Context(t)); err != nil {
		t.Fatal(err)
	}
	c.Close(controltest.Context(t))
	s.Close()
	data.Close()
	if _, err := control.NewReplica(alone, "a:1", journal.Options{}); err == nil || !strings.Contains(err.Error(), "written by a server without --peers") {
		t.Error(err)
	}
}

// TestLeaderThatStopsServingForgetsNothing: a leader that nobody has replaced begins again, as the same voter, also while a
// node has it write: what it has proposed before, a majority accepts yet.
func TestLeaderThatStopsServingForgetsNothing(t *testing.T) {
	tr := started(t, 3, 10*time.Second)
	n := tr.connect(tr.params(1), "a")
	form(t, []*node{n})
	leader := tr.servers[tr.leader()]
	before := leader.group.Liveness().Voter
	stop := make(chan struct{})
	writing := testkit.Go(func() error {
		for i := int64(1); ; i++ {
			select {
			case <-stop:
				return nil
			default:
			}
			add := rendezvous.KeyRequest{Round: n.in.Round, Op: store.OpAdd, Keys: []string{"writes"}, Amount: 1}
			result, err := n.Start(add).Wait(controltest.Context(t))
			if err != nil || result.(rendezvous.KeyResult).Number != i {
				return fmt.Errorf("write %d: %+v, %w", i, result, err)
			}
		}
	})
	for range 10 {
		leader.host.StepDown(wire.Redirect{Group: leader.group.Current().Group, Node: leader.name}, "nobody hears it")
		leader.serves([]*node{n})
	}
	close(stop)
	testkit.Check(t, <-writing)
	if after := leader.group.Liveness().Voter; after != before {
		t.Errorf("voter %s became %s", before, after)
	}
	undisturbed(t, []*node{n})
}
