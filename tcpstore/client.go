package tcpstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"rallypoint/core/store"
)

// ClientOptions are the settings of a Client. The zero value is fine.
type ClientOptions struct {
	// Logger gets a line when connecting begins to fail and when it has
	// succeeded after that. Nil is slog.Default().
	Logger *slog.Logger
}

// Client is a store.Store over the network. It works with Server and with the
// servers of torch 2.2 and newer (queues: 2.8, ListKeys: 2.10, Barrier: 2.12).
//
// It differs from torch's client in its behaviour on failures:
//
//   - Every write is answered before the call returns: requests without a reply
//     are sent together with one that has, in the same packet.
//   - Calls that wait use connections of their own, so they hold up no others.
//   - A lost connection ends the calls that are using it with ErrConnection; the
//     next call connects again. A call that changes something is never sent
//     twice; one that only reads is, once, if an idle connection turns out to be
//     dead.
//   - Connecting is retried until the context of the call ends: a call with a
//     context that never ends waits for a server for ever.
//
// The protocol sets some limits. With a server of torch, a key that is deleted at the very moment
// a Get or MultiGet reads it reads as an empty value, or ends the connection. An Add or a Barrier on a value that is no number shows as
// ErrConnection. NumKeys counts all clients' keys, including the one that torch's clients count
// themselves with. The pairs of a MultiSet are bounded by MaxRequestBytes together, and the
// server applies them as one. Barrier meets the barriers of torch's TCPStore, not those of its
// PrefixStore; store.Prefix over a Client is for these.
//
// Keys get a "/" in front on the wire, as from torch's client. An error names
// the operation, the key, the address and how long it was tried.
type Client struct {
	store.Methods

	addr string
	log  *slog.Logger

	leased chan struct{} // full while a call uses main
	main   *link         // nil if not connected

	mu    sync.Mutex
	links map[*link]struct{} // all that are open
	idle  []*link            // of waiting calls, not in use

	done context.Context // ends by Close
	stop context.CancelFunc

	cancelGrace time.Duration
}

var (
	_ store.Store = (*Client)(nil)
	_ store.Trier = (*Client)(nil)
)

const (
	// defaultCancelGrace is how long a call whose context has ended waits for the reply to
	// CANCEL_WAIT, to save the connection. It is part of the 0.1 s in which an interrupt must be
	// answered.
	defaultCancelGrace = 50 * time.Millisecond

	// maxIdle is how many connections of waiting calls are kept for the next.
	maxIdle = 2
)

// Dial connects to the store at addr, a host name or IP address with a port. It
// tries until ctx ends.
func Dial(ctx context.Context, addr string, opts ClientOptions) (*Client, error) {
	if _, _, err := net.SplitHostPort(addr); err != nil {
		return nil, fmt.Errorf("tcpstore: connect to %s: %w", addr, err)
	}
	c := &Client{
		addr:        addr,
		log:         cmp.Or(opts.Logger, slog.Default()),
		leased:      make(chan struct{}, 1),
		links:       make(map[*link]struct{}),
		cancelGrace: defaultCancelGrace,
	}
	c.Methods = store.MethodsOf(c)
	c.done, c.stop = context.WithCancel(context.Background())
	start := time.Now()
	l, err := c.connect(ctx)
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("tcpstore: %s, tried for %s: %w", addr, time.Since(start).Round(time.Millisecond), err)
	}
	c.main = l
	return c, nil
}

// Connect is Dial that returns a store.Store and logs nothing.
func Connect(ctx context.Context, addr string) (store.Store, error) {
	c, err := Dial(ctx, addr, ClientOptions{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	return c, nil
}

// Close implements store.Store. It closes the connections, which ends all calls.
func (c *Client) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stop()
	for l := range c.links {
		l.cut()
	}
	clear(c.links)
	c.idle = nil
	return nil
}

// exchange carries out a call on the main connection. With until set it waits no longer, on
// the thread of its caller and without seeing ctx end, and returns errWouldBlock if that was
// not enough: if the request was sent the call keeps the connection, else it has done nothing.
// Either way the caller calls exchange again.
func (c *Client) exchange(ctx context.Context, what *call, until time.Time) error {
	if !what.sent {
		if what.start.IsZero() {
			what.start = time.Now()
		}
		err := checkSize(what)
		if err == nil {
			err = c.acquireMain(ctx, what, until)
		}
		if err == errWouldBlock {
			return err
		}
		if err != nil {
			return c.failed(ctx, what, what.start, err)
		}
	}
	keeps := false
	defer func() {
		if !keeps {
			<-c.leased
		}
	}()
	err := c.converse(ctx, what, until)
	if err == errWouldBlock {
		keeps = what.sent
		return err
	}
	if err != nil {
		return c.failed(ctx, what, what.start, err)
	}
	return nil
}

// acquireMain waits until no other call uses the main connection.
func (c *Client) acquireMain(ctx context.Context, what *call, until time.Time) error {
	if !until.IsZero() && what.size() > maxInline/2 {
		return errWouldBlock
	}
	select {
	case c.leased <- struct{}{}:
	default:
		if err := c.awaitMain(ctx, until); err != nil {
			return err
		}
	}
	err := store.ContextError(ctx)
	if c.done.Err() != nil {
		err = store.ErrClosed
	}
	if err != nil {
		<-c.leased
	}
	return err
}

func (c *Client) awaitMain(ctx context.Context, until time.Time) error {
	var late <-chan time.Time
	if !until.IsZero() {
		timer := time.NewTimer(time.Until(until))
		defer timer.Stop()
		late = timer.C
	}
	select {
	case c.leased <- struct{}{}:
		return nil
	case <-c.done.Done():
		return store.ErrClosed
	case <-ctx.Done():
		return store.ContextError(ctx)
	case <-late:
		return errWouldBlock
	}
}

// converse carries out a call that has the main connection, connecting if need be.
func (c *Client) converse(ctx context.Context, what *call, until time.Time) error {
	for {
		if !what.sent && !what.checked {
			what.reused = c.main != nil && c.main.alive()
			if !what.reused {
				if !until.IsZero() {
					return errWouldBlock
				}
				if err := c.reconnect(ctx); err != nil {
					return err
				}
			}
		}
		err := what.exchange(ctx, c.main, until)
		if err == nil || err == errWouldBlock {
			return err
		}
		c.drop(c.main)
		c.main = nil
		what.sent, what.checked = false, false
		if !what.again || !what.reused || c.ended(ctx) {
			return err
		}
	}
}

func (c *Client) reconnect(ctx context.Context) (err error) {
	if err := store.ContextError(ctx); err != nil {
		return err
	}
	c.drop(c.main)
	c.main = nil
	c.main, err = c.connect(ctx)
	return err
}

// block carries out a call whose reply is a single byte that may take long, on its own
// connection. If ctx ends first, the wait is cancelled. A wait that is over by then counts as
// done (docs/spec/tcpstore-wire.md 4.4).
func (c *Client) block(ctx context.Context, what *call) error {
	start := time.Now()
	if err := checkSize(what); err != nil {
		return c.failed(ctx, what, start, err)
	}
	if err := store.ContextError(ctx); err != nil || c.ended(ctx) {
		return c.failed(ctx, what, start, err)
	}
	l := c.takeIdle()
	if l == nil {
		var err error
		if l, err = c.connect(ctx); err != nil {
			return c.failed(ctx, what, start, err)
		}
	}
	clean, err := l.await(ctx, what.encode(), c.cancelGrace)
	if clean {
		c.putIdle(l)
	} else {
		c.drop(l)
	}
	if err != nil {
		return c.failed(ctx, what, start, err)
	}
	return nil
}

// takeIdle returns a connection for a wait which is still alive, or nil.
func (c *Client) takeIdle() *link {
	for {
		c.mu.Lock()
		n := len(c.idle)
		if n == 0 {
			c.mu.Unlock()
			return nil
		}
		l := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		if l.alive() {
			return l
		}
		c.drop(l)
	}
}

func (c *Client) putIdle(l *link) {
	c.mu.Lock()
	if _, open := c.links[l]; open && len(c.idle) < maxIdle {
		c.idle = append(c.idle, l)
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	c.drop(l)
}

// adopt makes l one of the client's connections unless the client is closed.
func (c *Client) adopt(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.done.Err() != nil {
		l.conn.Close()
		return false
	}
	c.links[l] = struct{}{}
	return true
}

// drop closes l, which may be nil.
func (c *Client) drop(l *link) {
	if l == nil {
		return
	}
	l.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.links, l)
}

func (c *Client) ended(ctx context.Context) bool {
	return c.done.Err() != nil || ctx.Err() != nil
}

// failed makes the error of a call. The end of the client or the context takes precedence over
// the connection error that it caused.
func (c *Client) failed(ctx context.Context, what *call, start time.Time, err error) error {
	ended := store.ContextError(ctx)
	switch {
	case c.done.Err() != nil:
		err = store.ErrClosed
	case errors.Is(err, store.ErrTooLarge), errors.Is(err, store.ErrArguments), errors.Is(err, store.ErrQueueEmpty):
	case ended != nil:
		if !errors.Is(err, ctx.Err()) {
			err = ended
		}
	case store.EndedByPeer(err):
		err = fmt.Errorf("%w: the server closed it; it was stopped, or refused the request (%s)",
			store.ErrConnection, refusals(what))
	default:
		err = fmt.Errorf("%w: %w", store.ErrConnection, err)
	}
	return fmt.Errorf("tcpstore: %s%s at %s, tried for %s: %w",
		what.name, store.Names(what.keys...), c.addr, time.Since(start).Round(time.Millisecond), err)
}

// refusals says why a server may refuse a call, which the protocol does by
// closing the connection.
func refusals(what *call) string {
	switch what.op {
	case opAdd, opBarrier:
		return "is the value a number? does the server know the operation?"
	default:
		return "is the store full? does the server know the operation?"
	}
}

// checkSize refuses a request for which a server would close the connection.
func checkSize(what *call) error {
	if what.op == opMultiSet && len(what.keys) != len(what.values) {
		return store.ErrArguments
	}
	if n := len(what.keys); n > MaxKeys {
		return fmt.Errorf("%w: %d keys; the limit is %d", store.ErrTooLarge, n, MaxKeys)
	}
	for _, key := range what.keys {
		if n := len(key) + 1; n > MaxKeyBytes {
			return fmt.Errorf("%w: key of %d bytes; the limit is %d", store.ErrTooLarge, n-1, MaxKeyBytes-1)
		}
	}
	for _, value := range what.values {
		if n := len(value); n > MaxValueBytes {
			return fmt.Errorf("%w: value of %d bytes; the limit is %d", store.ErrTooLarge, n, MaxValueBytes)
		}
	}
	if n := what.size(); n > MaxRequestBytes {
		return fmt.Errorf("%w: request of %d bytes; the limit is %d", store.ErrTooLarge, n, MaxRequestBytes)
	}
	return nil
}
