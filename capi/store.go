package main

// #include "glue.h"
import "C"

import (
	"context"
	"errors"
	"time"

	"rallypoint/core/store"
)

// openStore is what a rp_store stands for. Closing it ends the operations that came
// in by its handle: those of a store by its own Close, and those of a part of another,
// which closes nothing below it, by their context.
type openStore struct {
	store.Store
	ctx context.Context // of a part; for others Background, which costs a call nothing
}

// newStore makes what stands behind a handle of its own for s, and closes s with
// it.
func newStore(s store.Store) *openStore { return &openStore{s, context.Background()} }

// maxPatience bounds how long a call may be tried: while it waits on its thread for a server,
// it does not see the end of its context.
const maxPatience = 50 * time.Millisecond

// call is an operation on a store, or what is left of one that was tried.
type call func(context.Context) (answer, error)

func (o *openStore) do(q *request) call {
	return o.complete(q, func(ctx context.Context) (store.Reply, error) { return o.Do(ctx, q.Request) })
}

func (o *openStore) complete(q *request, do store.Pending) call {
	return func(ctx context.Context) (answer, error) {
		reply, err := do(ctx)
		return answer{Reply: reply, op: q.Op}, o.explain(err)
	}
}

// try carries out an operation as far as it goes within patience. If that is not enough,
// pending completes it, and must be called.
func (o *openStore) try(q *request, patience time.Duration) (a answer, pending call, err error) {
	if q.limited {
		if q.limit == 0 {
			return answer{}, o.do(q), nil
		}
		patience = min(patience, q.limit)
	}
	reply, rest, err := store.TryDo(o.ctx, o.Store, q.Request, patience)
	if rest != nil {
		return answer{}, o.complete(q, rest), nil
	}
	return answer{Reply: reply, op: q.Op}, nil, o.explain(err)
}

func (o *openStore) start(q *request, at time.Time, do call) *op {
	ctx, cancel := o.context(q, at)
	return newOp(ctx, cancel, do)
}

// explain makes the end of the handle's context, which is none of the caller's, ErrClosed.
func (o *openStore) explain(err error) error {
	if err != nil && o.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return store.ErrClosed
	}
	return err
}

func (o *openStore) context(q *request, start time.Time) (context.Context, context.CancelFunc) {
	if q.limited {
		return context.WithDeadline(o.ctx, start.Add(q.limit))
	}
	return context.WithCancel(o.ctx)
}

// request is a converted rp_store_request: it has no memory of C. The operations have the
// same numbers in C.
type request struct {
	store.Request
	limit   time.Duration // for the operation, if it is limited
	limited bool
}

func toRequest(r *C.rp_store_request) (q *request, err error) {
	q = &request{Request: store.Request{Op: store.Op(r.op)}}
	q.limit, q.limited = timeLimit(r.timeout_ms)
	switch q.Op {
	case store.OpSet, store.OpAppend, store.OpQueuePush:
		err = q.addKeyAndValue(r)
	case store.OpCompareSet:
		if err = q.addKeyAndValue(r); err == nil {
			var expected []byte
			expected, err = valueOf("expected", r.expected)
			q.Values = [][]byte{expected, q.Values[0]}
		}
	case store.OpGet, store.OpAdd, store.OpDelete, store.OpQueuePop, store.OpQueueLen, store.OpBarrier:
		err = q.addKey(r)
		q.Number, q.Block = int64(r.number), r.block != 0
	case store.OpCheck, store.OpWait, store.OpMultiGet:
		q.Keys, err = listOf("keys", r.keys, r.keys_len, keyOf)
	case store.OpMultiSet:
		if q.Keys, err = listOf("keys", r.keys, r.keys_len, keyOf); err == nil {
			q.Values, err = listOf("values", r.values, r.values_len, valueOf)
		}
	case store.OpNumKeys, store.OpListKeys:
	default:
		err = invalid("there is no store operation %d", int32(r.op))
	}
	return q, err
}

func (re *request) addKey(r *C.rp_store_request) error {
	key, err := keyOf("key", r.key)
	re.Keys = []string{key}
	return err
}

func (re *request) addKeyAndValue(r *C.rp_store_request) error {
	if err := re.addKey(r); err != nil {
		return err
	}
	value, err := valueOf("value", r.value)
	re.Values = [][]byte{value}
	return err
}

func requested(id C.uint64_t, r *C.rp_store_request) (*openStore, *request, error) {
	s, err := lookUp[*openStore](id)
	if err != nil {
		return nil, nil, err
	}
	q, err := toRequest(r)
	return s, q, err
}

type answer struct {
	store.Reply
	op    store.Op
	store store.Store // of opening; the caller that takes it closes it
}

func (a *answer) fill(out *C.rp_store_result) {
	out.number, out.value = 0, C.rp_buffer{}
	fillList[string](&out.list, nil)
	switch a.op {
	case store.OpAdd, store.OpNumKeys, store.OpQueueLen:
		out.number = C.int64_t(a.Number)
	case store.OpCheck, store.OpDelete:
		if a.Ready {
			out.number = 1
		}
	case store.OpGet, store.OpCompareSet, store.OpQueuePop:
		fillBuffer(&out.value, a.Values[0])
		if len(a.Keys) > 0 { // of a directive that was given
			fillList(&out.list, a.Keys)
		}
	case store.OpMultiGet:
		fillList(&out.list, a.Values)
	case store.OpListKeys:
		fillList(&out.list, a.Keys)
	}
	out.store.id = 0
	if a.store != nil {
		out.store.id = openHandle(newStore(a.store))
		a.store = nil
	}
}

//export rpgo_store_perform
func rpgo_store_perform(id C.uint64_t, request *C.rp_store_request, result *C.rp_store_result, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		start := time.Now()
		s, q, err := requested(id, request)
		if err != nil {
			return err
		}
		a, pending, err := s.try(q, maxPatience)
		if pending != nil {
			ctx, cancel := s.context(q, start)
			defer cancel()
			a, err = pending(ctx)
		}
		if err != nil {
			return err
		}
		a.fill(result)
		return nil
	})
}

//export rpgo_store_close
func rpgo_store_close(id C.uint64_t, err *C.rp_error) C.int32_t {
	return onLast(id, err, func(s *openStore) error {
		return s.Close()
	})
}
