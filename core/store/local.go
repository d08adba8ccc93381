package store

import (
	"bytes"
	"context"
	"fmt"
	"sync"
	"time"
)

// Memory is a Store inside the process: an Engine behind a mutex. All users of one
// Local share its keys, and Close ends it for all of them.
type Memory struct {
	mu     sync.Mutex
	engine *Engine
	closed chan struct{}
	once   sync.Once
}

var _ Store = (*Memory)(nil)

// NewMemory returns a Local over e, which from then on belongs to it.
func NewMemory(e *Engine) *Memory {
	return &Memory{engine: e, closed: make(chan struct{})}
}

// Close implements Store.
func (l *Memory) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Set implements Store.
func (l *Memory) Set(ctx context.Context, key string, value []byte) error {
	return l.do(ctx, func(e *Engine) error { return e.Set(key, value) })
}

// Get implements Store.
func (l *Memory) Get(ctx context.Context, key string) ([]byte, error) {
	values, err := l.multiGet(ctx, "get", []string{key})
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

// Add implements Store.
func (l *Memory) Add(ctx context.Context, key string, delta int64) (n int64, err error) {
	err = l.do(ctx, func(e *Engine) error {
		n, err = e.Add(key, delta)
		return err
	})
	return n, err
}

// CompareSet implements Store.
func (l *Memory) CompareSet(ctx context.Context, key string, expected, desired []byte) (value []byte, err error) {
	err = l.do(ctx, func(e *Engine) error {
		current, err := e.CompareSet(key, expected, desired)
		value = copyOf(current)
		return err
	})
	if err != nil {
		return nil, err
	}
	return value, nil
}

// Append implements Store.
func (l *Memory) Append(ctx context.Context, key string, value []byte) error {
	return l.do(ctx, func(e *Engine) error { return e.Append(key, value) })
}

// Check implements Store.
func (l *Memory) Check(ctx context.Context, keys []string) (ready bool, err error) {
	err = l.do(ctx, func(e *Engine) error {
		ready = e.Check(keys)
		return nil
	})
	return ready, err
}

// Wait implements Store.
func (l *Memory) Wait(ctx context.Context, keys []string) error {
	return l.await(ctx, "wait", keys, func(e *Engine, w *Waiter) (bool, error) {
		return e.Wait(keys, w), nil
	})
}

// Delete implements Store.
func (l *Memory) Delete(ctx context.Context, key string) (existed bool, err error) {
	err = l.do(ctx, func(e *Engine) error {
		existed = e.Delete(key)
		return nil
	})
	return existed, err
}

// NumKeys implements Store.
func (l *Memory) NumKeys(ctx context.Context) (n int64, err error) {
	err = l.do(ctx, func(e *Engine) error {
		n = int64(e.NumKeys())
		return nil
	})
	return n, err
}

// ListKeys implements Store. The keys are sorted.
func (l *Memory) ListKeys(ctx context.Context) (keys []string, err error) {
	err = l.do(ctx, func(e *Engine) error {
		keys = e.Keys()
		return nil
	})
	return keys, err
}

// MultiGet implements Store. The values are those of one moment; a key deleted
// while others are waited for is waited for again.
func (l *Memory) MultiGet(ctx context.Context, keys []string) (values [][]byte, err error) {
	return l.multiGet(ctx, "multi_get", keys)
}

func (l *Memory) multiGet(ctx context.Context, op string, keys []string) (values [][]byte, err error) {
	for {
		complete := false
		err := l.await(ctx, op, keys, func(e *Engine, w *Waiter) (bool, error) {
			values, complete = getAll(e, keys)
			return complete || e.WaitKeys(keys, w), nil
		})
		if err != nil {
			return nil, err
		}
		if complete {
			return values, nil
		}
	}
}

// MultiSet implements Store.
func (l *Memory) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return l.do(ctx, func(e *Engine) error { return e.MultiSet(keys, values) })
}

// QueuePush implements Store.
func (l *Memory) QueuePush(ctx context.Context, key string, value []byte) error {
	return l.do(ctx, func(e *Engine) error { return e.QueuePush(key, value) })
}

// QueuePop implements Store.
func (l *Memory) QueuePop(ctx context.Context, key string, block bool) (item []byte, err error) {
	for {
		n := 0
		err := l.await(ctx, "queue_pop", []string{key}, func(e *Engine, w *Waiter) (bool, error) {
			if item, n = e.QueuePop(key); n == 0 && !block {
				return true, ErrQueueEmpty
			}
			return n > 0 || e.WaitQueue(key, w), nil
		})
		if err != nil {
			return nil, err
		}
		if n == 0 {
			// The push that woke this call woke no other: take the item even if
			// ctx has ended meanwhile.
			l.mu.Lock()
			item, n = l.engine.QueuePop(key)
			l.mu.Unlock()
		}
		if n > 0 {
			return item, nil
		}
	}
}

// QueueLen implements Store.
func (l *Memory) QueueLen(ctx context.Context, key string) (n int64, err error) {
	err = l.do(ctx, func(e *Engine) error {
		n = int64(e.QueueLen(key))
		return nil
	})
	return n, err
}

// Barrier implements Store.
func (l *Memory) Barrier(ctx context.Context, key string, worldSize int64) error {
	return l.await(ctx, "barrier", []string{key}, func(e *Engine, w *Waiter) (bool, error) {
		return e.Barrier(key, worldSize, w)
	})
}

// do runs f with the engine unless the call is over before it began.
func (l *Memory) do(ctx context.Context, f func(*Engine) error) error {
	select {
	case <-l.closed:
		return ErrClosed
	default:
	}
	if err := ContextError(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return f(l.engine)
}

// await runs f like do and, unless f says that it is done, waits until the waiter
// that f registered is woken. A wait that is over wins against a context that
// ends at the same time. Its error names op and keys.
func (l *Memory) await(ctx context.Context, op string, keys []string, f func(*Engine, *Waiter) (done bool, err error)) error {
	woken := make(chan struct{})
	w := &Waiter{Wake: func() { close(woken) }}
	done := false
	err := l.do(ctx, func(e *Engine) (err error) {
		done, err = f(e, w)
		return err
	})
	if err != nil {
		return fmt.Errorf("%s%s: %w", op, Names(keys...), err)
	}
	if done {
		return nil
	}
	start := time.Now()
	select {
	case <-woken:
		return nil
	case <-ctx.Done():
		err = ContextError(ctx)
	case <-l.closed:
		err = ErrClosed
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !w.Active() {
		return nil
	}
	l.engine.Cancel(w)
	return fmt.Errorf("%s%s: waited %v: %w", op, Names(keys...), time.Since(start).Round(time.Millisecond), err)
}

// getAll returns copies of the values of keys, if all of them exist.
func getAll(e *Engine, keys []string) (values [][]byte, complete bool) {
	for _, key := range keys {
		if _, ok := e.Get(key); !ok {
			return nil, false
		}
	}
	values = make([][]byte, len(keys))
	for i, key := range keys {
		value, _ := e.Get(key)
		values[i] = copyOf(value)
	}
	return values, true
}

// copyOf returns a copy of value that is never nil, so that an empty value is not
// mistaken for none.
func copyOf(value []byte) []byte {
	if len(value) == 0 {
		return []byte{}
	}
	return bytes.Clone(value)
}
