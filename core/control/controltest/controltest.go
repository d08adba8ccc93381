// Package controltest has helpers for the tests of both ends of the control plane: an observer,
// parameters, contexts, and calls. Only tests import it.
package controltest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"rallypoint/core/control/wire"
	"rallypoint/core/member"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/testkit"
	"rallypoint/internal/wake"
)

// Observer is an Observer that keeps what it receives, in order.
type Observer struct {
	mu     sync.Mutex
	events []any
	more   wake.Signal
}

type ConnectionChange struct{ Err error }

func NewObserver() *Observer { return &Observer{more: wake.New()} }

func (o *Observer) add(e any) {
	o.mu.Lock()
	o.events = append(o.events, e)
	o.mu.Unlock()
	o.more.Set()
}

func (o *Observer) Updated(n rendezvous.MembershipUpdate) { o.add(n) }
func (o *Observer) Progressed(p rendezvous.Progress)      { o.add(p) }
func (o *Observer) Dropped(err *rendezvous.Error)         { o.add(err) }
func (o *Observer) ConnectionChanged(err error)           { o.add(ConnectionChange{err}) }

func (o *Observer) All() []any {
	o.mu.Lock()
	defer o.mu.Unlock()
	return slices.Clone(o.events)
}

// Await waits for an event that fits.
func (o *Observer) Await(t *testing.T, what string, fits func(any) bool) any {
	t.Helper()
	deadline := time.After(testkit.Patience)
	for {
		for _, e := range o.All() {
			if fits(e) {
				return e
			}
		}
		select {
		case <-o.more:
		case <-deadline:
			t.Fatalf("the observer was never told %s; it saw %v", what, o.All())
		}
	}
}

// Params are parameters of a run of n nodes at an endpoint.
func Params(endpoint string, n int) params.Params {
	p := params.Default()
	p.RunID, p.Min, p.Max = "run", n, n
	MeetAt(&p, endpoint)
	return p
}

// MeetAt sets where the control plane of a node is.
func MeetAt(p *params.Params, endpoint string) {
	at, err := params.ParseServers(endpoint, params.DefaultPort)
	if err != nil {
		panic(err)
	}
	p.Endpoint, p.Servers = endpoint, at
}

func Context(t *testing.T) context.Context {
	t.Helper()
	return testkit.Within(t, testkit.Patience)
}

// expiringContext is a context whose deadline passes when a test ends it.
type expiringContext struct {
	context.Context
	done chan struct{}
}

func Expiring() (ctx context.Context, expire func()) {
	e := &expiringContext{context.Background(), make(chan struct{})}
	return e, sync.OnceFunc(func() { close(e.done) })
}

func (e *expiringContext) Done() <-chan struct{} { return e.done }

func (e *expiringContext) Err() error {
	select {
	case <-e.done:
		return context.DeadlineExceeded
	default:
		return nil
	}
}

func Join() rendezvous.Join { return rendezvous.Join{NodeRank: -1, RankHint: -1, StorePort: 1} }

// Outcome waits for the answer to a join.
func Outcome(t *testing.T, call *member.Call) rendezvous.Outcome {
	t.Helper()
	o, err := AwaitOutcome(Context(t), call)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func AwaitOutcome(ctx context.Context, call *member.Call) (rendezvous.Outcome, error) {
	result, err := call.Wait(ctx)
	if err != nil {
		return rendezvous.Outcome{}, err
	}
	o, ok := result.(rendezvous.Outcome)
	if !ok {
		return o, fmt.Errorf("the answer is a %T", result)
	}
	return o, nil
}

func WantCode(t *testing.T, err error, code rendezvous.Code, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error, want code %d", code)
	}
	if got := rendezvous.CodeOf(err); got != code {
		t.Errorf("code %d, want %d: %v", got, code, err)
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the error does not say %q: %v", part, err)
		}
	}
}

// Guest makes parameters of a node that never hosts.
func Guest(endpoint string, n int) params.Params {
	p := Params(endpoint, n)
	p.IsHost = new(false)
	return p
}

func IsDropped(e any) bool {
	err, ok := e.(*rendezvous.Error)
	return ok && err != nil
}

func IsLost(e any) bool {
	c, ok := e.(ConnectionChange)
	return ok && c.Err != nil
}

func IsBack(e any) bool {
	c, ok := e.(ConnectionChange)
	return ok && c.Err == nil
}

// Peer is the server's end of a connection, by hand.
type Peer struct {
	T      *testing.T
	Conn   net.Conn
	Frames wire.FrameReader
}

// NewPeer makes one that has not read the preamble yet.
func NewPeer(t *testing.T, conn net.Conn) *Peer {
	return &Peer{t, conn, wire.FrameReader{In: bufio.NewReader(conn)}}
}

// ReadHello reads the preamble and the hello, and answers the preamble.
func (p *Peer) ReadHello() (wire.Hello, error) {
	_, _ = p.Frames.In.Discard(wire.PreambleLen)
	f, err := p.Frames.NextFrame(wire.MaxFrame)
	h, ok := f.(wire.Hello)
	if err != nil || !ok {
		return h, fmt.Errorf("%T instead of a hello: %w", f, err)
	}
	_, err = p.Conn.Write(wire.Preamble{High: wire.ProtocolVersion, Low: wire.OldestVersion}.Bytes())
	return h, err
}

// Say writes a frame, whether the peer is still there or not.
func (p *Peer) Say(f wire.Frame) { _, _ = p.Conn.Write(wire.AppendFrame(nil, f)) }
