package main

// #include "glue.h"
import "C"

import (
	"context"
	"errors"

	"rallypoint/core/store"
)

// openStore is what a rp_store stands for. Its context ends with the handle, and
// with it the operations that came in by this handle.
type openStore struct {
	store.Store
	ctx context.Context
	end context.CancelFunc
}

// newStore makes what stands behind a handle of its own for s, and closes s with
// it.
func newStore(s store.Store) *openStore {
	ctx, end := context.WithCancel(context.Background())
	return &openStore{s, ctx, end}
}

// Close ends the operations under way on the handle.
func (s *openStore) Close() error {
	err := s.Store.Close()
	s.end()
	return err
}

// do makes a call within ms and within the life of the handle.
func (s *openStore) do(ctx context.Context, call operation) (answer, error) {
	a, err := call(ctx, s.Store)
	if err != nil && s.ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = store.ErrClosed // the context is none of the caller's
	}
	return a, err
}

// answer is what an operation came to.
type answer struct {
	number int64
	value  []byte
	values [][]byte
	keys   []string
	store  store.Store // of connecting; whoever takes it closes it
}

// operation is a converted request: it has no memory of C.
type operation func(ctx context.Context, s store.Store) (answer, error)

// toOperation converts a request.
func toOperation(r *C.rp_store_request) (operation, error) {
	key, err1 := keyOf("key", r.key)
	value, err2 := valueOf("value", r.value)
	expected, err3 := valueOf("expected", r.expected)
	keys, err4 := listOf("keys", r.keys, r.keys_len, keyOf)
	values, err5 := listOf("values", r.values, r.values_len, valueOf)
	for _, err := range []error{err1, err2, err3, err4, err5} {
		if err != nil {
			return nil, err
		}
	}
	number, block := int64(r.number), r.block != 0
	switch r.op {
	case C.RP_STORE_SET:
		return plain(func(ctx context.Context, s store.Store) error { return s.Set(ctx, key, value) }), nil
	case C.RP_STORE_GET:
		return withValue(func(ctx context.Context, s store.Store) ([]byte, error) { return s.Get(ctx, key) }), nil
	case C.RP_STORE_ADD:
		return withNumber(func(ctx context.Context, s store.Store) (int64, error) { return s.Add(ctx, key, number) }), nil
	case C.RP_STORE_COMPARE_SET:
		return withValue(func(ctx context.Context, s store.Store) ([]byte, error) {
			return s.CompareSet(ctx, key, expected, value)
		}), nil
	case C.RP_STORE_APPEND:
		return plain(func(ctx context.Context, s store.Store) error { return s.Append(ctx, key, value) }), nil
	case C.RP_STORE_CHECK:
		return withFlag(func(ctx context.Context, s store.Store) (bool, error) { return s.Check(ctx, keys) }), nil
	case C.RP_STORE_WAIT:
		return plain(func(ctx context.Context, s store.Store) error { return s.Wait(ctx, keys) }), nil
	case C.RP_STORE_DELETE:
		return withFlag(func(ctx context.Context, s store.Store) (bool, error) { return s.Delete(ctx, key) }), nil
	case C.RP_STORE_NUM_KEYS:
		return withNumber(func(ctx context.Context, s store.Store) (int64, error) { return s.NumKeys(ctx) }), nil
	case C.RP_STORE_LIST_KEYS:
		return func(ctx context.Context, s store.Store) (answer, error) {
			keys, err := s.ListKeys(ctx)
			return answer{keys: keys}, err
		}, nil
	case C.RP_STORE_MULTI_GET:
		return func(ctx context.Context, s store.Store) (answer, error) {
			values, err := s.MultiGet(ctx, keys)
			return answer{values: values}, err
		}, nil
	case C.RP_STORE_MULTI_SET:
		return plain(func(ctx context.Context, s store.Store) error { return s.MultiSet(ctx, keys, values) }), nil
	case C.RP_STORE_QUEUE_PUSH:
		return plain(func(ctx context.Context, s store.Store) error { return s.QueuePush(ctx, key, value) }), nil
	case C.RP_STORE_QUEUE_POP:
		return withValue(func(ctx context.Context, s store.Store) ([]byte, error) { return s.QueuePop(ctx, key, block) }), nil
	case C.RP_STORE_QUEUE_LEN:
		return withNumber(func(ctx context.Context, s store.Store) (int64, error) { return s.QueueLen(ctx, key) }), nil
	case C.RP_STORE_BARRIER:
		return plain(func(ctx context.Context, s store.Store) error { return s.Barrier(ctx, key, number) }), nil
	}
	return nil, invalid("there is no store operation %d", int32(r.op))
}

func plain(call func(context.Context, store.Store) error) operation {
	return func(ctx context.Context, s store.Store) (answer, error) { return answer{}, call(ctx, s) }
}

func withValue(call func(context.Context, store.Store) ([]byte, error)) operation {
	return func(ctx context.Context, s store.Store) (answer, error) {
		value, err := call(ctx, s)
		if value == nil {
			value = []byte{}
		}
		return answer{value: value}, err
	}
}

func withNumber(call func(context.Context, store.Store) (int64, error)) operation {
	return func(ctx context.Context, s store.Store) (answer, error) {
		n, err := call(ctx, s)
		return answer{number: n}, err
	}
}

func withFlag(call func(context.Context, store.Store) (bool, error)) operation {
	return func(ctx context.Context, s store.Store) (answer, error) {
		flag, err := call(ctx, s)
		if flag {
			return answer{number: 1}, err
		}
		return answer{}, err
	}
}

// fill hands an answer out.
func (a *answer) fill(out *C.rp_store_result) {
	out.number = C.int64_t(a.number)
	out.value = C.rp_buffer{}
	if a.value != nil {
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
		s, err := lookUp[*openStore](id)
		if err != nil {
			return err
		}
		call, err := toOperation(request)
		if err != nil {
			return err
		}
		ctx, cancel := limited(s.ctx, request.timeout_ms)
		defer cancel()
		a, err := s.do(ctx, call)
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
