package main

// #include "glue.h"
import "C"

import (
	"sync"
	"unsafe"

	"rallypoint/internal/wake"
)

// listener calls a function of the program with each record of the log.
type listener struct {
	callback C.rp_log_callback
	user     C.uintptr_t // the program's pointer, which may be none
	wake     wake.Signal
	stop     chan struct{}
	stopped  chan struct{}
}

// listening is held while the listener is exchanged.
var listening sync.Mutex

func startListener(callback C.rp_log_callback, user C.uintptr_t) *listener {
	l := &listener{
		callback: callback,
		user:     user,
		wake:     wake.New(),
		stop:     make(chan struct{}),
		stopped:  make(chan struct{}),
	}
	l.wake.Set() // there may be records already
	go l.run()
	return l
}

func (l *listener) run() {
	defer close(l.stopped)
	for {
		select {
		case <-l.wake:
		case <-l.stop:
			return
		}
		for {
			select {
			case <-l.stop:
				return
			default:
			}
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
			close(old.stop)
			<-old.stopped
		}
		if callback != nil {
			logs.Lock()
			logs.listener = startListener(callback, user)
			logs.Unlock()
		}
		return nil
	})
}
