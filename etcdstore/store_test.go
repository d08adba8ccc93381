package etcdstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
	"pgregory.net/rapid"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/core/store/storetest"
	"rallypoint/internal/etcdclient"
	"rallypoint/internal/etcdtest"
	"rallypoint/internal/testkit"
)

// Any calls on three stores of one prefix give what an engine in memory gives.
func TestModel(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		config := config
		config.Prefix += fmt.Sprintf("/%d", run)
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		var stores []*Store
		for range 2 {
			s, err := Open(ctx, config)
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			stores = append(stores, s)
		}
		m := store.NewMemory(store.NewEngine(store.Limits{}))
		pick := func(t *rapid.T) *Store { return rapid.SampledFrom(stores).Draw(t, "store") }
		t.Repeat(modelActions(ctx, m, pick))
	})
}

var (
	modelKeys   = rapid.SampledFrom([]string{"", "a", "b", "a/b", "\x00\xff", "\xff"})
	modelValues = rapid.OneOf(
		rapid.SampledFrom([]string{"", "1", "-5", " +7x", "x", "9223372036854775807"}),
		rapid.StringN(0, 40, 100))
)

func agree(t *rapid.T, have any, err error, want any, wantErr error) {
	t.Helper()
	if (err == nil) != (wantErr == nil) || errors.Is(err, store.ErrNotNumber) != errors.Is(wantErr, store.ErrNotNumber) {
		t.Fatalf("have error %v, want %v", err, wantErr)
	}
	if err == nil && fmt.Sprint(have) != fmt.Sprint(want) {
		t.Fatalf("have %q, want %q", have, want)
	}
}

// A generator makes its text when it is first drawn from, unless it has one: tests that run in parallel share these.
var _ = modelKeys.String() + modelValues.String()

// modelActions are what one of the stores and the model m do alike, by name.
func modelActions(ctx context.Context, m store.Store, pick func(*rapid.T) *Store) map[string]func(*rapid.T) {
	all := modelChanges(ctx, m, pick)
	maps.Copy(all, modelReads(ctx, m, pick))
	return all
}

func modelChanges(ctx context.Context, m store.Store, pick func(*rapid.T) *Store) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"set": func(t *rapid.T) {
			key, value := modelKeys.Draw(t, "key"), []byte(modelValues.Draw(t, "value"))
			agree(t, nil, pick(t).Set(ctx, key, value), nil, m.Set(ctx, key, value))
		},
		"multi_set": func(t *rapid.T) {
			keys := rapid.SliceOfN(modelKeys, 0, 5).Draw(t, "keys")
			values := make([][]byte, len(keys))
			for i := range values {
				values[i] = []byte(modelValues.Draw(t, "value"))
			}
			agree(t, nil, pick(t).MultiSet(ctx, keys, values), nil, m.MultiSet(ctx, keys, values))
		},
		"add": func(t *rapid.T) {
			key, delta := modelKeys.Draw(t, "key"), rapid.Int64().Draw(t, "delta")
			have, err := pick(t).Add(ctx, key, delta)
			want, wantErr := m.Add(ctx, key, delta)
			agree(t, have, err, want, wantErr)
		},
		"compare_set": func(t *rapid.T) {
			key := modelKeys.Draw(t, "key")
			expected, desired := []byte(modelValues.Draw(t, "expected")), []byte(modelValues.Draw(t, "desired"))
			if exists, _ := m.Check(ctx, []string{key}); exists && rapid.Bool().Draw(t, "right") {
				expected, _ = m.Get(ctx, key)
			}
			have, err := pick(t).CompareSet(ctx, key, expected, desired)
			want, wantErr := m.CompareSet(ctx, key, expected, desired)
			agree(t, have, err, want, wantErr)
		},
		"append": func(t *rapid.T) {
			key, value := modelKeys.Draw(t, "key"), []byte(modelValues.Draw(t, "value"))
			agree(t, nil, pick(t).Append(ctx, key, value), nil, m.Append(ctx, key, value))
		},
		"delete": func(t *rapid.T) {
			key := modelKeys.Draw(t, "key")
			have, err := pick(t).Delete(ctx, key)
			want, wantErr := m.Delete(ctx, key)
			agree(t, have, err, want, wantErr)
		},
	}
}

func modelReads(ctx context.Context, m store.Store, pick func(*rapid.T) *Store) map[string]func(*rapid.T) {
	return map[string]func(*rapid.T){
		"get": func(t *rapid.T) {
			keys := rapid.SliceOfN(modelKeys, 0, 3).Draw(t, "keys")
			s := pick(t)
			ready, err := s.Check(ctx, keys)
			want, wantErr := m.Check(ctx, keys)
			agree(t, ready, err, want, wantErr)
			if ready {
				have, err := s.MultiGet(ctx, keys)
				want, wantErr := m.MultiGet(ctx, keys)
				agree(t, have, err, want, wantErr)
				agree(t, nil, s.Wait(ctx, keys), nil, nil)
			}
		},
		"": func(t *rapid.T) {
			s := pick(t)
			have, err := s.ListKeys(ctx)
			want, wantErr := m.ListKeys(ctx)
			agree(t, have, err, want, wantErr)
			n, err := s.NumKeys(ctx)
			agree(t, n, err, len(want), nil)
		},
	}
}

func TestOperations(t *testing.T) {
	storetest.Operations(t, mustOpen(t, shared.Config(t)))
}

func TestTimeoutText(t *testing.T) {
	s := mustOpen(t, shared.Config(t))
	storetest.TimeoutText(t, s, map[string]func(context.Context) error{
		"set": func(ctx context.Context) error { <-ctx.Done(); return s.Set(ctx, "k/1/s", nil) },
	})
}

func TestWaitsEndWithTheWrite(t *testing.T) {
	config := shared.Config(t)
	a, b := mustOpen(t, config), mustOpen(t, config)
	ctx := testkit.Within(t, 30*time.Second)
	testkit.Check(t, a.Set(ctx, "there", []byte("0")))
	waits := map[string]func() error{
		"get": func() error {
			value, err := a.Get(ctx, "k1")
			if err == nil && string(value) != "v" {
				err = fmt.Errorf("have %q", value)
			}
			return err
		},
		"multi_get": func() error { _, err := a.MultiGet(ctx, []string{"there", "k2", "k1"}); return err },
		"wait":      func() error { return a.Wait(ctx, []string{"k2", "there", "k1", "k1"}) },
		"barrier":   func() error { return a.Barrier(ctx, "b", 2) },
	}
	done := make(chan error, len(waits))
	for name, wait := range waits {
		go func() {
			err := wait()
			if err != nil {
				err = fmt.Errorf("%s: %w", name, err)
			}
			done <- err
		}()
	}
	testkit.Check(t, b.Set(ctx, "k1", []byte("v")))
	testkit.Check(t, b.Append(ctx, "k2", nil)) // an empty value is a value
	testkit.Check(t, b.Barrier(ctx, "b", 2))
	for range waits {
		testkit.Check(t, <-done)
	}
}

// A wait is a count-down: keys that are deleted again count as written
// (docs/spec/tcpstore-wire.md 4.4).
func TestWaitCountsDown(t *testing.T) {
	config := shared.Config(t)
	a, b := mustOpen(t, config), mustOpen(t, config)
	ctx := testkit.Within(t, 30*time.Second)
	watching, done := make(chan error, 1), make(chan error, 1)
	go func() { watching <- nil; done <- a.Wait(ctx, []string{"x", "y"}) }()
	<-watching
	for { // until the wait has begun, the deletion would undo the write
		testkit.Check(t, b.Set(ctx, "x", nil))
		testkit.Must(b.Delete(ctx, "x"))(t)
		testkit.Check(t, b.Set(ctx, "y", nil))
		testkit.Must(b.Delete(ctx, "y"))(t)
		select {
		case err := <-done:
			testkit.Check(t, err)
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestTimeoutsAndClose(t *testing.T) {
	config := shared.Config(t)
	s := mustOpen(t, config)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Get(ctx, "nothing")
	if !errors.Is(err, store.ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), `"nothing"`) {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`wait timeout after (50|4\d)ms, keys: nothing`).MatchString(err.Error()) || strings.Contains(err.Error(), "context") {
		t.Error(err)
	}
	many := make([]string, 20)
	for i := range many {
		many[i] = fmt.Sprint("/k\x1b", i)
	}
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if err := s.Wait(ctx, many); !strings.Contains(fmt.Sprint(err), "keys: ") || !strings.Contains(err.Error(), "and 12 more") || strings.Contains(err.Error(), "\x1b") {
		t.Error(err)
	}
	if err := s.Set(ctx, "k", nil); !errors.Is(err, store.ErrTimeout) || strings.Contains(err.Error(), "context") {
		t.Error(err)
	}
	canceled, cancel2 := context.WithCancel(context.Background())
	done := make(chan error, 2)
	go func() { done <- s.Wait(canceled, []string{"nothing"}) }()
	cancel2()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	go func() { done <- s.Wait(context.Background(), []string{"nothing"}) }()
	go func() { _, err := s.Get(context.Background(), "nothing"); done <- err }()
	time.Sleep(20 * time.Millisecond) // either way, before or in the wait
	testkit.Check(t, s.Close())
	for range 2 {
		if err := <-done; !errors.Is(err, store.ErrClosed) {
			t.Fatal(err)
		}
	}
	if err := s.Set(context.Background(), "k", nil); !errors.Is(err, store.ErrClosed) {
		t.Fatal(err)
	}
	testkit.Check(t, s.Close())
}

func TestAddsOfManyCount(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	const clients, adds = 4, 25
	ctx := testkit.Within(t, time.Minute)
	var all sync.WaitGroup
	sums := make([][]int64, clients)
	for i := range clients {
		s := mustOpen(t, config)
		all.Go(func() {
			for range adds {
				sum, err := s.Add(ctx, "n", 1)
				if err != nil {
					t.Error(err)
				}
				sums[i] = append(sums[i], sum)
			}
		})
	}
	all.Wait()
	seen := map[int64]bool{}
	for _, sum := range slices.Concat(sums...) {
		seen[sum] = true
	}
	if n := len(slices.Collect(maps.Keys(seen))); n != clients*adds || !seen[clients*adds] {
		t.Fatalf("%d different sums", n)
	}
}

func TestKeysGoWithTheirLease(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	other := mustOpen(t, config)
	config.TTL = 3 * time.Second
	s := mustOpen(t, config)
	ctx := testkit.Within(t, time.Minute)
	testkit.Check(t, s.Set(ctx, "k", []byte("v")))
	testkit.Must(s.Add(ctx, "n", 1))(t)
	time.Sleep(config.TTL * 3 / 2) // the lease is renewed
	testkit.Equal(t, testkit.Must(other.NumKeys(ctx))(t), 2)
	testkit.Check(t, s.Close())
	testkit.Eventually(t, "the keys are gone", func() bool { return testkit.Must(other.NumKeys(ctx))(t) == 0 })
}

// TestLeaseIsLost: a store whose lease is gone says so, and tries no more to renew it.
func TestLeaseIsLost(t *testing.T) {
	config := shared.Config(t)
	config.TTL = time.Second
	logger, lines := testkit.NewLog(t)
	config.Logger = logger
	s := mustOpen(t, config)
	ctx := testkit.Within(t, testkit.Patience)
	testkit.Must(s.client.Etcd.Revoke(ctx, clientv3.LeaseID(s.lease)))(t)
	if err := s.Set(ctx, "k", nil); rendezvous.CodeOf(err) != rendezvous.CodeState || !strings.Contains(err.Error(), "the lease of the keys has run out") {
		t.Error(err)
	}
	ended := testkit.Go(func() error { s.done.Wait(); return nil })
	select {
	case <-ended:
	case <-ctx.Done():
		t.Error("it goes on")
	}
	if n := len(lines.With("WARN", "was not renewed")); n != 1 {
		t.Errorf("%d lines", n)
	}
}

// TestCloseLeavesNothing: the slots go with the store.
func TestCloseLeavesNothing(t *testing.T) {
	config := shared.Config(t)
	s := mustOpen(t, config)
	ctx := testkit.Within(t, 30*time.Second)
	testkit.Check(t, s.Set(ctx, "a", nil))
	testkit.Must(s.Delete(ctx, "a"))(t)
	testkit.Equal(t, testkit.Must(s.NumKeys(ctx))(t), 0)
	testkit.Check(t, s.Close())
	c := testkit.Must(etcdclient.New(config))(t)
	defer c.Close()
	left, err := c.List(ctx, "left", config.Prefix, false)
	testkit.Check(t, err)
	testkit.Equal(t, len(left), 0)
}

// TestCloseEndsCallsFirst: who waits is told at once, and not when the etcd has answered.
func TestCloseEndsCallsFirst(t *testing.T) {
	s := mustOpen(t, shared.Config(t))
	testkit.Check(t, s.Set(testkit.Within(t, testkit.Patience), "a", nil))
	waited := testkit.Go(func() error { return s.Wait(t.Context(), []string{"never"}) })
	between := grpc.UnaryClientInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		if _, ok := request.(*pb.DeleteRangeRequest); ok {
			select {
			case err := <-waited:
				if !errors.Is(err, store.ErrClosed) {
					t.Error(err)
				}
			case <-ctx.Done():
				t.Error("it still waits")
			}
		}
		return invoke(ctx, method, request, reply, conn, options...)
	})
	s.client.Interceptor.Store(&between)
	testkit.Check(t, s.Close())
}

func TestTooLarge(t *testing.T) {
	s := mustOpen(t, shared.Config(t))
	ctx := testkit.Within(t, 30*time.Second)
	testkit.Check(t, s.Set(ctx, "k", make([]byte, 1<<20)))
	if err := s.Set(ctx, "k", make([]byte, 2<<20)); !errors.Is(err, store.ErrTooLarge) {
		t.Fatal(err)
	}
	if err := s.Append(ctx, "k", make([]byte, 1<<20)); !errors.Is(err, store.ErrTooLarge) {
		t.Fatal(err)
	}
	keys, values := make([]string, 300), make([][]byte, 300)
	for i := range keys {
		keys[i], values[i] = fmt.Sprint(i), make([]byte, 20<<10)
	}
	testkit.Check(t, s.MultiSet(ctx, keys, values)) // in several transactions
	testkit.Equal(t, len(testkit.Must(s.MultiGet(ctx, keys))(t)), 300)
	if err := s.QueuePush(ctx, "q", nil); !errors.Is(err, errors.ErrUnsupported) {
		t.Fatal(err)
	}
}

// An answer may be larger than any limit of gRPC's or of ours was. Each request has its own
// time: on a machine with much else to do the 80 MB that are written first take minutes.
func TestLargeAnswers(t *testing.T) {
	server := etcdtest.Start(t)
	s := mustOpen(t, etcdclient.Config{Endpoints: []string{server.Endpoint()}, Prefix: "/p", Timeout: 4 * time.Minute})
	ctx := t.Context()
	value := bytes.Repeat([]byte("x"), maxValue-1000)
	var keys []string
	for i := range etcdclient.MaxOps / 2 {
		keys = append(keys, fmt.Sprint(i))
		testkit.Check(t, s.Set(ctx, keys[i], value))
	}
	values := testkit.Must(s.MultiGet(ctx, keys))(t)
	testkit.Equal(t, len(values), len(keys))
	for _, v := range values {
		testkit.Equal(t, len(v), len(value))
	}
	kvs, err := s.client.List(ctx, "all", s.prefix, false)
	testkit.Check(t, err)
	testkit.Equal(t, len(kvs), len(keys))
}

// TestWaitForManyKeys: more than etcd is asked for in one stream while its answers are not read.
func TestWaitForManyKeys(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	waiter, writer := mustOpen(t, config), mustOpen(t, config)
	ctx := testkit.Within(t, time.Minute)
	keys := make([]string, 20000)
	for i := range keys {
		keys[i] = fmt.Sprint("some/longer/name/of/a/key/", i)
	}
	var reads atomic.Int64
	counted := grpc.UnaryClientInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		err := invoke(ctx, method, request, reply, conn, options...)
		reads.Add(1)
		return err
	})
	waiter.client.Interceptor.Store(&counted)
	waited := testkit.Go(func() error { return waiter.Wait(ctx, keys) })
	testkit.Eventually(t, "it has found them missing", func() bool { return int(reads.Load())*etcdclient.MaxOps >= len(keys) })
	testkit.Check(t, writer.Set(ctx, "another", nil))
	testkit.Check(t, writer.MultiSet(ctx, keys, make([][]byte, len(keys))))
	testkit.Check(t, <-waited)
}

// TestUpdateReadsAgain: an update that another client was quicker than begins with the value that is there after
// its pause: what was there before it is not, where many update one key.
func TestUpdateReadsAgain(t *testing.T) {
	t.Parallel()
	config := shared.Config(t)
	s, quicker := mustOpen(t, config), mustOpen(t, config)
	ctx := testkit.Within(t, time.Minute)
	reads, refusals := 0, 0
	between := grpc.UnaryClientInterceptor(func(ctx context.Context, method string, request, reply any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, options ...grpc.CallOption) error {
		err := invoke(ctx, method, request, reply, conn, options...)
		change := false
		switch r := reply.(type) {
		case *pb.RangeResponse:
			reads++
			change = reads == 1
		case *pb.TxnResponse:
			if !r.Succeeded {
				refusals++
				change = refusals < 5
			}
		}
		if change {
			testkit.Must(quicker.Add(ctx, "n", 1))(t)
		}
		return err
	})
	s.client.Interceptor.Store(&between)
	testkit.Equal(t, testkit.Must(s.Add(ctx, "n", 1))(t), 3)
	testkit.Equal(t, refusals, 1)
}
