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
	"rallypoint/internal/testkit"
)

// trying is a Store whose calls are tried, and completed where that is not enough.
type trying struct {
	*Client
	patience time.Duration
}

func (t trying) Do(ctx context.Context, r store.Request) (store.Reply, error) {
	reply, pending, err := t.TryDo(ctx, r, t.patience)
	if pending != nil {
		return pending(ctx)
	}
	return reply, err
}

func try(c *Client, patience time.Duration) store.Store {
	s := trying{c, patience}
	return struct {
		store.Doer
		store.Methods
		io.Closer
	}{s, store.MethodsOf(s), c}
}

// kinds are ways to make every call: each exchange is left pending, answered in the try, or
// either, as it happens.
var kinds = map[string]func(*Client) store.Store{
	"plain":    func(c *Client) store.Store { return c },
	"left":     func(c *Client) store.Store { return try(c, 0) },
	"answered": func(c *Client) store.Store { return try(c, guard) },
	"either":   func(c *Client) store.Store { return try(c, time.Millisecond) },
}

// addOf is an Add.
func addOf(key string, delta int64) store.Request {
	return store.Request{Op: store.OpAdd, Keys: []string{key}, Number: delta}
}

// TestTryInPieces: a reply that stalls half way is left pending, and read on where it stopped;
// no request is sent twice.
func TestTryInPieces(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	reply := msg(0, "0123456789")[1:]
	for cut := range reply {
		written := make(chan struct{})
		go func() {
			defer close(written)
			take(t, conn, msg(opCompareSet, "/k", "", "v"))
			conn.Write(reply[:cut])
		}()
		_, pending, err := c.TryDo(t.Context(), store.Request{Op: store.OpCompareSet, Keys: []string{"k"}, Values: [][]byte{nil, []byte("v")}}, time.Millisecond)
		<-written
		if pending == nil || err != nil {
			t.Fatalf("the try ends with %v", err)
		}
		conn.Write(reply[cut:])
		if got := testkit.Must(pending(t.Context()))(t).Values; string(got[0]) != "0123456789" {
			t.Errorf("cut at %d: %q", cut, got)
		}
	}
}

// TestTryHoldsTheConnection: calls wait until the one that is pending has its reply.
func TestTryHoldsTheConnection(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	_, pending, err := c.TryDo(t.Context(), addOf("n", 1), 0)
	if pending == nil || err != nil {
		t.Fatalf("the try ends with %v", err)
	}
	take(t, conn, msg(opAdd, "/n", 1))
	_, second, err := c.TryDo(t.Context(), addOf("m", 2), time.Millisecond)
	if second == nil || err != nil {
		t.Errorf("a try behind it: %v", err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		take(t, conn, msg(opAdd, "/m", 2))
		conn.Write(msg(0, 2)[1:])
	})
	wg.Go(func() {
		if r, err := second(t.Context()); r.Number != 2 || err != nil {
			t.Errorf("a call behind it: %d, %v", r.Number, err)
		}
	})
	conn.Write(msg(0, 1)[1:])
	if n := testkit.Must(pending(t.Context()))(t).Number; n != 1 {
		t.Errorf("what was pending: %d", n)
	}
	wg.Wait()
}

// TestTryEnds: whatever ends the connection or the call ends a try, too.
func TestTryEnds(t *testing.T) {
	type result struct {
		pending store.Pending
		err     error
	}
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
			tried := make(chan result, 1)
			go func() {
				_, pending, err := c.TryDo(ctx, addOf("n", 1), end.patience)
				tried <- result{pending, err}
			}()
			take(t, conn, msg(opAdd, "/n", 1))
			var r result
			if end.patience == 0 {
				r = <-tried
			}
			end.do(cancel, c, conn)
			if end.patience > 0 {
				r = <-tried
			}
			if (r.pending != nil) != (end.patience == 0) {
				t.Fatalf("the try ends with %v", r.err)
			}
			err := r.err
			if r.pending != nil {
				_, err = r.pending(ctx)
			}
			if !errors.Is(err, end.want) || !strings.Contains(err.Error(), `add "n"`) {
				t.Errorf("got %v, want %v", err, end.want)
			}
			late, cancel := context.WithTimeout(t.Context(), 0)
			defer cancel()
			if err := c.Set(late, "k", nil); err == nil {
				t.Error("the connection is not free")
			}
		})
	}
}

// TestTryConnects: a try that finds no connection has done nothing.
func TestTryConnects(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	conn.Close()
	testkit.Eventually(t, "the client sees it", func() bool { return !c.main.alive() })
	_, pending, err := c.TryDo(t.Context(), store.Request{Op: store.OpNumKeys}, guard)
	if pending == nil || err != nil {
		t.Fatalf("got %v", err)
	}
	result := make(chan error, 1)
	go func() { _, err := pending(t.Context()); result <- err }()
	conn = <-conns
	defer conn.Close()
	welcome(t, conn)
	take(t, conn, msg(opNumKeys))
	conn.Write(msg(0, 1)[1:])
	testkit.Check(t, <-result)
}

// TestGetOfStockServer: where a get of a missing key may end the connection it is sent only
// once the key is known to be there; a reply that is late does not change that.
func TestGetOfStockServer(t *testing.T) {
	addr, conns := fakeServer(t)
	c, conn := dialFake(t, addr, conns)
	for _, patience := range []time.Duration{0, time.Millisecond, guard} {
		result := make(chan []byte, 1)
		go func() { result <- testkit.Must(try(c, patience).Get(t.Context(), "k"))(t) }()
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
			if !client.main.missingOK {
				t.Fatal("the server does not say so")
			}
			c, ctx := kind(client), t.Context()
			testkit.Check(t, c.Set(ctx, "k", []byte("value")))
			if got := testkit.Must(c.Get(ctx, "k"))(t); string(got) != "value" {
				t.Errorf("got %q", got)
			}
			result := make(chan [][]byte, 1)
			go func() { result <- testkit.Must(c.MultiGet(ctx, []string{"k", "late"}))(t) }()
			testkit.Eventually(t, "waits", func() bool { return s.Stats().Waiters == 1 })
			testkit.Check(t, c.Set(ctx, "late", []byte("too")))
			if got := <-result; !bytes.Equal(bytes.Join(got, []byte{' '}), []byte("value too")) {
				t.Errorf("got %q", got)
			}
		})
	}
}

// TestProbeKey: the server calls the probe key present, and it is no key of the store.
func TestProbeKey(t *testing.T) {
	s, _ := newServer(t, Options{})
	r := dialHello(t, s)
	r.exchange(msg(opCheck, 1, probeKey), []byte{replyReady})
	r.exchange(msg(opCheck, 2, probeKey, probeKey), []byte{replyNotReady})
	r.exchange(msg(opCheck, 1, "/"+probeKey), []byte{replyNotReady})
	r.exchange(msg(opNumKeys), msg(0, 0)[1:])
	r.exchange(msg(opGet, probeKey), msg(0, "")[1:])
}
