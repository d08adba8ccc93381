package main

// #include <unistd.h>
// #include "glue.h"
import "C"

import (
	"context"
	"errors"
	"math"
	"os"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rallypoint/backend"
	"rallypoint/core/agent"
	"rallypoint/core/rendezvous"
	"rallypoint/tcpstore/fixed"
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
func (a *openAgent) start() (*task[agent.Result], error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return nil, rendezvous.Errorf(codeHandle, "the handle was closed meanwhile")
	}
	if a.run == nil {
		a.run = startTask(context.Background(), func() {}, func(ctx context.Context) (agent.Result, error) {
			err := a.Run(ctx)
			return a.Result(), err
		}, a.events.end)
	}
	return a.run, nil
}

// result returns how the run ended, errPending before.
func (a *openAgent) result() (*agent.Result, error) {
	a.mu.Lock()
	t := a.run
	a.mu.Unlock()
	if t == nil {
		return nil, errPending
	}
	if t.wait(0, true) == errPending {
		return nil, errPending
	}
	return &t.value, nil
}

// close ends the run at once and waits for its end.
func (a *openAgent) close() {
	a.mu.Lock()
	a.closed = true
	t := a.run
	a.mu.Unlock()
	a.Stop(unix.SIGKILL, 0)
	a.Stop(unix.SIGKILL, 0)
	if t != nil {
		<-t.done
	} else if _, borrowed := a.rdzv.(lent); !borrowed {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = a.rdzv.Shutdown(ctx, rendezvous.EndLeave, "") // never joined: there is nobody to tell
	}
	a.events.ready.close()
	a.pipes.close()
}

// pipes are duplicates of descriptors that the program lent.
type pipes []*os.File

// take duplicates a descriptor, with deadlines.
func (p *pipes) take(name string, fd C.int32_t) (*os.File, error) {
	dup, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		return nil, invalid("%s is %d: %v", name, int32(fd), err)
	}
	err = unix.SetNonblock(dup, true)
	file := os.NewFile(uintptr(dup), name)
	*p = append(*p, file)
	if err == nil {
		err = file.SetDeadline(time.Time{})
	}
	if err != nil {
		return nil, invalid("%s is %d, which is no pipe or socket: %v", name, int32(fd), err)
	}
	return file, nil
}

func (p *pipes) close() {
	for _, file := range *p {
		_ = file.Close()
	}
	*p = nil
}

// plannerPatience bounds how long a program may take to say where workers write.
const plannerPatience = time.Minute

// eventSinks hands events to each of several.
type eventSinks []agent.EventSink

// Record implements agent.EventSink.
func (s eventSinks) Record(event []byte) {
	for _, sink := range s {
		sink.Record(event)
	}
}

// setPipes takes what the program wants to be asked or told on descriptors.
func setPipes(spec *agent.Spec, config *C.rp_agent_config, p *pipes) error {
	if config.logs_fd != 0 {
		file, err := p.take("logs_fd", config.logs_fd)
		if err != nil {
			return err
		}
		spec.Logs.Planner = agent.NewLogPlanner(file, plannerPatience)
	}
	const more = C.RP_AGENT_RDZV_EVENTS | C.RP_AGENT_METRICS
	if config.events_fd == 0 {
		if config.flags&more != 0 {
			return invalid("flags is %#x, which asks for events of the rendezvous or metrics on events_fd, but that is 0", uint32(config.flags))
		}
		return nil
	}
	file, err := p.take("events_fd", config.events_fd)
	if err != nil {
		return err
	}
	pipe := &agent.PipeSink{File: file, Lost: func(err error) { logger.Warn("events are lost from here on, nobody takes them: " + err.Error()) }}
	sinks := eventSinks{pipe}
	if spec.Events != nil {
		sinks = append(sinks, spec.Events)
	}
	spec.Events = sinks
	if config.flags&C.RP_AGENT_RDZV_EVENTS != 0 {
		spec.RdzvEvents = pipe
	}
	if config.flags&C.RP_AGENT_METRICS != 0 {
		spec.Metrics = pipe
	}
	return nil
}

// setCPUs binds the workers to CPUs near their devices.
func setCPUs(spec *agent.Spec, config *C.rp_agent_config) error {
	devices, err := rawTexts("numa_devices", config.numa_devices, config.numa_devices_len)
	if err != nil || config.numa_binding == nil {
		return err
	}
	mode, err := text("numa_binding", config.numa_binding)
	if err != nil {
		return err
	}
	if spec.Workers < 1 {
		return nil // which is an error of its own
	}
	if spec.CPUs, err = agent.BindCPUs(mode, devices, spec.Workers); err != nil {
		return invalid("numa_binding: %v", err)
	}
	return nil
}

// maxEvents is how many events are kept for C: more than the workers of a large
// node make in one attempt.
const maxEvents = 4096

// events are what happened and C has not asked for yet.
type events struct {
	mu      sync.Mutex
	queue   []agent.Notice
	dropped uint32
	ended   bool
	ready   signal // set while queue is not empty, and for good once the run is over
}

func (e *events) add(n agent.Notice) {
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
// so whoever took that event first would else poll for ever.
func (e *events) end() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended = true
	e.ready.set()
}

func (e *events) take() (n agent.Notice, dropped uint32, ok bool) {
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

// rawTexts copies an array of texts that may hold any bytes.
func rawTexts(name string, items **C.char, n C.size_t) ([]string, error) {
	if n > maxItems {
		return nil, rendezvous.Errorf(rendezvous.CodeTooLarge, "%s has %d items; the limit is %d", name, uint64(n), maxItems)
	}
	if items == nil && n > 0 {
		return nil, invalid("%s is NULL with a length of %d", name, uint64(n))
	}
	list := make([]string, 0, int(n))
	for i, item := range unsafe.Slice(items, int(n)) {
		if item == nil {
			return nil, invalid("item %d of %s is NULL", i, name)
		}
		list = append(list, C.GoString(item))
	}
	return list, nil
}

// environment is C's: Go's is a copy of what it was when the library was loaded.
func environment() []string {
	if C.environ == nil {
		return nil
	}
	var list []string
	for p := C.environ; *p != nil; p = (**C.char)(unsafe.Add(unsafe.Pointer(p), unsafe.Sizeof(*p))) {
		list = append(list, C.GoString(*p))
	}
	return list
}

// orDefault converts a duration of C: 0 is the default, -1 none.
func orDefault(name string, ms C.int64_t, normal time.Duration) (time.Duration, error) {
	switch {
	case ms == 0:
		return normal, nil
	case ms == -1:
		return 0, nil
	case ms < -1:
		return 0, invalid("%s is %d, it must not be below -1", name, int64(ms))
	case int64(ms) > math.MaxInt64/int64(time.Millisecond):
		return math.MaxInt64, nil
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// toSpec converts a configuration but for its rendezvous.
func toSpec(config *C.rp_agent_config) (spec agent.Spec, name string, err error) {
	if spec.Argv, err = rawTexts("argv", config.argv, config.argv_len); err != nil {
		return spec, "", err
	}
	if len(spec.Argv) == 0 || spec.Argv[0] == "" {
		return spec, "", invalid("argv is empty: there is no command to run")
	}
	if spec.Environ, err = rawTexts("environment", config.environment, config.environment_len); err != nil {
		return spec, "", err
	}
	if config.environment == nil {
		spec.Environ = environment()
	}
	spec.Workers, spec.MaxRestarts = int(config.workers), int(config.max_restarts)
	spec.Role = "default"
	for _, field := range []struct {
		name string
		from *C.char
		to   *string
	}{
		{"role", config.role, &spec.Role},
		{"name", config.name, &name},
		{"log_dir", config.log_dir, &spec.Logs.Dir},
		{"log_prefix", config.log_prefix, &spec.Logs.PrefixTemplate},
	} {
		if field.from == nil {
			continue
		}
		if *field.to, err = text(field.name, field.from); err != nil {
			return spec, "", err
		}
	}
	if name == "" {
		name = agent.EntryPoint(spec.Argv, "")
	}
	for _, field := range []struct {
		name   string
		from   C.int64_t
		normal time.Duration
		to     *time.Duration
	}{
		{"monitor_interval_ms", config.monitor_interval_ms, agent.DefaultMonitorInterval, &spec.MonitorInterval},
		{"shutdown_timeout_ms", config.shutdown_timeout_ms, agent.DefaultShutdownTimeout, &spec.ShutdownTimeout},
		{"exit_barrier_timeout_ms", config.exit_barrier_timeout_ms, agent.DefaultExitBarrierTimeout, &spec.ExitBarrierTimeout},
		{"restart_delay_ms", config.restart_delay_ms, 0, &spec.RestartDelay},
	} {
		if *field.to, err = orDefault(field.name, field.from, field.normal); err != nil {
			return spec, "", err
		}
	}
	if err := setLogs(&spec.Logs, config); err != nil {
		return spec, "", err
	}
	return spec, name, setFlags(&spec, config)
}

func setLogs(logs *agent.LogSpec, config *C.rp_agent_config) (err error) {
	logs.TempDir = getenv("TMPDIR")
	for _, field := range []struct {
		name string
		from *C.char
		to   *agent.StreamSpec
	}{{"redirects", config.redirects, &logs.Redirects}, {"tee", config.tee, &logs.Tee}} {
		if field.from == nil {
			continue
		}
		streams, err := text(field.name, field.from)
		if err != nil {
			return err
		}
		if *field.to, err = agent.ParseStreamSpec(streams); err != nil {
			return invalid("%s: %v", field.name, err)
		}
	}
	if logs.OutFilters, err = rawTexts("stdout_filters", config.stdout_filters, config.stdout_filters_len); err != nil {
		return err
	}
	if logs.ErrFilters, err = rawTexts("stderr_filters", config.stderr_filters, config.stderr_filters_len); err != nil {
		return err
	}
	if config.local_ranks_len > maxItems {
		return rendezvous.Errorf(rendezvous.CodeTooLarge, "local_ranks has %d items; the limit is %d", uint64(config.local_ranks_len), maxItems)
	}
	if config.local_ranks == nil && config.local_ranks_len > 0 {
		return invalid("local_ranks is NULL with a length of %d", uint64(config.local_ranks_len))
	}
	if config.local_ranks == nil {
		return nil
	}
	logs.Ranks = []int{}
	for _, rank := range unsafe.Slice(config.local_ranks, int(config.local_ranks_len)) {
		logs.Ranks = append(logs.Ranks, int(rank))
	}
	return nil
}

func setFlags(spec *agent.Spec, config *C.rp_agent_config) error {
	const known = C.RP_AGENT_VIRTUAL_RANK | C.RP_AGENT_NO_MACROS | C.RP_AGENT_IDENTICAL | C.RP_AGENT_SUBREAPER |
		C.RP_AGENT_KEEP_DAEMONS | C.RP_AGENT_EVENTS | C.RP_AGENT_RDZV_EVENTS | C.RP_AGENT_METRICS
	if config.flags&^known != 0 {
		return invalid("flags is %#x, which holds unknown bits", uint32(config.flags))
	}
	spec.VirtualRank = config.flags&C.RP_AGENT_VIRTUAL_RANK != 0
	spec.NoMacros = config.flags&C.RP_AGENT_NO_MACROS != 0
	spec.Identical = config.flags&C.RP_AGENT_IDENTICAL != 0
	spec.Subreaper = config.flags&C.RP_AGENT_SUBREAPER != 0
	spec.KeepDaemons = config.flags&C.RP_AGENT_KEEP_DAEMONS != 0
	if config.flags&C.RP_AGENT_EVENTS != 0 {
		spec.Events = agent.LineSink{W: os.Stderr}
	}
	return nil
}

// toRendezvous converts how the node of a configuration meets the others. It
// completes the spec by what follows from that.
func toRendezvous(config *C.rp_agent_config, spec *agent.Spec) (agent.Rendezvous, error) {
	if config.member.id != 0 {
		m, err := lookUp[*member](config.member.id)
		if err != nil {
			return nil, err
		}
		meetBy(spec, m.Params())
		return lent{m.Node, m.changed}, nil
	}
	p := rendezvous.DefaultParams()
	p.RunID = "none"
	if config.rendezvous != nil {
		var warnings []string
		var err error
		if p, warnings, err = toParams(config.rendezvous); err != nil {
			return nil, err
		}
		for _, w := range warnings {
			logger.Warn(w)
		}
	}
	meetBy(spec, p)
	if p.Endpoint == "" {
		if p.Min > 1 || p.RunID == "" {
			return nil, invalid("the endpoint or the run id is missing, and without an endpoint a job has one node")
		}
		spec.Backend = "standalone"
		return fixed.NewAlone(p.LocalAddr, logger), nil
	}
	return backend.Open(p, logger)
}

func meetBy(spec *agent.Spec, p rendezvous.Params) {
	spec.RunID, spec.Backend = p.RunID, backend.Name(p.Endpoint)
	spec.VerdictTimeout = p.LeaseTimeout + p.ReconnectGrace
}

//export rpgo_agent_open
func rpgo_agent_open(config *C.rp_agent_config, out *C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		spec, name, err := toSpec(config)
		if err != nil {
			return err
		}
		if err := setCPUs(&spec, config); err != nil {
			return err
		}
		a := &openAgent{}
		if err := setPipes(&spec, config, &a.pipes); err != nil {
			a.pipes.close()
			return err
		}
		if a.rdzv, err = toRendezvous(config, &spec); err != nil {
			a.pipes.close()
			return err
		}
		spec.Notify = a.events.add
		if a.Agent, err = agent.New(spec, name, a.rdzv, logger); err != nil {
			a.pipes.close()
			return invalid("%v", err)
		}
		*out = openHandle(a)
		return nil
	})
}

//export rpgo_agent_run
func rpgo_agent_run(id C.uint64_t, timeoutMS C.int64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a, err := lookUp[*openAgent](id)
		if err != nil {
			return err
		}
		t, err := a.start()
		if err != nil {
			return err
		}
		return t.wait(timeLimit(timeoutMS))
	})
}

//export rpgo_agent_stop
func rpgo_agent_stop(id C.uint64_t, sig C.int32_t, graceMS C.int64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a, err := lookUp[*openAgent](id)
		if err != nil {
			return err
		}
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

//export rpgo_agent_next_event
func rpgo_agent_next_event(id C.uint64_t, out *C.rp_agent_event, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a, err := lookUp[*openAgent](id)
		if err != nil {
			return err
		}
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
		return nil
	})
}

//export rpgo_agent_fd
func rpgo_agent_fd(id C.uint64_t, fd *C.int32_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a, err := lookUp[*openAgent](id)
		if err != nil {
			return err
		}
		return fillDescriptor(fd, &a.events.ready)
	})
}

// stateOf says how a run ended.
func stateOf(r *agent.Result) (state, signal int) {
	var failed *agent.FailedError
	var peer *agent.PeerError
	var stopped *agent.SignalError
	switch {
	case r.Spare:
		return C.RP_AGENT_NOT_NEEDED, 0
	case r.Err == nil:
		return C.RP_AGENT_SUCCEEDED, 0
	case errors.As(r.Err, &failed):
		return C.RP_AGENT_FAILED, 0
	case errors.As(r.Err, &peer):
		return C.RP_AGENT_PEER_FAILED, 0
	case errors.As(r.Err, &stopped):
		return C.RP_AGENT_STOPPED, int(stopped.Signal)
	}
	return C.RP_AGENT_BROKEN, 0
}

//export rpgo_agent_get_result
func rpgo_agent_get_result(id C.uint64_t, out *C.rp_agent_result, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a, err := lookUp[*openAgent](id)
		if err != nil {
			return err
		}
		r, err := a.result()
		if err != nil {
			return err
		}
		state, sig := stateOf(r)
		out.state, out.signal = C.int32_t(state), C.int32_t(sig)
		out.round, out.restarts = C.uint64_t(r.Round), C.int32_t(r.Restarts)
		out.group_rank, out.group_world_size = C.int32_t(r.GroupRank), C.int32_t(r.Groups)
		out.world_size = C.int32_t(r.World)
		out.workers, out.failures = C.int32_t(len(r.Workers)), C.int32_t(len(r.Failures))
		out.root_cause = C.int32_t(r.Root)
		fillBuffer(&out.report, []byte(r.Report))
		return nil
	})
}

//export rpgo_agent_get_worker
func rpgo_agent_get_worker(id C.uint64_t, local C.int32_t, out *C.rp_worker_result, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a, err := lookUp[*openAgent](id)
		if err != nil {
			return err
		}
		r, err := a.result()
		if err != nil {
			return err
		}
		if local < 0 || int(local) >= len(r.Workers) {
			return invalid("there is no worker of local rank %d: %d were started", int32(local), len(r.Workers))
		}
		w := &r.Workers[local]
		out.local_rank, out.rank = C.int32_t(w.LocalRank), C.int32_t(w.Rank)
		out.role_rank, out.role_world_size = C.int32_t(w.RoleRank), C.int32_t(w.RoleWorldSize)
		out.pid, out.exit_code = C.int32_t(w.Pid), C.int32_t(w.ExitCode)
		fillBuffer(&out.stdout_path, []byte(w.OutFile))
		fillBuffer(&out.stderr_path, []byte(w.ErrFile))
		fillBuffer(&out.error_file, []byte(w.ErrorFile))
		return nil
	})
}

//export rpgo_agent_get_failure
func rpgo_agent_get_failure(id C.uint64_t, index C.int32_t, out *C.rp_failure, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a, err := lookUp[*openAgent](id)
		if err != nil {
			return err
		}
		r, err := a.result()
		if err != nil {
			return err
		}
		if index < 0 || int(index) >= len(r.Failures) {
			return invalid("there is no failure %d: %d were noticed", int32(index), len(r.Failures))
		}
		f := &r.Failures[index]
		out.rank, out.local_rank = C.int32_t(f.Rank), C.int32_t(f.LocalRank)
		out.pid, out.exit_code = C.int32_t(f.Pid), C.int32_t(f.ExitCode)
		out.terminated = 0
		if f.Terminated {
			out.terminated = 1
		}
		out.time_ms = C.int64_t(f.Time.UnixMilli())
		fillBuffer(&out.host, []byte(f.Host))
		fillBuffer(&out.error_file, []byte(f.ErrorFile))
		fillBuffer(&out.error_data, f.Data)
		fillBuffer(&out.message, []byte(f.Message))
		return nil
	})
}

//export rpgo_agent_close
func rpgo_agent_close(id C.uint64_t, err *C.rp_error) C.int32_t {
	return export(err, func() error {
		a, err := closeHandle[*openAgent](id)
		if err != nil {
			return err
		}
		a.close()
		return nil
	})
}
