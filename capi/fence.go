package main

// #include "glue.h"
import "C"

import (
	"time"

	"rallypoint/core/fence"
	"rallypoint/core/world"
)

// deadlineIn is the end of a wait that begins now; the zero time for "no limit".
func deadlineIn(ms C.int64_t) time.Time {
	limit, limited := timeLimit(ms)
	if !limited {
		return time.Time{}
	}
	return time.Now().Add(limit)
}

//export rpgo_fence_open
func rpgo_fence_open(config *C.rp_fence_config, timeoutMS C.int64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		o := fence.Options{Into: config.flags&C.RP_FENCE_INTO != 0, Writer: fence.NewWriter(getenv), World: getenv(world.EnvFile)}
		if unknown := config.flags &^ C.RP_FENCE_INTO; unknown != 0 {
			return invalid("flags has the unknown bits %#x", uint32(unknown))
		}
		if err := texts(textField{"path", config.path, &o.Path}); err != nil {
			return err
		}
		f, err := fence.Open(o, deadlineIn(timeoutMS))
		if err == nil {
			*out = openHandle(f)
		}
		return err
	})
}

//export rpgo_fence_get_state
func rpgo_fence_get_state(id C.uint64_t, state *C.rp_fence_state, err *C.rp_error) C.int32_t {
	return on(id, err, func(f *fence.Fence) error {
		state.existed = truth(f.Existed())
		fillText(state.version[:], f.Version())
		return nil
	})
}

//export rpgo_fence_prepare
func rpgo_fence_prepare(id C.uint64_t, timeoutMS C.int64_t, temporary *C.rp_buffer, err *C.rp_error) C.int32_t {
	return on(id, err, func(f *fence.Fence) error {
		path, err := f.Prepare(deadlineIn(timeoutMS))
		if err == nil {
			fillBuffer(temporary, []byte(path))
		}
		return err
	})
}

//export rpgo_fence_commit
func rpgo_fence_commit(id C.uint64_t, timeoutMS C.int64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(f *fence.Fence) error { return f.Commit(deadlineIn(timeoutMS)) })
}

//export rpgo_fence_claim
func rpgo_fence_claim(id C.uint64_t, timeoutMS C.int64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(f *fence.Fence) error { return f.Claim(deadlineIn(timeoutMS)) })
}

//export rpgo_fence_release
func rpgo_fence_release(id C.uint64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(f *fence.Fence) error { return f.Release() })
}

//export rpgo_fence_close
func rpgo_fence_close(id C.uint64_t, err *C.rp_error) C.int32_t {
	return onLast(id, err, func(f *fence.Fence) error {
		f.Close()
		return nil
	})
}
