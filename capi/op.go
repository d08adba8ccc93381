package main

// #include "glue.h"
import "C"

import (
	"context"
	"sync"
	"time"
)

// op is what a rp_op stands for.
type op struct {
	*task[answer]
	ready signal // set for good once the operation has ended

	mu    sync.Mutex
	taken bool
	ended bool
	then  []func() // called at the end
}

func newOp(ctx context.Context, cancel context.CancelFunc, call func(context.Context) (answer, error)) *op {
	o := &op{}
	o.task = startTask(ctx, cancel, call, o.finish)
	return o
}

// finish wakes the callers that wait for the end of the operation. It runs at the end
// of the operation's goroutine, which has no other waiter.
func (o *op) finish() {
	o.ready.set()
	o.mu.Lock()
	o.ended = true
	then := o.then
	o.then = nil
	o.mu.Unlock()
	for _, f := range then {
		f()
	}
}

// notify has f called once the operation has ended, never by the caller.
func (o *op) notify(f func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ended {
		go f()
	} else {
		o.then = append(o.then, f)
	}
}

//export rpgo_store_start
func rpgo_store_start(id C.uint64_t, request *C.rp_store_request, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		start := time.Now()
		s, q, err := requested(id, request)
		if err != nil {
			return err
		}
		*out = openHandle(s.start(q, start, s.do(q)))
		return nil
	})
}

//export rpgo_store_attempt
func rpgo_store_attempt(id C.uint64_t, request *C.rp_store_request, waitMS C.int64_t, out *C.uint64_t, result *C.rp_store_result, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		start := time.Now()
		s, q, err := requested(id, request)
		if err != nil {
			return err
		}
		limit, limited := timeLimit(waitMS)
		patience := maxPatience
		if limited {
			patience = min(limit, maxPatience)
		}
		a, pending, err := s.try(q, patience)
		if pending != nil {
			o := s.start(q, start, pending)
			if err = o.wait(max(0, limit-time.Since(start)), limited); err == errPending {
				*out = openHandle(o)
				return err
			}
			a = o.value
		}
		if err != nil {
			return err
		}
		a.fill(result)
		return nil
	})
}

//export rpgo_op_wait
func rpgo_op_wait(id C.uint64_t, timeoutMS C.int64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(o *op) error {
		return o.wait(timeLimit(timeoutMS))
	})
}

//export rpgo_op_result
func rpgo_op_result(id C.uint64_t, result *C.rp_store_result, err *C.rp_error) C.int32_t {
	return on(id, err, func(o *op) error {
		if err := o.wait(0, true); err != nil {
			return err
		}
		if !o.take() {
			return invalid("the result of this operation was taken before")
		}
		o.value.fill(result)
		return nil
	})
}

// take reports whether the caller is the first to take the result.
func (o *op) take() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	first := !o.taken
	o.taken = true
	return first
}

//export rpgo_op_fd
func rpgo_op_fd(id C.uint64_t, fd *C.int32_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(o *op) error {
		return fillDescriptor(fd, &o.ready)
	})
}

//export rpgo_op_notify
func rpgo_op_notify(id C.uint64_t, callback C.rp_op_callback, user C.uintptr_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(o *op) error {
		o.notify(func() { C.glue_op(callback, user) })
		return nil
	})
}

//export rpgo_op_cancel
func rpgo_op_cancel(id C.uint64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(o *op) error {
		o.cancel()
		return nil
	})
}

//export rpgo_op_free
func rpgo_op_free(id C.uint64_t, err *C.rp_error) C.int32_t {
	return onLast(id, err, func(o *op) error {
		o.cancel()
		o.ready.close()
		select {
		case <-o.done:
			o.drop()
		default:
			go func() {
				<-o.done // soon: it was cancelled
				o.drop()
			}()
		}
		return nil
	})
}

// drop closes a store that was not taken out of an operation that has ended.
func (o *op) drop() {
	if o.take() && o.value.store != nil {
		o.value.store.Close()
	}
}
