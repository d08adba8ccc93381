package main

// #include <stdlib.h>
// #include "glue.h"
import "C"

import (
	"cmp"
	"context"
	"strings"
	"sync"
	"unsafe"

	"rallypoint/backend"
	"rallypoint/core/election/register"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
)

// table is a backend of the program: a register.Register. A function of the program
// cannot be interrupted: when its caller's context ends it is left to itself, and
// the program gets its release when the last one has returned.
type table struct {
	c *C.rp_backend // a copy, in C memory

	mu       sync.Mutex
	running  int
	released bool
}

func newTable(b *C.rp_backend) *table {
	p := (*C.rp_backend)(C.malloc(C.size_t(unsafe.Sizeof(*b))))
	*p = *b
	return &table{c: p}
}

// GetState implements register.Register.
func (t *table) GetState(ctx context.Context) (state, token []byte, err error) {
	a, err := t.call(ctx, func(reply *C.rp_backend_reply, failure *C.rp_error) C.int32_t {
		return C.glue_backend_get(t.c, reply, failure)
	})
	return a.state, a.token, err
}

// SetState implements register.Register.
func (t *table) SetState(ctx context.Context, state, token []byte) (now, nowToken []byte, ok bool, err error) {
	a, err := t.call(ctx, func(reply *C.rp_backend_reply, failure *C.rp_error) C.int32_t {
		value := C.CBytes(state)
		defer C.free(value)
		var known unsafe.Pointer
		if token != nil {
			known = C.CBytes(token) // not nil, also if it is empty
			defer C.free(known)
		}
		return C.glue_backend_set(t.c, value, C.size_t(len(state)), known, C.size_t(len(token)), reply, failure)
	})
	return a.state, a.token, a.stored, err
}

// reply is what a function of the program has answered.
type reply struct {
	state, token []byte
	stored       bool
}

// call runs a function of the program in a goroutine of its own.
func (t *table) call(ctx context.Context, f func(*C.rp_backend_reply, *C.rp_error) C.int32_t) (reply, error) {
	if err := ctx.Err(); err != nil {
		return reply{}, err
	}
	if !t.enter() {
		return reply{}, rendezvous.Errorf(rendezvous.CodeCanceled, "the member was closed")
	}
	var a reply
	var err error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer t.leave() // before the caller sees the result
		a, err = run(f)
	}()
	select {
	case <-done:
		return a, err
	case <-ctx.Done():
		return reply{}, ctx.Err()
	}
}

func run(f func(*C.rp_backend_reply, *C.rp_error) C.int32_t) (reply, error) {
	out := (*C.rp_backend_reply)(C.calloc(1, C.sizeof_rp_backend_reply))
	failure := (*C.rp_error)(C.calloc(1, C.sizeof_rp_error))
	defer func() {
		C.rp_buffer_free(&out.state)
		C.rp_buffer_free(&out.token)
		C.free(unsafe.Pointer(out))
		C.free(unsafe.Pointer(failure))
	}()
	out.struct_size, failure.struct_size = C.sizeof_rp_backend_reply, C.sizeof_rp_error
	if code := f(out, failure); code != C.RP_OK {
		name := C.GoString(C.rp_code_name(code))
		if code == C.RP_PENDING || name == "UNKNOWN" {
			return reply{}, invalid("a function of the backend returned %d, which is the number of no error", int32(code))
		}
		text := cmp.Or(C.GoString(&failure.message[0]), "the backend said no more than "+name)
		err := &rendezvous.Error{Code: rendezvous.Code(code), Text: strings.ToValidUTF8(text, "?")}
		if failure.retryable < 0 {
			return reply{}, &register.Unreachable{Err: err}
		}
		return reply{}, err
	}
	if out.answered == 0 {
		return reply{}, rendezvous.Errorf(rendezvous.CodeInvalid, "a function of the backend returned RP_OK without rp_backend_answer")
	}
	a := reply{stored: out.stored != 0}
	if out.state.data != nil {
		a.state = C.GoBytes(out.state.data, C.int(out.state.len))
		a.token = C.GoBytes(out.token.data, C.int(out.token.len))
	}
	return a, nil
}

func (t *table) enter() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.released {
		return false
	}
	t.running++
	return true
}

func (t *table) leave() {
	t.mu.Lock()
	t.running--
	last := t.released && t.running == 0
	t.mu.Unlock()
	if last {
		t.free()
	}
}

// release lets no function start any more and gives the program its own back, now
// or when the last function returns.
func (t *table) release() {
	t.mu.Lock()
	last := !t.released && t.running == 0
	t.released = true
	t.mu.Unlock()
	if last {
		t.free()
	}
}

func (t *table) free() {
	C.glue_backend_release(t.c)
	C.free(unsafe.Pointer(t.c))
}

//export rpgo_member_open_backend
func rpgo_member_open_backend(config *C.rp_member_config, b *C.rp_backend, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		p, err := toParams(config)
		if err != nil {
			return err
		}
		if p.Endpoint == "" {
			p.Endpoint = "a backend of the program"
			if p.TokenFile == "" && config.flags&C.RP_MEMBER_ENVIRONMENT != 0 {
				p.TokenFile = getenv(params.EnvTokenFile)
			}
		}
		t := newTable(b)
		m, err := backend.OpenRegister(p, t, logger)
		if err != nil {
			C.free(unsafe.Pointer(t.c))
			return err
		}
		o := newMember(m)
		o.release = t.release
		*out = openHandle(o)
		return nil
	})
}
