package main

// #include <stdlib.h>
// #include "glue.h"
import "C"

import (
	"context"
	"unsafe"

	"rallypoint/agent"
	"rallypoint/backend"
	"rallypoint/core/params"
	"rallypoint/core/rendezvous"
	"rallypoint/internal/background"
	"rallypoint/internal/wake"
)

// member is what a rp_member stands for.
type member struct {
	backend.Node
	join      singleFlight[rendezvous.Outcome]
	there     func() // ends the answers to the barriers of the last round; the one join that runs has it
	finishing singleFlight[struct{}]
	shutdown  singleFlight[struct{}]
	closing   singleFlight[struct{}]
	news      signal      // set when there is something to look at again
	changed   wake.Signal // the same for an agent that the member was given to
	stop      func()      // ends the goroutine that sets news and changed
	release   func()      // gives the program its backend back; nil: it has none
}

// newMember starts what tells of m's news.
func newMember(m backend.Node) *member {
	o := &member{Node: m, changed: wake.New(), there: func() {}}
	o.join.ended, o.finishing.ended = o.news.set, o.news.set
	o.shutdown.ended, o.closing.ended = o.news.set, o.news.set
	o.stop = background.Run(context.Background(), func(ctx context.Context) {
		for {
			select {
			case <-o.Changed():
				o.news.set()
				o.changed.Set()
			case <-ctx.Done():
				return
			}
		}
	})
	return o
}

// next is the member's Next. The program's own agent, which may be torch's, knows nothing of
// liveness barriers: the library answers them, since the process is alive.
func (m *member) next(ctx context.Context) (rendezvous.Outcome, error) {
	o, err := m.Next(ctx)
	m.there() // of the last round, to which it showed until now that it is alive
	if err == nil {
		m.there = agent.AnswerBarriers(m.Keys(o.Round), o.World)
	}
	return o, err
}

// borrowed is a member that an agent uses and does not close.
type borrowed struct {
	backend.Node
	changed wake.Signal
}

// Changed implements agent.Rendezvous.
func (b borrowed) Changed() <-chan struct{} { return b.changed }

// Close ends everything that newMember and the calls have started.
func (m *member) Close() error {
	m.join.close()
	m.there()
	m.finishing.close()
	m.shutdown.close()
	m.closing.close()
	m.stop()
	m.news.close()
	err := m.Node.Close()
	if m.release != nil {
		m.release()
	}
	return err
}

// optionBackend names the backend that says how to read the endpoint and the other
// options.
const optionBackend = "backend"

// toParams converts a configuration, and logs the warnings about it.
func toParams(config *C.rp_member_config) (p params.Params, err error) {
	p = params.Default()
	p.Min, p.Max = int(config.min_nodes), int(config.max_nodes)
	err = texts(
		textField{"run_id", config.run_id, &p.RunID},
		textField{"endpoint", config.endpoint, &p.Endpoint},
		textField{"local_addr", config.local_addr, &p.LocalAddr},
	)
	if err != nil {
		return p, err
	}
	options, err := toOptions(config.options, config.options_len)
	if err != nil {
		return p, err
	}
	if name, ok := options[optionBackend]; ok {
		delete(options, optionBackend)
		if p.Endpoint, options, err = backend.Resolve(name, p.Endpoint, options); err != nil {
			return p, err
		}
	}
	warnings, err := p.SetOptions(options)
	if err != nil {
		return p, err
	}
	if config.flags&^C.RP_MEMBER_ENVIRONMENT != 0 {
		return p, invalid("flags is %#x, which holds unknown bits", uint32(config.flags))
	}
	if config.flags&C.RP_MEMBER_ENVIRONMENT != 0 {
		warnings = append(warnings, p.SetEnvironment(getenv)...)
	}
	for _, w := range warnings {
		logger.Warn(w)
	}
	return p, nil
}

func toOptions(items *C.rp_option, n C.size_t) (map[string]string, error) {
	given, err := itemsOf("options", items, n)
	if err != nil {
		return nil, err
	}
	options := make(map[string]string, len(given))
	for _, item := range given {
		key, err := text("the key of an option", item.key)
		if err != nil {
			return nil, err
		}
		value, err := text("option "+key, item.value)
		if err != nil {
			return nil, err
		}
		if item.key == nil || item.value == nil {
			return nil, invalid("option %q lacks its key or value", key)
		}
		options[key] = value
	}
	return options, nil
}

// getenv asks C's environment: Go's is a copy of what it was when the library
// was loaded.
func getenv(name string) string {
	key := C.CString(name)
	defer C.free(unsafe.Pointer(key))
	return C.GoString(C.getenv(key))
}

//export rpgo_member_open
func rpgo_member_open(config *C.rp_member_config, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		p, err := toParams(config)
		if err != nil {
			return err
		}
		m, err := backend.Open(p, logger)
		if err != nil {
			return err
		}
		*out = openHandle(newMember(m))
		return nil
	})
}

//export rpgo_member_next
func rpgo_member_next(id C.uint64_t, timeoutMS C.int64_t, out *C.rp_outcome, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		limit, limited := timeLimit(timeoutMS)
		o, err := m.join.run(limit, limited, m.next)
		if err != nil {
			return err
		}
		out.round = C.uint64_t(o.Round)
		out.rank = C.int32_t(o.Rank)
		out.world_size = C.int32_t(o.World)
		out.store_port = C.int32_t(o.StorePort)
		fillText(out.store_addr[:], o.StoreAddr)
		if out.struct_size >= C.sizeof_rp_outcome {
			fillText(out.advertised_addr[:], o.AdvertisedAddr)
		}
		return nil
	})
}

//export rpgo_member_cancel
func rpgo_member_cancel(id C.uint64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		m.join.cancel()
		m.finishing.cancel()
		m.shutdown.cancel()
		m.closing.cancel()
		m.news.set() // ends a wait for news
		return nil
	})
}

// runLimited runs a call that returns nothing but its error.
func runLimited(f *singleFlight[struct{}], timeoutMS C.int64_t, do func(context.Context) error) error {
	limit, limited := timeLimit(timeoutMS)
	_, err := f.run(limit, limited, func(ctx context.Context) (struct{}, error) { return struct{}{}, do(ctx) })
	return err
}

//export rpgo_member_finish
func rpgo_member_finish(id C.uint64_t, timeoutMS C.int64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		return runLimited(&m.finishing, timeoutMS, m.Finish)
	})
}

//export rpgo_member_wait
func rpgo_member_wait(id C.uint64_t, timeoutMS C.int64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		return m.news.wait(timeLimit(timeoutMS))
	})
}

//export rpgo_member_fd
func rpgo_member_fd(id C.uint64_t, fd *C.int32_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		return fillDescriptor(fd, &m.news)
	})
}

//export rpgo_member_shutdown
func rpgo_member_shutdown(id C.uint64_t, ending C.int32_t, reason *C.char, timeoutMS C.int64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		why, err := text("reason", reason)
		if err != nil {
			return err
		}
		how, err := toEnding(ending)
		if err != nil {
			return err
		}
		return runLimited(&m.shutdown, timeoutMS, func(ctx context.Context) error { return m.Shutdown(ctx, how, why) })
	})
}

func toEnding(ending C.int32_t) (rendezvous.Ending, error) {
	switch ending {
	case C.RP_END_LEAVE:
		return rendezvous.EndLeave, nil
	case C.RP_END_SUCCESS:
		return rendezvous.EndSuccess, nil
	case C.RP_END_FAILED:
		return rendezvous.EndFailed, nil
	}
	return 0, invalid("there is no ending %d", int32(ending))
}

//export rpgo_member_set_closed
func rpgo_member_set_closed(id C.uint64_t, reason *C.char, timeoutMS C.int64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		why, err := text("reason", reason)
		if err != nil {
			return err
		}
		return runLimited(&m.closing, timeoutMS, func(ctx context.Context) error { return m.SetClosed(ctx, why) })
	})
}

//export rpgo_member_nodes_waiting
func rpgo_member_nodes_waiting(id C.uint64_t, count *C.int32_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		*count = C.int32_t(m.NodesWaiting())
		return nil
	})
}

//export rpgo_member_is_closed
func rpgo_member_is_closed(id C.uint64_t, closed *C.int32_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		*closed = truth(m.Closed())
		return nil
	})
}

//export rpgo_member_reason
func rpgo_member_reason(id C.uint64_t, out *C.char, size *C.size_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		reason := toUTF8(m.Reason())
		needed := C.size_t(len(reason) + 1)
		room := *size
		*size = needed
		if out == nil || room < needed {
			return rendezvous.Errorf(codeBuffer, "the text needs %d bytes, there is room for %d", uint64(needed), uint64(room))
		}
		copy(unsafe.Slice((*byte)(unsafe.Pointer(out)), int(needed)), reason+"\x00")
		return nil
	})
}

//export rpgo_member_keys
func rpgo_member_keys(id C.uint64_t, round C.uint64_t, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return on(id, err, func(m *member) error {
		*out = openHandle(newStore(m.Keys(uint64(round))))
		return nil
	})
}

//export rpgo_member_close
func rpgo_member_close(id C.uint64_t, err *C.rp_error) C.int32_t {
	return onLast(id, err, func(m *member) error {
		return m.Close()
	})
}
