package main

// #include "glue.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"syscall"
	"unsafe"

	"rallypoint/agent"
	"rallypoint/agent/process"
	"rallypoint/core/rendezvous"
	"rallypoint/core/store"
	"rallypoint/filestore"
)

// Codes that only the library has; all others are rendezvous.Code.
const (
	codeUnsupported rendezvous.Code = C.RP_ERR_UNSUPPORTED
	codeHandle      rendezvous.Code = C.RP_ERR_HANDLE
	codeBuffer      rendezvous.Code = C.RP_ERR_BUFFER
	codeWorkers     rendezvous.Code = C.RP_ERR_WORKERS
	codeStart       rendezvous.Code = C.RP_ERR_START
)

// errPending asks the caller to repeat a call: RP_PENDING.
var errPending = errors.New("pending")

// The header's numbers are those of the Go code: a difference does not compile.
const (
	_ = -uint(C.RP_ERR_INVALID ^ int(rendezvous.CodeInvalid))
	_ = -uint(C.RP_ERR_MISMATCH ^ int(rendezvous.CodeMismatch))
	_ = -uint(C.RP_ERR_TENANT ^ int(rendezvous.CodeTenant))
	_ = -uint(C.RP_ERR_NODE_IN_USE ^ int(rendezvous.CodeNodeInUse))
	_ = -uint(C.RP_ERR_AUTH ^ int(rendezvous.CodeAuth))
	_ = -uint(C.RP_ERR_CLOSED ^ int(rendezvous.CodeClosed))
	_ = -uint(C.RP_ERR_GRACEFUL ^ int(rendezvous.CodeGraceful))
	_ = -uint(C.RP_ERR_UNFIT ^ int(rendezvous.CodeUnfit))
	_ = -uint(C.RP_ERR_TIMEOUT ^ int(rendezvous.CodeTimeout))
	_ = -uint(C.RP_ERR_CANCELED ^ int(rendezvous.CodeCanceled))
	_ = -uint(C.RP_ERR_CONNECTION ^ int(rendezvous.CodeConnection))
	_ = -uint(C.RP_ERR_STATE ^ int(rendezvous.CodeState))
	_ = -uint(C.RP_ERR_FENCED ^ int(rendezvous.CodeFenced))
	_ = -uint(C.RP_ERR_EVICTED ^ int(rendezvous.CodeEvicted))
	_ = -uint(C.RP_ERR_ROUND_OVER ^ int(rendezvous.CodeRoundOver))
	_ = -uint(C.RP_ERR_NUMBER ^ int(rendezvous.CodeNumber))
	_ = -uint(C.RP_ERR_TOO_LARGE ^ int(rendezvous.CodeTooLarge))
	_ = -uint(C.RP_ERR_EMPTY ^ int(rendezvous.CodeEmpty))
	_ = -uint(C.RP_ERR_INTERNAL ^ int(rendezvous.CodeInternal))
)

// export runs the body of an exported function and converts its error. A panic
// becomes RP_ERR_INTERNAL: it must not reach C.
func export(out *C.rp_error, body func() error) C.int32_t {
	err := protect(body)
	switch err {
	case nil:
		return C.RP_OK
	case errPending:
		return C.RP_PENDING
	}
	code := codeOf(err)
	text := toUTF8(err.Error())
	return C.glue_fail(out, C.int32_t(code), truth(code.Retryable()), (*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
}

// on is export for what a handle stands for. Inlined it makes the library larger.
//
//go:noinline
func on[T any](id C.uint64_t, out *C.rp_error, body func(T) error) C.int32_t {
	return export(out, func() error {
		v, err := lookUp[T](id)
		if err != nil {
			return err
		}
		return body(v)
	})
}

// onLast is on, and takes the handle back.
//
//go:noinline
func onLast[T any](id C.uint64_t, out *C.rp_error, body func(T) error) C.int32_t {
	return export(out, func() error {
		v, err := closeHandle[T](id)
		if err != nil {
			return err
		}
		return body(v)
	})
}

func protect(body func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = rendezvous.Errorf(rendezvous.CodeInternal, "this is a defect of rallypoint, please report it: %v\n%s", p, debug.Stack())
		}
	}()
	return body()
}

// storeCodes are the numbers of core/store's errors, the first that fits.
var storeCodes = []struct {
	err  error
	code rendezvous.Code
}{
	{store.ErrTimeout, rendezvous.CodeTimeout},
	{context.DeadlineExceeded, rendezvous.CodeTimeout},
	{context.Canceled, rendezvous.CodeCanceled},
	{store.ErrClosed, rendezvous.CodeCanceled},
	{store.ErrConnection, rendezvous.CodeConnection},
	{store.ErrNotNumber, rendezvous.CodeNumber},
	{store.ErrQueueEmpty, rendezvous.CodeEmpty},
	{store.ErrTooLarge, rendezvous.CodeTooLarge},
	{store.ErrQuota, rendezvous.CodeTooLarge},
	{store.ErrArguments, rendezvous.CodeInvalid},
	{filestore.ErrVanished, rendezvous.CodeState},
	{filestore.ErrReplaced, rendezvous.CodeState},
	{filestore.ErrForeign, rendezvous.CodeState},
	{filestore.ErrNoLocks, codeUnsupported},
	{errors.ErrUnsupported, codeUnsupported},
	{syscall.ENOSPC, rendezvous.CodeTooLarge},
	{syscall.EDQUOT, rendezvous.CodeTooLarge},
	{syscall.EFBIG, rendezvous.CodeTooLarge},
}

func codeOf(err error) rendezvous.Code {
	if own, ok := errors.AsType[*rendezvous.Error](err); ok {
		return own.Code
	}
	switch {
	case errors.As(err, new(*agent.FailedError)):
		return codeWorkers
	case errors.As(err, new(*process.StartError)):
		return codeStart
	case errors.As(err, new(*agent.SignalError)):
		return rendezvous.CodeCanceled
	case errors.As(err, new(*agent.UnfitError)):
		return rendezvous.CodeUnfit
	case errors.As(err, new(*agent.NoProgressError)):
		return rendezvous.CodeClosed
	}
	for _, c := range storeCodes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	var refused syscall.Errno // of a file, say: the backend of a store failed
	if errors.As(err, &refused) {
		return rendezvous.CodeConnection
	}
	return rendezvous.CodeInternal
}

func invalid(format string, args ...any) error {
	return &rendezvous.Error{Code: rendezvous.CodeInvalid, Text: fmt.Sprintf(format, args...)}
}
