package main

// #include "glue.h"
import "C"

import (
	"sync"

	"rallypoint/agent"
)

// maxEvents is how many events are kept for C: more than the workers of a large
// node make in one attempt.
const maxEvents = 4096

// events are what happened and C has not asked for yet.
type events struct {
	mu      sync.Mutex
	queue   []agent.Event
	dropped uint32
	ended   bool
	ready   signal // set while queue is not empty, and for good once the run is over
}

func (e *events) add(n agent.Event) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == maxEvents {
		e.queue = e.queue[1:]
		e.dropped++
	}
	e.queue = append(e.queue, n)
	e.ready.set()
}

// end says that the run is over. Its last event comes before its result can be had,
// so a program that took that event first would else poll for ever.
func (e *events) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	e.ready.set()
}

func (e *events) take() (n agent.Event, dropped uint32, ok bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.queue) == 0 {
		return n, 0, false
	}
	n, dropped = e.queue[0], e.dropped
	e.queue, e.dropped = e.queue[1:], 0
	if len(e.queue) == 0 {
		e.queue = nil
		if !e.ended {
			e.ready.take()
		}
	}
	return n, dropped, true
}

//export rpgo_agent_next_event
func rpgo_agent_next_event(id C.uint64_t, out *C.rp_agent_event, err *C.rp_error) C.int32_t {
	return on(id, err, func(a *openAgent) error {
		n, dropped, ok := a.events.take()
		if !ok {
			return errPending
		}
		out.kind = C.int32_t(n.Kind)
		out.dropped = C.uint32_t(dropped)
		out.time_ms = C.int64_t(n.Time.UnixMilli())
		out.round = C.uint64_t(n.Round)
		out.restarts = C.int32_t(n.Restarts)
		out.group_rank, out.group_world_size = C.int32_t(n.GroupRank), C.int32_t(n.Groups)
		out.world_size = C.int32_t(n.World)
		out.local_rank, out.rank = C.int32_t(n.LocalRank), C.int32_t(n.Rank)
		out.pid, out.exit_code = C.int32_t(n.Pid), C.int32_t(n.ExitCode)
		out.store_port = C.int32_t(n.StorePort)
		fillText(out.store_addr[:], n.StoreAddr)
		fillText(out.text[:], n.Text)
		if out.struct_size >= C.sizeof_rp_agent_event {
			fillText(out.advertised_addr[:], n.AdvertisedAddr)
		}
		return nil
	})
}

//export rpgo_agent_fd
func rpgo_agent_fd(id C.uint64_t, fd *C.int32_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(a *openAgent) error {
		return fillDescriptor(fd, &a.events.ready)
	})
}
