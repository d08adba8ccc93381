package store

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/internal/testkit"
)

// awaitWaiters returns when n calls wait on l. It looks again and again, for there
// is nothing that would tell.
func awaitWaiters(t *testing.T, l *Memory, n int) {
	t.Helper()
	for t.Context().Err() == nil {
		l.mu.Lock()
		have := l.engine.NumWaiters()
		l.mu.Unlock()
		if have == n {
			return
		}
	}
	t.Fatal("the test is over")
}

func newLocal(t *testing.T) *Memory {
	l := NewMemory(newEngine())
	t.Cleanup(func() { l.Close() })
	return l
}

func TestLocalRefusals(t *testing.T) {
	ctx, l := t.Context(), newLocal(t)
	testkit.Check(t, l.Set(ctx, "k", []byte("text")))
	if _, err := l.Add(ctx, "k", 1); !errors.Is(err, ErrNotNumber) {
		t.Errorf("add to text: %v", err)
	}
	if _, err := NewMemory(NewEngine(Limits{MaxBytes: 1})).CompareSet(ctx, "kk", nil, nil); !errors.Is(err, ErrQuota) {
		t.Errorf("compare_set over the quota: %v", err)
	}
}

// TestLocalWaits starts every call that waits, ends them by what they wait for,
// by their context, and by Close.
func TestLocalWaits(t *testing.T) {
	calls := map[string]func(context.Context, Store) error{
		"get":       func(ctx context.Context, s Store) error { _, err := s.Get(ctx, "k"); return err },
		"wait":      func(ctx context.Context, s Store) error { return s.Wait(ctx, []string{"k"}) },
		"multi_get": func(ctx context.Context, s Store) error { _, err := s.MultiGet(ctx, []string{"k", "k"}); return err },
		"queue_pop": func(ctx context.Context, s Store) error { _, err := s.QueuePop(ctx, "q", true); return err },
		"barrier":   func(ctx context.Context, s Store) error { return s.Barrier(ctx, "b", 2) },
	}
	ends := map[string]struct {
		end  func(l *Memory, cancel func())
		want error
	}{
		"done": {func(l *Memory, _ func()) {
			ctx := context.Background()
			l.QueuePush(ctx, "k", nil) // is no key
			l.Set(ctx, "q", nil)       // is no queue
			l.Set(ctx, "k", nil)
			l.QueuePush(ctx, "q", nil)
			l.Add(ctx, "b", 1) // is what waiters of a barrier wait for, too
		}, nil},
		"canceled": {func(_ *Memory, cancel func()) { cancel() }, context.Canceled},
		"closed":   {func(l *Memory, _ func()) { l.Close() }, ErrClosed},
	}
	for name, call := range calls {
		for how, end := range ends {
			t.Run(name+"/"+how, func(t *testing.T) {
				l := newLocal(t)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				result := make(chan error)
				go func() { result <- call(ctx, l) }()
				awaitWaiters(t, l, 1)
				end.end(l, cancel)
				if err := <-result; !errors.Is(err, end.want) {
					t.Errorf("got %v, want %v", err, end.want)
				}
				awaitWaiters(t, l, 0)
			})
		}
	}
}

func TestLocalTimeout(t *testing.T) {
	l := newLocal(t)
	ctx, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	err := l.Wait(ctx, []string{"k"})
	if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	l.Close()
	if err := l.Set(t.Context(), "k", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestLocalQueueServesAll: no item is lost and none is taken twice.
func TestLocalQueueServesAll(t *testing.T) {
	ctx, l := t.Context(), newLocal(t)
	const takers, items = 8, 400
	var wg sync.WaitGroup
	var mu sync.Mutex
	seen := map[string]int{}
	for range takers {
		wg.Go(func() {
			for range items / takers {
				item, err := l.QueuePop(ctx, "q", true)
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				seen[string(item)]++
				mu.Unlock()
			}
		})
	}
	for i := range items {
		testkit.Check(t, l.QueuePush(ctx, "q", []byte(fmt.Sprint(i))))
	}
	wg.Wait()
	if len(seen) != items {
		t.Errorf("%d items of %d", len(seen), items)
	}
}

func TestPrefix(t *testing.T) {
	ctx, l := t.Context(), newLocal(t)
	a, ab := NewPrefix("a", l), NewPrefix("ab", l)
	nested := NewPrefix("a", NewPrefix("b", l))
	testkit.Check(t, a.Set(ctx, "k", []byte("1")))
	testkit.Check(t, a.Append(ctx, "k", []byte("0")))
	testkit.Check(t, ab.Set(ctx, "k2", nil))
	testkit.Must(nested.Add(ctx, "k", 1))(t)
	testkit.Check(t, a.MultiSet(ctx, []string{"m"}, [][]byte{[]byte("v")}))
	if keys := testkit.Must(l.ListKeys(ctx))(t); !slices.Equal(keys, []string{"a/k", "a/m", "ab/k2", "b/a/k"}) {
		t.Errorf("keys below: %q", keys)
	}
	if keys := testkit.Must(a.ListKeys(ctx))(t); !slices.Equal(keys, []string{"k", "m"}) {
		t.Errorf("keys: %q", keys)
	}
	if n := testkit.Must(a.NumKeys(ctx))(t); n != 4 {
		t.Errorf("num_keys: %d", n)
	}
	if got := testkit.Must(a.Get(ctx, "k"))(t); string(got) != "10" {
		t.Errorf("get: %q", got)
	}
	if n := testkit.Must(a.Add(ctx, "k", 1))(t); n != 11 {
		t.Errorf("add: %d", n)
	}
	if got := testkit.Must(a.CompareSet(ctx, "k", []byte("11"), []byte("x")))(t); string(got) != "x" {
		t.Errorf("compare_set: %q", got)
	}
	if got := testkit.Must(a.MultiGet(ctx, []string{"m", "k"}))(t); fmt.Sprintf("%s", got) != "[v x]" {
		t.Errorf("multi_get: %s", got)
	}
	if !testkit.Must(a.Check(ctx, []string{"k"}))(t) || testkit.Must(a.Check(ctx, []string{"k2"}))(t) {
		t.Error("check")
	}
	testkit.Check(t, a.Wait(ctx, []string{"k"}))
	if !testkit.Must(a.Delete(ctx, "k"))(t) {
		t.Error("delete")
	}
	testkit.Check(t, a.QueuePush(ctx, "q", []byte("item")))
	if n := testkit.Must(l.QueueLen(ctx, "a/q"))(t); n != 1 || testkit.Must(a.QueueLen(ctx, "q"))(t) != 1 {
		t.Errorf("queue_len: %d", n)
	}
	if got := testkit.Must(a.QueuePop(ctx, "q", false))(t); string(got) != "item" {
		t.Errorf("queue_pop: %q", got)
	}
}

// TestPrefixBarrier: it uses the keys of torch's PrefixStore.
func TestPrefixBarrier(t *testing.T) {
	ctx, l := t.Context(), newLocal(t)
	p := NewPrefix("p", l)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if err := p.Barrier(ctx, "b", 3); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if keys := testkit.Must(l.ListKeys(ctx))(t); !slices.Equal(keys, []string{"p/b/last_member", "p/b/num_members"}) {
		t.Errorf("keys: %q", keys)
	}
	testkit.Check(t, p.Close())
	if err := p.Barrier(ctx, "b", 3); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A wait that is over says for what it was, whenever it ended.
func TestLocalErrorsNameTheirKeys(t *testing.T) {
	l := NewMemory(NewEngine(Limits{}))
	over, cancel := context.WithCancel(context.Background())
	cancel()
	soon, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	for name, call := range map[string]func(context.Context) error{
		`get "k"`:                       func(ctx context.Context) error { _, err := l.Get(ctx, "k"); return err },
		`multi_get "k", "l"`:            func(ctx context.Context) error { _, err := l.MultiGet(ctx, []string{"k", "l"}); return err },
		`wait "k"`:                      func(ctx context.Context) error { return l.Wait(ctx, []string{"k"}) },
		`queue_pop "q"`:                 func(ctx context.Context) error { _, err := l.QueuePop(ctx, "q", true); return err },
		`barrier "b"`:                   func(ctx context.Context) error { return l.Barrier(ctx, "b", 1<<30) },
		`get "` + long[:100]:            func(ctx context.Context) error { _, err := l.Get(ctx, long); return err },
		`wait "k", "k", "k" and 1 more`: func(ctx context.Context) error { return l.Wait(ctx, []string{"k", "k", "k", "k"}) },
	} {
		for _, ctx := range []context.Context{over, soon} {
			if err := call(ctx); !errors.Is(err, context.Canceled) && !errors.Is(err, ErrTimeout) || !strings.HasPrefix(err.Error(), name) || len(err.Error()) > 200 {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

var long = strings.Repeat("x", 5000)

// BenchmarkMemory makes calls with a time limit, as each has in C.
func BenchmarkMemory(b *testing.B) {
	l, value := NewMemory(NewEngine(Limits{})), []byte("0123456789abcdef")
	testkit.Check(b, l.Set(b.Context(), "key", value))
	for name, call := range map[string]func(ctx context.Context) error{
		"num_keys": func(ctx context.Context) error { _, err := l.NumKeys(ctx); return err },
		"add":      func(ctx context.Context) error { _, err := l.Add(ctx, "counter", 1); return err },
		"set":      func(ctx context.Context) error { return l.Set(ctx, "key", value) },
		"get":      func(ctx context.Context) error { _, err := l.Get(ctx, "key"); return err },
	} {
		b.Run(name, func(b *testing.B) {
			defer testkit.ReportCPU(b)()
			for b.Loop() {
				ctx, cancel := context.WithTimeout(b.Context(), time.Second)
				testkit.Check(b, call(ctx))
				cancel()
			}
		})
	}
}
