package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

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

// perform carries out a request other than a Barrier.
func (s *Store) perform(ctx context.Context, r store.Request) (reply store.Reply, err error) {
	switch r.Op {
	case store.OpSet, store.OpMultiSet:
		err = s.set(ctx, r)
	case store.OpAdd, store.OpCompareSet, store.OpAppend:
		return s.update(ctx, r)
	case store.OpDelete:
		reply.Ready, err = s.delete(ctx, r)
	case store.OpGet, store.OpMultiGet:
		reply.Values, err = s.get(ctx, r)
	case store.OpCheck:
		var missing []string
		_, missing, _, err = s.fetch(ctx, r.Op, r.Keys, clientv3.WithKeysOnly())
		reply.Ready = len(missing) == 0
	case store.OpWait:
		_, missing, next, err := s.fetch(ctx, r.Op, r.Keys, clientv3.WithKeysOnly())
		if err != nil {
			return reply, err
		}
		return reply, s.awaitWrites(ctx, missing, next)
	case store.OpNumKeys:
		var found *clientv3.GetResponse
		if found, err = s.client.Get(ctx, r.Op.String(), s.prefix, clientv3.WithPrefix(), clientv3.WithCountOnly()); err == nil {
			reply.Number = found.Count
		}
	case store.OpListKeys:
		reply.Keys, err = s.list(ctx, r)
	default:
		err = errNoQueues
	}
	return reply, err
}

// set writes the pairs of a Set or MultiSet. As many as etcd takes become visible at once; of a key
// named twice the last value counts.
func (s *Store) set(ctx context.Context, r store.Request) error {
	if len(r.Keys) != len(r.Values) {
		return store.ErrArguments
	}
	last := make(map[string]int, len(r.Keys))
	for i, key := range r.Keys {
		if err := fits(len(key) + len(r.Values[i])); err != nil {
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
		_, err := s.change(ctx, r.Op.String(), etcdclient.Txn{Then: ops})
		ops, size = nil, 0
		return err
	}
	for i, key := range r.Keys {
		if last[key] != i {
			continue
		}
		n := len(key) + len(r.Values[i])
		if len(ops) == etcdclient.MaxOps || fits(size+n) != nil {
			if err := flush(); err != nil {
				return err
			}
		}
		ops = append(ops, s.put(key, r.Values[i]))
		size += n
	}
	return flush()
}

// update replaces the value of a key by what a request makes of it. The value cannot grow beyond what
// etcd takes in one request.
func (s *Store) update(ctx context.Context, r store.Request) (store.Reply, error) {
	key, name := r.Keys[0], r.Op.String()
	full := s.prefix + key
	pause := etcdclient.NewBackoff()
	for {
		found, err := s.client.Get(ctx, name, full)
		if err != nil {
			return store.Reply{}, err
		}
		current := etcdclient.First(found.Kvs)
		next, write, reply, err := r.Update(current.GetValue(), current != nil)
		if err != nil || !write {
			return reply, err
		}
		if err := fits(len(key) + len(next)); err != nil {
			return store.Reply{}, err
		}
		applied, err := s.change(ctx, name, etcdclient.Txn{
			If:   []clientv3.Cmp{etcdclient.Unchanged(full, current.GetModRevision())},
			Then: []clientv3.Op{s.put(key, next)},
		})
		if err != nil || applied {
			return reply, err
		}
		if !pause.Wait(ctx) { // after which the value is read again: while many update a key it has changed
			return store.Reply{}, ctx.Err()
		}
	}
}

func (s *Store) delete(ctx context.Context, r store.Request) (existed bool, err error) {
	full, name := s.prefix+r.Keys[0], r.Op.String()
	for {
		// A condition, so that a repetition can tell whether there was a key.
		found, err := s.client.Get(ctx, name, full, clientv3.WithKeysOnly())
		if err != nil || len(found.Kvs) == 0 {
			return false, err
		}
		existed, err = s.change(ctx, name, etcdclient.Txn{
			If:   []clientv3.Cmp{etcdclient.Unchanged(full, found.Kvs[0].ModRevision)},
			Then: []clientv3.Op{clientv3.OpDelete(full)},
		})
		if err != nil || existed {
			return existed, err
		}
	}
}

// get waits until all keys exist and returns their values. Up to as many as etcd takes operations in a
// transaction are those of one moment.
func (s *Store) get(ctx context.Context, r store.Request) ([][]byte, error) {
	for {
		kvs, missing, next, err := s.fetch(ctx, r.Op, r.Keys)
		if err != nil {
			return nil, err
		}
		if len(missing) == 0 {
			values := make([][]byte, len(kvs))
			for i, kv := range kvs {
				if values[i] = kv.Value; kv.Value == nil {
					values[i] = []byte{}
				}
			}
			return values, nil
		}
		if err := s.awaitWrites(ctx, missing, next); err != nil {
			return nil, err
		}
	}
}

// list returns all keys, sorted.
func (s *Store) list(ctx context.Context, r store.Request) ([]string, error) {
	for {
		kvs, err := s.client.List(ctx, r.Op.String(), s.prefix, true)
		if err == etcdclient.ErrCompacted {
			continue
		}
		keys := make([]string, len(kvs))
		for i, kv := range kvs {
			keys[i] = string(kv.Key[len(s.prefix):])
		}
		return keys, err
	}
}

// fetch reads keys, a missing one as nil, and returns those that are missing, and the revision from
// which on nothing of them is known.
func (s *Store) fetch(ctx context.Context, op store.Op, keys []string, options ...clientv3.OpOption) (kvs []*mvccpb.KeyValue, missing []string, next int64, err error) {
	for len(kvs) < len(keys) {
		part := keys[len(kvs):min(len(kvs)+etcdclient.MaxOps, len(keys))]
		var t etcdclient.Txn
		for _, key := range part {
			t.Then = append(t.Then, clientv3.OpGet(s.prefix+key, options...))
		}
		r, err := s.client.Txn(ctx, op.String(), t)
		if err != nil {
			return nil, nil, 0, err
		}
		if next == 0 {
			next = r.Header.Revision + 1
		}
		for i, key := range part {
			kv := etcdclient.Found(r, i)
			if kv == nil {
				missing = append(missing, key)
			}
			kvs = append(kvs, kv)
		}
	}
	return kvs, missing, next, nil
}

// awaitWrites waits until each of keys was written once at a revision from start
// on.
func (s *Store) awaitWrites(ctx context.Context, keys []string, start int64) error {
	missing := make(map[string]bool, len(keys))
	for _, key := range keys {
		missing[key] = true
	}
	pause := etcdclient.NewBackoff()
	for len(missing) > 0 {
		err := s.removeWritten(ctx, missing, start, pause)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case err == nil:
		case err == etcdclient.ErrCompacted:
			// Nobody knows any more what happened meanwhile: the present value counts.
			var absent []string
			if _, absent, start, err = s.fetch(ctx, store.OpWait, slices.Collect(maps.Keys(missing)), clientv3.WithKeysOnly()); err != nil {
				return err
			}
			maps.DeleteFunc(missing, func(key string, _ bool) bool { return !slices.Contains(absent, key) })
		case etcdclient.IsFinal(err):
			return etcdclient.Explain(s.client.Config, "watching", 0, err)
		default:
			pause.Wait(ctx)
		}
	}
	return nil
}

// maxWatches is for how many keys each is watched, and not all keys of the store: etcd reads no more requests
// while its answers to those before are not read.
const maxWatches = 100

// removeWritten removes keys from missing when they are written, until none is left or the
// watch ends. start is the revision to continue from.
func (s *Store) removeWritten(ctx context.Context, missing map[string]bool, start int64, pause *backoff.Backoff) error {
	requests := make([]*pb.WatchCreateRequest, 0, maxWatches)
	if len(missing) > maxWatches {
		requests = append(requests, &pb.WatchCreateRequest{Key: []byte(s.prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(s.prefix)), StartRevision: start})
	} else {
		for key := range missing {
			requests = append(requests, &pb.WatchCreateRequest{Key: []byte(s.prefix + key), StartRevision: start})
		}
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
				delete(missing, string(e.Kv.Key[len(s.prefix):]))
			}
		}
	}
	return nil
}

func (s *Store) put(key string, value []byte) clientv3.Op {
	return etcdclient.Put(s.prefix+key, value, s.lease)
}
