"""Runs a job: from what a launcher asks for to what its workers returned, or how they failed."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from .._debugger import followed
from .._errors import ClosedError, Code, NoProgressError, RequeueError, invalid
from .._native import abi
from .._torch.telemetry import metrics, rdzv_events
from .agent import Agent, Failure, Job, Result, Signals
from .config import Entrypoint, Streams
from .function import FunctionJob
from .hooks import Hooks, event_handler, has_reify

if TYPE_CHECKING:
    from .failure_plain import ChildFailedError

# Variables of the launching process that its workers do not inherit: the error file is
# for that process, and the round for what it belongs to itself.
_OWN_VARIABLES = frozenset(
    {
        "TORCHELASTIC_ERROR_FILE",
        "RALLYPOINT_ROUND",
        "RALLYPOINT_GENERATION",
        "RALLYPOINT_MASTER_ADDR",
    }
)

_ENDS: dict[int, type[ClosedError]] = {
    abi.AGENT_REQUEUED: RequeueError,
    abi.AGENT_NO_PROGRESS: NoProgressError,
}


def set_output(job: Job, logs: Any, template: str | None, config: Any) -> None:
    """Takes over what LaunchConfig, or torch's WorkerSpec, says about output and workers."""
    for name in ("duplicate_stdout_filters", "duplicate_stderr_filters"):
        filters = getattr(config, name, None) or ()
        setattr(job, name.replace("duplicate_", ""), list(filters))
    variable = os.environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE")
    job.log_prefix = template or variable or None
    handler = getattr(config, "event_log_handler", "null")
    if handler == "console":
        job.flags |= abi.AGENT_EVENTS
    elif handler not in ("null", "dynamic_rendezvous"):
        job.on_event = event_handler(handler)
    job.on_rdzv_event = rdzv_events()
    if handler == "dynamic_rendezvous" and job.on_rdzv_event is not None:
        job.on_event = event_handler(handler)
    job.on_metric = metrics(getattr(config, "metrics_cfg", {}))
    numa = getattr(config, "numa_options", None)
    if numa is not None:
        mode = getattr(numa, "affinity_mode", numa)
        job.numa_binding = str(getattr(mode, "value", mode))
        job.numa_devices = devices()
        if not job.numa_devices:
            raise invalid("numa_options: No accelerator available for NUMA binding")
    if getattr(config, "virtual_local_rank", False):
        job.flags |= abi.AGENT_VIRTUAL_RANK
    if os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1":
        job.flags |= abi.AGENT_IDENTICAL
    if logs is None:
        return
    if has_reify(logs):
        job.logs = logs
        return

    def field(name: str) -> Any:
        # torch's class keeps its arguments under these names.
        own = getattr(logs, "_root_" + name if name == "log_dir" else "_" + name, None)
        return getattr(logs, name, own)

    job.log_dir = field("log_dir")
    job.redirects = _streams(field("redirects"))
    job.tee = _streams(field("tee"))
    ranks = field("local_ranks_filter")
    job.local_ranks = sorted(ranks) if ranks else None


def devices() -> list[str]:
    """The PCI addresses of the accelerators that torch sees."""
    try:
        import torch

        if not torch.accelerator.is_available():
            return []
        module: Any = torch.get_device_module(torch.accelerator.current_accelerator())
        found = map(module.get_device_properties, range(torch.accelerator.device_count()))
        return [f"{p.pci_domain_id:04x}:{p.pci_bus_id:02x}:{p.pci_device_id:02x}.0" for p in found]
    except (ImportError, AttributeError):
        return []


def _streams(streams: Streams) -> str | None:
    if streams is None or isinstance(streams, str):
        return streams
    if isinstance(streams, Mapping):
        return ",".join(f"{rank}:{int(std)}" for rank, std in streams.items()) or None
    return str(int(streams))


@dataclasses.dataclass
class RunOutcome:
    """How the run of a job ended."""

    result: Result
    name: str
    received: int | None  # the signal that stopped it
    returned: dict[int, Any]
    function: bool  # what ran was a function

    def values(self) -> dict[int, Any]:
        """What the workers returned; raises what ended the run otherwise."""
        r = self.result
        if r.state in (abi.AGENT_SUCCEEDED, abi.AGENT_NOT_NEEDED):
            return self.returned
        if self.received is not None and r.state == abi.AGENT_STOPPED:
            from .failure import SignalException

            number = signal.Signals(self.received)
            text = f"Process {os.getpid()} got signal: {int(number)}"
            raise SignalException(text, number) from None
        if r.failures:
            raise self.failure()
        assert r.error is not None
        cls = _ENDS.get(r.state)
        if cls is not None:
            raise cls(str(r.error), r.error.code) from None
        raise r.error

    def failure(self) -> ChildFailedError:
        """The error that stands for failed workers."""
        from .failure import ChildFailedError

        r = self.result
        own = r.state == abi.AGENT_FAILED
        assert r.root is not None
        error: ChildFailedError = ChildFailedError(
            self.name,
            self.failures(),
            report=r.report,
            root=r.failures[r.root].rank,
            code=Code.WORKERS if own else Code.CLOSED,
        )
        return error

    def failures(self) -> dict[int, Any]:
        """The failures by global rank, as torch's ProcessFailure.

        As torch's launchers do it: workers that the agent stopped are among them if what ran
        was a command.
        """
        r = self.result
        return {
            f.rank: process_failure(f)
            for i, f in enumerate(r.failures)
            if i == r.root or not (self.function and f.terminated)
        }


def process_failure(failure: Failure) -> Any:
    """One failure as torch's ProcessFailure, or as ours without torch."""
    from .failure import ProcessFailure

    # The file was read once, by the agent: it is not read again, which could fail.
    made = ProcessFailure(
        local_rank=failure.local_rank,
        pid=failure.pid,
        exitcode=failure.exit_code,
        error_file="",
    )
    made.error_file = failure.error_file
    made.timestamp = int(failure.timestamp)
    made.message = failure.message
    if failure.error_data:
        made.error_file_data = json.loads(failure.error_data)
        made.message = made.error_file_data["message"]
    return made


def entry_name(entrypoint: Entrypoint | None, args: Sequence[Any]) -> str:
    """The name of an entry point in reports."""
    if not entrypoint:
        return ""
    if callable(entrypoint):
        return getattr(entrypoint, "__name__", None) or repr(entrypoint)
    if not isinstance(entrypoint, str):
        entrypoint, args = entrypoint[0], [*entrypoint[1:], *args]
    if entrypoint == sys.executable:
        return next((str(a) for a in args if str(a)[:1] != "-"), "")
    return entrypoint


def run_job(
    job: Job,
    entrypoint: Entrypoint | None,
    args: tuple[Any, ...],
    signals: str,
    overrides: Mapping[str, str] = MappingProxyType({}),
) -> RunOutcome:
    """Runs a job whose command is still to be made from an entry point.

    overrides are variables that the workers get instead of those of the agent.
    """
    environment = {k: v for k, v in os.environ.items() if k not in _OWN_VARIABLES}
    environment["TORCHELASTIC_SIGNALS_TO_HANDLE"] = signals
    job.environment = environment
    job.name = entry_name(entrypoint, args)
    with ExitStack() as stack:
        function: FunctionJob | None = None
        if callable(entrypoint):
            function = stack.enter_context(FunctionJob(entrypoint, args))
            job.command = function.command()
            job.argv = function.argv(bool(job.flags & abi.AGENT_VIRTUAL_RANK))
        else:
            job.argv = _command(entrypoint, args, environment)
        job.argv = followed(job.argv)
        if overrides:  # by a program that sets them and becomes the worker
            values = [f"{name}={value}".replace("$", "$$") for name, value in overrides.items()]
            job.argv = [shutil.which("env") or "/usr/bin/env", *values, *job.argv]
        sys.stdout.flush()
        sys.stderr.flush()
        hooks = stack.enter_context(Hooks(job))
        agent = stack.enter_context(Agent(job))
        hooks.opened()
        taken = stack.enter_context(Signals(agent, signals, job.on_signal))
        result = agent.run()
        returned: dict[int, Any] = {}
        if result.state == abi.AGENT_SUCCEEDED:
            for w in result.workers:
                returned[w.rank] = function.value(result.round, w.rank) if function else None
        return RunOutcome(result, job.name, taken.received, returned, function is not None)


def _command(
    entrypoint: str | Sequence[str] | None, args: Sequence[Any], environment: Mapping[str, str]
) -> list[str]:
    if not entrypoint:
        raise invalid("the entry point is missing: give a function or a command")
    first = [entrypoint] if isinstance(entrypoint, str) else list(entrypoint)
    argv = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in (*first, *args)]
    found = shutil.which(argv[0], path=environment.get("PATH", ""))
    if found is None and not os.path.exists(argv[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return argv
