package main

// #include "glue.h"
import "C"

import (
	"context"
	"errors"
	"time"

	"rallypoint/core/store"
	"rallypoint/filestore"
	"rallypoint/tcpstore"
)

// openStore is what a rp_store stands for. Closing it ends the operations that came
// in by its handle: those of a store by its own Close, and those of a part of another,
// which closes nothing below it, by their context.
type openStore struct {
	store.Store
	ctx    context.Context // of a part; for others Background, which costs a call nothing
	prompt bool            // see isPrompt
}

// newStore makes what stands behind a handle of its own for s, and closes s with
// it.
func newStore(s store.Store) *openStore {
	return &openStore{s, context.Background(), isPrompt(s)}
}

// isPrompt reports whether s knows a store.Attempt and mostly gets by with the first go: it
// answers from memory, from a file of this machine, or from a server of its own.
func isPrompt(s store.Store) bool {
	switch s := s.(type) {
	case *store.Memory, *tcpstore.Client:
		return true
	case *filestore.Store:
		return s.IsLocal()
	}
	return false
}

// do makes a call within ms and within the life of the handle.
func (s *openStore) do(ctx context.Context, q *request) (answer, error) {
	a, err := q.call(ctx, s.Store)
	if err != nil && s.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = store.ErrClosed // the context is none of the caller's
	}
	return a, err
}

// start makes a call in the background, which cancel ends.
func (s *openStore) start(ctx context.Context, cancel context.CancelFunc, q *request) *op {
	return newOp(ctx, cancel, func(ctx context.Context) (answer, error) { return s.do(ctx, q) })
}

// maxPatience bounds the first go of a call: while it waits on its thread for a server, it
// does not see the end of its context.
const maxPatience = 50 * time.Millisecond

// try makes the first go of a call. rest is the context of the second, nil if the call is over.
func (s *openStore) try(ctx context.Context, q *request, patience time.Duration) (a answer, rest context.Context, err error) {
	if !s.prompt || q.op == C.RP_STORE_BARRIER { // which counts the caller, and then waits
		return answer{}, ctx, nil
	}
	attempt := store.NewAttempt(ctx, patience)
	a, err = s.do(attempt, q)
	return a, attempt.Rest(err), err
}

// answer is what an operation came to.
type answer struct {
	number   int64
	value    []byte
	hasValue bool
	values   [][]byte
	keys     []string
	store    store.Store // of opening; whoever takes it closes it
}

// request is a converted rp_store_request: it has no memory of C. Fields that its
// operation does not name are zero.
type request struct {
	op       C.int32_t
	block    bool
	key      string
	value    []byte
	expected []byte
	keys     []string
	values   [][]byte
	number   int64
}

// toRequest converts what the operation names.
func toRequest(r *C.rp_store_request) (q *request, err error) {
	q = &request{op: r.op, block: r.block != 0, number: int64(r.number)}
	switch r.op {
	case C.RP_STORE_SET, C.RP_STORE_APPEND, C.RP_STORE_QUEUE_PUSH:
		q.key, q.value, err = keyAndValue(r)
	case C.RP_STORE_COMPARE_SET:
		if q.key, q.value, err = keyAndValue(r); err == nil {
			q.expected, err = valueOf("expected", r.expected)
		}
	case C.RP_STORE_GET, C.RP_STORE_ADD, C.RP_STORE_DELETE, C.RP_STORE_QUEUE_POP,
		C.RP_STORE_QUEUE_LEN, C.RP_STORE_BARRIER:
		q.key, err = keyOf("key", r.key)
	case C.RP_STORE_CHECK, C.RP_STORE_WAIT, C.RP_STORE_MULTI_GET:
		q.keys, err = listOf("keys", r.keys, r.keys_len, keyOf)
	case C.RP_STORE_MULTI_SET:
		if q.keys, err = listOf("keys", r.keys, r.keys_len, keyOf); err == nil {
			q.values, err = listOf("values", r.values, r.values_len, valueOf)
		}
	case C.RP_STORE_NUM_KEYS, C.RP_STORE_LIST_KEYS:
	default:
		err = invalid("there is no store operation %d", int32(r.op))
	}
	return q, err
}

// asked returns what a request is made of, and converts it.
func asked(id C.uint64_t, r *C.rp_store_request) (*openStore, *request, error) {
	s, err := lookUp[*openStore](id)
	if err != nil {
		return nil, nil, err
	}
	q, err := toRequest(r)
	return s, q, err
}

func keyAndValue(r *C.rp_store_request) (key string, value []byte, err error) {
	if key, err = keyOf("key", r.key); err == nil {
		value, err = valueOf("value", r.value)
	}
	return key, value, err
}

// call makes the call.
func (q *request) call(ctx context.Context, s store.Store) (a answer, err error) {
	var flag bool
	switch q.op {
	case C.RP_STORE_SET:
		err = s.Set(ctx, q.key, q.value)
	case C.RP_STORE_GET:
		a.value, err = s.Get(ctx, q.key)
	case C.RP_STORE_ADD:
		a.number, err = s.Add(ctx, q.key, q.number)
	case C.RP_STORE_COMPARE_SET:
		a.value, err = s.CompareSet(ctx, q.key, q.expected, q.value)
	case C.RP_STORE_APPEND:
		err = s.Append(ctx, q.key, q.value)
	case C.RP_STORE_CHECK:
		flag, err = s.Check(ctx, q.keys)
	case C.RP_STORE_WAIT:
		err = s.Wait(ctx, q.keys)
	case C.RP_STORE_DELETE:
		flag, err = s.Delete(ctx, q.key)
	case C.RP_STORE_NUM_KEYS:
		a.number, err = s.NumKeys(ctx)
	case C.RP_STORE_LIST_KEYS:
		a.keys, err = s.ListKeys(ctx)
	case C.RP_STORE_MULTI_GET:
		a.values, err = s.MultiGet(ctx, q.keys)
	case C.RP_STORE_MULTI_SET:
		err = s.MultiSet(ctx, q.keys, q.values)
	case C.RP_STORE_QUEUE_PUSH:
		err = s.QueuePush(ctx, q.key, q.value)
	case C.RP_STORE_QUEUE_POP:
		a.value, err = s.QueuePop(ctx, q.key, q.block)
	case C.RP_STORE_QUEUE_LEN:
		a.number, err = s.QueueLen(ctx, q.key)
	case C.RP_STORE_BARRIER:
		err = s.Barrier(ctx, q.key, q.number)
	}
	if flag {
		a.number = 1
	}
	a.hasValue = q.op == C.RP_STORE_GET || q.op == C.RP_STORE_COMPARE_SET || q.op == C.RP_STORE_QUEUE_POP
	return a, err
}

// fill hands an answer out.
func (a *answer) fill(out *C.rp_store_result) {
	out.number = C.int64_t(a.number)
	out.value = C.rp_buffer{}
	if a.hasValue {
		fillBuffer(&out.value, a.value)
	}
	if a.keys != nil {
		fillList(&out.list, a.keys)
	} else {
		fillList(&out.list, a.values)
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
		s, q, err := asked(id, request)
		if err != nil {
			return err
		}
		ctx, cancel := limited(s.ctx, request.timeout_ms)
		defer cancel()
		a, rest, err := s.try(ctx, q, maxPatience)
		if rest != nil {
			a, err = s.do(rest, q)
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
	return export(err, func() error {
		s, err := closeHandle[*openStore](id)
		if err != nil {
			return err
		}
		return s.Close()
	})
}
