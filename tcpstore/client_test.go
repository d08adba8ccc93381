package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"rallypoint/core/store"
	"rallypoint/core/store/storetest"
	"rallypoint/internal/testkit"
)

// newClient connects to s and closes with the test.
func newClient(t *testing.T, s *Server) *Client {
	t.Helper()
	c, err := Dial(t.Context(), s.Addr().String(), ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c.cancelGrace = guard // a slow machine must not cost the connection
	t.Cleanup(func() { c.Close() })
	return c
}

func TestClientOperations(t *testing.T) {
	s, _ := newServer(t, Options{})
	for server, younger := range map[string]bool{"ours": true, "torch 2.2": false} {
		for name, kind := range kinds {
			t.Run(server+"/"+name, func(t *testing.T) {
				s.SwapEngine(store.NewEngine(store.Limits{}))
				c := newClient(t, s)
				c.main.pings, c.main.missingOK = younger, younger
				storetest.Operations(t, kind(c))
				storetest.Queues(t, kind(c))
				if keys := wireKeys(s); !slices.Contains(keys, "/k") {
					t.Errorf("keys on the wire: %q", keys)
				}
				if !younger {
					return // what is large goes the same way
				}
				largest := bytes.Repeat([]byte("0123456789"), MaxValueBytes/10)
				testkit.Check(t, kind(c).Set(t.Context(), "big", largest))
				if got := testkit.Must(kind(c).Get(t.Context(), "big"))(t); !bytes.Equal(got, largest) {
					t.Errorf("the largest value came back with %d bytes", len(got))
				}
			})
		}
	}
}

func TestClientSizes(t *testing.T) {
	s, _ := newServer(t, Options{})
	c, ctx := newClient(t, s), t.Context()
	long := strings.Repeat("k", MaxKeyBytes)
	large := make([]byte, MaxValueBytes+1)
	for name, err := range map[string]error{
		"key":     c.Set(ctx, long, nil),
		"wait":    c.Barrier(ctx, long, 1),
		"value":   c.Set(ctx, "k", large),
		"keys":    c.Wait(ctx, make([]string, MaxKeys+1)),
		"request": c.MultiSet(ctx, make([]string, 9), slices.Repeat([][]byte{large[1:]}, 9)),
	} {
		if !errors.Is(err, store.ErrTooLarge) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := c.MultiSet(ctx, []string{"a"}, nil); !errors.Is(err, store.ErrArguments) {
		t.Errorf("arguments: %v", err)
	}
	testkit.Check(t, c.Set(ctx, long[1:], large[1:]))
	if s.Stats().Accepted != 1 {
		t.Error("the client has connected again")
	}
}

// TestClientWaits starts every call that waits and ends it by what it waits for,
// by its context (after which its connection continues), and by Close.
func TestClientWaits(t *testing.T) {
	calls := map[string]func(context.Context, *Client) error{
		"get":       func(ctx context.Context, c *Client) error { _, err := c.Get(ctx, "k"); return err },
		"wait":      func(ctx context.Context, c *Client) error { return c.Wait(ctx, []string{"k", "k"}) },
		"multi_get": func(ctx context.Context, c *Client) error { _, err := c.MultiGet(ctx, []string{"k"}); return err },
		"queue_pop": func(ctx context.Context, c *Client) error { _, err := c.QueuePop(ctx, "q", true); return err },
		"barrier":   func(ctx context.Context, c *Client) error { return c.Barrier(ctx, "b", 2) },
	}
	for name, call := range calls {
		for _, how := range []string{"done", "canceled", "closed"} {
			t.Run(name+"/"+how, func(t *testing.T) {
				s, _ := newServer(t, Options{})
				c := newClient(t, s)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				result := make(chan error, 1)
				go func() { result <- call(ctx, c) }()
				testkit.Eventually(t, "waits", func() bool { return s.Stats().Waiters == 1 })
				want := error(nil)
				switch how {
				case "done":
					testkit.Check(t, c.Set(ctx, "k", []byte("v")))
					testkit.Check(t, c.QueuePush(ctx, "q", []byte("item")))
					testkit.Must(c.Add(ctx, "b", 1))(t)
				case "canceled":
					cancel()
					want = context.Canceled
				case "closed":
					c.Close()
					want = store.ErrClosed
				}
				err := <-result
				if !errors.Is(err, want) {
					t.Errorf("got %v, want %v", err, want)
				}
				if err != nil && !strings.Contains(err.Error(), "tcpstore: "+name) {
					t.Errorf("the error is %v", err)
				}
				testkit.Eventually(t, "no waiters", func() bool { return s.Stats().Waiters == 0 })
				if how == "canceled" {
					testReuse(t, s, c, call)
				}
			})
		}
	}
}

// testReuse repeats a call that waits, on the connection of the one before.
func testReuse(t *testing.T, s *Server, c *Client, call func(context.Context, *Client) error) {
	ctx := t.Context()
	accepted := s.Stats().Accepted
	result := make(chan error, 1)
	go func() { result <- call(ctx, c) }()
	testkit.Eventually(t, "waits again", func() bool { return s.Stats().Waiters == 1 || s.Stats().Ops["BARRIER"] == 2 })
	testkit.Check(t, c.Set(ctx, "k", nil))
	testkit.Check(t, c.QueuePush(ctx, "q", nil))
	testkit.Check(t, <-result)
	if n := s.Stats().Accepted; n != accepted {
		t.Errorf("connected again: %d connections instead of %d", n, accepted)
	}
}

func TestClientTimeout(t *testing.T) {
	s, _ := newServer(t, Options{})
	c := newClient(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 1)
	defer cancel()
	for name, err := range map[string]error{
		"set":     c.Set(ctx, "k", nil),
		"wait":    c.Wait(ctx, []string{"k"}),
		"barrier": c.Barrier(ctx, "k", 2),
	} {
		if !errors.Is(err, store.ErrTimeout) || !strings.Contains(err.Error(), s.Addr().String()) || !strings.Contains(err.Error(), "tried for") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := testkit.Must(c.NumKeys(t.Context()))(t); n != 0 {
		t.Errorf("%d keys", n)
	}
	if s.Stats().Accepted != 1 {
		t.Error("calls that are over before they begin cost a connection")
	}
}

// TestClientServerDeath: calls fail while the server is away and work when it is
// back, with whatever it holds then.
func TestClientServerDeath(t *testing.T) {
	s, _ := newServer(t, Options{})
	c, ctx := newClient(t, s), t.Context()
	addr := s.Addr().String()
	testkit.Check(t, c.Set(ctx, "k", nil))
	result := make(chan error, 1)
	go func() { result <- c.Wait(ctx, []string{"never"}) }()
	testkit.Eventually(t, "waits", func() bool { return s.Stats().Waiters == 1 })
	testkit.Check(t, s.Close())
	if err := <-result; !errors.Is(err, store.ErrConnection) {
		t.Errorf("a wait: %v", err)
	}
	away, cancel := context.WithTimeout(ctx, 1)
	defer cancel()
	if err := c.Set(away, "k", nil); !errors.Is(err, store.ErrTimeout) {
		t.Errorf("a set: %v", err)
	}
	again, err := Listen(addr, store.NewEngine(store.Limits{}), Options{})
	if err != nil {
		t.Skip("the port was taken meanwhile: ", err)
	}
	defer again.Close()
	if n := testkit.Must(c.Add(ctx, "n", 1))(t); n != 1 {
		t.Errorf("add: %d", n)
	}
	testkit.Check(t, c.Close())
	testkit.Check(t, c.Close())
	if err := c.Set(ctx, "k", nil); !errors.Is(err, store.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestClientNotANumber: the server says so by closing the connection.
func TestClientNotANumber(t *testing.T) {
	s, lines := newServer(t, Options{})
	c, ctx := newClient(t, s), t.Context()
	testkit.Check(t, c.Set(ctx, "text", []byte("x")))
	if _, err := c.Add(ctx, "text", 1); !errors.Is(err, store.ErrConnection) || !strings.Contains(err.Error(), "number") {
		t.Errorf("got %v", err)
	}
	if line := lines.Next(t); !strings.Contains(line, "not a number") {
		t.Errorf("the line is %s", line)
	}
	testkit.Check(t, c.Set(ctx, "text", nil))
}

// TestClientHammer uses one client from many goroutines, with every operation.
func TestClientHammer(t *testing.T) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) { testHammer(t, kind) })
	}
}

func testHammer(t *testing.T, kind func(*Client) store.Store) {
	s, _ := newServer(t, Options{})
	c, ctx := kind(newClient(t, s)), t.Context()
	const goroutines, rounds = 16, 20
	var wg sync.WaitGroup
	for i := range goroutines {
		wg.Go(func() {
			for round := range rounds {
				if err := hammer(ctx, c, i, round, goroutines); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if n := testkit.Must(c.Add(ctx, "sum", 0))(t); n != goroutines*rounds {
		t.Errorf("the sum is %d", n)
	}
	if n := testkit.Must(c.QueueLen(ctx, "queue"))(t); n != 0 {
		t.Errorf("%d items are left", n)
	}
	if n := s.Stats().Waiters; n != 0 {
		t.Errorf("%d waiters are left", n)
	}
}

// hammer is one round of one goroutine. All meet at its barriers.
func hammer(ctx context.Context, c store.Store, i, round, goroutines int) error {
	key := func(i int) string { return fmt.Sprint("key/", round, "/", i) }
	mine, next := []byte(key(i)), (i+1)%goroutines
	if err := c.Set(ctx, key(i), mine); err != nil {
		return err
	}
	if got, err := c.Get(ctx, key(next)); err != nil || string(got) != key(next) {
		return fmt.Errorf("get: %q, %w", got, err)
	}
	if _, err := c.Add(ctx, "sum", 1); err != nil {
		return err
	}
	if err := c.QueuePush(ctx, "queue", mine); err != nil {
		return err
	}
	if _, err := c.QueuePop(ctx, "queue", true); err != nil {
		return err
	}
	short, cancel := context.WithCancel(ctx)
	go cancel()
	if err := c.Wait(short, []string{"never"}); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("a cancelled wait: %w", err)
	}
	return c.Barrier(ctx, fmt.Sprint("barrier/", round), int64(goroutines))
}

// TestPrefixOverClient: PyTorch's PrefixStore has these keys on the wire.
func TestPrefixOverClient(t *testing.T) {
	s, _ := newServer(t, Options{})
	c, ctx := newClient(t, s), t.Context()
	p := store.NewPrefix("a", store.NewPrefix("b", c))
	testkit.Must(p.Add(ctx, "k", 1))(t)
	testkit.Check(t, store.NewPrefix("pre", c).Barrier(ctx, "bb", 1))
	if keys := wireKeys(s); !slices.Equal(keys, []string{"/b/a/k", "/pre/bb/last_member", "/pre/bb/num_members"}) {
		t.Errorf("keys on the wire: %q", keys)
	}
}
