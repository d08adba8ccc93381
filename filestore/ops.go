package filestore

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"rallypoint/core/store"
)

// Do implements store.Doer.
//
// An Append writes the whole new value and a Delete its record whether the key existed or not, as the
// reference does; appending much to one key makes a large file. The records of a MultiSet are in one
// write: a process killed in it may leave some of the first. The values of a MultiGet are those of one
// moment. As in the reference the store's own counters, one or two, are counted by NumKeys and among
// the keys of ListKeys, as "efcount/" and "leanup/". These are sorted.
func (s *Store) Do(ctx context.Context, r store.Request) (reply store.Reply, err error) {
	switch {
	case r.Op == store.OpBarrier:
		return store.Reply{}, store.GenericBarrier(ctx, s, r.Keys[0], r.Number)
	case r.Op == store.OpMultiSet && len(r.Keys) != len(r.Values):
		return store.Reply{}, s.explain(store.ErrArguments, r.Op)
	case r.Op == store.OpQueuePush, r.Op == store.OpQueuePop, r.Op == store.OpQueueLen:
		if err = s.checkOpen(ctx); err == nil {
			err = errNoQueues
		}
	case r.Op.Reads():
		reply, err = s.read(ctx, r)
	default:
		reply, err = s.change(ctx, r)
	}
	if err != nil {
		return store.Reply{}, s.explain(err, r.Op, r.Keys...)
	}
	return reply, nil
}

func (s *Store) change(ctx context.Context, r store.Request) (reply store.Reply, err error) {
	err = s.updateLocked(ctx, func(log []byte) (_ []byte, err error) {
		log, reply, err = s.recordsLocked(log, r)
		return log, err
	})
	return reply, err
}

// recordsLocked appends the records of a request to log, none if it changes nothing, and returns its
// reply.
func (s *Store) recordsLocked(log []byte, r store.Request) (_ []byte, reply store.Reply, err error) {
	keys := stored(r.Keys)
	switch r.Op {
	case store.OpSet, store.OpMultiSet:
		for i, key := range keys {
			if log, err = appendRecord(log, key, r.Values[i]); err != nil {
				break
			}
		}
	case store.OpAdd:
		log, reply.Number, err = s.countLocked(log, keys[0], r.Number)
	case store.OpDelete:
		_, reply.Ready = s.engine.Get(keys[0])
		log, err = appendRecord(log, deletePrefix+keys[0], nil)
	default:
		value, exists := s.engine.Get(keys[0])
		next, write, reply, err := r.Update(value, exists)
		if err == nil && write {
			log, err = appendRecord(log, keys[0], next)
		}
		return log, reply, err
	}
	return log, reply, err
}

func (s *Store) read(ctx context.Context, r store.Request) (reply store.Reply, err error) {
	r.Keys = stored(r.Keys)
	done := false
	if r.Op != store.OpWait && r.Op != store.OpMultiGet { // others mostly need no waiter
		err = s.viewLocked(ctx, func() { reply, done, _ = s.engine.Apply(r, nil) }) // no read fails
	}
	for !done && err == nil {
		reply, done, err = s.await(ctx, r)
	}
	for i, key := range reply.Keys {
		reply.Keys[i] = key[min(1, len(key)):]
	}
	slices.Sort(reply.Keys)
	return reply, err
}

// explain puts the operation, the file and the keys in front of err. delete_key is called delete here.
func (s *Store) explain(err error, op store.Op, keys ...string) error {
	return fmt.Errorf("file store %s: %s%s: %w",
		s.file.Path, strings.TrimSuffix(op.String(), "_key"), store.Names(keys...), err)
}

func stored(keys []string) []string {
	names := make([]string, len(keys))
	for i, key := range keys {
		names[i] = keyPrefix + key
	}
	return names
}
