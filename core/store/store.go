package store

import "context"

// Store is a key-value store with the operations of PyTorch's c10d Store.
//
// Keys and values are arbitrary bytes (keys as a Go string). Values handed in
// are copied or sent before the call returns; values handed out belong to the
// caller. All methods may be called from several goroutines at once, and a
// call that waits does not hold up others.
//
// Every method returns early when ctx ends: with ErrTimeout if the deadline
// passed, else with the context's error. Without a deadline a waiting call waits
// until the store is closed. After Close every method returns ErrClosed.
type Store interface {
	Doer // of which the methods up to Barrier are each one request

	// Set stores value under key and wakes the calls that wait for key.
	Set(ctx context.Context, key string, value []byte) error

	// Get returns the value of key. It waits until the key exists.
	Get(ctx context.Context, key string) ([]byte, error)

	// Add adds delta to the decimal number under key (a missing key counts as
	// 0) and returns the sum, which wraps on overflow. ErrNotNumber if the value
	// is no number.
	Add(ctx context.Context, key string, delta int64) (int64, error)

	// CompareSet stores desired if the value of key equals expected, or if the
	// key is missing and expected is empty. It returns the value then current;
	// for a missing key and a non-empty expected it stores nothing and returns
	// expected (docs/spec/tcpstore-wire.md 4.2).
	CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error)

	// Append appends value to what is stored under key, creating the key if
	// it is missing, and wakes the calls that wait for key.
	Append(ctx context.Context, key string, value []byte) error

	// Check reports whether each of keys exists or names a non-empty queue. It
	// is true for no keys.
	Check(ctx context.Context, keys []string) (bool, error)

	// Wait waits until each of keys that was missing at the call has been
	// written once (docs/spec/tcpstore-wire.md 4.4).
	Wait(ctx context.Context, keys []string) error

	// Delete removes key and reports whether it existed. It wakes no waiter.
	Delete(ctx context.Context, key string) (bool, error)

	// NumKeys returns the number of keys in the whole store; queues do not count.
	NumKeys(ctx context.Context) (int64, error)

	// ListKeys returns the keys in no particular order; queues are not listed.
	ListKeys(ctx context.Context) ([]string, error)

	// MultiGet waits until all keys exist and returns their values, in order.
	MultiGet(ctx context.Context, keys []string) ([][]byte, error)

	// MultiSet is Set for each pair, in order. ErrArguments if the lengths differ.
	MultiSet(ctx context.Context, keys []string, values [][]byte) error

	// QueuePush appends value to the queue of that name and wakes one waiter.
	QueuePush(ctx context.Context, key string, value []byte) error

	// QueuePop removes and returns the oldest item of the queue. If there is
	// none, it waits for one (block) or returns ErrQueueEmpty.
	QueuePop(ctx context.Context, key string, block bool) ([]byte, error)

	// QueueLen returns the number of items in the queue, 0 if there is no such queue.
	QueueLen(ctx context.Context, key string) (int64, error)

	// Barrier adds one to the counter under key and waits until it has reached
	// worldSize. The counter is never reset, so a key serves for one barrier; a
	// participant that gives up stays counted.
	Barrier(ctx context.Context, key string, worldSize int64) error

	// Close ends the store for this caller and makes waiting calls return
	// ErrClosed. Closing again does nothing.
	Close() error
}

// TryGet returns the value of a key without waiting for it: nil if it does not exist.
func TryGet(ctx context.Context, s Store, key string) ([]byte, error) {
	there, err := s.Check(ctx, []string{key})
	if err != nil || !there {
		return nil, err
	}
	return s.Get(ctx, key)
}

// GenericBarrier is the barrier that PyTorch builds from Add, Set and Wait for
// every store without one of its own, and for its PrefixStore whatever is below
// it. It meets only barriers made the same way (docs/spec/tcpstore-wire.md 4.5).
func GenericBarrier(ctx context.Context, s Store, key string, worldSize int64) error {
	last := key + "/last_member"
	n, err := s.Add(ctx, key+"/num_members", 1)
	if err != nil {
		return err
	}
	if n >= worldSize {
		if err := s.Set(ctx, last, []byte("1")); err != nil {
			return err
		}
	}
	return s.Wait(ctx, []string{last})
}
