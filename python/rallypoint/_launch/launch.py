"""Launching workers from a program, as torch.distributed.launcher does."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import shutil
import signal
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Callable, Union

from .._errors import Code, InvalidError
from .._native import abi
from .._native.log import logger
from .._rendezvous.endpoint import BACKEND, STATIC_BACKEND, resolve
from .._torch.telemetry import metrics, rdzv_events
from .agent import Agent, Failure, Job, MemberConfig, Result, Signals
from .function import FunctionJob
from .hooks import Hooks, event_handler, has_reify

if TYPE_CHECKING:
    from .failure_plain import ChildFailedError

#: What elastic_launch runs: a function, a program, or a command with its arguments.
Entrypoint = Union[Callable[..., Any], str, Sequence[str]]

#: Which streams: a number for all workers (0 none, 1 stdout, 2 stderr, 3 both), one for
#: each of some local ranks, or the text that --redirects takes.
Streams = Union[int, str, Mapping[int, int], None]

#: What gets each event of a launch: torch's Event, or its RdzvEvent, as a dict.
OnEvent = Callable[[dict[str, Any]], object]

DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
_DEFAULT_SHUTDOWN_TIMEOUT = 30
_DEFAULT_EXIT_BARRIER_TIMEOUT = 300.0

# Variables of the launching process that its workers do not inherit: the error file is
# for that process, and the round for what it belongs to itself.
_OWN_VARIABLES = frozenset({"TORCHELASTIC_ERROR_FILE", "RALLYPOINT_ROUND"})


@dataclasses.dataclass
class LogsSpecs:
    """Where the output of workers goes. torch's DefaultLogsSpecs does as well.

    Args:
        log_dir: base folder of the log files, made if it is missing. None is a new folder
            in the folder for temporary files, removed if nothing was written to it;
            "/dev/null" is no files at all, so that nothing else here has an effect, and
            failures come without tracebacks.
        redirects: streams that go to files: <log_dir>/<run id>_<8 characters>/
            attempt_<n>/<local rank>/stdout.log and stderr.log. Default: none.
        tee: streams that go to files and to the console, with a prefix. Default: none.
        local_ranks_filter: local ranks whose output may reach the console. Default: all.
    """

    log_dir: str | None = None
    redirects: Streams = None
    tee: Streams = None
    local_ranks_filter: Iterable[int] | None = None


@dataclasses.dataclass
class LaunchConfig:
    """How to launch the workers of this node. torch's own LaunchConfig does as well.

    Names and defaults are torch's, except that of rdzv_backend. Times are in seconds.

    Args:
        min_nodes: fewest nodes that the job runs with.
        max_nodes: most nodes.
        nproc_per_node: workers on this node.
        logs_specs: where their output goes, a LogsSpecs; None is the console. A subclass of
            torch's LogsSpecs with a reify() of its own is asked before each attempt, in a
            thread of its own; what it changes in the variables that it is given, the
            workers get. If it raises, or takes longer than a minute, the launch ends.
        run_id: name of the job, the same on all nodes. "" is a random number, with a
            warning if there are other nodes.
        role: role of the workers.
        rdzv_endpoint: where the nodes meet. "" with max_nodes 1 is a job of this node
            alone, whatever the backend.
        rdzv_backend: "rallypoint" (also "c10d", which it answers), the default: host[:port] of a
            node or of `rallypoint serve`, or any other endpoint that has a scheme.
            "rallypoint-file": a directory that all nodes share. "etcd" (also
            "rallypoint-etcd"): host[:port] of an etcd, or several with commas. "static":
            host:port of node 0 of a fixed set of nodes, whose ranks are
            rdzv_configs["rank"].
        rdzv_configs: options of the rendezvous, as in --rdzv-conf.
        rdzv_timeout: torch's old name for rdzv_configs["timeout"], which only a static job
            heeds.
        max_restarts: how often the workers of the whole job are started again after
            failures.
        monitor_interval: torch's interval between two looks at the workers; here whatever
            happens is noticed at once.
        start_method: "spawn", "fork" or "forkserver"; workers are always fresh
            interpreters, as spawn's.
        log_line_prefix_template: prefix of lines that are tee'd, with ${role_name},
            ${local_rank}, ${rank}, ${hostname}. None is $TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE
            or "[${role_name}${local_rank}]:".
        metrics_cfg: handed to torch's initialize_metrics. The metrics of torch's agent go
            to the handler that the program has set up by torch.distributed.elastic.metrics
            before the launch, in a thread of their own.
        local_addr: address under which the other nodes reach this one. None: found out.
        event_log_handler: "null", "console" for events as JSON on standard error, or a
            logging handler that torch knows under that name. Events of the rendezvous go
            to torch's handler dynamic_rendezvous if the program has put one of its own in
            the place of that which drops them, whatever is given here.
        numa_options: torch's NumaOptions, or its affinity_mode as a text: each worker runs
            on CPUs near its device. None: on all.
        signals_to_handle: signals that stop the workers while a launch runs in the main
            thread, by name.
        duplicate_stdout_filters: texts; tee'd lines of stdout that hold one of them also
            go to filtered_stdout.log.
        duplicate_stderr_filters: the same for stderr.
        virtual_local_rank: every worker is local rank 0 and sees one GPU.
        shutdown_timeout: time that workers have from a signal to SIGKILL. None is
            $TORCH_ELASTIC_SHUTDOWN_TIMEOUT or 30; 0 kills at once.
        exit_barrier_timeout: longest wait for other nodes after success. None is
            $TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT or 300; 0 does not wait.

    Raises:
        ValueError: a timeout is negative.
    """

    min_nodes: int
    max_nodes: int
    nproc_per_node: int
    logs_specs: Any = None
    run_id: str = ""
    role: str = "default_role"
    rdzv_endpoint: str = ""
    rdzv_backend: str = BACKEND
    rdzv_configs: dict[str, Any] = dataclasses.field(default_factory=dict)
    rdzv_timeout: int = -1
    max_restarts: int = 3
    monitor_interval: float = 0.1
    start_method: str = "spawn"
    log_line_prefix_template: str | None = None
    metrics_cfg: dict[str, str] = dataclasses.field(default_factory=dict)
    local_addr: str | None = None
    event_log_handler: str = "null"
    numa_options: Any = None
    signals_to_handle: str = DEFAULT_SIGNALS
    duplicate_stdout_filters: list[str] | None = None
    duplicate_stderr_filters: list[str] | None = None
    virtual_local_rank: bool = False
    shutdown_timeout: int | None = None
    exit_barrier_timeout: float | None = None

    def __post_init__(self) -> None:
        if self.rdzv_timeout != -1:
            self.rdzv_configs["timeout"] = self.rdzv_timeout
        else:
            self.rdzv_configs.setdefault("timeout", 900)
        if self.shutdown_timeout is None:
            value = os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
            self.shutdown_timeout = int(value) if value else _DEFAULT_SHUTDOWN_TIMEOUT
        if self.shutdown_timeout < 0:
            raise ValueError(f"shutdown_timeout must be non-negative, got {self.shutdown_timeout}")
        self.exit_barrier_timeout = barrier_timeout(self.exit_barrier_timeout)


def barrier_timeout(given: float | None) -> float:
    """The exit barrier's timeout: as given, or as the environment says."""
    if given is None:
        value = os.environ.get("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT")
        given = float(value) if value else _DEFAULT_EXIT_BARRIER_TIMEOUT
    if not given >= 0:
        raise ValueError(f"exit_barrier_timeout must be non-negative, got {given}")
    return given


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
            the main program. Or a program, or a list of a program and its arguments.
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
    if not config.run_id:
        config = dataclasses.replace(config, run_id=str(int(uuid.uuid4())))
        say = logger.warning if config.max_nodes > 1 else logger.debug
        say("config has no run_id, generated a random run_id: %s", config.run_id)
    job = Job(
        argv=(),
        environment={},
        workers=config.nproc_per_node,
        rendezvous=_member_config(config),
        max_restarts=config.max_restarts,
        role=config.role,
        monitor_interval=config.monitor_interval,
        shutdown_timeout=config.shutdown_timeout or 0,
        exit_barrier_timeout=barrier_timeout(config.exit_barrier_timeout),
    )
    set_output(job, config.logs_specs, config.log_line_prefix_template, config)
    job.on_event = _both(on_event, job.on_event)
    job.on_rdzv_event = _both(on_rdzv_event, job.on_rdzv_event)
    if config.start_method not in ("spawn", "fork", "forkserver"):
        raise _invalid(f"start_method is {config.start_method!r}, expected spawn")
    outcome = run_job(job, entrypoint, tuple(args), config.signals_to_handle)
    return outcome.values()


def _own(config: Any) -> LaunchConfig:
    """The configuration as ours; what torch's, of whatever version, lacks gets its default."""
    if isinstance(config, LaunchConfig):
        return config
    names = (field.name for field in dataclasses.fields(LaunchConfig))
    fields = {name: getattr(config, name) for name in names if hasattr(config, name)}
    fields["rdzv_configs"] = dict(config.rdzv_configs)
    return LaunchConfig(**fields)


def _invalid(text: str) -> InvalidError:
    return InvalidError(text, Code.INVALID)


def _member_config(config: Any) -> MemberConfig:
    backend, endpoint = config.rdzv_backend, config.rdzv_endpoint
    static = backend in ("static", STATIC_BACKEND)
    if not endpoint and config.max_nodes == 1 and not static:
        return MemberConfig(
            run_id=config.run_id,
            min_nodes=config.min_nodes,
            local_addr=config.local_addr,
            options={"token_file": config.rdzv_configs.get("token_file")},  # which it refuses
        )
    if not endpoint:
        raise _invalid(f"{config.max_nodes} nodes have to meet somewhere: rdzv_endpoint is missing")
    endpoint, options = resolve(backend, endpoint, config.rdzv_configs)
    return MemberConfig(
        run_id=config.run_id,
        endpoint=endpoint,
        min_nodes=config.min_nodes,
        max_nodes=config.max_nodes,
        local_addr=config.local_addr,
        options=options,
    )


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
            raise _invalid("numa_options: No accelerator available for NUMA binding")
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


def _streams(streams: Streams) -> str | None:
    if streams is None or isinstance(streams, str):
        return streams
    if isinstance(streams, Mapping):
        return ",".join(f"{rank}:{int(std)}" for rank, std in streams.items()) or None
    return str(int(streams))


@dataclasses.dataclass
class Outcome:
    """How the run of a job ended."""

    result: Result
    name: str
    received: int | None  # the signal that stopped it
    returned: dict[int, Any]

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
        raise r.error

    def failure(self) -> ChildFailedError:
        """The error that stands for failed workers."""
        from .failure import ChildFailedError

        r = self.result
        own = r.state == abi.AGENT_FAILED
        assert r.root is not None
        error: ChildFailedError = ChildFailedError(
            self.name,
            failures(r),
            report=r.report,
            root=r.failures[r.root].rank,
            code=Code.WORKERS if own else Code.CLOSED,
        )
        return error


def failures(result: Result) -> dict[int, Any]:
    """The failures by global rank, as torch's ProcessFailure."""
    return {f.rank: process_failure(f) for f in result.failures}


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
) -> Outcome:
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
            job.argv = function.argv()
        else:
            job.argv = _command(entrypoint, args, environment)
        if overrides:  # by a program that sets them and becomes the worker
            values = [f"{name}={value}".replace("$", "$$") for name, value in overrides.items()]
            job.argv = [shutil.which("env") or "/usr/bin/env", *values, *job.argv]
        sys.stdout.flush()
        sys.stderr.flush()
        hooks = stack.enter_context(Hooks(job))
        agent = stack.enter_context(Agent(job))
        hooks.opened()
        taken = stack.enter_context(Signals(agent, signals))
        result = agent.run()
        returned: dict[int, Any] = {}
        if result.state == abi.AGENT_SUCCEEDED:
            for w in result.workers:
                returned[w.rank] = function.value(result.round, w.rank) if function else None
        return Outcome(result, job.name, taken.received, returned)


def _command(
    entrypoint: str | Sequence[str] | None, args: Sequence[Any], environment: Mapping[str, str]
) -> list[str]:
    if not entrypoint:
        raise _invalid("the entry point is missing: give a function or a command")
    first = [entrypoint] if isinstance(entrypoint, str) else list(entrypoint)
    argv = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in (*first, *args)]
    found = shutil.which(argv[0], path=environment.get("PATH", ""))
    if found is None and not os.path.exists(argv[0]):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), argv[0])
    return argv
