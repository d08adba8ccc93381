package main

// #include "glue.h"
import "C"

import (
	"errors"

	"rallypoint/agent"
)

// onResult is on for the result of an agent's run; errPending before its end.
func onResult(id C.uint64_t, out *C.rp_error, body func(*agent.Result) error) C.int32_t {
	return on(id, out, func(a *openAgent) error {
		r, err := a.result()
		if err != nil {
			return err
		}
		return body(r)
	})
}

func stateOf(r *agent.Result) (state, signal int) {
	var stopped *agent.SignalError
	switch {
	case errors.As(r.Err, new(*agent.RequeueError)):
		return C.RP_AGENT_REQUEUED, 0
	case errors.As(r.Err, new(*agent.NoProgressError)):
		return C.RP_AGENT_NO_PROGRESS, 0
	case r.Spare:
		return C.RP_AGENT_NOT_NEEDED, 0
	case r.Err == nil:
		return C.RP_AGENT_SUCCEEDED, 0
	case errors.As(r.Err, new(*agent.FailedError)):
		return C.RP_AGENT_FAILED, 0
	case errors.As(r.Err, new(*agent.PeerError)):
		return C.RP_AGENT_PEER_FAILED, 0
	case errors.As(r.Err, &stopped):
		return C.RP_AGENT_STOPPED, int(stopped.Signal)
	}
	return C.RP_AGENT_BROKEN, 0
}

//export rpgo_agent_get_result
func rpgo_agent_get_result(id C.uint64_t, out *C.rp_agent_result, err *C.rp_error) C.int32_t {
	return onResult(id, err, func(r *agent.Result) error {
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
	return onResult(id, err, func(r *agent.Result) error {
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
	return onResult(id, err, func(r *agent.Result) error {
		if index < 0 || int(index) >= len(r.Failures) {
			return invalid("there is no failure %d: %d were noticed", int32(index), len(r.Failures))
		}
		f := &r.Failures[index]
		out.rank, out.local_rank = C.int32_t(f.Rank), C.int32_t(f.LocalRank)
		out.pid, out.exit_code = C.int32_t(f.Pid), C.int32_t(f.ExitCode)
		out.terminated = truth(f.Terminated)
		out.time_ms = C.int64_t(f.Time.UnixMilli())
		fillBuffer(&out.host, []byte(f.Host))
		fillBuffer(&out.error_file, []byte(f.ErrorFile))
		fillBuffer(&out.error_data, f.Data)
		fillBuffer(&out.message, []byte(f.Message))
		return nil
	})
}
