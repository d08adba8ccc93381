package sharedlog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// world is some members over one memory, in a synctest bubble.
type cluster struct {
	t      *testing.T
	memory *memory
	nodes  []*node
	rec    *recorder
	quiet  bool                 // the nodes log nothing
	log    *slog.Logger         // of all nodes; nil: each has its own
	bend   func(*memoryLog) Log // makes a node's log a wrong one; nil: they are right
}

type node struct {
	*member.Member
	log   *memoryLog // nil: the node's log is a blob
	halt  process
	plane *Replica
	name  string
}

// process is what can happen to a node's.
type process interface {
	freeze() (thaw func()) // as SIGSTOP would, as far as others see
	kill()                 // without a word
}

func runCluster(t *testing.T, f func(t *testing.T, w *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &cluster{t: t, memory: newMemory(), rec: newRecorder()}
		defer w.rec.check(t)
		defer func() {
			for _, n := range w.nodes {
				n.Close()
			}
		}()
		f(t, w)
	})
}

func nodeParams(name string, min, max int) params.Params {
	p := params.Default()
	p.RunID, p.Endpoint, p.NodeID = "job", "memory:", name
	p.Min, p.Max = min, max
	return p
}

func (c *cluster) node(p params.Params) *node {
	n := &node{log: &memoryLog{m: c.memory}, name: p.NodeID}
	n.halt = n.log
	log := slog.New(slog.NewTextHandler(testWriter{c.t, n.name}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if c.quiet {
		log = slog.New(slog.DiscardHandler)
	}
	if c.log != nil {
		log = c.log
	}
	n.Member = member.New(p, func(o member.Observer) member.ControlPlane {
		shared := Log(n.log)
		if c.bend != nil {
			shared = c.bend(n.log)
		}
		n.plane = New(p, o, shared, log)
		c.rec.watch(n.plane)
		return n.plane
	}, noStores{}, log)
	c.nodes = append(c.nodes, n)
	return n
}

func (c *cluster) some(count, min, max int) []*node {
	list := make([]*node, count)
	for i := range list {
		list[i] = c.node(nodeParams(fmt.Sprint("n", i), min, max))
	}
	return list
}

type testWriter struct {
	t    *testing.T
	name string
}

func (tw testWriter) Write(b []byte) (int, error) {
	tw.t.Logf("%s: %s", tw.name, strings.TrimSpace(string(b)))
	return len(b), nil
}

type noStores struct{}

func (noStores) Open(context.Context, string, int) (member.RoundStore, error) {
	return noStore{}, nil
}

func (noStores) Reach(_ context.Context, o rendezvous.Outcome) (rendezvous.Outcome, io.Closer, error) {
	return o, nil, nil
}

type noStore struct{}

func (noStore) Port() int                                              { return 4711 }
func (noStore) Begin(o rendezvous.Outcome) (rendezvous.Outcome, error) { return o, nil }
func (noStore) Close() error                                           { return nil }

type joining struct {
	done    chan struct{}
	outcome rendezvous.Outcome
	err     error
}

func (n *node) join(ctx context.Context) *joining {
	j := &joining{done: make(chan struct{})}
	go func() {
		defer close(j.done)
		j.outcome, j.err = n.Next(ctx)
	}()
	return j
}

// form lets the nodes join one after the other and checks that they are one
// round with their ranks in that order.
func form(t *testing.T, list ...*node) rendezvous.Outcome {
	t.Helper()
	joins := make([]*joining, len(list))
	for i, n := range list {
		joins[i] = n.join(t.Context())
		synctest.Wait()
	}
	return round(t, joins...)
}

func round(t *testing.T, joins ...*joining) rendezvous.Outcome {
	t.Helper()
	ranks := map[int]bool{}
	for i, j := range joins {
		<-j.done
		if j.err != nil {
			t.Fatalf("join %d: %v", i, j.err)
		}
		o, first := j.outcome, joins[0].outcome
		ranks[o.Rank] = true
		if o.Round != first.Round || o.World != len(joins) || o.Generation != first.Generation {
			t.Fatalf("join %d: %+v beside %+v", i, o, first)
		}
	}
	if len(ranks) != len(joins) {
		t.Fatalf("%d ranks among %d nodes", len(ranks), len(joins))
	}
	return joins[0].outcome
}

func TestRound(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		began := time.Now()
		o := form(t, w.some(3, 3, 3)...)
		if o.Round != 1 || o.StoreAddr != "10.0.0.7" || o.StorePort != 4711 || o.Generation != "g1" || o.HostRank != -1 {
			t.Errorf("got %+v", o)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("took %v of waiting", took)
		}
	})
}

// TestManyNodes: one node warns, once, of rounds with more nodes than the log is for.
func TestManyNodes(t *testing.T) {
	for many, want := range map[int]int{0: 0, 2: 1, 3: 0} {
		log, lines := testkit.NewLog(t)
		runCluster(t, func(t *testing.T, w *cluster) {
			w.log, w.memory.info.ManyNodes = log, many
			nodes := w.some(3, 3, 3)
			form(t, nodes...)
			form(t, nodes...)
		})
		if got := strings.Count(strings.Join(lines.All(), ""), "spends more CPU the more they are; above 2 nodes"); got != want {
			t.Errorf("%d warnings of three nodes where %d are many, want %d", got, many, want)
		}
	}
}

func TestKeys(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(2, 2, 2)
		form(t, nodes...)
		a, b := nodes[0].Keys(1), nodes[1].Keys(1)
		got := make(chan string, 1)
		go func() {
			v, err := b.Get(t.Context(), "k")
			got <- fmt.Sprint(string(v), err)
		}()
		synctest.Wait()
		if err := a.Set(t.Context(), "k", []byte("v")); err != nil {
			t.Fatal(err)
		}
		if v := <-got; v != "v<nil>" {
			t.Error(v)
		}
		for i := range 10 {
			if n, err := nodes[i%2].Keys(1).Add(t.Context(), "sum", 2); err != nil || n != int64(2*i+2) {
				t.Errorf("add: %d, %v", n, err)
			}
		}
	})
}

// A killed node is announced within the grace, and the rest continues.
func TestKilled(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(3, 2, 3)
		form(t, nodes...)
		began := time.Now()
		nodes[0].log.kill()
		for _, n := range nodes[1:] {
			waiting(t, n, "n0")
		}
		if took := time.Since(began); took > nodes[0].plane.params.ReconnectGrace+500*time.Millisecond {
			t.Errorf("took %v", took)
		}
		o := form(t, nodes[1:]...)
		if o.Round != 2 || o.World != 2 {
			t.Errorf("got %+v", o)
		}
	})
}

// waiting waits until the node has to regroup, for that reason.
func waiting(t *testing.T, n *node, reason string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); n.NodesWaiting() == 0; {
		if time.Now().After(deadline) {
			t.Fatalf("%s was not told to regroup", n.name)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if !strings.Contains(n.Reason(), reason) {
		t.Errorf("the reason is %q", n.Reason())
	}
}

// A node that is stopped loses its place after a lease, learns that when it goes
// on, and comes back.
func TestStopped(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(3, 2, 3)
		form(t, nodes...)
		began := time.Now()
		thaw := nodes[2].log.freeze()
		waiting(t, nodes[0], "n2")
		if took, lease := time.Since(began), nodes[0].plane.params.LeaseTimeout; took < lease-lease/4 || took > 2*lease {
			t.Errorf("took %v", took)
		}
		o := form(t, nodes[:2]...)
		if o.Round != 2 {
			t.Errorf("got %+v", o)
		}
		if nodes[2].NodesWaiting() != 0 {
			t.Error("a stopped node knows")
		}
		thaw()
		waiting(t, nodes[2], "dropped")
		joins := []*joining{nodes[2].join(t.Context())}
		waiting(t, nodes[0], "n2")
		joins = append(joins, nodes[0].join(t.Context()), nodes[1].join(t.Context()))
		if o := round(t, joins...); o.Round != 3 || o.World != 3 {
			t.Errorf("got %+v", o)
		}
	})
}

// All nodes are stopped together, longer than a lease: no node is lost by that.
func TestAllStopped(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(3, 2, 3)
		form(t, nodes...)
		var thaws []func()
		for _, n := range nodes {
			thaws = append(thaws, n.log.freeze())
		}
		time.Sleep(time.Minute)
		for _, thaw := range thaws {
			thaw()
		}
		time.Sleep(time.Minute)
		for _, n := range nodes {
			if n.NodesWaiting() > 0 {
				t.Errorf("%s: %s", n.name, n.Reason())
			}
		}
	})
}

// A node's word that another is gone does not harm one that is not.
func TestFalseAccusation(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(2, 2, 2)
		form(t, nodes...)
		nodes[0].plane.mu.Lock()
		nodes[0].plane.proposeLocked(proposal{event: rendezvous.Disconnect{Session: nodes[1].plane.session}})
		nodes[0].plane.mu.Unlock()
		time.Sleep(time.Minute)
		for _, n := range nodes {
			if n.NodesWaiting() > 0 {
				t.Errorf("%s: %s", n.name, n.Reason())
			}
		}
	})
}

// What a node could not say of a silent one while that was silent it does not say later.
func TestLateAccusation(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(2, 2, 2)
		form(t, nodes...)
		lease := nodes[0].plane.params.LeaseTimeout
		nodes[0].log.setMute(true)
		thaw := nodes[1].log.freeze()
		time.Sleep(2 * lease)
		thaw()
		time.Sleep(2 * lease)
		nodes[0].log.setMute(false)
		time.Sleep(2 * lease)
		for _, n := range nodes {
			if n.NodesWaiting() > 0 {
				t.Errorf("%s: %s", n.name, n.Reason())
			}
		}
	})
}

// slowWord is a log that takes its time with the word that a lease has ended.
type slowWord struct {
	Log
	said chan struct{} // closed: it continues
}

func (s slowWord) Append(ctx context.Context, entries [][]byte) error {
	for _, data := range entries {
		if ev, err := rendezvous.DecodeEvent(data); err != nil {
			return err
		} else if _, ok := ev.(rendezvous.LeaseExpired); ok {
			select {
			case <-s.said:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	return s.Log.Append(ctx, entries)
}

// Nor does it say so when it was stopped while it did.
func TestLateAccusationInFlight(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		said := make(chan struct{})
		w.bend = func(l *memoryLog) Log { return slowWord{l, said} }
		nodes := w.some(2, 2, 2)
		form(t, nodes...)
		lease := nodes[0].plane.params.LeaseTimeout
		thaw := nodes[1].log.freeze()
		time.Sleep(2 * lease)
		thaw()
		time.Sleep(2 * lease)
		close(said)
		time.Sleep(2 * lease)
		for _, n := range nodes {
			if n.NodesWaiting() > 0 {
				t.Errorf("%s: %s", n.name, n.Reason())
			}
		}
	})
}

// A node that is taken out of the run while it says that another is gone finds and says it
// again when it is back.
func TestAccuserIsDropped(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.bend = func(l *memoryLog) Log { return slowWord{l, nil} }
		nodes := w.some(2, 1, 2)
		form(t, nodes...)
		thaw := nodes[1].log.freeze()
		defer thaw()
		p := nodes[0].plane
		accuses := func() bool {
			p.mu.Lock()
			defer p.mu.Unlock()
			return slices.ContainsFunc(p.queue, func(d proposal) bool { return d.accused != "" })
		}
		for deadline := time.Now().Add(time.Minute); !accuses(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal("it says nothing of the silent one")
			}
		}
		data, err := rendezvous.EncodeEvent(rendezvous.Evict{Node: nodes[0].name, By: "an admin", Reason: "its disk"})
		if err != nil {
			t.Fatal(err)
		}
		w.memory.mu.Lock()
		w.memory.addLocked([][]byte{data})
		w.memory.mu.Unlock()
		waiting(t, nodes[0], "its disk")
		began := time.Now()
		for !accuses() {
			if time.Since(began) > time.Minute {
				t.Fatal("it does not find the silent one again")
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// Appends that fail after they got in are repeated, and applied once.
func TestDoubtfulAppends(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.memory.doubtful = 5
		nodes := w.some(2, 2, 2)
		form(t, nodes...)
		keys := nodes[0].Keys(1)
		for i := range 20 {
			w.memory.mu.Lock()
			w.memory.doubtful = i % 3
			w.memory.mu.Unlock()
			if n, err := keys.Add(t.Context(), "sum", 1); err != nil || n != int64(i+1) {
				t.Fatalf("add: %d, %v", n, err)
			}
		}
	})
}

// A log out of reach for a while disturbs no node: answers come late.
func TestOutOfReach(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(2, 2, 2)
		form(t, nodes...)
		w.memory.setDown(errors.New("no route"))
		done := make(chan error)
		go func() { done <- nodes[0].Keys(1).Set(t.Context(), "k", nil) }()
		time.Sleep(5 * time.Second)
		select {
		case err := <-done:
			t.Fatalf("answered: %v", err)
		default:
		}
		w.memory.setDown(nil)
		if err := <-done; err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if nodes[0].NodesWaiting()+nodes[1].NodesWaiting() > 0 {
			t.Error("a node was lost")
		}
	})
}

// A log that can never work says so at once, and one that cannot be reached within
// read_timeout.
func TestConnectFails(t *testing.T) {
	for want, down := range map[*rendezvous.Error]error{
		rendezvous.ErrInvalid:    rendezvous.Errorf(rendezvous.CodeInvalid, "no locks here; mount it otherwise"),
		rendezvous.ErrConnection: errors.New("no route; look at the cable"),
	} {
		runCluster(t, func(t *testing.T, w *cluster) {
			w.memory.setDown(down)
			n := w.some(1, 1, 1)[0]
			began := time.Now()
			_, err := n.Next(t.Context())
			if !errors.Is(err, want) || !strings.Contains(err.Error(), down.Error()) {
				t.Errorf("got %v", err)
			}
			if took := time.Since(began); took > n.plane.params.ReadTimeout {
				t.Errorf("took %v", took)
			}
		})
	}
}

// Of the many that see a timer run out, few say so.
func TestFewRing(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(16, 2, 32)
		began := time.Now()
		form(t, nodes...)
		if took := time.Since(began); took != rendezvous.DefaultLastCallTimeout {
			t.Errorf("the last call took %v", took)
		}
		time.Sleep(10 * time.Second)
		fired := 0
		for _, e := range w.memory.entries {
			if ev, err := rendezvous.DecodeEvent(e.Data); err != nil {
				t.Fatal(err)
			} else if _, ok := ev.(rendezvous.TimerFired); ok {
				fired++
			}
		}
		if fired != 1 {
			t.Errorf("%d entries that a timer has run out", fired)
		}
	})
}

func TestLastOneClosesForAll(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(3, 3, 3)
		form(t, nodes...)
		errs := make(chan error)
		for _, n := range nodes {
			go func() {
				keys := n.Keys(1)
				if err := keys.Barrier(t.Context(), "torchelastic/agent/terminal_state", 3); err != nil {
					errs <- err
					return
				}
				errs <- n.Shutdown(t.Context(), rendezvous.EndSuccess, "done")
			}()
		}
		for range nodes {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		late := w.node(nodeParams("late", 3, 3))
		if _, err := late.Next(t.Context()); !errors.Is(err, rendezvous.ErrGraceful) {
			t.Errorf("who comes when all have ended gets %v", err)
		}
	})
}

// A restarted node takes the place of its old process at once.
func TestNamedNodeRestarts(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(2, 2, 2)
		form(t, nodes...)
		nodes[1].log.freeze()
		time.Sleep(time.Millisecond) // incarnations are taken from the clock
		again := w.node(nodeParams("n1", 2, 2))
		j := again.join(t.Context())
		waiting(t, nodes[0], "n1")
		if o := round(t, j, nodes[0].join(t.Context())); o.Round != 2 {
			t.Errorf("got %+v", o)
		}
	})
}

func TestCloseLeaves(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes := w.some(2, 1, 2)
		form(t, nodes...)
		began := time.Now()
		nodes[1].Close()
		waiting(t, nodes[0], "n1")
		if took := time.Since(began); took > rendezvous.DefaultReconnectGrace+time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// A first heartbeat that does not get through is shown again.
func TestFirstBeatIsRepeated(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		w.memory.unshown = 3
		form(t, w.some(2, 2, 2)...)
	})
}

func joinAll(t *testing.T, list ...*node) rendezvous.Outcome {
	t.Helper()
	joins := make([]*joining, len(list))
	for i, n := range list {
		joins[i] = n.join(t.Context())
	}
	return round(t, joins...)
}
