package etcdstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"rallypoint/core/store"
	"rallypoint/internal/backoff"
	"rallypoint/internal/etcdclient"
)

// errNoQueues is returned by the queue operations, which this store does not have. It
// matches errors.ErrUnsupported.
var errNoQueues = fmt.Errorf("a store in etcd has no queues: %w", errors.ErrUnsupported)

// Set implements store.Store.
func (s *Store) Set(ctx context.Context, key string, value []byte) error {
	return s.do(ctx, "set", []string{key}, func(ctx context.Context) error {
		if err := fits(len(key) + len(value)); err != nil {
			return err
		}
		_, _, err := s.change(ctx, "set", etcdclient.Txn{Then: []clientv3.Op{s.put(key, value)}})
		return err
	})
}

// MultiSet implements store.Store. As many pairs as etcd takes become visible at
// once; of a key named twice the last value counts.
func (s *Store) MultiSet(ctx context.Context, keys []string, values [][]byte) error {
	return s.do(ctx, "multi_set", keys, func(ctx context.Context) error {
		if len(keys) != len(values) {
			return store.ErrArguments
		}
		last := make(map[string]int, len(keys))
		for i, key := range keys {
			if err := fits(len(key) + len(values[i])); err != nil {
				return err
			}
			last[key] = i
		}
		var ops []clientv3.Op
		size := 0
		flush := func() error {
			if len(ops) == 0 {
				return nil
			}
			_, _, err := s.change(ctx, "multi_set", etcdclient.Txn{Then: ops})
			ops, size = nil, 0
			return err
		}
		for i, key := range keys {
			if last[key] != i {
				continue
			}
			if n := len(key) + len(values[i]); len(ops) == etcdclient.MaxOps || fits(size+n) != nil {
				if err := flush(); err != nil {
					return err
				}
			}
			ops = append(ops, s.put(key, values[i]))
			size += len(key) + len(values[i])
		}
		return flush()
	})
}

// Add implements store.Store.
func (s *Store) Add(ctx context.Context, key string, delta int64) (sum int64, err error) {
	_, err = s.update(ctx, "add", key, func(value []byte, exists bool) ([]byte, bool, error) {
		sum = delta
		if exists {
			old, err := store.ParseNumber(value)
			if err != nil {
				return nil, false, err
			}
			sum = old + delta
		}
		return strconv.AppendInt(nil, sum, 10), true, nil
	})
	if err != nil {
		return 0, err
	}
	return sum, nil
}

// CompareSet implements store.Store.
func (s *Store) CompareSet(ctx context.Context, key string, expected, desired []byte) ([]byte, error) {
	return s.update(ctx, "compare_set", key, func(value []byte, exists bool) ([]byte, bool, error) {
		switch {
		case !exists && len(expected) > 0:
			return expected, false, nil
		case exists && !bytes.Equal(value, expected):
			return value, false, nil
		}
		return desired, true, nil
	})
}

// Append implements store.Store. The whole value is read and written again, and it
// cannot grow beyond what etcd takes in one request.
func (s *Store) Append(ctx context.Context, key string, value []byte) error {
	_, err := s.update(ctx, "append", key, func(old []byte, _ bool) ([]byte, bool, error) {
		whole := make([]byte, 0, len(old)+len(value))
		return append(append(whole, old...), value...), true, nil
	})
	return err
}

// update replaces the value of key by what f makes of it, unless f says not to
// write. It returns what f returned last; f may be called several times.
func (s *Store) update(ctx context.Context, name, key string, f func(value []byte, exists bool) (next []byte, write bool, err error)) (value []byte, err error) {
	err = s.do(ctx, name, []string{key}, func(ctx context.Context) error {
		full := s.prefix + key
		found, err := s.client.Get(ctx, name, full)
		if err != nil {
			return err
		}
		current := etcdclient.First(found.Kvs)
		pause := etcdclient.NewBackoff()
		for {
			next, write, err := f(current.GetValue(), current != nil)
			if err != nil {
				return err
			}
			value = append(make([]byte, 0, len(next)), next...)
			if !write {
				return nil
			}
			if err := fits(len(key) + len(next)); err != nil {
				return err
			}
			r, applied, err := s.change(ctx, name, etcdclient.Txn{
				If:   []clientv3.Cmp{etcdclient.Unchanged(full, current.GetModRevision())},
				Then: []clientv3.Op{s.put(key, next)},
				Else: []clientv3.Op{clientv3.OpGet(full)},
			})
			if err != nil || applied {
				return err
			}
			current = etcdclient.Found(r, 0)
			pause.Wait(ctx)
			if err := ctx.Err(); err != nil {
				return err
			}
		}
	})
	return value, err
}

// Delete implements store.Store.
func (s *Store) Delete(ctx context.Context, key string) (existed bool, err error) {
	err = s.do(ctx, "delete_key", []string{key}, func(ctx context.Context) error {
		full := s.prefix + key
		for {
			// A condition, so that a repetition can tell whether there was a key.
			found, err := s.client.Get(ctx, "delete_key", full, clientv3.WithKeysOnly())
			if err != nil || len(found.Kvs) == 0 {
				return err
			}
			_, existed, err = s.change(ctx, "delete_key", etcdclient.Txn{
				If:   []clientv3.Cmp{etcdclient.Unchanged(full, found.Kvs[0].ModRevision)},
				Then: []clientv3.Op{clientv3.OpDelete(full)},
			})
			if err != nil || existed {
				return err
			}
		}
	})
	return existed && err == nil, err
}

// Get implements store.Store.
func (s *Store) Get(ctx context.Context, key string) ([]byte, error) {
	values, err := s.await(ctx, "get", []string{key})
	if err != nil {
		return nil, err
	}
	return values[0], nil
}

// MultiGet implements store.Store. Up to as many values as etcd takes operations in
// a transaction are those of one moment.
func (s *Store) MultiGet(ctx context.Context, keys []string) ([][]byte, error) {
	return s.await(ctx, "multi_get", keys)
}

func (s *Store) await(ctx context.Context, name string, keys []string) (values [][]byte, err error) {
	err = s.do(ctx, name, keys, func(ctx context.Context) error {
		for {
			kvs, revision, err := s.fetch(ctx, name, keys, false)
			if err != nil {
				return err
			}
			var missing []string
			values = make([][]byte, len(keys))
			for i, kv := range kvs {
				if kv == nil {
					missing = append(missing, keys[i])
				} else if values[i] = kv.Value; kv.Value == nil {
					values[i] = []byte{}
				}
			}
			if len(missing) == 0 {
				return nil
			}
			if err := s.awaitWrites(ctx, missing, revision+1); err != nil {
				return err
			}
		}
	})
	if err != nil {
		return nil, err
	}
	return values, nil
}

// Check implements store.Store.
func (s *Store) Check(ctx context.Context, keys []string) (ready bool, err error) {
	err = s.do(ctx, "check", keys, func(ctx context.Context) error {
		kvs, _, err := s.fetch(ctx, "check", keys, true)
		ready = true
		for _, kv := range kvs {
			ready = ready && kv != nil
		}
		return err
	})
	return ready && err == nil, err
}

// Wait implements store.Store.
func (s *Store) Wait(ctx context.Context, keys []string) error {
	return s.do(ctx, "wait", keys, func(ctx context.Context) error {
		kvs, revision, err := s.fetch(ctx, "wait", keys, true)
		if err != nil {
			return err
		}
		var missing []string
		for i, kv := range kvs {
			if kv == nil {
				missing = append(missing, keys[i])
			}
		}
		return s.awaitWrites(ctx, missing, revision+1)
	})
}

// fetch reads keys, a missing one as nil, and returns the revision
// from which on nothing of them is known.
func (s *Store) fetch(ctx context.Context, name string, keys []string, keysOnly bool) (kvs []*mvccpb.KeyValue, revision int64, err error) {
	kvs = make([]*mvccpb.KeyValue, 0, len(keys))
	var options []clientv3.OpOption
	if keysOnly {
		options = append(options, clientv3.WithKeysOnly())
	}
	for len(kvs) < len(keys) {
		part := keys[len(kvs):min(len(kvs)+etcdclient.MaxOps, len(keys))]
		var t etcdclient.Txn
		for _, key := range part {
			t.Then = append(t.Then, clientv3.OpGet(s.prefix+key, options...))
		}
		r, err := s.client.Txn(ctx, name, t)
		if err != nil {
			return nil, 0, err
		}
		revision = cmp.Or(revision, r.Header.Revision)
		for i := range part {
			kvs = append(kvs, etcdclient.Found(r, i))
		}
	}
	return kvs, revision, nil
}

// awaitWrites waits until each of keys was written once at a revision from start
// on.
func (s *Store) awaitWrites(ctx context.Context, keys []string, start int64) error {
	missing := make(map[string]bool, len(keys))
	for _, key := range keys {
		missing[s.prefix+key] = true
	}
	pause := etcdclient.NewBackoff()
	for len(missing) > 0 {
		err := s.removeWritten(ctx, missing, &start, pause)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
		case err == etcdclient.ErrCompacted:
			// Nobody knows any more what happened meanwhile: the present value counts.
			if start, err = s.removePresent(ctx, missing); err != nil {
				return err
			}
		case etcdclient.IsFinal(err):
			return etcdclient.Explain(s.client.Config, "watching", 0, err)
		default:
			pause.Wait(ctx)
		}
	}
	return nil
}

// removeWritten removes keys from missing when they are written, until none is left or the
// watch ends. start is the revision to continue from.
func (s *Store) removeWritten(ctx context.Context, missing map[string]bool, start *int64, pause *backoff.Backoff) error {
	requests := make([]*pb.WatchCreateRequest, 0, len(missing))
	for key := range missing {
		requests = append(requests, &pb.WatchCreateRequest{Key: []byte(key), StartRevision: *start})
	}
	w, err := s.client.Watch(ctx, requests...)
	if err != nil {
		return err
	}
	defer w.Close()
	pause.Reset()
	for len(missing) > 0 {
		events, err := w.Next()
		if err != nil {
			return err
		}
		for _, e := range events {
			if e.Type != mvccpb.DELETE {
				delete(missing, string(e.Kv.Key))
			}
		}
	}
	return nil
}

// removePresent removes the keys that exist from missing and returns the revision after
// the one that it read.
func (s *Store) removePresent(ctx context.Context, missing map[string]bool) (start int64, err error) {
	keys := make([]string, 0, len(missing))
	for key := range missing {
		keys = append(keys, key[len(s.prefix):])
	}
	kvs, revision, err := s.fetch(ctx, "wait", keys, true)
	for i, kv := range kvs {
		if kv != nil {
			delete(missing, s.prefix+keys[i])
		}
	}
	return revision + 1, err
}

// NumKeys implements store.Store.
func (s *Store) NumKeys(ctx context.Context) (n int64, err error) {
	err = s.do(ctx, "num_keys", nil, func(ctx context.Context) error {
		r, err := s.client.Get(ctx, "num_keys", s.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
		if err == nil {
			n = r.Count
		}
		return err
	})
	return n, err
}

// ListKeys implements store.Store. The keys are sorted.
func (s *Store) ListKeys(ctx context.Context) (keys []string, err error) {
	err = s.do(ctx, "list_keys", nil, func(ctx context.Context) error {
		for {
			kvs, err := s.client.List(ctx, "list_keys", s.prefix, true)
			if err == etcdclient.ErrCompacted {
				continue
			}
			keys = make([]string, len(kvs))
			for i, kv := range kvs {
				keys[i] = string(kv.Key[len(s.prefix):])
			}
			return err
		}
	})
	return keys, err
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

func (s *Store) noQueues(ctx context.Context, name, key string) error {
	return s.do(ctx, name, []string{key}, func(context.Context) error { return errNoQueues })
}

// Barrier implements store.Store, as store.GenericBarrier.
func (s *Store) Barrier(ctx context.Context, key string, worldSize int64) error {
	return store.GenericBarrier(ctx, s, key, worldSize)
}

func (s *Store) put(key string, value []byte) clientv3.Op {
	return etcdclient.Put(s.prefix+key, value, s.lease)
}
