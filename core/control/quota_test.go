package control

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"rallypoint/core/control/controltest"
	"rallypoint/core/control/wire"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/internal/testkit"
)

// tenant is a run whose nodes, by hand, acknowledge what a test says.
type tenant struct {
	t      *testing.T
	nodes  []*wireNode
	number []uint64
}

// newTenant forms the first round of a run.
func newTenant(t *testing.T, addr, id string, n int) *tenant {
	t.Helper()
	p := controltest.Params("", n)
	p.RunID = id
	tn := &tenant{t: t, number: make([]uint64, n)}
	for i := range n {
		x := dialNode(t, addr)
		x.enter(testHello(fmt.Sprint(id, " ", i), fmt.Sprint(id, "/", i), p))
		tn.nodes = append(tn.nodes, x)
		tn.number[i] = 1
		x.ask(1, controltest.Join())
	}
	for _, x := range tn.nodes {
		x.wantReply(1)
	}
	return tn
}

// ask sends a node's next request.
func (tn *tenant) ask(i int, ev rendezvous.Event, acked uint64) uint64 {
	tn.t.Helper()
	tn.number[i]++
	f, _ := wire.NewRequest(ev, tn.number[i], acked)
	tn.nodes[i].send(f)
	return tn.number[i]
}

// key asks for an operation, acknowledges nothing and returns the answer.
func (tn *tenant) key(i int, op store.Op, keys []string, values ...[]byte) wire.Reply {
	tn.t.Helper()
	return tn.nodes[i].wantReply(tn.ask(i, rendezvous.KeyRequest{Round: 1, Op: op, Keys: keys, Values: values}, 0))
}

// miss asks for a compare-set that does not compare: a short request with a long answer.
func (tn *tenant) miss(i int) *rendezvous.Error {
	tn.t.Helper()
	return tn.key(i, store.OpCompareSet, []string{"k"}, []byte("no"), []byte("new")).Err
}

func (s *Server) keptOf(id string) int64 {
	r := s.lookUp(id)
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.keptBytesLocked()
}

// TestBytesOfARun: a run's memory is bounded, a node that exceeds it gets an error, and others do not notice.
func TestBytesOfARun(t *testing.T) {
	const most = 8 << 20
	s, addr := testServer(t, Config{Quota: Quota{Bytes: most}})
	hogs, neighbour := newTenant(t, addr, "hogs", 4), newTenant(t, addr, "neighbour", 1)
	megabyte := make([]byte, 1<<20)
	if err := hogs.key(0, store.OpSet, []string{"k"}, megabyte).Err; err != nil {
		t.Fatal(err)
	}
	refused := 0
	for range 31 {
		for i := range hogs.nodes {
			if err := hogs.miss(i); err != nil {
				refused++
				controltest.WantCode(t, err, rendezvous.CodeTooLarge, `run "hogs" keeps`, fmt.Sprint(most), "not acknowledged", "--max-bytes")
			}
		}
	}
	if kept := s.keptOf("hogs"); kept > most+most/4 || kept < most/2 || refused < 90 {
		t.Errorf("%d bytes are kept, %d of 124 requests were refused", kept, refused)
	}
	if n := s.metrics.refused[refusedQuota].Load(); n != uint64(refused) {
		t.Errorf("%d are counted as refused, not %d", n, refused)
	}
	if err := neighbour.key(0, store.OpSet, []string{"k"}, megabyte).Err; err != nil {
		t.Errorf("a neighbour: %v", err)
	}
	h := testHello("one more", "one more", controltest.Params("", 4))
	h.RunID = "hogs"
	if f, ok := dialNode(t, addr).greet(h).(wire.Refuse); ok {
		controltest.WantCode(t, f.Err, rendezvous.CodeTooLarge, "--max-bytes")
	}

	miss := rendezvous.KeyRequest{Round: 1, Op: store.OpCompareSet, Keys: []string{"k"}, Values: [][]byte{nil, nil}}
	for i := range hogs.nodes { // who acknowledges is served again
		if r := hogs.nodes[i].wantReply(hogs.ask(i, miss, hogs.number[i])); r.Err != nil {
			t.Error(r.Err)
		}
	}
}

// TestBytesOfAllRuns: when all runs have taken what they may together, those with more than an
// equal share are refused.
func TestBytesOfAllRuns(t *testing.T) {
	const total = 12 << 20
	s, addr := testServer(t, Config{Quota: Quota{Bytes: 9 << 20, TotalBytes: total}})
	var large [2]*tenant
	for i := range large {
		large[i] = newTenant(t, addr, fmt.Sprint("large", i), 1)
		large[i].key(0, store.OpSet, []string{"k"}, make([]byte, 1<<20))
	}
	small := newTenant(t, addr, "small", 1)
	var err *rendezvous.Error
	for i := 0; err == nil || !strings.Contains(err.Text, "--max-total-bytes"); i++ {
		if err = large[i%2].miss(0); i > 100 {
			t.Fatalf("the last of 100 requests: %v; %d bytes are kept", err, s.keptBytes())
		}
	}
	controltest.WantCode(t, err, rendezvous.CodeTooLarge, `run "large`, "3 jobs", fmt.Sprint(total), "equal share")
	if kept := s.keptBytes(); kept > total+2<<20 {
		t.Errorf("%d bytes are kept, %d are allowed", kept, total)
	}
	if err := small.key(0, store.OpSet, []string{"k"}, make([]byte, 1<<20)).Err; err != nil {
		t.Errorf("one with less than its share: %v", err)
	}
	newTenant(t, addr, "new", 1)
}

// TestUnsentBytesCount: bytes queued for nodes that do not read count until these are gone.
func TestUnsentBytesCount(t *testing.T) {
	listener := newPipes()
	const most = 4 << 20
	s := Start(Config{Quota: Quota{Bytes: most}}, listener)
	defer s.Close()
	p := controltest.Params("", 8)
	var nodes []*wireNode
	for i := range 8 {
		n := listener.dial(t)
		defer n.conn.Close()
		n.enter(testHello(fmt.Sprint(i), fmt.Sprint(i), p))
		nodes = append(nodes, n)
	}
	for _, n := range nodes {
		n.ask(1, controltest.Join())
	}
	for _, n := range nodes {
		n.wantReply(1)
	}
	nodes[0].ask(2, rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, 1<<20)}})
	nodes[0].wantReply(2)
	for _, n := range nodes {
		n.ask(3, rendezvous.KeyRequest{Round: 1, Op: store.OpGet, Keys: []string{"k"}})
	}
	refused := 0
	for _, n := range nodes[4:] { // none has read before all have asked
		if r := n.wantReply(3); r.Err != nil {
			refused++
			controltest.WantCode(t, r.Err, rendezvous.CodeTooLarge, "waits to be sent", "--max-bytes")
		}
	}
	if refused == 0 {
		t.Error("eight answers of 1 MiB wait to be sent")
	}
	for _, n := range nodes {
		n.conn.Close()
	}
	s.Close()
	if n := s.unsent.Load(); n != 0 {
		t.Errorf("%d bytes are counted that wait to be sent, and there is no connection", n)
	}
}

// TestFramesThatDoNotEndCount: long frames that come in part, and no more, count to the run; who
// sends one too many is cut off.
func TestFramesThatDoNotEndCount(t *testing.T) {
	s, addr := testServer(t, Config{Quota: Quota{Bytes: 4 << 20}})
	tn := newTenant(t, addr, "run", 8)
	set := wire.AppendFrame(nil, worst["set"](2))
	long, _ := wire.NewRequest(rendezvous.KeyRequest{Round: 1, Op: store.OpSet, Keys: []string{"k"}, Values: [][]byte{make([]byte, 2_000_000)}}, 2, 0)
	for range 3 { // what has come whole does not count
		tn.nodes[7].write(set)
	}
	for _, n := range tn.nodes[:7] {
		_, _ = n.conn.Write(wire.AppendFrame(nil, long)[:1_900_000])
	}
	cut := 0
	testkit.Eventually(t, "four nodes are cut off", func() bool { return s.metrics.refused[refusedQuota].Load() >= 4 })
	for _, n := range tn.nodes[:7] {
		n.conn.(*net.TCPConn).CloseWrite()
		for { // notices of the others that were lost come before
			f, err := n.frames.NextFrame(wire.MaxFrame)
			if err != nil {
				break
			}
			if d, ok := f.(wire.Drop); ok {
				controltest.WantCode(t, d.Err, rendezvous.CodeTooLarge, `run "run" keeps`, "has come in part", "--max-bytes")
				cut++
			}
		}
	}
	if cut < 4 {
		t.Errorf("%d of 7 are cut off", cut)
	}
	s.Close()
	if n := s.arriving.Load(); n != 0 {
		t.Errorf("%d bytes are counted that have come in part, and there is no connection", n)
	}
}

// TestNothingIsCountedInTheEnd: when all runs are forgotten, nothing is kept.
func TestNothingIsCountedInTheEnd(t *testing.T) {
	s := newFakeServer(t, Config{})
	for i := range 5 {
		tn := newTenant(t, s.addr, fmt.Sprint("run ", i), 2)
		tn.key(0, store.OpSet, []string{"k"}, make([]byte, 1000))
		tn.ask(0, rendezvous.KeyRequest{Round: 1, Op: store.OpWait, Keys: []string{"never"}}, 0)
		tn.miss(1)
		for _, n := range tn.nodes {
			n.conn.Close()
		}
	}
	awaitIdle(t, s.Server)
	if s.keptBytes() < 5*runCost {
		t.Errorf("%d bytes are counted for five runs", s.keptBytes())
	}
	for range 90 {
		s.clock.Advance(time.Minute)
	}
	for len(s.runIDs()) > 0 { // events are applied when they are stored
		s.clock.Advance(time.Minute)
	}
	if kept, runs := s.kept.Load(), s.runCount.Load(); kept != 0 || runs != 0 || len(s.runsOf) != 0 {
		t.Errorf("%d bytes, %d runs and %v are counted", kept, runs, s.runsOf)
	}
}

// TestARunWithoutARoundIsForgotten when its lease is over and no node is connected, whatever
// time its nodes have asked for to come back.
func TestARunWithoutARoundIsForgotten(t *testing.T) {
	s := newFakeServer(t, Config{})
	newTenant(t, s.addr, "had a round", 1).nodes[0].conn.Close()
	here := dialNode(t, s.addr)
	for i := range 10 {
		p := controltest.Params("", 2)
		p.RunID = fmt.Sprint("run ", i)
		if i == 0 {
			p.LeaseTimeout = 100 * time.Hour
			here.enter(testHello("n", "here", p))
			continue
		}
		n := dialNode(t, s.addr)
		n.enter(testHello("n", "s", p))
		n.conn.Close()
	}
	if err := s.WaitIdle(controltest.Context(t), "here"); err != nil {
		t.Fatal(err)
	}
	for len(s.runIDs()) > 2 {
		s.clock.Advance(sweepEvery)
	}
	if ids := fmt.Sprint(s.runIDs()); ids != "[had a round run 0]" {
		t.Errorf("%s are remembered", ids)
	}
	if s.running() > 10*time.Minute {
		t.Errorf("it has taken %v", s.running())
	}
}

// TestRunsOfAnAddress: an address that has begun many runs begins no more, and others do.
func TestRunsOfAnAddress(t *testing.T) {
	s := newFakeServer(t, Config{Quota: Quota{RunsPerAddress: 3}})
	begin := func(from, id string) wire.Frame {
		t.Helper()
		p := controltest.Params("", 1)
		p.RunID = id
		n := dialNodeFrom(t, from, s.addr)
		defer n.conn.Close()
		return n.greet(testHello(id, id, p))
	}
	for i := range 3 {
		if _, ok := begin("127.0.0.1", fmt.Sprint("run ", i)).(wire.Welcome); !ok {
			t.Fatalf("run %d cannot begin", i)
		}
	}
	f, ok := begin("127.0.0.1", "one more").(wire.Refuse)
	if !ok {
		t.Fatal("a fourth run has begun")
	}
	controltest.WantCode(t, f.Err, rendezvous.CodeTooLarge, `run "one more" cannot begin`, "127.0.0.1", "3 runs", "--max-runs-per-address", "--forget-after")
	if _, ok := begin("127.0.0.2", "another's").(wire.Welcome); !ok {
		t.Error("one of another address cannot begin")
	}
	if _, ok := begin("127.0.0.1", "another's").(wire.Welcome); !ok {
		t.Error("a node of the address is not let into a run that is there")
	}
	awaitIdle(t, s.Server)
	for len(s.runIDs()) > 0 {
		s.clock.Advance(time.Minute)
	}
	if _, ok := begin("127.0.0.1", "one more").(wire.Welcome); !ok {
		t.Error("the runs are forgotten, and another one cannot begin")
	}
}

func TestWhoseARunCounts(t *testing.T) {
	for from, want := range map[string]string{
		"192.0.2.7": "192.0.2.7", "::ffff:192.0.2.7": "192.0.2.7", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
	} {
		if got := countedAs(netip.MustParseAddr(from)); got != netip.MustParseAddr(want) {
			t.Errorf("%s counts to %v, not to %s", from, got, want)
		}
	}
}

// TestALargeRoundIsNotMadeOfAReport: a hello of a few bytes names a round of a million.
func TestALargeRoundIsNotMadeOfAReport(t *testing.T) {
	s, addr := testServer(t, Config{Quota: Quota{Nodes: 1000}})
	h := testHello("n", "s", controltest.Params("", rendezvous.MaxNodes))
	h.LastRound = rendezvous.LastRound{Generation: "old", Round: 7, World: rendezvous.MaxNodes, HostRank: -1}
	f, ok := dialNode(t, addr).greet(h).(wire.Refuse)
	if !ok {
		t.Fatalf("it is let in; %d bytes are kept", s.keptBytes())
	}
	controltest.WantCode(t, f.Err, rendezvous.CodeTooLarge, "1048576 nodes", "--max-nodes")
}

// TestOutboxesCountOnce: a connection that took the session of another over counts alone.
func TestOutboxesCountOnce(t *testing.T) {
	s := newFakeServer(t, Config{})
	for range 3 {
		n := dialNode(t, s.addr)
		n.enter(testHello("n", "s", controltest.Params("", 1)))
	}
	s.Close()
	if s.unsent.Load() != 0 || s.lookUp("run").unsent.Load() != 0 {
		t.Errorf("%d bytes wait to be sent, %d of the run", s.unsent.Load(), s.lookUp("run").unsent.Load())
	}
}
