package filestore

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"rallypoint/core/store"
)

// Set implements store.Store.
func (s *Store) Set(ctx context.Context, key string, value []byte) error {
	err := s.updateLocked(ctx, func(log []byte) ([]byte, error) {
		return appendRecord(log, keyPrefix+key, value)
	})
	return s.explain(err, "set", key)
}

// MultiSet implements store.Store. All records are in one write: a process killed
// in it may leave some of the first.
func (s *Store) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	if len(keys) != len(values) {
		return s.explain(store.ErrArguments, "multi_set")
	}
	err := s.updateLocked(ctx, func(log []byte) (_ []byte, err error) {
		for i, key := range keys {
			if log, err = appendRecord(log, keyPrefix+key, values[i]); err != nil {
				return nil, err
			}
		}
		return log, nil
	})
	return s.explain(err, "multi_set", keys...)
}

// Add implements store.Store.
func (s *Store) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	err = s.updateLocked(ctx, func(log []byte) ([]byte, error) {
		log, n, err := s.countLocked(log, keyPrefix+key, delta)
		sum = n
		return log, err
	})
	if err != nil {
		return 0, s.explain(err, "add", key)
	}
	return sum, nil
}

// CompareSet implements store.Store.
func (s *Store) CompareSet(ctx context.Context, key string, expected, desired []byte) (now []byte, err error) {
	err = s.updateLocked(ctx, func(log []byte) ([]byte, error) {
		current, exists := s.engine.Get(keyPrefix + key)
		switch {
		case !exists && len(expected) > 0:
			now = copyOf(expected)
			return nil, nil
		case exists && !bytes.Equal(current, expected):
			now = copyOf(current)
			return nil, nil
		}
		now = copyOf(desired)
		return appendRecord(log, keyPrefix+key, desired)
	})
	if err != nil {
		return nil, s.explain(err, "compare_set", key)
	}
	return now, nil
}

// Append implements store.Store. The record holds the whole new value, as the
// reference's does; appending much to one key makes a large file.
func (s *Store) Append(ctx context.Context, key string, value []byte) error {
	err := s.updateLocked(ctx, func(log []byte) ([]byte, error) {
		current, _ := s.engine.Get(keyPrefix + key)
		whole := make([]byte, 0, len(current)+len(value))
		whole = append(append(whole, current...), value...)
		return appendRecord(log, keyPrefix+key, whole)
	})
	return s.explain(err, "append", key)
}

// Delete implements store.Store. A record is written whether the key existed or
// not, as the reference does.
func (s *Store) Delete(ctx context.Context, key string) (existed bool, err error) {
	err = s.updateLocked(ctx, func(log []byte) ([]byte, error) {
		_, existed = s.engine.Get(keyPrefix + key)
		return appendRecord(log, deletePrefix+keyPrefix+key, nil)
	})
	return existed && err == nil, s.explain(err, "delete", key)
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	var value []byte
	err := s.viewLocked(ctx, func() {
		if current, exists := s.engine.Get(keyPrefix + key); exists {
			value = copyOf(current)
		}
	})
	if err != nil {
		return nil, s.explain(err, "get", key)
	}
	if value != nil {
		return value, nil
	}
	values, err := s.awaitAll(ctx, []string{key})
	if err != nil {
		return nil, s.explain(err, "get", key)
	}
	return values[0], nil
}

// MultiGet implements store.Store. The values are those of one moment.
func (s *Store) MultiGet(ctx context.Context, keys []string) ([][]byte, error) {
	values, err := s.awaitAll(ctx, keys)
	return values, s.explain(err, "multi_get", keys...)
}

// Check implements store.Store.
func (s *Store) Check(ctx context.Context, keys []string) (ready bool, err error) {
	err = s.viewLocked(ctx, func() { ready = s.engine.Check(stored(keys)) })
	return ready && err == nil, s.explain(err, "check", keys...)
}

// Wait implements store.Store.
func (s *Store) Wait(ctx context.Context, keys []string) error {
	err := s.await(ctx, func(w *store.Waiter) bool { return s.engine.Wait(stored(keys), w) })
	return s.explain(err, "wait", keys...)
}

// NumKeys implements store.Store. As in the reference the store's own counters,
// one or two, are counted.
func (s *Store) NumKeys(ctx context.Context) (n int64, err error) {
	err = s.viewLocked(ctx, func() { n = int64(s.engine.NumKeys()) })
	return n, s.explain(err, "num_keys")
}

// ListKeys implements store.Store. As in the reference the store's own counters
// are among the keys, as "efcount/" and "leanup/". The keys are sorted.
func (s *Store) ListKeys(ctx context.Context) (keys []string, err error) {
	err = s.viewLocked(ctx, func() {
		keys = s.engine.Keys()
		for i, key := range keys {
			keys[i] = key[min(1, len(key)):]
		}
		slices.Sort(keys)
	})
	return keys, s.explain(err, "list_keys")
}

// QueuePush returns errNoQueues.
func (s *Store) QueuePush(ctx context.Context, key string, _ []byte) error {
	return s.noQueues(ctx, "queue_push", key)
}

// QueuePop returns errNoQueues.
func (s *Store) QueuePop(ctx context.Context, key string, _ bool) ([]byte, error) {
	return nil, s.noQueues(ctx, "queue_pop", key)
}

// QueueLen returns errNoQueues.
func (s *Store) QueueLen(ctx context.Context, key string) (int64, error) {
	return 0, s.noQueues(ctx, "queue_len", key)
}

// Barrier implements store.Store, as store.GenericBarrier.
func (s *Store) Barrier(ctx context.Context, key string, worldSize int64) error {
	return store.GenericBarrier(ctx, s, key, worldSize)
}

// awaitAll waits until all of keys exist and returns their values of that moment.
func (s *Store) awaitAll(ctx context.Context, keys []string) (values [][]byte, err error) {
	names := stored(keys)
	for {
		err := s.await(ctx, func(w *store.Waiter) bool {
			values = s.getAllLocked(names)
			return values != nil || s.engine.WaitKeys(names, w)
		})
		if err != nil {
			return nil, err
		}
		if values != nil {
			return values, nil
		}
	}
}

// getAllLocked returns copies of the values of the stored keys, nil if one is missing.
func (s *Store) getAllLocked(names []string) [][]byte {
	values := make([][]byte, 0, len(names))
	for _, name := range names {
		value, exists := s.engine.Get(name)
		if !exists {
			return nil
		}
		values = append(values, copyOf(value))
	}
	return values
}

func (s *Store) noQueues(ctx context.Context, op, key string) error {
	err := s.checkOpen(ctx)
	if err == nil {
		err = errNoQueues
	}
	return s.explain(err, op, key)
}

// explain puts the operation, the file and the keys in front of err.
func (s *Store) explain(err error, op string, keys ...string) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("file store %s: %s%s: %w", s.file.Path, op, store.Names(keys...), err)
}

func stored(keys []string) []string {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = keyPrefix + key
	}
	return names
}

// copyOf returns a copy of value that is never nil.
func copyOf(value []byte) []byte { return append(make([]byte, 0, len(value)), value...) }
