package tcpstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/store"
)

// attempting is a Store whose calls are made in two goes where one is not enough.
type attempting struct {
	*Client
	patience time.Duration
}

func attempt[T any](ctx context.Context, s attempting, call func(context.Context) (T, error)) (T, error) {
	a := store.NewAttempt(ctx, s.patience)
	v, err := call(a)
	if rest := a.Rest(err); rest != nil {
		return call(rest)
	}
	return v, err
}

func (s attempting) attempt(ctx context.Context, call func(context.Context) error) error {
	_, err := attempt(ctx, s, func(ctx context.Context) (struct{}, error) { return struct{}{}, call(ctx) })
	return err
}

func (s attempting) Set(ctx context.Context, key string, value []byte) error {
	return s.attempt(ctx, func(ctx context.Context) error { return s.Client.Set(ctx, key, value) })
}

func (s attempting) Get(ctx context.Context, key string) ([]byte, error) {
	return attempt(ctx, s, func(ctx context.Context) ([]byte, error) { return s.Client.Get(ctx, key) })
}

func (s attempting) Add(ctx context.Context, key string, delta int64) (int64, error) {
	return attempt(ctx, s, func(ctx context.Context) (int64, error) { return s.Client.Add(ctx, key, delta) })
}

func (s attempting) CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return attempt(ctx, s, func(ctx context.Context) ([]byte, error) { return s.Client.CompareSet(ctx, key, expected, desired) })
}

func (s attempting) Append(ctx context.Context, key string, value []byte) error {
	return s.attempt(ctx, func(ctx context.Context) error { return s.Client.Append(ctx, key, value) })
}

func (s attempting) Check(ctx context.Context, keys []string) (bool, error) {
	return attempt(ctx, s, func(ctx context.Context) (bool, error) { return s.Client.Check(ctx, keys) })
}

func (s attempting) Wait(ctx context.Context, keys []string) error {
	return s.attempt(ctx, func(ctx context.Context) error { return s.Client.Wait(ctx, keys) })
}

func (s attempting) Delete(ctx context.Context, key string) (bool, error) {
	return attempt(ctx, s, func(ctx context.Context) (bool, error) { return s.Client.Delete(ctx, key) })
}

func (s attempting) NumKeys(ctx context.Context) (int64, error) {
	return attempt(ctx, s, s.Client.NumKeys)
}

func (s attempting) ListKeys(ctx context.Context) ([]string, error) {
	return attempt(ctx, s, s.Client.ListKeys)
}

func (s attempting) MultiGet(ctx context.Context, keys []string) ([][]byte, error) {
	return attempt(ctx, s, func(ctx context.Context) ([][]byte, error) { return s.Client.MultiGet(ctx, keys) })
}

func (s attempting) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return s.attempt(ctx, func(ctx context.Context) error { return s.Client.MultiSet(ctx, keys, values) })
}

func (s attempting) QueuePush(ctx context.Context, key string, value []byte) error {
	return s.attempt(ctx, func(ctx context.Context) error { return s.Client.QueuePush(ctx, key, value) })
}

func (s attempting) QueuePop(ctx context.Context, key string, block bool) ([]byte, error) {
	return attempt(ctx, s, func(ctx context.Context) ([]byte, error) { return s.Client.QueuePop(ctx, key, block) })
}

func (s attempting) QueueLen(ctx context.Context, key string) (int64, error) {
	return attempt(ctx, s, func(ctx context.Context) (int64, error) { return s.Client.QueueLen(ctx, key) })
}

// kinds are ways to make every call: each exchange is left, answered in the first go, or
// either, as it happens.
var kinds = map[string]func(*Client) store.Store{
	"plain":    func(c *Client) store.Store { return c },
	"left":     func(c *Client) store.Store { return attempting{c, 0} },
	"answered": func(c *Client) store.Store { return attempting{c, guard} },
	"either":   func(c *Client) store.Store { return attempting{c, time.Millisecond} },
}

// TestAttemptInPieces: a reply that stalls half way is left, and taken up where it stopped;
// no request is sent twice.
func TestAttemptInPieces(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	reply := msg(0, "0123456789")[1:]
	for cut := range reply {
		a := store.NewAttempt(t.Context(), time.Millisecond)
		written := make(chan struct{})
		go func() {
			defer close(written)
			take(t, conn, msg(opCompareSet, "/k", "", "v"))
			conn.Write(reply[:cut])
		}()
		_, err := c.CompareSet(a, "k", nil, []byte("v"))
		<-written
		rest := a.Rest(err)
		if rest == nil || !errors.Is(err, store.ErrTimeout) {
			t.Fatalf("the first go ends with %v", err)
		}
		conn.Write(reply[cut:])
		if got := must(c.CompareSet(rest, "k", nil, []byte("v")))(t); string(got) != "0123456789" {
			t.Errorf("cut at %d: %q", cut, got)
		}
	}
}

// TestAttemptHoldsItsTurn: calls wait until the one that was left has been taken up.
func TestAttemptHoldsItsTurn(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	a := store.NewAttempt(t.Context(), 0)
	_, err := c.Add(a, "n", 1)
	take(t, conn, msg(opAdd, "/n", 1))
	second := store.NewAttempt(t.Context(), time.Millisecond)
	if _, err := c.Add(second, "m", 2); second.Rest(err) != t.Context() {
		t.Errorf("an attempt behind it: %v", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		take(t, conn, msg(opAdd, "/m", 2))
		conn.Write(msg(0, 2)[1:])
	})
	wg.Go(func() {
		if n, err := c.Add(t.Context(), "m", 2); n != 2 || err != nil {
			t.Errorf("a call behind it: %d, %v", n, err)
		}
	})
	conn.Write(msg(0, 1)[1:])
	if n := must(c.Add(a.Rest(err), "n", 1))(t); n != 1 {
		t.Errorf("the second go: %d", n)
	}
	wg.Wait()
}

// TestAttemptEnds: whatever ends the connection or the call ends an attempt, too.
func TestAttemptEnds(t *testing.T) {
	for name, end := range map[string]struct {
		patience time.Duration
		do       func(cancel func(), c *Client, conn io.Closer)
		want     error
	}{
		"server, at once": {guard, func(_ func(), _ *Client, conn io.Closer) { conn.Close() }, store.ErrConnection},
		"server, later":   {0, func(_ func(), _ *Client, conn io.Closer) { conn.Close() }, store.ErrConnection},
		"close, at once":  {guard, func(_ func(), c *Client, _ io.Closer) { c.Close() }, store.ErrClosed},
		"close, later":    {0, func(_ func(), c *Client, _ io.Closer) { c.Close() }, store.ErrClosed},
		"context, later":  {0, func(cancel func(), _ *Client, _ io.Closer) { cancel() }, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			addr, conns := fakeServer(t)
			c, conn := dialFake(t, addr, conns)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			a := store.NewAttempt(ctx, end.patience)
			first := make(chan error, 1)
			go func() { _, err := c.Add(a, "n", 1); first <- err }()
			take(t, conn, msg(opAdd, "/n", 1))
			var err error
			if end.patience == 0 {
				err = <-first
			}
			end.do(cancel, c, conn)
			if end.patience > 0 {
				err = <-first
			}
			rest := a.Rest(err)
			if (rest != nil) != (end.patience == 0) {
				t.Fatalf("the first go ends with %v", err)
			}
			if rest != nil {
				_, err = c.Add(rest, "n", 1)
			}
			if !errors.Is(err, end.want) || !strings.Contains(err.Error(), `add "n"`) {
				t.Errorf("got %v, want %v", err, end.want)
			}
			late, cancel := context.WithTimeout(t.Context(), 0)
			defer cancel()
			if err := c.Set(late, "k", nil); err == nil {
				t.Error("the turn is not free")
			}
		})
	}
}

// TestAttemptConnects: an attempt that finds no connection has done nothing.
func TestAttemptConnects(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	conn.Close()
	eventually(t, "the client sees it", func() bool { return !c.main.alive() })
	a := store.NewAttempt(t.Context(), guard)
	_, err := c.NumKeys(a)
	if a.Rest(err) != t.Context() {
		t.Fatalf("got %v", err)
	}
	result := make(chan error, 1)
	go func() { _, err := c.NumKeys(a.Rest(err)); result <- err }()
	conn = <-conns
	defer conn.Close()
	welcome(t, conn)
	take(t, conn, msg(opNumKeys))
	conn.Write(msg(0, 1)[1:])
	ok(t, <-result)
}

// TestGetOfStockServer: where a get of a missing key may end the connection it is sent only
// once the key is known to be there; a reply that is late does not change that.
func TestGetOfStockServer(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	for _, patience := range []time.Duration{0, time.Millisecond, guard} {
		result := make(chan []byte, 1)
		go func() { result <- must(attempting{c, patience}.Get(t.Context(), "k"))(t) }()
		take(t, conn, msg(opCheck, 1, "/k"))
		conn.Write([]byte{replyReady})
		take(t, conn, msg(opGet, "/k"))
		conn.Write(msg(0, "value")[1:])
		if got := <-result; string(got) != "value" {
			t.Errorf("got %q", got)
		}
	}
}

// TestGetIsOneExchange: where it does not, both are sent together, and what comes for a
// missing key is no value.
func TestGetIsOneExchange(t *testing.T) {
	s, _ := newServer(t, Options{})
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) {
			s.SwapEngine(store.NewEngine(store.Limits{}))
			client := newClient(t, s)
			if !client.main.lenient {
				t.Fatal("the server does not say so")
			}
			c, ctx := kind(client), t.Context()
			ok(t, c.Set(ctx, "k", []byte("value")))
			if got := must(c.Get(ctx, "k"))(t); string(got) != "value" {
				t.Errorf("got %q", got)
			}
			result := make(chan [][]byte, 1)
			go func() { result <- must(c.MultiGet(ctx, []string{"k", "late"}))(t) }()
			eventually(t, "waits", func() bool { return s.Stats().Waiters == 1 })
			ok(t, c.Set(ctx, "late", []byte("too")))
			if got := <-result; !bytes.Equal(bytes.Join(got, []byte{' '}), []byte("value too")) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestMark: the server calls its mark present, and it is no key.
func TestMark(t *testing.T) {
	s, _ := newServer(t, Options{})
	r := dialHello(t, s)
	r.exchange(msg(opCheck, 1, mark), []byte{replyReady})
	r.exchange(msg(opCheck, 2, mark, mark), []byte{replyNotReady})
	r.exchange(msg(opCheck, 1, "/"+mark), []byte{replyNotReady})
	r.exchange(msg(opNumKeys), msg(0, 0)[1:])
	r.exchange(msg(opGet, mark), msg(0, "")[1:])
}
