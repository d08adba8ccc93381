package store

import (
	"context"
	"fmt"
	"sync"
	"time"

	"rallypoint/internal/wake"
)

// Memory is a Store inside the process: an Engine behind a mutex. All users of one
// Memory share its keys, and Close ends it for all of them. ListKeys sorts the keys, and
// MultiGet returns the values of one moment.
type Memory struct {
	Methods

	mu     sync.Mutex
	engine *Engine
	closed chan struct{}
	once   sync.Once
}

var (
	_ Store = (*Memory)(nil)
	_ Trier = (*Memory)(nil)
)

// NewMemory returns a Memory over e, which from then on belongs to it.
func NewMemory(e *Engine) *Memory {
	m := &Memory{engine: e, closed: make(chan struct{})}
	m.Methods = MethodsOf(m)
	return m
}

// Close implements Store.
func (m *Memory) Close() error {
	m.once.Do(func() { close(m.closed) })
	return nil
}

// Do implements Doer.
func (m *Memory) Do(ctx context.Context, r Request) (Reply, error) {
	reply, pending, err := m.TryDo(ctx, r, 0)
	if pending != nil {
		return pending(ctx)
	}
	return reply, err
}

// TryDo implements Trier.
func (m *Memory) TryDo(ctx context.Context, r Request, _ time.Duration) (Reply, Pending, error) {
	reply, done, err := m.begin(ctx, r, nil)
	if done {
		return reply, nil, err
	}
	return Reply{}, func(ctx context.Context) (Reply, error) { return m.wait(ctx, r) }, nil
}

// wait is Do for a request that may have to wait. A wait that is over wins against a context
// that ends at the same time.
func (m *Memory) wait(ctx context.Context, r Request) (Reply, error) {
	woken := wake.New()
	w := &Waiter{Wake: woken.Set}
	reply, done, err := m.begin(ctx, r, w)
	for start := time.Now(); !done; {
		var ended error
		select {
		case <-woken:
		case <-ctx.Done():
			ended = ContextError(ctx)
		case <-m.closed:
			ended = ErrClosed
		}
		if reply, done = m.resume(r, w, ended != nil); !done && ended != nil {
			return Reply{}, fmt.Errorf("%v%s: waited %v: %w", r.Op, Names(r.Keys...), time.Since(start).Round(time.Millisecond), ended)
		}
	}
	return reply, err
}

// begin applies r unless the call is over before it began. Errors of operations that may wait
// name the operation and the keys.
func (m *Memory) begin(ctx context.Context, r Request, w *Waiter) (reply Reply, done bool, err error) {
	select {
	case <-m.closed:
		err = ErrClosed
	default:
		if err = ContextError(ctx); err == nil {
			m.mu.Lock()
			defer m.mu.Unlock()
			reply, done, err = m.engine.Apply(r, w)
		}
	}
	if err != nil {
		switch r.Op {
		case OpGet, OpMultiGet, OpWait, OpQueuePop, OpBarrier:
			err = fmt.Errorf("%v%s: %w", r.Op, Names(r.Keys...), err)
		}
		return Reply{}, true, err
	}
	return reply, done, nil
}

// resume continues a request whose waiter was woken. It waits again, unless the wait has ended. A
// push wakes only one QueuePop, which takes the item even if its context has ended meanwhile.
func (m *Memory) resume(r Request, w *Waiter, ended bool) (reply Reply, done bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !w.active() {
		if r.Op == OpWait || r.Op == OpBarrier {
			return Reply{Ready: true}, true
		}
		reply, done, _ = m.engine.Apply(r, w) // a Get or a QueuePop that waits, which do not fail
	}
	if ended {
		m.engine.Cancel(w)
	}
	return reply, done
}
