package control

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/election"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// fakeServer is a server whose time a test moves.
type fakeServer struct {
	*Server
	addr  string
	clock *testkit.Clock
	rec   *recorder
	log   *testkit.Log
}

func newFakeServer(t *testing.T, cfg Config) *fakeServer {
	t.Helper()
	f := &fakeServer{clock: testkit.NewClock(), rec: newRecorder(t)}
	cfg.Clock, cfg.Trace = f.clock, f.rec.record
	cfg.Log, f.log = testkit.NewLog(t)
	f.Server, f.addr = testServer(t, cfg)
	return f
}

// awaitWritten waits until the server has written all that it has to say. If a test moves the clock
// while the server's goroutine is still about to return from a write, the peer seems not to read.
func (f *fakeServer) awaitWritten(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, "all is written", func() bool { return f.unsent.Load() == 0 })
}

func TestLeaseExpires(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	silent, alive := dialNode(t, s.addr), dialNode(t, s.addr)
	w := silent.enter(testHello("silent", "s1", p))
	if time.Duration(w.Lease) != p.LeaseTimeout {
		t.Errorf("lease %v, want %v", time.Duration(w.Lease), p.LeaseTimeout)
	}
	alive.enter(testHello("alive", "s2", p))
	s.awaitWritten(t)
	for range 6 {
		s.clock.Advance(p.LeaseTimeout / 4)
		// The reply shows that the beat before it was read.
		alive.send(wire.Beat{})
		alive.send(wire.Request{Number: 1, Op: 99})
		alive.next()
	}
	f := silent.next()
	if d, ok := f.(wire.Drop); !ok || d.Err.Code != rendezvous.CodeEvicted {
		t.Errorf("the silent node got %+v, want a drop", f)
	}
	silent.awaitEnd()
	if n := s.rec.count(isEvent[rendezvous.LeaseExpired]); n != 1 {
		t.Errorf("%d leases expired, want that of the silent node only", n)
	}
}

// cutOffElector leads, and hears no majority while it is cut off.
type cutOffElector struct {
	election.Elector
	cutOff atomic.Bool
}

func (e *cutOffElector) Serves(string) bool     { return false }
func (e *cutOffElector) Hosting() bool          { return true }
func (e *cutOffElector) Quorum() bool           { return true }
func (e *cutOffElector) Current() wire.Redirect { return wire.Redirect{Term: 1} }

func (e *cutOffElector) Began() (s rendezvous.Succession, since time.Time, took time.Duration) {
	return s, since, took
}

func (e *cutOffElector) Propose(rendezvous.Facts) (number uint64) { return 1 }
func (e *cutOffElector) Committed(uint64) bool                    { return !e.cutOff.Load() }

// TestLeasesOfACutOffHost: a host that has no majority judges no lease. It says so once, for as long as that lasts:
// its history has room for 64 changes.
func TestLeasesOfACutOffHost(t *testing.T) {
	e := &cutOffElector{}
	s := newFakeServer(t, Config{Elector: e})
	p := controltest.Params("", 2)
	n := dialNode(t, s.addr)
	n.enter(testHello("a", "s1", p))
	s.awaitWritten(t)
	for times := range 2 {
		e.cutOff.Store(true)
		for range 5 {
			s.clock.Advance(p.LeaseTimeout)
		}
		if said := s.log.With("no majority"); len(said) != times+1 {
			t.Errorf("%d times cut off, for five leases each: %q", times+1, said)
		}
		e.cutOff.Store(false)
		n.send(wire.Beat{})
		n.send(wire.Request{Number: 1, Op: 99}) // whose reply shows that the beat before it was read
		n.next()
		s.clock.Advance(p.LeaseTimeout)
	}
	if n := s.rec.count(isEvent[rendezvous.LeaseExpired]); n != 0 {
		t.Errorf("%d leases expired", n)
	}
}

// TestLeasesAndTheWallClock: somebody sets the wall clock a day ahead and back. No node that beats
// loses its lease by that, and a silent one does not keep it.
func TestLeasesAndTheWallClock(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	silent, alive := dialNode(t, s.addr), dialNode(t, s.addr)
	silent.enter(testHello("silent", "s1", p))
	alive.enter(testHello("alive", "s2", p))
	beat := func(n *wireNode) {
		n.send(wire.Beat{})
		n.send(wire.Request{Number: 1, Op: 99}) // whose reply shows that the beat before it was read
		n.next()
	}
	for _, by := range []time.Duration{24, -48, 24} {
		s.clock.Advance(p.LeaseTimeout / 2)
		s.clock.SetWall(by * time.Hour)
		beat(silent)
		beat(alive)
	}
	if n := s.rec.count(isEvent[rendezvous.LeaseExpired]); n != 0 {
		t.Fatalf("%d leases expired while all nodes sent heartbeats", n)
	}
	s.awaitWritten(t)
	for range 3 {
		s.clock.SetWall(-24 * time.Hour)
		s.clock.Advance(p.LeaseTimeout / 2)
		beat(alive)
	}
	if d, ok := silent.next().(wire.Drop); !ok || d.Err.Code != rendezvous.CodeEvicted {
		t.Errorf("the silent node got %+v, want a drop", d)
	}
	s.rec.await(t, "a lease expires", 1, isEvent[rendezvous.LeaseExpired])
	if n := s.rec.count(isEvent[rendezvous.LeaseExpired]); n != 1 {
		t.Errorf("%d leases expired, want that of the silent node only", n)
	}
	testkit.Equal(t, len(s.log.With("was stopped or is overloaded")), 0)
}

func TestLeaseNotEvaluatedAfterOwnDelay(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	n := dialNode(t, s.addr)
	n.enter(testHello("a", "s1", p))
	s.clock.Jump(10 * p.LeaseTimeout)
	s.log.Await(t, "was stopped or is overloaded", 1)
	s.clock.Advance(p.LeaseTimeout * 3 / 4)
	if s.rec.count(isEvent[rendezvous.LeaseExpired]) != 0 {
		t.Fatal("a lease expired although the server itself had been stopped")
	}
	s.clock.Advance(p.LeaseTimeout)
	awaitEvents[rendezvous.LeaseExpired](t, s.rec, 1)
}

func TestLeaseNotEvaluatedBeforeReading(t *testing.T) {
	a, b := tcpPair(t)
	if wire.Unread(a) != 0 {
		t.Error("bytes are unread although none were sent")
	}
	b.Write([]byte("beat"))
	one := make([]byte, 1)
	a.Read(one) // the rest has come with it
	if got := wire.Unread(a); got != 3 {
		t.Errorf("%d unread bytes, want 3", got)
	}
}

func tcpPair(t *testing.T) (net.Conn, net.Conn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	a, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	b, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestGraceThenLost(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	a, b := dialNode(t, s.addr), dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	b.enter(testHello("b", "s2", p))
	a.ask(1, controltest.Join())
	b.ask(1, controltest.Join())
	a.wantReply(1)
	b.wantReply(1)
	a.conn.Close()
	awaitEvents[rendezvous.Disconnect](t, s.rec, 1)
	s.clock.Advance(p.ReconnectGrace)
	f := b.next()
	if n, ok := f.(wire.Notice); !ok || n.Notice.Waiting == 0 || !strings.Contains(n.Notice.Reason, "a") {
		t.Errorf("the survivor got %+v, want a notice that names the lost node", f)
	}
	again := dialNode(t, s.addr)
	if w := again.enter(testHello("a", "s1", p)); w.Resumed {
		t.Error("the session was resumed after its grace")
	}
}

func TestReconnectWithinGraceResumes(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 1)
	a := dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	a.ask(1, controltest.Join())
	first := a.wantReply(1)
	a.conn.Close()
	awaitEvents[rendezvous.Disconnect](t, s.rec, 1)
	a = dialNode(t, s.addr)
	if w := a.enter(testHello("a", "s1", p)); !w.Resumed {
		t.Error("the session was not resumed")
	}
	a.ask(1, controltest.Join()) // the answer may have been lost
	if again := a.wantReply(1); fmt.Sprint(again) != fmt.Sprint(first) {
		t.Errorf("the answer is %+v the second time, was %+v", again, first)
	}
}

func TestNewerConnectionSupersedes(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	older, newer := dialNode(t, s.addr), dialNode(t, s.addr)
	older.enter(testHello("a", "s1", p))
	if w := newer.enter(testHello("a", "s1", p)); !w.Resumed {
		t.Error("the session was not resumed")
	}
	older.awaitEnd()
	s.log.Await(t, "newer connection", 1)
	if n := s.rec.count(isEvent[rendezvous.Disconnect]); n != 0 {
		t.Errorf("the end of the older connection was taken for the node's, %d times", n)
	}
	newer.ask(1, rendezvous.Finish{})
	newer.wantReply(1)
}

// TestFramesOfSupersededConnectionIgnored applies a request on a connection
// whose session a newer one has taken over, in the moment before it ends.
func TestFramesOfSupersededConnectionIgnored(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	older := dialNode(t, s.addr)
	older.enter(testHello("a", "s1", p))
	r, _ := s.runFor("run", netip.Addr{})
	r.mu.Lock()
	old := r.conns["s1"]
	r.mu.Unlock()
	newer := dialNode(t, s.addr)
	newer.enter(testHello("a", "s1", p))
	r.request(old, wire.Request{Number: 1, Op: rendezvous.OpFinish, Event: rendezvous.Finish{}})
	if s.rec.count(isEvent[rendezvous.Finish]) != 0 {
		t.Error("a request of the superseded connection was applied")
	}
}

func TestEmbeddedServesOneRun(t *testing.T) {
	s := newFakeServer(t, Config{RunID: "mine"})
	p := controltest.Params("", 2)
	p.RunID = "other"
	n := dialNode(t, s.addr)
	f, ok := n.greet(testHello("a", "s1", p)).(wire.Refuse)
	if !ok {
		t.Fatal("another run was not refused")
	}
	host, _ := os.Hostname()
	controltest.WantCode(t, f.Err, rendezvous.CodeTenant, `"mine"`, `"other"`, fmt.Sprintf("pid %d", os.Getpid()), host, s.addr)
	n.awaitEnd()
	s.log.Await(t, "refused a node", 1)
}

func TestStandaloneServesManyRuns(t *testing.T) {
	s := newFakeServer(t, Config{})
	for _, id := range []string{"one", "two", "none", "none"} {
		p := controltest.Params("", 1)
		p.RunID = id
		n := dialNode(t, s.addr)
		n.enter(testHello("node", "s-"+id, p))
		n.ask(1, controltest.Join())
		if r := n.wantReply(1); r.Err != nil {
			t.Error(r.Err)
		}
	}
	if lines := s.log.Await(t, `id \"none\"`, 1); len(lines) != 1 {
		t.Errorf("%d warnings about the run id none, want 1", len(lines))
	}
}

func TestRefusedFirstHelloLeavesNoRun(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	p.Min = 5
	n := dialNode(t, s.addr)
	f, ok := n.greet(testHello("a", "s1", p)).(wire.Refuse)
	if !ok {
		t.Fatal("an invalid policy was not refused")
	}
	controltest.WantCode(t, f.Err, rendezvous.CodeInvalid)
	n.awaitEnd()
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.runs) != 0 {
		t.Errorf("%d runs are kept", len(s.runs))
	}
}

func TestIdleRunsAreForgottenAfterAnHour(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 1)
	p.NodeID = "a"
	round := func(session string) uint64 {
		n := dialNode(t, s.addr)
		n.enter(testHello("a", session, p))
		n.ask(1, controltest.Join())
		r := n.wantReply(1)
		left := s.rec.count(isEvent[rendezvous.Disconnect])
		n.ask(2, rendezvous.Leave{})
		n.wantReply(2)
		n.conn.Close()
		awaitEvents[rendezvous.Disconnect](t, s.rec, left+1)
		return r.Result.(rendezvous.Outcome).Round
	}
	if r := round("s1"); r != 1 {
		t.Fatalf("round %d, want 1", r)
	}
	s.clock.Advance(DefaultForgetAfter / 2)
	if r := round("s2"); r != 2 {
		t.Errorf("round %d after half an hour, want 2", r)
	}
	s.clock.Advance(DefaultForgetAfter + 2*sweepEvery)
	if r := round("s3"); r != 1 {
		t.Errorf("round %d after more than an hour, want 1", r)
	}
}

func TestUnknownRequestIsAnswered(t *testing.T) {
	s := newFakeServer(t, Config{})
	n := dialNode(t, s.addr)
	n.enter(testHello("a", "s1", controltest.Params("", 2)))
	n.send(wire.Unknown{Kind: 77})
	n.send(wire.Request{Number: 1, Op: 99})
	controltest.WantCode(t, n.wantReply(1).Err, rendezvous.CodeInvalid, "99", "older")
}

func TestAnswerLargerThanAFrame(t *testing.T) {
	s := newFakeServer(t, Config{})
	n := dialNode(t, s.addr)
	n.enter(testHello("a", "s1", controltest.Params("", 1)))
	n.ask(1, controltest.Join())
	n.wantReply(1)
	value := make([]byte, 1<<20)
	for i := range 3 {
		n.ask(uint64(2+i), rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{fmt.Sprint(i)}, Values: [][]byte{value}})
		if r := n.wantReply(uint64(2 + i)); r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	n.ask(5, rendezvous.KeyRequest{Round: 1, Op: store.OpMultiGet, Keys: []string{"0", "1", "2"}})
	controltest.WantCode(t, n.wantReply(5).Err, rendezvous.CodeTooLarge)
	n.ask(6, rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"0"}})
	if r := n.wantReply(6); r.Err != nil || !bytes.Equal(r.Result.(rendezvous.KeyResult).Values[0], value) {
		t.Error("a value of 1 MiB did not come back")
	}
}

func TestProgressOfWaitingNodes(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 3)
	a := dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	a.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 1)
	s.clock.Advance(wire.ProgressFirst)
	first, ok := a.next().(wire.Progress)
	if !ok || !strings.Contains(first.Progress.Headline, "1 of 3") {
		t.Fatalf("got %+v, want progress", first)
	}
	// Unchanged, it is not told again: the next message tells of b.
	s.clock.Advance(3 * wire.ProgressEvery)
	b := dialNode(t, s.addr)
	b.enter(testHello("b", "s2", p))
	b.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 2)
	s.clock.Advance(wire.ProgressEvery)
	second, ok := a.next().(wire.Progress)
	if !ok || !strings.Contains(second.Progress.Headline, "2 of 3") {
		t.Fatalf("got %+v, want progress", second)
	}
	if text, ok := b.next().(wire.Progress); !ok || text != second {
		t.Errorf("the other node received %+v", text)
	}
}

func TestNoProgressInAQuickJoin(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	a, b := dialNode(t, s.addr), dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	b.enter(testHello("b", "s2", p))
	a.ask(1, controltest.Join())
	awaitEvents[rendezvous.Join](t, s.rec, 1)
	s.clock.Advance(wire.ProgressFirst - 1)
	b.ask(1, controltest.Join())
	a.wantReply(1) // nothing came before
	s.clock.Advance(time.Minute / 2)
}

func TestWaitIdle(t *testing.T) {
	s := newFakeServer(t, Config{})
	p := controltest.Params("", 2)
	a, b := dialNode(t, s.addr), dialNode(t, s.addr)
	a.enter(testHello("a", "s1", p))
	b.enter(testHello("b", "s2", p))
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.WaitIdle(ended, "s1"); err == nil {
		t.Error("idle although b is connected")
	}
	idle := make(chan error, 1)
	go func() { idle <- s.WaitIdle(controltest.Context(t), "s1") }()
	b.send(wire.Goodbye{})
	if err := <-idle; err != nil {
		t.Error(err)
	}
}

func TestIncompatibleVersionIsRefused(t *testing.T) {
	s := newFakeServer(t, Config{})
	n := dialNode(t, s.addr)
	n.write(wire.Preamble{High: 9, Low: 8}.Bytes())
	answer := make([]byte, wire.PreambleLen)
	if _, err := n.frames.In.Read(answer); err != nil {
		t.Fatal(err)
	}
	f, ok := n.next().(wire.Refuse)
	if !ok {
		t.Fatal("not refused")
	}
	controltest.WantCode(t, f.Err, rendezvous.CodeState, "versions 1 to 1", "8 to 9")
}
