package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"rallypoint/core/store"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// cutter is a proxy that ends each connection after some bytes of answers: what was
// asked for by then was done, and no client learns that.
type cutter struct {
	listener net.Listener
	cuts     atomic.Int64
	pumps    sync.WaitGroup
}

func newCutter(t testing.TB, target string) *cutter {
	t.Helper()
	c := &cutter{listener: testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)}
	c.pumps.Go(func() {
		for {
			conn, err := c.listener.Accept()
			if err != nil {
				return
			}
			c.pumps.Go(func() { c.serve(conn, target) })
		}
	})
	t.Cleanup(func() { c.listener.Close(); c.pumps.Wait() })
	return c
}

func (c *cutter) serve(down net.Conn, target string) {
	defer down.Close()
	up, err := net.Dial("tcp", target)
	if err != nil {
		return
	}
	c.pumps.Go(func() {
		_, _ = io.Copy(up, down)
		up.Close()
	})
	if n, _ := io.CopyN(down, up, 100+rand.Int64N(2000)); n > 0 {
		// More would have come: the call that it belongs to is cut off.
		if _, err := io.ReadFull(up, make([]byte, 1)); err == nil {
			c.cuts.Add(1)
		}
	}
}

// onceInput is an operation on one key, onceOutput its answer.
type onceInput struct {
	op, key, a, b string
	amount        int64
}

type onceOutput struct {
	value  string
	number int64
	done   bool
	failed bool
}

// onceState is the value of one key.
type onceState struct {
	there bool
	value string
}

var onceModel = porcupine.Model{
	Partition: func(history []porcupine.Operation) (parts [][]porcupine.Operation) {
		byKey := map[string][]porcupine.Operation{}
		for _, o := range history {
			key := o.Input.(onceInput).key
			byKey[key] = append(byKey[key], o)
		}
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return onceState{} },
	Step: func(state, input, output any) (bool, any) {
		want, next := onceStep(state.(onceState), input.(onceInput))
		return want == output.(onceOutput), next
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// onceStep says what an operation answers and leaves behind.
func onceStep(s onceState, in onceInput) (onceOutput, onceState) {
	switch in.op {
	case "set", "multi_set":
		return onceOutput{}, onceState{true, in.a}
	case "append":
		return onceOutput{}, onceState{true, s.value + in.a}
	case "delete":
		return onceOutput{done: s.there}, onceState{}
	case "compare_set":
		switch {
		case s.there && s.value == in.a, !s.there && in.a == "":
			return onceOutput{value: in.b}, onceState{true, in.b}
		case !s.there:
			return onceOutput{value: in.a}, s
		}
		return onceOutput{value: s.value}, s
	case "add":
		var n int64
		if s.there {
			if c, err := fmt.Sscan(s.value, &n); c != 1 || err != nil {
				return onceOutput{failed: true}, s
			}
		}
		n += in.amount
		return onceOutput{number: n}, onceState{true, fmt.Sprint(n)}
	}
	panic(in.op)
}

// drawOnce draws an operation. Values are numbers, or else add has nothing to do.
// Comparing with a value that never is reads the key.
func drawOnce(random *rand.Rand) onceInput {
	in := onceInput{key: fmt.Sprint("key", random.IntN(3)), amount: int64(1 + random.IntN(3))}
	digit := func() string { return fmt.Sprint(1 + random.IntN(9)) }
	in.op = []string{"set", "multi_set", "append", "delete", "delete", "add", "add", "add", "compare_set", "compare_set", "compare_set"}[random.IntN(11)]
	in.a, in.b = digit(), digit()
	if in.op == "compare_set" {
		in.a = []string{digit(), "", "never"}[random.IntN(3)]
	}
	return in
}

// do carries out an operation on a store.
func (o onceInput) do(ctx context.Context, s store.Store) (out onceOutput, err error) {
	switch o.op {
	case "set":
		err = s.Set(ctx, o.key, []byte(o.a))
	case "multi_set":
		err = s.MultiSet(ctx, []string{o.key}, [][]byte{[]byte(o.a)})
	case "append":
		err = s.Append(ctx, o.key, []byte(o.a))
	case "delete":
		out.done, err = s.Delete(ctx, o.key)
	case "compare_set":
		var value []byte
		value, err = s.CompareSet(ctx, o.key, []byte(o.a), []byte(o.b))
		out.value = string(value)
	case "add":
		out.number, err = s.Add(ctx, o.key, o.amount)
		if errors.Is(err, store.ErrNotNumber) {
			return onceOutput{failed: true}, nil
		}
	}
	return out, err
}

// tortured has clients change keys at the same time and returns what they saw. Each
// client is closed and opened again now and then.
func tortured(t *testing.T, operations int, open func() (s store.Store, after func())) []porcupine.Operation {
	t.Helper()
	const clients = 3
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	ctx := testkit.Within(t, 2*time.Minute)
	var mu sync.Mutex
	var history []porcupine.Operation
	begin := time.Now()
	var all sync.WaitGroup
	for id := range clients {
		all.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(id)))
			s, after := open()
			defer func() { s.Close(); after() }()
			for i := range operations {
				if i%25 == 24 {
					s.Close()
					after()
					s, after = open()
				}
				in := drawOnce(random)
				call := time.Since(begin).Nanoseconds()
				out, err := in.do(ctx, s)
				if err != nil {
					t.Errorf("%+v: %v", in, err)
					return
				}
				mu.Lock()
				history = append(history, porcupine.Operation{
					ClientId: id, Input: in, Call: call, Output: out, Return: time.Since(begin).Nanoseconds(),
				})
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return history
}

// TestExactlyOnceThroughCuts has clients change keys while their connections are cut
// after requests were carried out and before they are answered, and while requests
// get through long after they were given up. What the clients see must be what one
// store without any fault could have answered.
func TestExactlyOnceThroughCuts(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	proxy := newCutter(t, config.Endpoints[0])
	config.Endpoints = []string{proxy.listener.Addr().String()}
	config.Timeout = 2 * time.Minute
	var lost atomic.Int64
	history := tortured(t, 75, func() (store.Store, func()) {
		s, err := Open(testkit.Within(t, time.Minute), config)
		if err != nil {
			t.Error(err)
			return store.NewMemory(store.NewEngine(store.Limits{})), func() {}
		}
		n := etcdtest.MakeLossy(s.client, t)
		// What is late comes even when its client is gone.
		return s, func() {
			n.Deliver(1 << 10)
			lost.Add(int64(n.Failed))
		}
	})
	if got := porcupine.CheckOperationsTimeout(onceModel, history, time.Minute); got != porcupine.Ok {
		t.Errorf("the answers of %d operations are those of no store: %v", len(history), got)
	}
	t.Logf("%d operations, %d cuts, %d requests betrayed", len(history), proxy.cuts.Load(), lost.Load())
	if proxy.cuts.Load() == 0 || lost.Load() == 0 {
		t.Error("nothing was cut")
	}
}

// What was given up does nothing any more, whenever it gets through.
func TestLateRequestsDoNothing(t *testing.T) {
	config := shared.Config(t)
	other := mustOpen(t, config)
	for i, in := range []onceInput{
		{op: "set", a: "1"}, {op: "multi_set", a: "1"}, {op: "append", a: "1"}, {op: "add", amount: 1},
		{op: "compare_set", b: "1"}, {op: "delete"},
	} {
		for _, when := range []string{"soon", "after another call", "after the end"} {
			in.key = fmt.Sprint(i, when)
			before := ""
			ctx := testkit.Within(t, time.Minute)
			if in.op == "delete" {
				before = "0"
				testkit.Check(t, other.Set(ctx, in.key, []byte(before)))
			}
			s := testkit.Must(Open(ctx, config))(t)
			n := etcdtest.MakeLossy(s.client, t)
			n.Fate = func(c etcdtest.UnaryCall, tries int) etcdtest.Fate {
				if c.Method == etcdtest.MethodTxn && tries == 1 {
					return etcdtest.Late
				}
				return etcdtest.Kept
			}
			testkit.Must(in.do(ctx, s))(t)
			n.Fate = func(etcdtest.UnaryCall, int) etcdtest.Fate { return etcdtest.Kept }
			// As it was, by others: what is late finds what it once found.
			testkit.Must(other.Delete(ctx, in.key))(t)
			if before != "" {
				testkit.Check(t, other.Set(ctx, in.key, []byte(before)))
			}
			switch when {
			case "after another call":
				testkit.Check(t, s.Set(ctx, "x", nil))
			case "after the end":
				testkit.Check(t, s.Close())
			}
			testkit.Equal(t, n.Deliver(10) >= 2, true) // what makes the place for notes, and the call
			want := before != ""
			testkit.Equal(t, testkit.Must(other.Check(ctx, []string{in.key}))(t), want)
			testkit.Check(t, s.Close())
		}
	}
}

// A try that was refused, since others had changed the key, is not repeated when it gets
// through a second time and finds the key as it had been, whatever call it precedes.
func TestRefusedTriesDoNothingLater(t *testing.T) {
	config := shared.Config(t)
	other := mustOpen(t, config)
	ctx := testkit.Within(t, time.Minute)
	for calls, come := 0, true; come; calls++ {
		key := fmt.Sprint("key", calls)
		s := testkit.Must(Open(ctx, config))(t)
		testkit.Check(t, s.Set(ctx, "place", nil)) // the place for notes exists
		n := etcdtest.MakeLossy(s.client, t)
		come = false
		var held *etcdtest.UnaryCall
		after := -1 // calls since the try was refused
		n.Fate = func(c etcdtest.UnaryCall, tries int) etcdtest.Fate {
			switch {
			case held == nil && c.Method == etcdtest.MethodTxn:
				c = c.Clone()
				held = &c
				testkit.Check(t, other.Set(ctx, key, []byte("5"))) // it will be refused
				return etcdtest.Lost
			case held != nil:
				after++
			}
			if after == calls {
				come = true
				testkit.Must(other.Delete(ctx, key))(t)
				testkit.Check(t, n.CarryOut(*held))
			}
			return etcdtest.Kept
		}
		sum := testkit.Must(s.Add(ctx, key, 1))(t)
		there := testkit.Must(other.Check(ctx, []string{key}))(t)
		value := ""
		if there {
			value = string(testkit.Must(other.Get(ctx, key))(t))
		}
		switch {
		case come && sum == 1 && value == "1": // added after the key was deleted
		case sum == 6 && value == "6" && !come, sum == 6 && !there && come: // or before
		default:
			t.Errorf("late before call %d after the refusal (%v): the sum is %d, the key %q", calls, come, sum, value)
		}
		testkit.Check(t, s.Close())
	}
}
