package member_test

import (
	"context"
	"errors"
	"reflect"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
)

// keysOf forms a round of two and returns both members' keys.
func keysOf(t *testing.T, w *cluster) (nodes []*node, a, b store.Store) {
	t.Helper()
	nodes = w.nodes(2, 2, 2)
	o := form(t, nodes)
	return nodes, nodes[0].Keys(o.Round), nodes[1].Keys(o.Round)
}

// The keys behave as any store does: the same calls give the same results.
func TestKeysAreAStore(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		_, keys, _ := keysOf(t, w)
		local := store.NewMemory(store.NewEngine(store.Limits{}))
		ctx := context.Background()
		var same error // stands for any error of that kind
		for _, c := range []struct {
			name string
			call func(store.Store) (any, error)
			err  error
		}{
			{"set", func(s store.Store) (any, error) { return nil, s.Set(ctx, "k", []byte("v")) }, same},
			{"set empty", func(s store.Store) (any, error) { return nil, s.Set(ctx, "e", nil) }, same},
			{"get", func(s store.Store) (any, error) { return s.Get(ctx, "k") }, same},
			{"get empty", func(s store.Store) (any, error) { return s.Get(ctx, "e") }, same},
			{"add", func(s store.Store) (any, error) { return s.Add(ctx, "n", 5) }, same},
			{"add less", func(s store.Store) (any, error) { return s.Add(ctx, "n", -7) }, same},
			{"add to text", func(s store.Store) (any, error) { return s.Add(ctx, "k", 1) }, store.ErrNotNumber},
			{"swap", func(s store.Store) (any, error) { return s.CompareSet(ctx, "k", []byte("v"), []byte("w")) }, same},
			{"swap other", func(s store.Store) (any, error) { return s.CompareSet(ctx, "k", []byte("v"), []byte("x")) }, same},
			{"swap missing", func(s store.Store) (any, error) { return s.CompareSet(ctx, "m", []byte("v"), []byte("x")) }, same},
			{"swap new", func(s store.Store) (any, error) { return s.CompareSet(ctx, "m", nil, []byte("x")) }, same},
			{"append", func(s store.Store) (any, error) { return nil, s.Append(ctx, "k", []byte("!")) }, same},
			{"check", func(s store.Store) (any, error) { return s.Check(ctx, []string{"k", "n"}) }, same},
			{"check missing", func(s store.Store) (any, error) { return s.Check(ctx, []string{"k", "zz"}) }, same},
			{"check nothing", func(s store.Store) (any, error) { return s.Check(ctx, nil) }, same},
			{"wait", func(s store.Store) (any, error) { return nil, s.Wait(ctx, []string{"k", "n"}) }, same},
			{"multi set", func(s store.Store) (any, error) {
				return nil, s.MultiSet(ctx, []string{"x", "y"}, [][]byte{[]byte("1"), []byte("2")})
			}, same},
			{"multi set uneven", func(s store.Store) (any, error) { return nil, s.MultiSet(ctx, []string{"x", "y"}, [][]byte{nil}) }, store.ErrArguments},
			{"multi set nothing", func(s store.Store) (any, error) { return nil, s.MultiSet(ctx, nil, nil) }, same},
			{"multi get", func(s store.Store) (any, error) { return s.MultiGet(ctx, []string{"y", "x", "e"}) }, same},
			{"count", func(s store.Store) (any, error) { return s.NumKeys(ctx) }, same},
			{"list", func(s store.Store) (any, error) {
				keys, err := s.ListKeys(ctx)
				slices.Sort(keys)
				return keys, err
			}, same},
			{"delete", func(s store.Store) (any, error) { return s.Delete(ctx, "k") }, same},
			{"delete again", func(s store.Store) (any, error) { return s.Delete(ctx, "k") }, same},
			{"push", func(s store.Store) (any, error) { return nil, s.QueuePush(ctx, "q", []byte("i")) }, same},
			{"push empty", func(s store.Store) (any, error) { return nil, s.QueuePush(ctx, "q", []byte{}) }, same},
			{"length", func(s store.Store) (any, error) { return s.QueueLen(ctx, "q") }, same},
			{"pop", func(s store.Store) (any, error) { return s.QueuePop(ctx, "q", true) }, same},
			{"pop the empty one", func(s store.Store) (any, error) { return s.QueuePop(ctx, "q", false) }, same},
			{"pop too many", func(s store.Store) (any, error) { return s.QueuePop(ctx, "q", false) }, store.ErrQueueEmpty},
			{"barrier of one", func(s store.Store) (any, error) { return nil, s.Barrier(ctx, "b", 1) }, same},
		} {
			got, gotErr := c.call(keys)
			want, wantErr := c.call(local)
			if !errors.Is(gotErr, c.err) || !errors.Is(wantErr, c.err) {
				t.Errorf("%s: error %v; a local store's is %v", c.name, gotErr, wantErr)
			}
			if gotErr == nil && !reflect.DeepEqual(got, want) {
				t.Errorf("%s: %v; a local store gives %v", c.name, got, want)
			}
		}
	})
}

func TestKeysWait(t *testing.T) {
	for name, call := range map[string]func(context.Context, store.Store) error{
		"get":       func(ctx context.Context, s store.Store) error { _, err := s.Get(ctx, "k"); return err },
		"multi get": func(ctx context.Context, s store.Store) error { _, err := s.MultiGet(ctx, []string{"k"}); return err },
		"wait":      func(ctx context.Context, s store.Store) error { return s.Wait(ctx, []string{"k"}) },
		"barrier":   func(ctx context.Context, s store.Store) error { return s.Barrier(ctx, "k", 100) },
		"pop":       func(ctx context.Context, s store.Store) error { _, err := s.QueuePop(ctx, "q", true); return err },
	} {
		t.Run(name, func(t *testing.T) {
			runCluster(t, func(t *testing.T, w *cluster) {
				nodes, a, b := keysOf(t, w)
				done := make(chan error, 1)
				begin := func(ctx context.Context) {
					go func() { done <- call(ctx, a) }()
					synctest.Wait()
				}

				ctx, cancel := context.WithTimeout(context.Background(), time.Second)
				defer cancel()
				begin(ctx)
				if err := <-done; !errors.Is(err, store.ErrTimeout) {
					t.Errorf("after its deadline: %v", err)
				}

				ctx, cancel = context.WithCancel(context.Background())
				begin(ctx)
				cancel()
				if err := <-done; !errors.Is(err, context.Canceled) {
					t.Errorf("canceled: %v", err)
				}
				synctest.Wait()

				other := nodes[0].Keys(1)
				go func() { done <- call(context.Background(), other) }()
				synctest.Wait()
				if err := errors.Join(other.Close(), other.Close()); err != nil {
					t.Error(err)
				}
				if err := <-done; !errors.Is(err, store.ErrClosed) {
					t.Errorf("closed: %v", err)
				}
				if err := call(context.Background(), other); !errors.Is(err, store.ErrClosed) {
					t.Errorf("on a closed store: %v", err)
				}

				begin(context.Background())
				if err := errors.Join(b.QueuePush(context.Background(), "q", nil), b.Set(context.Background(), "k", []byte("9"))); err != nil {
					t.Error(err)
				}
				if err := <-done; err != nil {
					t.Errorf("woken: %v", err)
				}
			})
		})
	}
}

// An item that was taken for a pop is not lost because its caller gave up.
func TestPopThatIsCanceledTooLateHasItsItem(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes, a, b := keysOf(t, w)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		var item []byte
		var err error
		done := make(chan struct{})
		go func() {
			defer close(done)
			item, err = a.QueuePop(ctx, "q", true)
		}()
		synctest.Wait()
		release := nodes[0].plane.hold()
		if err := b.QueuePush(context.Background(), "q", []byte("i")); err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		release()
		<-done
		if err != nil || string(item) != "i" {
			t.Errorf("got %q, %v", item, err)
		}
	})
}

func TestKeysOfARoundThatIsOver(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes, a, _ := keysOf(t, w)
		done := make(chan error, 1)
		go func() {
			_, err := a.Get(context.Background(), "k")
			done <- err
		}()
		synctest.Wait()
		round(t, nodes[0].join(), nodes[1].join())
		if err := <-done; !errors.Is(err, rendezvous.ErrRoundOver) {
			t.Errorf("a wait that was under way: %v", err)
		}
		if err := a.Set(context.Background(), "k", nil); !errors.Is(err, rendezvous.ErrRoundOver) {
			t.Errorf("a later call: %v", err)
		}
		if err := nodes[0].Keys(2).Set(context.Background(), "k", nil); err != nil {
			t.Errorf("in the new round: %v", err)
		}
	})
}

func TestKeysWithoutARound(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		n := w.nodes(1, 1, 1)[0]
		if err := n.Keys(1).Set(context.Background(), "k", nil); !errors.Is(err, rendezvous.ErrRoundOver) {
			t.Errorf("got %v", err)
		}
		if n.plane.connects != 0 {
			t.Error("it connected")
		}
	})
}

func TestKeysSurviveAnOutage(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		_, a, b := keysOf(t, w)
		got := make(chan []byte, 1)
		go func() {
			value, err := a.Get(context.Background(), "k")
			if err != nil {
				t.Error(err)
			}
			got <- value
		}()
		synctest.Wait()
		w.setDown(errors.New("connection reset"))
		set := make(chan error, 1)
		go func() { set <- b.Set(context.Background(), "k", []byte("v")) }()
		wait(300 * time.Millisecond)
		w.setDown(nil)
		if err := <-set; err != nil {
			t.Error(err)
		}
		if value := <-got; string(value) != "v" {
			t.Errorf("got %q", value)
		}
	})
}

func TestKeysCopyWhatTheyAreGiven(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		_, a, _ := keysOf(t, w)
		w.setDown(errors.New("connection reset"))
		synctest.Wait()
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		value := []byte("old")
		if err := a.Set(ctx, "k", value); !errors.Is(err, store.ErrTimeout) {
			t.Fatalf("got %v", err)
		}
		copy(value, "new")
		w.setDown(nil)
		got, err := a.Get(context.Background(), "k")
		if err != nil || string(got) != "old" {
			t.Errorf("got %q, %v", got, err)
		}
	})
}

func TestExitBarrierFinishes(t *testing.T) {
	runCluster(t, func(t *testing.T, w *cluster) {
		nodes, a, _ := keysOf(t, w)
		n, err := a.Add(context.Background(), "torchelastic/agent/terminal_state/num_members", 1)
		if err != nil || n != 1 {
			t.Fatalf("got %d, %v", n, err)
		}
		want := rendezvous.LastRound{Generation: "g1", Round: 1, Rank: 0, World: 2, HostRank: -1, Finished: true, Store: "10.0.0.7:40000"}
		if got := nodes[0].plane.lastClaim(); !reflect.DeepEqual(got, want) {
			t.Errorf("claim %+v; want %+v", got, want)
		}
	})
}
