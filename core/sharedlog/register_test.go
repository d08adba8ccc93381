package sharedlog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	randv2 "math/rand/v2"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// value is a Backend in memory, as docs/spec/rendezvous.md R80 wants it.
type value struct {
	mu       sync.Mutex
	state    []byte
	version  int
	takes    time.Duration // of each operation
	fail     error
	doubtful int // so many of the next writes get in, and fail
	sets     int
	won      int
	gets     int
	largest  int
	spikes   int // percent of the operations that take up to 200 ms
	// mishap tells what becomes of a write: whether it gets in, and whether it fails; nil:
	// all goes well.
	mishap func() (in, fails bool)
}

// gate is one node's way to a value, which can be shut.
type gate struct {
	*value
	mu   sync.Mutex
	thaw chan struct{} // not nil: shut until it is closed
}

func (g *gate) GetState(ctx context.Context) (state, token []byte, err error) {
	if err := g.pass(ctx); err != nil {
		return nil, nil, err
	}
	return g.value.GetState(ctx)
}

func (g *gate) SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	if err := g.pass(ctx); err != nil {
		return nil, nil, false, err
	}
	return g.value.SetState(ctx, state, token)
}

func (g *gate) pass(ctx context.Context) error {
	g.mu.Lock()
	thaw := g.thaw
	g.mu.Unlock()
	if thaw != nil {
		select {
		case <-thaw:
		case <-ctx.Done():
		}
	}
	return ctx.Err()
}

func (g *gate) freeze() (thaw func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	c := make(chan struct{})
	g.thaw = c
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.thaw = nil
		close(c)
	}
}

func (g *gate) kill() { g.freeze() }

func (v *value) pause() time.Duration {
	if randv2.N(100) < v.spikes {
		return randv2.N(200 * time.Millisecond)
	}
	return v.takes
}

func (v *value) token() []byte { return []byte(strconv.Itoa(v.version)) }

func (v *value) GetState(context.Context) (state, token []byte, err error) {
	time.Sleep(v.pause())
	v.mu.Lock()
	defer v.mu.Unlock()
	v.gets++
	if v.fail != nil || v.state == nil {
		return nil, nil, v.fail
	}
	return v.state, v.token(), nil
}

func (v *value) SetState(_ context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	time.Sleep(v.pause())
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.fail != nil {
		return nil, nil, false, v.fail
	}
	v.sets++
	in, fails := true, false
	if v.mishap != nil {
		in, fails = v.mishap()
	}
	if fails && !in {
		return nil, nil, false, errors.New("the write did not get through")
	}
	if v.state == nil && token == nil || v.state != nil && bytes.Equal(token, v.token()) {
		v.state, ok = state, true
		v.version++
		v.won++
		v.largest = max(v.largest, len(state))
		if v.doubtful > 0 || fails {
			v.doubtful = max(0, v.doubtful-1)
			return nil, nil, false, errors.New("no answer to the write")
		}
	}
	if v.state == nil {
		return nil, nil, false, nil
	}
	return v.state, v.token(), ok, nil
}

// blobNode is a member over a value, with a Log that can be stopped.
func (c *cluster) blobNode(v *value, p params.Params) *node {
	way := &gate{value: v}
	n := &node{name: p.NodeID, halt: way}
	log := slog.New(slog.NewTextHandler(testWriter{c.t, n.name}, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if c.quiet {
		log = slog.New(slog.DiscardHandler)
	}
	n.Member = member.New(p, func(o member.Observer) member.ControlPlane {
		n.plane = New(p, o, NewRegisterLog(way, p.RunID), log)
		c.rec.watch(n.plane)
		return n.plane
	}, noStores{}, log)
	c.nodes = append(c.nodes, n)
	return n
}

func (c *cluster) blobNodes(v *value, count, min, max int) []*node {
	list := make([]*node, count)
	for i := range list {
		p := nodeParams(fmt.Sprint("n", i), min, max)
		p.AdvertiseAddr = "10.0.0.7"
		list[i] = c.blobNode(v, p)
	}
	return list
}

func joinAll(t *testing.T, list ...*node) rendezvous.Outcome {
	t.Helper()
	joins := make([]*joining, len(list))
	for i, n := range list {
		joins[i] = n.join(t.Context())
	}
	return round(t, joins...)
}

func TestBlobRound(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		v := &value{takes: time.Millisecond}
		nodes := w.blobNodes(v, 3, 3, 3)
		began := time.Now()
		if o := joinAll(t, nodes...); o.Round != 1 || o.StoreAddr != "10.0.0.7" {
			t.Errorf("got %+v", o)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("took %v", took)
		}
		for i := range 10 {
			if n, err := nodes[i%3].Keys(1).Add(t.Context(), "sum", 1); err != nil || n != int64(i+1) {
				t.Fatalf("add: %d, %v", n, err)
			}
		}
	})
}

// 64 nodes on one blob whose operations take a millisecond, and so cannot be more
// than a thousand a second for each node: each write that got in was of use.
func TestBlobContention(t *testing.T) {
	contend(t, &value{takes: time.Millisecond}, 2*time.Second)
}

// On a machine with more to do than it can, an operation takes long now and then.
// The pauses between two tries must not grow by that.
func TestBlobContentionWithSpikes(t *testing.T) {
	contend(t, &value{takes: time.Millisecond, spikes: 5}, 3*time.Second)
}

func contend(t *testing.T, v *value, limit time.Duration) {
	runCluster(t, func(t *testing.T, w *cluster) {
		began := time.Now()
		joinAll(t, w.blobNodes(v, 64, 64, 64)...)
		took := time.Since(began)
		v.mu.Lock()
		defer v.mu.Unlock()
		t.Logf("%v; %d of %d writes, %d reads, %d bytes at most", took, v.won, v.sets, v.gets, v.largest)
		if took > limit {
			t.Errorf("took %v", took)
		}
		if v.largest > 256<<10 {
			t.Errorf("the state had %d bytes", v.largest)
		}
	})
}

func TestBlobNodeIsLost(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		v := &value{takes: time.Millisecond}
		nodes := w.blobNodes(v, 3, 2, 3)
		joinAll(t, nodes...)
		time.Sleep(time.Minute)
		for _, n := range nodes {
			if n.NodesWaiting() > 0 {
				t.Fatalf("%s: %s", n.name, n.Reason())
			}
		}
		began := time.Now()
		nodes[2].plane.cancel() // nothing of it runs any more, and it says nothing
		for _, n := range nodes[:2] {
			waiting(t, n, "n2")
		}
		if took, lease := time.Since(began), rendezvous.DefaultLeaseTimeout; took < lease/2 || took > 2*lease {
			t.Errorf("took %v", took)
		}
		if o := joinAll(t, nodes[:2]...); o.Round != 2 {
			t.Errorf("got %+v", o)
		}
	})
}

func TestBlobCloseIsSeen(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		v := &value{takes: time.Millisecond}
		nodes := w.blobNodes(v, 2, 1, 2)
		joinAll(t, nodes...)
		began := time.Now()
		nodes[1].Close()
		waiting(t, nodes[0], "n1")
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// The state stays bounded however long a run lives.
func TestBlobIsCompacted(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		v := &value{takes: time.Millisecond}
		nodes := w.blobNodes(v, 2, 2, 3)
		for _, n := range nodes {
			n.plane.params.LastCallTimeout = time.Second
		}
		joinAll(t, nodes...)
		for i := range 1000 {
			v.mu.Lock()
			v.doubtful = i % 2 // of the writes of this and other goroutines
			v.mu.Unlock()
			if n, err := nodes[i%2].Keys(1).Add(t.Context(), "sum", 1); err != nil || n != int64(i+1) {
				t.Fatalf("add: %d, %v", n, err)
			}
		}
		v.mu.Lock()
		defer v.mu.Unlock()
		if v.largest > 64<<10 {
			t.Errorf("the state had %d bytes", v.largest)
		}
	})
}

// What is not ours, or not this run's any more, is said at once.
func TestBlobForeignState(t *testing.T) {
	for name, state := range map[string][]byte{
		"pickle":  []byte("\x80\x04\x95\x00"),
		"another": (&registerState{runID: "other", generation: "g"}).encode(),
		"newer":   bytes.Replace((&registerState{runID: "job", generation: "g"}).encode(), []byte("rallypoint\x01"), []byte("rallypoint\x02"), 1),
		"empty":   {},
	} {
		t.Run(name, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				n := w.blobNodes(&value{state: state, version: 1}, 1, 1, 1)[0]
				began := time.Now()
				if _, err := n.Next(t.Context()); !errors.Is(err, rendezvous.ErrState) {
					t.Errorf("got %v", err)
				}
				if time.Since(began) > 0 {
					t.Error("it was tried again")
				}
			})
		})
	}
}

func TestBlobStateIsLost(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		v := &value{takes: time.Millisecond}
		nodes := w.blobNodes(v, 2, 2, 2)
		joinAll(t, nodes...)
		v.mu.Lock()
		v.state = nil
		v.mu.Unlock()
		for _, n := range nodes {
			waiting(t, n, "lost the state")
			if _, err := n.Next(t.Context()); !errors.Is(err, rendezvous.ErrState) {
				t.Errorf("got %v", err)
			}
		}
	})
}

func TestBlobOutOfReach(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		v := &value{takes: time.Millisecond, fail: errors.New("no route")}
		n := w.blobNodes(v, 1, 1, 1)[0]
		began := time.Now()
		_, err := n.Next(t.Context())
		if !errors.Is(err, rendezvous.ErrConnection) || time.Since(began) > params.DefaultReadTimeout+time.Second {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		v.mu.Lock()
		v.fail = nil
		v.mu.Unlock()
		joinAll(t, n)
		synctest.Wait()
	})
}

func TestBlobStateRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &registerState{runID: "job", generation: "g", nonce: "n"}
		for range rapid.IntRange(0, 8).Draw(t, "steps") {
			switch rapid.IntRange(0, 2).Draw(t, "step") {
			case 0:
				s.entries = append(s.entries, rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "entry"))
			case 1:
				s.compact(Snapshot{rapid.Uint64Range(0, s.last()).Draw(t, "index"), []byte("s")})
			case 2:
				s.beat(rapid.SampledFrom([]rendezvous.SessionID{"a", "b", "c"}).Draw(t, "session"), "")
			}
		}
		got, err := decodeRegister(s.encode())
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got.encode(), s.encode()) {
			t.Fatalf("%+v became %+v", s, got)
		}
	})
}

func FuzzBlobState(f *testing.F) {
	s := &registerState{runID: "job", generation: "g", nonce: "n", entries: [][]byte{{1}, nil}}
	s.beat("a", "")
	f.Add(s.encode())
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := decodeRegister(data)
		if err != nil {
			return
		}
		if _, err := decodeRegister(s.encode()); err != nil {
			t.Errorf("what was read cannot be read again: %v", err)
		}
	})
}

// TestUnreachableRegister: a register that has itself tried to reach its place is believed until
// it was reached once.
func TestUnreachableRegister(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusal := &Unreachable{rendezvous.Errorf(rendezvous.CodeConnection, "away")}
		v := &value{fail: refusal}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		log := NewRegisterLog(v, "job")
		for i := range 2 {
			if _, err := log.Open(ctx); !errors.Is(err, rendezvous.ErrConnection) || v.gets != i+1 {
				t.Fatalf("%v after %d looks, want the refusal after %d", err, v.gets, i+1)
			}
		}
		v.fail = refusal.Err // an error that may pass
		go func() {
			time.Sleep(time.Second)
			v.mu.Lock()
			defer v.mu.Unlock()
			v.fail = nil
		}()
		if _, err := log.Open(ctx); err != nil || v.gets < 4 {
			t.Fatalf("%v after %d looks, want it open after several", err, v.gets)
		}

		half := &halfway{value: &value{}, refusal: refusal}
		if _, err := NewRegisterLog(half, "job").Open(ctx); err != nil || half.refused != 1 {
			t.Fatalf("%v after %d refused writes, want it open: it was reached", err, half.refused)
		}
	})
}

// halfway is a register whose first write is refused.
type halfway struct {
	*value
	refusal error
	refused int
}

func (h *halfway) SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	if h.refused == 0 {
		h.refused++
		return nil, nil, false, h.refusal
	}
	return h.value.SetState(ctx, state, token)
}
