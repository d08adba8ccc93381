package main

// #include "glue.h"
import "C"

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/mattn/go-pointer"

	"rallypoint/core/rendezvous"
)

// handles maps the numbers that C holds to the pointers of go-pointer. Those
// alone would not do: they are addresses, which are used again after a release,
// so that a stale one could name another object. Numbers only grow.
var handles = struct {
	sync.RWMutex
	last uint64
	open map[uint64]unsafe.Pointer
}{
	last: 1 << 32, // no small integer and no file descriptor is ever a handle
	open: make(map[uint64]unsafe.Pointer),
}

func openHandle(v any) C.uint64_t {
	handles.Lock()
	defer handles.Unlock()
	handles.last++
	handles.open[handles.last] = pointer.Save(v)
	return C.uint64_t(handles.last)
}

// lookUp returns what a number stands for, RP_ERR_HANDLE unless it is a T.
func lookUp[T any](id C.uint64_t) (T, error) {
	handles.RLock()
	defer handles.RUnlock()
	return restore[T](id)
}

// closeHandle is lookUp, and takes the number back.
func closeHandle[T any](id C.uint64_t) (T, error) {
	handles.Lock()
	defer handles.Unlock()
	v, err := restore[T](id)
	if err == nil {
		pointer.Unref(handles.open[uint64(id)])
		delete(handles.open, uint64(id))
	}
	return v, err
}

func restore[T any](id C.uint64_t) (T, error) {
	v, ok := pointer.Restore(handles.open[uint64(id)]).(T)
	if !ok {
		return v, rendezvous.Errorf(codeHandle, "the handle %d is closed or not one of this kind", uint64(id))
	}
	return v, nil
}

//export rpgo_handles_open
func rpgo_handles_open(count *C.int64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		handles.RLock()
		defer handles.RUnlock()
		*count = C.int64_t(len(handles.open))
		return nil
	})
}

//export rpgo_usage_get
func rpgo_usage_get(out *C.rp_usage, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		handles.RLock()
		defer handles.RUnlock()
		out.handles = C.int64_t(len(handles.open))
		out.goroutines = C.int64_t(runtime.NumGoroutine())
		return nil
	})
}
