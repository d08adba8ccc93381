package etcdlog

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"rallypoint/core/member"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// aCutNode is a node in this process whose way to the etcd can be closed.
func aCutNode(t *testing.T, config etcdclient.Config, name string, least, most int) (*member.Member, *etcdtest.Link) {
	t.Helper()
	network := etcdtest.NewLink(t, config.Endpoints[0])
	config.Endpoints = []string{network.Endpoint}
	m, err := openMember(config, nodeParams(name, least, most), slog.New(slog.DiscardHandler))
	testkit.Check(t, err)
	t.Cleanup(func() { m.Close() })
	return m, network
}

// nextOf lets members join and returns what becomes of them.
func nextOf(t *testing.T, members ...*member.Member) []rendezvous.Outcome {
	t.Helper()
	type answer struct {
		i   int
		o   rendezvous.Outcome
		err error
	}
	answers := make(chan answer)
	for i, m := range members {
		go func() {
			o, err := m.Next(testkit.Within(t, time.Minute))
			answers <- answer{i, o, err}
		}()
	}
	outcomes := make([]rendezvous.Outcome, len(members))
	for range members {
		a := <-answers
		if a.err != nil {
			t.Fatalf("node %d: %v", a.i, a.err)
		}
		outcomes[a.i] = a.o
	}
	return outcomes
}

// noSigns waits until no node of the run "job" shows a sign of life.
func noSigns(t *testing.T, config etcdclient.Config) {
	t.Helper()
	c := testkit.Must(etcdclient.New(config))(t)
	defer c.Close()
	signs := config.Prefix + "/job/l/"
	for ctx := testkit.Within(t, 30*time.Second); ; time.Sleep(20 * time.Millisecond) {
		if testkit.Must(c.Get(ctx, "signs", etcdclient.RangeRequest{Key: signs, End: etcdclient.PrefixEnd(signs), CountOnly: true}))(t).Count == 0 {
			return
		}
	}
}

// awaitWaiting waits until a member has a reason to regroup.
func awaitWaiting(t *testing.T, m *member.Member) {
	t.Helper()
	ctx := testkit.Within(t, 30*time.Second)
	for m.NodesWaiting() == 0 {
		select {
		case <-m.Changed():
		case <-ctx.Done():
			t.Fatal("it does not regroup")
		}
	}
}

// All nodes of a run are cut off from a healthy etcd for longer than their lease, and a
// new one enters meanwhile: it joins their run. They regroup with it when they are back.
func TestCutOffNodesAreJoined(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	a, netA := aCutNode(t, config, "a", 2, 3)
	b, netB := aCutNode(t, config, "b", 2, 3)
	first := nextOf(t, a, b)
	netA.Close()
	netB.Close()
	noSigns(t, config)
	c, _ := aCutNode(t, config, "c", 2, 3)
	joined := make(chan rendezvous.Outcome, 1)
	go func() {
		o, err := c.Next(testkit.Within(t, time.Minute))
		if err != nil {
			t.Error(err)
		}
		joined <- o
	}()
	signs := config.Prefix + "/job/l/"
	for probe := testkit.Must(etcdclient.New(config))(t); ; time.Sleep(10 * time.Millisecond) { // until it has entered
		if testkit.Must(probe.Get(testkit.Within(t, time.Minute), "signs", etcdclient.RangeRequest{Key: signs, End: etcdclient.PrefixEnd(signs), CountOnly: true}))(t).Count > 0 {
			probe.Close()
			break
		}
	}
	netA.Open()
	netB.Open()
	awaitWaiting(t, a)
	awaitWaiting(t, b)
	again := nextOf(t, a, b)
	third := <-joined
	for i, o := range append(again, third) {
		if o.Generation != first[0].Generation || o.Round <= first[0].Round || o.Round != third.Round {
			t.Errorf("node %d: %+v after %+v", i, o, first[0])
		}
	}
}

// One node of three leaves while the other two are cut off, before or after it has taken
// them for lost: it takes nothing away, and they continue. Nor does one that enters then
// and leaves again.
func TestLeavingTakesNothingFromCutOffNodes(t *testing.T) {
	t.Parallel()
	for _, declared := range []bool{false, true} {
		t.Run(fmt.Sprint("declared lost ", declared), func(t *testing.T) {
			t.Parallel()
			leaveCutOffNodes(t, declared)
		})
	}
}

func leaveCutOffNodes(t *testing.T, declared bool) {
	config := shared.Config(t)
	a, netA := aCutNode(t, config, "a", 2, 3)
	b, netB := aCutNode(t, config, "b", 2, 3)
	c, netC := aCutNode(t, config, "c", 2, 3)
	first := nextOf(t, a, b, c)
	netA.Close()
	netB.Close()
	signs := config.Prefix + "/job/l/"
	probe := testkit.Must(etcdclient.New(config))(t)
	defer probe.Close()
	for testkit.Must(probe.Get(testkit.Within(t, time.Minute), "signs", etcdclient.RangeRequest{Key: signs, End: etcdclient.PrefixEnd(signs), CountOnly: true}))(t).Count > 1 {
		time.Sleep(10 * time.Millisecond)
	}
	if declared {
		awaitWaiting(t, c)
	}
	c.Close()
	netC.Close()
	noSigns(t, config)
	if declared {
		d := testkit.Must(New(config, "job", 2*time.Second, "127.0.0.1"))(t)
		testkit.Equal(t, testkit.Must(d.Open(testkit.Within(t, time.Minute)))(t).Generation, first[0].Generation)
		testkit.Check(t, d.Close(testkit.Within(t, testkit.Patience)))
	}
	netA.Open()
	netB.Open()
	awaitWaiting(t, a)
	awaitWaiting(t, b)
	for i, o := range nextOf(t, a, b) {
		if o.World != 2 || o.Generation != first[0].Generation || o.Round <= first[0].Round {
			t.Errorf("node %d: %+v after %+v", i, o, first[0])
		}
	}
}

// The log of nodes that were killed is taken over: the next ones begin in it at once, and
// with other settings, too.
func TestKilledRunIsTakenOver(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	killed := []*nodeProcess{startNode(t, config, "a", 2, 2), startNode(t, config, "b", 2, 2)}
	tellAll(killed, "next")
	testkit.Equal(t, met(t, killed), 1)
	for _, n := range killed {
		n.kill()
	}
	noSigns(t, config)
	var nodes []*nodeProcess
	for i := range 3 { // one with a name of those
		nodes = append(nodes, startNode(t, config, string(rune('a'+i)), 3, 3))
	}
	tellAll(nodes, "next")
	testkit.Equal(t, met(t, nodes) > 1, true)
}

// lockedText is a text that may be written and read at the same time.
type lockedText struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lockedText) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Entering that takes longer than the lease is tried on, with more time.
func TestEnteringSlowly(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	p := nodeParams("slow", 1, 1)
	p.LeaseTimeout = time.Second
	notes := &lockedText{}
	log := slog.New(slog.NewTextHandler(notes, nil))
	shared, err := New(config, p.RunID, p.LeaseTimeout, "127.0.0.1")
	testkit.Check(t, err)
	n := etcdtest.MakeLossy(shared.client, t)
	var slow atomic.Bool
	n.Fate = func(c etcdtest.UnaryCall, tries int) etcdtest.Fate {
		if c.Method == etcdtest.MethodTxn && slow.CompareAndSwap(false, true) {
			time.Sleep(2500 * time.Millisecond) // the lease of the greeting runs out
		}
		return etcdtest.Kept
	}
	m := memberOver(shared, p, log)
	t.Cleanup(func() { m.Close() })
	o, err := m.Next(testkit.Within(t, time.Minute))
	testkit.Check(t, err)
	testkit.Equal(t, fmt.Sprint(o.Rank, o.World), "0 1")
	if !strings.Contains(notes.String(), "longer than the lease of 1s") {
		t.Errorf("it was not slow: %s", notes.String())
	}
}

// TestMemberLearnsOfTheEndThatItSlept has a member fall silent for longer than its lease, and
// the job end meanwhile: the member, and who comes late, are told of one and the same end.
func TestMemberLearnsOfTheEndThatItSlept(t *testing.T) {
	config := shared.Config(t)
	a, _ := aCutNode(t, config, "a", 1, 2)
	b, network := aCutNode(t, config, "b", 1, 2)
	nextOf(t, a, b)
	network.Close()
	awaitWaiting(t, a)
	testkit.Check(t, a.Shutdown(t.Context(), rendezvous.EndSuccess, "done"))
	noSigns(t, config)
	late, _ := aCutNode(t, config, "late", 1, 2)
	if _, err := late.Next(testkit.Within(t, time.Minute)); !errors.Is(err, rendezvous.ErrGraceful) {
		t.Errorf("who comes late gets %v", err)
	}
	testkit.Check(t, late.Shutdown(t.Context(), rendezvous.EndLeave, ""))
	network.Open()
	if _, err := b.Next(testkit.Within(t, time.Minute)); !errors.Is(err, rendezvous.ErrGraceful) {
		t.Errorf("the member gets %v", err)
	}
}
