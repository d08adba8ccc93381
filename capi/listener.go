package main

// #include "glue.h"
import "C"

import (
	"context"
	"sync"
	"unsafe"

	"rallypoint/internal/background"
	"rallypoint/internal/wake"
)

// listener calls a function of the program with each record of the log.
type listener struct {
	callback C.rp_log_callback
	user     C.uintptr_t // the program's pointer, which may be none
	wake     wake.Signal
	stop     func()
}

// listening is held while the listener is exchanged.
var listening sync.Mutex

func startListener(callback C.rp_log_callback, user C.uintptr_t) *listener {
	l := &listener{callback: callback, user: user, wake: wake.New()}
	l.wake.Set() // there may be records already
	l.stop = background.Run(context.Background(), l.run)
	return l
}

func (l *listener) run(ctx context.Context) {
	for {
		select {
		case <-l.wake:
		case <-ctx.Done():
			return
		}
		for ctx.Err() == nil {
			r, dropped, ok := takeRecord()
			if !ok {
				break
			}
			text := toUTF8(r.text)
			C.glue_log(l.callback, l.user, C.int32_t(levelNumber(r.level)), C.uint32_t(dropped),
				C.int64_t(r.time.UnixMilli()),
				(*C.char)(unsafe.Pointer(unsafe.StringData(text))), C.size_t(len(text)))
		}
	}
}

//export rpgo_log_set_callback
func rpgo_log_set_callback(callback C.rp_log_callback, user C.uintptr_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		listening.Lock()
		defer listening.Unlock()
		logs.Lock()
		old := logs.listener
		logs.listener = nil
		logs.Unlock()
		if old != nil {
			old.stop()
		}
		if callback != nil {
			logs.Lock()
			logs.listener = startListener(callback, user)
			logs.Unlock()
		}
		return nil
	})
}
