"""Launching workers from a program, as torch.distributed.launcher does."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import uuid
from typing import Any, Callable

from .._errors import invalid
from .._native import abi
from .._native.log import logger
from .._rendezvous.endpoint import STATIC_BACKEND, MemberConfig, resolve
from . import forked
from .agent import Job
from .config import Entrypoint, LaunchConfig
from .function import of_notebook
from .run import run_job, set_output

#: What gets each event of a launch: torch's Event, or its RdzvEvent, as a dict.
OnEvent = Callable[[dict[str, Any]], object]


class elastic_launch:
    """Launches workers of this node and waits for the job's end.

    Example:
        config = LaunchConfig(
            min_nodes=1, max_nodes=4, nproc_per_node=8,
            rdzv_backend="rallypoint", rdzv_endpoint="host0:29400", run_id="job7",
        )
        results = elastic_launch(config, train)("data/", 10)

    A launch may be called from any thread; one object may be called several times. In the
    main thread it takes the signals of signals_to_handle while it runs, and answers
    Ctrl-C within 0.1 s by passing it on to the workers. The interpreter lock is released
    while it waits.

    Args:
        config: a LaunchConfig.
        entrypoint: a function, which is pickled with its arguments and run in fresh
            interpreters; it must be defined at the top level of a module, which may be
            the main program. A function of a notebook is run by forked workers if the
            configuration's start_method is "fork". Or a program, or a list of a program and its
            arguments.
        on_event: is called with each event of the agent and its workers, a dict of torch's
            Event: name, source, timestamp, metadata. It is called in order, in one thread
            of its own, never in the caller's. The run does not wait for it: while it blocks,
            events wait in a buffer of some hundred; when that is full for a second, the
            later ones are lost, with a warning. The launch returns when it has had all,
            or after 5 s. What it raises is logged.
        on_rdzv_event: the same for events of the rendezvous: joining, a complete round, a
            lost node, the end, errors. A dict of torch's RdzvEvent: name, run_id, message,
            hostname, pid, node_state, master_endpoint, rank, local_id, error_trace.
    """

    def __init__(
        self,
        config: Any,
        entrypoint: Entrypoint,
        on_event: OnEvent | None = None,
        on_rdzv_event: OnEvent | None = None,
    ) -> None:
        self._config = config
        self._entrypoint = entrypoint
        self._on_event = on_event
        self._on_rdzv_event = on_rdzv_event

    def __repr__(self) -> str:
        what = getattr(self._entrypoint, "__qualname__", self._entrypoint)
        return f"<rallypoint.elastic_launch of {what}: {self._config!r}>"

    def __call__(self, *args: Any) -> dict[int, Any]:
        """Runs the job.

        Args:
            *args: of the function, or further arguments of the command. ${local_rank} in
                texts is replaced. What multiprocessing.get_context("spawn") makes (queues, locks,
                values, arrays, events, pipes), managers' proxies and torch's tensors are shared
                with the workers, also with those of a restart.

        Returns:
            What the function returned in each worker of this node, by global rank; None
            for commands. Empty for a node that the job did not need.

        Raises:
            ChildFailedError: workers failed for good; `failures` says which, how, and with
                what traceback.
            SignalException: a signal stopped the launch.
            KeyboardInterrupt: the same for Ctrl-C, if SIGINT is not in signals_to_handle.
            InvalidError: something is wrong with the configuration or entry point.
            FileNotFoundError: there is no such program.
            RequeueError: a directive has ended the job, which should be queued again; a program
                then ends by sys.exit(95), as `rallypoint run` does.
            NoProgressError: max_no_progress rounds brought no higher step; there it is 93.
            ClosedError, DeadlineError, ConnectionFailedError, RallypointError: the nodes
                did not come together, or workers could not be started.
        """
        return launch_agent(
            self._config, self._entrypoint, list(args), self._on_event, self._on_rdzv_event
        )


def launch_agent(
    config: Any,
    entrypoint: Entrypoint | None,
    args: list[Any],
    on_event: OnEvent | None = None,
    on_rdzv_event: OnEvent | None = None,
) -> dict[int, Any]:
    """elastic_launch(config, entrypoint)(*args) as one call.

    Args:
        config: a LaunchConfig.
        entrypoint: as for elastic_launch.
        args: of the entry point.
        on_event: as for elastic_launch.
        on_rdzv_event: as for elastic_launch.

    Returns:
        What elastic_launch returns.

    Raises:
        What elastic_launch raises.
    """
    config = _own(config)
    if config.start_method == "fork" and callable(entrypoint) and of_notebook(entrypoint):
        if on_event or on_rdzv_event:
            raise invalid("start_method is fork, where torch's launcher calls no on_event")
        return forked.launch(config, entrypoint, args)
    if not config.run_id:
        config = dataclasses.replace(config, run_id=str(int(uuid.uuid4())))
        say = logger.warning if config.max_nodes > 1 else logger.debug
        say("config has no run_id, generated a random run_id: %s", config.run_id)
    job = Job((), {}, config.nproc_per_node, _member_config(config))
    for name in {field.name for field in dataclasses.fields(Job)} & vars(config).keys():
        setattr(job, name, getattr(config, name))
    job.directive_signal = _signal_number(config.directive_signal)
    set_output(job, config.logs_specs, config.log_line_prefix_template, config)
    if config.warm:
        job.flags |= abi.AGENT_WARM | abi.AGENT_SUBREAPER
        if callable(entrypoint) and job.preload is None:
            job.preload = ["torch"] if "torch" in sys.modules else []
    if config.auto_progress is not False:
        job.flags |= abi.AGENT_AUTO_PROGRESS
    job.on_event = _both(on_event, job.on_event)
    job.on_rdzv_event = _both(on_rdzv_event, job.on_rdzv_event)
    if config.start_method not in ("spawn", "fork", "forkserver"):
        raise invalid(f"start_method is {config.start_method!r}, expected spawn")
    outcome = run_job(job, entrypoint, tuple(args), config.signals_to_handle)
    return outcome.values()


def _signal_number(name: str | None) -> int:
    """The number of a signal by its name, with or without SIG."""
    if not name:
        return 0
    try:
        return int(signal.Signals["SIG" + name.upper().removeprefix("SIG")])
    except KeyError:
        raise invalid(f"directive_signal is {name!r}, which this system does not have") from None


def _own(config: Any) -> LaunchConfig:
    """The configuration as ours; what torch's, of whatever version, lacks gets its default."""
    if isinstance(config, LaunchConfig):
        return config
    names = (field.name for field in dataclasses.fields(LaunchConfig))
    fields = {name: getattr(config, name) for name in names if hasattr(config, name)}
    fields["rdzv_configs"] = dict(config.rdzv_configs)
    return LaunchConfig(**fields)


# The options that count for a job of one node without an endpoint; the first is refused.
_ALONE = ("token_file", "allow_uid", "loopback_check")


def _member_config(config: Any) -> MemberConfig:
    backend, endpoint = config.rdzv_backend, config.rdzv_endpoint
    static = backend in ("static", STATIC_BACKEND)
    if not endpoint and config.max_nodes == 1 and not static:
        return MemberConfig(
            run_id=config.run_id,
            min_nodes=config.min_nodes,
            local_addr=config.local_addr,
            options={name: config.rdzv_configs.get(name) for name in _ALONE},
        )
    if not endpoint:
        raise invalid(f"{config.max_nodes} nodes have to meet somewhere: rdzv_endpoint is missing")
    endpoint, options = resolve(backend, endpoint, config.rdzv_configs)
    return MemberConfig(
        run_id=config.run_id,
        endpoint=endpoint,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        options=options,
    )


def _both(
    listener: OnEvent | None, before: Callable[[str], None] | None
) -> Callable[[str], None] | None:
    if listener is None:
        return before

    def both(text: str) -> None:
        try:
            listener(json.loads(text))
        finally:
            if before is not None:
                before(text)

    return both
