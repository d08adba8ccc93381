package main

// #include "glue.h"
import "C"

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"rallypoint/agent"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/linequeue"
	"rallypoint/tcpstore"
)

// openAgent is what a rp_agent stands for.
type openAgent struct {
	*agent.Agent
	rdzv   agent.Rendezvous
	events events
	pipes  pipes

	mu     sync.Mutex
	run    *task[agent.Result] // nil until it is started
	closed bool
}

// start starts the run unless it is under way or over.
func (o *openAgent) start() (*task[agent.Result], error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return nil, rendezvous.Errorf(codeHandle, "the handle was closed meanwhile")
	}
	if o.run == nil {
		o.run = startTask(context.Background(), func() {}, func(ctx context.Context) (agent.Result, error) {
			err := o.Run(ctx)
			return o.Result(), err
		}, o.events.end)
	}
	return o.run, nil
}

// result returns how the run ended, errPending before.
func (o *openAgent) result() (*agent.Result, error) {
	o.mu.Lock()
	t := o.run
	o.mu.Unlock()
	if t == nil {
		return nil, errPending
	}
	if t.wait(0, true) == errPending {
		return nil, errPending
	}
	return &t.value, nil
}

// close ends the run at once and waits for its end.
func (o *openAgent) close() {
	o.mu.Lock()
	o.closed = true
	t := o.run
	o.mu.Unlock()
	o.Stop(unix.SIGKILL, 0)
	o.Stop(unix.SIGKILL, 0)
	if t != nil {
		<-t.done
	} else if _, shared := o.rdzv.(borrowed); !shared {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = o.rdzv.Shutdown(ctx, rendezvous.EndLeave, "") // never joined: no node waits for it
	}
	o.events.ready.close()
	o.pipes.close()
}

// pipes are duplicates of descriptors that the program lent.
type pipes struct {
	files []*os.File
	queue *linequeue.Queue // of events; nil: none
}

// take duplicates a descriptor, with deadlines.
func (p *pipes) take(name string, fd C.int32_t) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, invalid("%s is %d: %v", name, int32(fd), err)
	}
	err = unix.SetNonblock(dup, true)
	file := os.NewFile(uintptr(dup), name)
	p.files = append(p.files, file)
	if err == nil {
		err = file.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, invalid("%s is %d, which is no pipe or socket: %v", name, int32(fd), err)
	}
	return file, nil
}

// close closes the files once the events are written, or are not read.
func (p *pipes) close() {
	if p.queue != nil {
		p.queue.Flush()
	}
	for _, file := range p.files {
		_ = file.Close()
	}
	p.files, p.queue = nil, nil
}

//export rpgo_agent_open
func rpgo_agent_open(config *C.rp_agent_config, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a := &openAgent{}
		if err := a.open(config); err != nil {
			a.pipes.close()
			return err
		}
		*out = openHandle(a)
		return nil
	})
}

// open makes the agent; pipes are the caller's to close if it fails.
func (o *openAgent) open(config *C.rp_agent_config) error {
	spec, name, err := toSpec(config)
	if err != nil {
		return err
	}
	if err := setCPUs(&spec, config); err != nil {
		return err
	}
	if err := setPipes(&spec, config, &o.pipes); err != nil {
		return err
	}
	if o.rdzv, err = toRendezvous(config, &spec); err != nil {
		return err
	}
	spec.Notify, spec.DialStore = o.events.add, tcpstore.Connect
	if o.Agent, err = agent.New(spec, name, o.rdzv, logger); err != nil {
		return invalid("%v", err)
	}
	return nil
}

//export rpgo_agent_run
func rpgo_agent_run(id C.uint64_t, timeoutMS C.int64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(a *openAgent) error {
		t, err := a.start()
		if err != nil {
			return err
		}
		return t.wait(timeLimit(timeoutMS))
	})
}

//export rpgo_agent_direct
func rpgo_agent_direct(id C.uint64_t, kind C.int32_t, withinMS C.int64_t, reason *C.char, err *C.rp_error) C.int32_t {
	return on(id, err, func(a *openAgent) error {
		why, err := text("reason", reason)
		if err != nil {
			return err
		}
		if withinMS < 1 {
			return invalid("within_ms is %d, it must be at least 1", int64(withinMS))
		}
		if !rendezvous.DirectiveKind(kind).OfOneNode() {
			return invalid("kind is %d, it must be save, drain or stop", int32(kind))
		}
		return a.Direct(context.Background(), rendezvous.Direct{Kind: rendezvous.DirectiveKind(kind), Within: span(withinMS), Reason: why, At: time.Now()})
	})
}

//export rpgo_agent_stop
func rpgo_agent_stop(id C.uint64_t, sig C.int32_t, graceMS C.int64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(a *openAgent) error {
		if sig < 1 || sig > 64 {
			return invalid("there is no signal %d", int32(sig))
		}
		if grace, limited := timeLimit(graceMS); limited {
			a.Stop(unix.Signal(sig), grace)
		} else {
			a.Signal(unix.Signal(sig))
		}
		return nil
	})
}

//export rpgo_agent_close
func rpgo_agent_close(id C.uint64_t, err *C.rp_error) C.int32_t {
	return onLast(id, err, func(a *openAgent) error {
		a.close()
		return nil
	})
}
