package main

// #include <unistd.h>
// #include "glue.h"
import "C"

import (
	"cmp"
	"errors"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"rallypoint/agent"
	workerlogs "rallypoint/agent/logs"
	"rallypoint/agent/process"
	"rallypoint/backend"
	"rallypoint/core/params"
	"rallypoint/internal/linequeue"
)

// plannerPatience bounds how long a program may take to say where workers write.
const plannerPatience = time.Minute

func setPipes(spec *agent.Spec, config *C.rp_agent_config, p *pipes) error {
	if config.logs_fd != 0 {
		file, err := p.take("logs_fd", config.logs_fd)
		if err != nil {
			return err
		}
		spec.Logs.Planner = workerlogs.NewPlanner(file, plannerPatience)
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
	queue := linequeue.New(file, "events_fd")
	queue.ReportElsewhere(func(text string) { logger.Warn(text) })
	p.queue = queue
	if spec.Events != nil {
		spec.Events = io.MultiWriter(queue, spec.Events)
	} else {
		spec.Events = queue
	}
	if config.flags&C.RP_AGENT_RDZV_EVENTS != 0 {
		spec.RdzvEvents = queue
	}
	if config.flags&C.RP_AGENT_METRICS != 0 {
		spec.Metrics = queue
	}
	return nil
}

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
	if spec.CPUs, err = process.BindCPUs(mode, devices, spec.Workers); err != nil {
		return invalid("numa_binding: %v", err)
	}
	return nil
}

// rawTexts copies an array of texts that may hold any bytes.
func rawTexts(name string, items **C.char, n C.size_t) ([]string, error) {
	given, err := itemsOf(name, items, n)
	if err != nil {
		return nil, err
	}
	list := make([]string, 0, len(given))
	for i, item := range given {
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
	}
	return span(ms), nil
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
	spec.MaxNoProgress = int(config.max_no_progress)
	spec.Role = "default"
	err = texts(
		textField{"role", config.role, &spec.Role},
		textField{"name", config.name, &name},
		textField{"command", config.command, &spec.Command},
		textField{"log_dir", config.log_dir, &spec.Logs.Dir},
		textField{"log_prefix", config.log_prefix, &spec.Logs.PrefixTemplate},
	)
	if err != nil {
		return spec, "", err
	}
	name = cmp.Or(name, agent.EntryPoint(spec.Argv, ""))
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
		{"restart_window_ms", config.restart_window_ms, 0, &spec.RestartWindow},
		{"drain_timeout_ms", config.drain_timeout_ms, agent.DefaultDrainTimeout, &spec.DrainTimeout},
		{"preload_timeout_ms", config.preload_timeout_ms, process.DefaultPreloadTimeout, &spec.PreloadTimeout},
		{"check_timeout_ms", config.check_timeout_ms, agent.DefaultCheckTimeout, &spec.CheckTimeout},
		{"check_every_ms", config.check_every_ms, 0, &spec.CheckEvery},
		{"check_away_ms", config.check_away_ms, agent.DefaultLeaveRule.Window, &spec.CheckAway},
		{"hang_timeout_ms", config.hang_timeout_ms, 0, &spec.HangTimeout},
	} {
		if *field.to, err = orDefault(field.name, field.from, field.normal); err != nil {
			return spec, "", err
		}
	}
	if config.hang_timeout_ms == -1 {
		spec.HangTimeout = agent.HangOff
	}
	if spec.OnHang = agent.OnHang(config.on_hang); spec.OnHang < 0 || int(spec.OnHang) >= len(agent.OnHangNames) {
		return spec, "", invalid("on_hang is %d, it must be an RP_HANG_ value", int32(config.on_hang))
	}
	if err := setDirectives(&spec, config); err != nil {
		return spec, "", err
	}
	if spec.Checks, err = rawTexts("checks", config.checks, config.checks_len); err != nil {
		return spec, "", err
	}
	if err := errors.Join(setLogs(&spec.Logs, config), setPreload(&spec, config)); err != nil {
		return spec, "", err
	}
	return spec, name, setFlags(&spec, config)
}

func setDirectives(spec *agent.Spec, config *C.rp_agent_config) error {
	spec.DirectiveSignal = unix.Signal(config.directive_signal)
	if spec.DirectiveSignal != 0 && unix.SignalName(spec.DirectiveSignal) == "" {
		return invalid("directive_signal is %d, which is no signal", int32(config.directive_signal))
	}
	if config.on_signal == nil {
		return nil
	}
	actions, err := text("on_signal", config.on_signal)
	if err != nil {
		return err
	}
	if spec.OnSignal, err = agent.ParseOnSignal(actions); err != nil {
		return invalid("on_signal: %v", err)
	}
	return nil
}

func setPreload(spec *agent.Spec, config *C.rp_agent_config) (err error) {
	if config.preload == nil && config.preload_len == 0 {
		return nil
	}
	if spec.Preload, err = rawTexts("preload", config.preload, config.preload_len); err != nil {
		return err
	}
	for _, name := range spec.Preload {
		if !process.IsModuleName(name) {
			return invalid("preload holds %q, which is not the name of a module", name)
		}
	}
	return nil
}

func setLogs(spec *workerlogs.Spec, config *C.rp_agent_config) (err error) {
	spec.TempDir = process.TempDir(getenv)
	for _, field := range []struct {
		name string
		from *C.char
		to   *workerlogs.StreamSpec
	}{{"redirects", config.redirects, &spec.Redirects}, {"tee", config.tee, &spec.Tee}} {
		if field.from == nil {
			continue
		}
		streams, err := text(field.name, field.from)
		if err != nil {
			return err
		}
		if *field.to, err = workerlogs.ParseStreamSpec(streams); err != nil {
			return invalid("%s: %v", field.name, err)
		}
	}
	if spec.OutFilters, err = rawTexts("stdout_filters", config.stdout_filters, config.stdout_filters_len); err != nil {
		return err
	}
	if spec.ErrFilters, err = rawTexts("stderr_filters", config.stderr_filters, config.stderr_filters_len); err != nil {
		return err
	}
	ranks, err := itemsOf("local_ranks", config.local_ranks, config.local_ranks_len)
	if err != nil || ranks == nil {
		return err
	}
	spec.Ranks = []int{}
	for _, rank := range ranks {
		spec.Ranks = append(spec.Ranks, int(rank))
	}
	return nil
}

func setFlags(spec *agent.Spec, config *C.rp_agent_config) error {
	const known = C.RP_AGENT_VIRTUAL_RANK | C.RP_AGENT_NO_MACROS | C.RP_AGENT_IDENTICAL | C.RP_AGENT_SUBREAPER |
		C.RP_AGENT_KEEP_DAEMONS | C.RP_AGENT_EVENTS | C.RP_AGENT_RDZV_EVENTS | C.RP_AGENT_METRICS |
		C.RP_AGENT_WARM | C.RP_AGENT_AUTO_PROGRESS
	if config.flags&^known != 0 {
		return invalid("flags is %#x, which holds unknown bits", uint32(config.flags))
	}
	spec.VirtualRank = config.flags&C.RP_AGENT_VIRTUAL_RANK != 0
	spec.NoMacros = config.flags&C.RP_AGENT_NO_MACROS != 0
	spec.Identical = config.flags&C.RP_AGENT_IDENTICAL != 0
	spec.Subreaper = config.flags&C.RP_AGENT_SUBREAPER != 0
	spec.KeepDaemons = config.flags&C.RP_AGENT_KEEP_DAEMONS != 0
	spec.Warm = config.flags&C.RP_AGENT_WARM != 0
	spec.CountSteps = config.flags&C.RP_AGENT_AUTO_PROGRESS != 0
	if spec.Warm && (!spec.Subreaper || spec.KeepDaemons) {
		return invalid("flags is %#x: RP_AGENT_WARM takes RP_AGENT_SUBREAPER, and excludes RP_AGENT_KEEP_DAEMONS", uint32(config.flags))
	}
	if config.flags&C.RP_AGENT_EVENTS != 0 {
		spec.Streams = linequeue.NewStreams(os.Stdout, os.Stderr)
		spec.Streams.Report(func(text string) { logger.Warn(text) })
		spec.Events = spec.Streams.Err
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
		if err := setPolicy(spec, config, m.Params()); err != nil {
			return nil, err
		}
		return borrowed{m.Node, m.changed}, nil
	}
	p := params.Default()
	p.RunID = "none"
	if config.rendezvous != nil {
		var err error
		if p, err = toParams(config.rendezvous); err != nil {
			return nil, err
		}
	}
	meetBy(spec, p)
	if err := setPolicy(spec, config, p); err != nil {
		return nil, err
	}
	p.Supervised = true
	if p.Endpoint == "" {
		if p.Min > 1 || p.RunID == "" {
			return nil, invalid("the endpoint or the run id is missing, and without an endpoint a job has one node")
		}
		if err := p.RefuseToken("a job of one node"); err != nil {
			return nil, err
		}
		spec.Backend = "standalone"
		return backend.OpenStandalone(p, logger)
	}
	return backend.Open(p, logger)
}

// setPolicy takes what the node does whose workers fail, or whose checks turn bad, which depends on
// how the job's nodes meet.
func setPolicy(spec *agent.Spec, config *C.rp_agent_config, p params.Params) error {
	fixed := ""
	switch {
	case p.Endpoint == "":
		fixed = "standalone"
	case spec.Backend == backend.SchemeStatic:
		fixed = spec.Backend
	}
	if spec.CheckEvery > 0 && fixed != "" {
		return invalid("check_every_ms: no other node can take the place of one that leaves a %s job; use HOST:PORT, a directory or an etcd", fixed)
	}
	policy := "restart"
	if err := texts(textField{"on_failure", config.on_failure, &policy}); err != nil {
		return err
	}
	if err := spec.SetOnFailure(policy, fixed, p.Min, p.Max); err != nil {
		return invalid("on_failure: %v", err)
	}
	return nil
}

func meetBy(spec *agent.Spec, p params.Params) {
	spec.RunID, spec.Backend, spec.Host = p.RunID, backend.Name(p.Endpoint), p.HostName
	spec.LostNodeTimeout = p.LeaseTimeout + p.ReconnectGrace
	spec.LoopbackUsers = p.LoopbackUsers
}
