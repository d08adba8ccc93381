"""The agent for programs that build on torch's WorkerSpec.

RallypointElasticAgent takes the place of torch's LocalElasticAgent. Importing this
module does not import torch.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ._errors import RallypointError, invalid
from ._launch.agent import Job
from ._launch.config import DEFAULT_SIGNALS, barrier_timeout
from ._launch.run import RunOutcome, run_job, set_output
from ._native import abi
from ._rendezvous.endpoint import STATIC_BACKEND, MemberConfig, resolve

if TYPE_CHECKING:
    from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup, WorkerSpec

__all__ = ["RallypointElasticAgent"]


class RallypointElasticAgent:
    """Runs the workers of a torch WorkerSpec with Rallypoint's agent.

    Takes the arguments of torch's LocalElasticAgent. The rendezvous handler of the
    spec must be one from rallypoint.handler, or torch's handler for the static backend,
    which is then replaced by Rallypoint's.

    run() may be called once, from any thread. In the main thread it handles the signals in
    TORCHELASTIC_SIGNALS_TO_HANDLE (default SIGTERM, SIGINT, SIGHUP, SIGQUIT).

    Args:
        spec: what to run, a WorkerSpec: a function or a command in `entrypoint`, and the
            handler of its rendezvous. Its master_addr and master_port, if set, become the
            workers' MASTER_ADDR and MASTER_PORT.
        logs_specs: where the workers' output goes: torch's DefaultLogsSpecs or
            rallypoint.LogsSpecs. None is the console.
        start_method: accepted for compatibility with torch, but ignored: workers are fresh
            interpreters.
        exit_barrier_timeout: longest wait for other nodes after success, in seconds. None:
            $TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT or 300; 0: no wait.
        log_line_prefix_template: prefix of lines that are tee'd.
        shutdown_timeout: time in seconds that workers have between a signal and SIGKILL.

    Raises:
        ValueError: a timeout is negative, or this agent cannot use the handler.
    """

    def __init__(
        self,
        spec: WorkerSpec,
        logs_specs: Any = None,
        start_method: str = "spawn",
        exit_barrier_timeout: float | None = None,
        log_line_prefix_template: str | None = None,
        shutdown_timeout: float = 30,
    ) -> None:
        if shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout must be non-negative, got {shutdown_timeout}")
        from torch.distributed.elastic.agent.server.api import ElasticAgent, WorkerGroup

        ElasticAgent.register(RallypointElasticAgent)
        self._spec = spec
        self._group: WorkerGroup = WorkerGroup(spec)
        self._remaining_restarts: int = spec.max_restarts
        self._total_execution_time: int = 0  # of run, in seconds, as torch's agent has it
        self._job = Job(
            argv=(),
            environment={},
            workers=spec.local_world_size,
            max_restarts=spec.max_restarts,
            role=spec.role,
            monitor_interval=spec.monitor_interval,
            shutdown_timeout=shutdown_timeout,
            exit_barrier_timeout=barrier_timeout(exit_barrier_timeout),
        )
        set_output(self._job, logs_specs, log_line_prefix_template, spec)
        _meet(self._job, spec)
        self._job.on_step = self._step

    def __repr__(self) -> str:
        group = self._group
        return (
            f"<rallypoint.RallypointElasticAgent of {self._spec.local_world_size} workers, "
            f"role {self._spec.role}: {group.state.name}>"
        )

    def get_worker_group(self, role: str = "default") -> WorkerGroup:
        """torch's record of the workers: state, ranks and ids.

        While run() is in progress it is updated within a tenth of a second: HEALTHY once
        all workers run, with their ids (pids) and ranks, and STOPPED while they are stopped. The
        ranks within the role are set only at the end.

        Args:
            role: accepted for compatibility with torch, but ignored: an agent has one role.

        Returns:
            The group; do not change it.
        """
        return self._group

    def run(self, role: str = "default") -> RunResult:
        """Runs the workers until they have succeeded, or failed for good.

        Args:
            role: accepted for compatibility with torch, but ignored.

        Returns:
            torch's RunResult: state SUCCEEDED with the return values by global rank, or
            FAILED with the failures (is_failed()). For a function these are the failures of
            the workers that failed; for a command, also of those that the agent then stopped.

        Raises:
            SignalException: a signal stopped it (also torch's class).
            ClosedError, DeadlineError, ConnectionFailedError, RallypointError: the nodes
                did not come together, another node ended the run, or workers could not be
                started. Errors of the rendezvous are also torch's.
        """
        from torch.distributed.elastic.agent.server.api import RunResult, WorkerState

        from ._torch.errors import rendezvous_error

        spec: Any = self._spec
        signals = os.environ.get("TORCHELASTIC_SIGNALS_TO_HANDLE", DEFAULT_SIGNALS)
        overrides = {}
        if self._job.member is not None:  # a static job's nodes meet there
            master = {"MASTER_ADDR": spec.master_addr, "MASTER_PORT": spec.master_port}
            overrides = {name: str(value) for name, value in master.items() if value}
        began = time.monotonic()
        try:
            outcome = run_job(self._job, spec.entrypoint, tuple(spec.args), signals, overrides)
        finally:
            self._total_execution_time = int(time.monotonic() - began)
        self._note(outcome)
        if outcome.result.state == abi.AGENT_FAILED:
            return RunResult(state=WorkerState.FAILED, failures=outcome.failures())
        try:
            values = outcome.values()
        except RallypointError as e:
            if type(e).__module__ == "rallypoint":  # not torch's, too
                raise rendezvous_error(e) from None
            raise
        return RunResult(state=WorkerState.SUCCEEDED, return_values=values)

    def _step(self, event: abi.AgentEvent) -> None:
        """Brings the worker group up to date by one step of the run."""
        from torch.distributed.elastic.agent.server.api import WorkerState

        group: Any = self._group
        if event.kind == abi.AGENT_JOINED:
            group.group_rank, group.group_world_size = event.group_rank, event.group_world_size
            self._remaining_restarts = self._spec.max_restarts - event.restarts
            for worker in group.workers:
                worker.id = None
        elif event.kind == abi.AGENT_WORKER_STARTED:
            worker = group.workers[event.local_rank]
            worker.id, worker.global_rank = event.pid, event.rank
            worker.world_size = event.world_size
            if all(w.id is not None for w in group.workers):
                group.state = WorkerState.HEALTHY
        elif event.kind in (abi.AGENT_STOPPING, abi.AGENT_RESTARTING):
            group.state = WorkerState.STOPPED

    def _note(self, outcome: RunOutcome) -> None:
        """Brings the worker group up to date."""
        from torch.distributed.elastic.agent.server.api import WorkerState

        r = outcome.result
        group: Any = self._group
        self._remaining_restarts = self._spec.max_restarts - r.restarts
        group.group_rank, group.group_world_size = r.group_rank, r.group_world_size
        group.state = {
            abi.AGENT_SUCCEEDED: WorkerState.SUCCEEDED,
            abi.AGENT_FAILED: WorkerState.FAILED,
        }.get(r.state, WorkerState.STOPPED if r.workers else WorkerState.INIT)
        for worker, w in zip(group.workers, r.workers):
            worker.id = w.pid
            worker.global_rank, worker.world_size = w.rank, r.world_size
            worker.role_rank, worker.role_world_size = w.role_rank, w.role_world_size


def _meet(job: Job, spec: Any) -> None:
    handler = spec.rdzv_handler
    backend = handler.get_backend()
    member = getattr(handler, "_member", None)
    if member is not None:
        job.member = member._handle
        return
    if backend == "static":
        timeout = getattr(handler, "timeout", None)
        configs = {
            "rank": int(handler.rank),
            "timeout": timeout.total_seconds() if timeout is not None else None,
        }
        port = spec.master_port or handler.master_port
        endpoint, options = resolve(
            STATIC_BACKEND, f"{spec.master_addr or handler.master_addr}:{port}", configs
        )
        nodes = handler.world_size
        job.rendezvous = MemberConfig(handler.get_run_id(), endpoint, nodes, nodes, options=options)
        return
    raise invalid(
        f"the rendezvous handler of backend {backend!r} cannot be taken by Rallypoint's agent: "
        "make one with rdzv_backend='rallypoint' or 'static', or run the handler by torch's own "
        "LocalElasticAgent (docs/deviations.md)"
    )
