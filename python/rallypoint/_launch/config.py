"""What a launch is asked for: LaunchConfig and LogsSpecs, as torch's."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Callable, Union

from .._native import library
from .._rendezvous.endpoint import BACKEND

#: What elastic_launch runs: a function, a program, or a command with its arguments.
Entrypoint = Union[Callable[..., Any], str, Sequence[str]]

#: Which streams: a number for all workers (0 none, 1 stdout, 2 stderr, 3 both), one for
#: each of some local ranks, or the text that --redirects takes.
Streams = Union[int, str, Mapping[int, int], None]

DEFAULT_SIGNALS = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
_DEFAULT_SHUTDOWN_TIMEOUT = 30
_DEFAULT_EXIT_BARRIER_TIMEOUT = 300.0


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
            alone, for every backend.
        rdzv_backend: "rallypoint" (also "c10d", which it answers), the default: host[:port] of a
            node or of `rallypoint serve`, or any other endpoint that has a scheme.
            "rallypoint-file": a directory that all nodes share. "etcd" (also
            "rallypoint-etcd"): host[:port] of an etcd, or several with commas. "static":
            host:port of node 0 of a fixed set of nodes, whose ranks are
            rdzv_configs["rank"].
        rdzv_configs: options of the rendezvous, as in --rdzv-conf.
        rdzv_timeout: torch's old name for rdzv_configs["timeout"], which only a static job
            reads.
        max_restarts: how often the workers of the whole job are started again after
            failures.
        monitor_interval: torch's interval between two looks at the workers; here every
            change is noticed at once.
        start_method: "spawn", "fork" or "forkserver"; workers are fresh interpreters, as
            spawn's. With "fork" a function that a notebook defines is run by torch's launcher,
            which forks its workers; that is refused where this process has used a GPU or
            runs threads of its own, and knows only torch's fields of this class.
        log_line_prefix_template: prefix of lines that are tee'd, with ${role_name},
            ${local_rank}, ${rank}, ${hostname}. None is $TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE
            or "[${role_name}${local_rank}]:".
        metrics_cfg: handed to torch's initialize_metrics. The metrics of torch's agent go
            to the handler that the program has set up by torch.distributed.elastic.metrics
            before the launch, in a thread of their own.
        local_addr: address under which the other nodes reach this one. None: found out.
        event_log_handler: "null", "console" for events as JSON on standard error, or a
            logging handler that torch knows under that name. Events of the rendezvous go
            to torch's handler dynamic_rendezvous, whichever handler is given here, if the
            program has replaced the one that drops them.
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
        restart_window: time within which max_restarts counts, a window that slides. 0 is all
            of the run.
        max_no_progress: the run ends after so many rounds in a row without a higher step
            than the round before, as progress reports it. 0 is never.
        directive_signal: name of the signal to each worker that has been given a directive.
            None: none.
        on_signal: what signals ask the job for while a launch runs in the main thread, as in
            "USR1:save,TERM:drain": save, drain (this node leaves) or stop. Another one of
            signals_to_handle stops the workers. None: each does.
        drain_timeout: time that on_signal gives the workers to save.
        hang_timeout: time without a step of any worker, as progress reports it, after which the
            job is said to hang, with where its workers are. "auto": what the time between its
            steps tells, at least 60. "off": never.
        on_hang: what follows: "report" nothing else; "stacks" the stacks of all workers are
            logged, too; "restart" the first suspect is killed and counts as a failure.
        on_failure: what this node does whose workers fail: "restart" those of the job;
            "regroup" those that can, as regroup says, and replace the others ("regroup:10s" gives
            them that time instead of 30 s);
            "leave:N/TIME", as in "leave:2/1h", leave it to a spare if they were the first to fail
            N times in that time; "keep" the node's other workers running, for scripts that
            repair themselves.
        checks: commands of a shell that examine this node before it joins, and before it joins
            again after its workers were the first to fail. One that exits with 1 ends the launch
            by UnfitError.
        check_timeout: longest time for a check; one that takes longer cannot tell.
        check_every: pause between checks beside the workers. 0: none run there.
        check_away: time for which the job keeps a node out that is unfit after it has joined.
        warm: import once and fork the workers, which so start in the time of one import, and
            after a failure at once. Only for a program that starts no other processes while it
            launches: this process adopts, and ends, all that lose their parent. Workers that
            cannot be forked, such as those of a command that is not Python, start as without
            it, and the log says why.
        preload: modules that warm imports. None: of a command what its script imports at its
            top, of a function torch, if this process has imported it.
        auto_progress: count the steps of torch's optimizers in workers that report none. False:
            load nothing into workers for it. None: as True.

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
    restart_window: float = 0
    max_no_progress: int = 0
    directive_signal: str | None = None
    on_signal: str | None = None
    drain_timeout: float = 120
    hang_timeout: float | str = "auto"
    on_hang: str = "report"
    on_failure: str = "restart"
    checks: Sequence[str] = ()
    check_timeout: float = 30
    check_every: float = 0
    check_away: float = 3600
    warm: bool = False
    preload: Sequence[str] | None = None
    auto_progress: bool | None = None

    def __repr__(self) -> str:
        """The job, and what is not its default; of an endpoint no password."""
        hidden = ("min_nodes", "max_nodes", "nproc_per_node", "rdzv_configs")
        fields = [f for f in dataclasses.fields(self) if f.name not in hidden]
        given = {f.name: getattr(self, f.name) for f in fields}
        told = {f.name: given[f.name] for f in fields if given[f.name] not in (f.default, {})}
        if self.rdzv_endpoint:
            told["rdzv_endpoint"] = library.without_password(self.rdzv_endpoint)
        if self.shutdown_timeout == _DEFAULT_SHUTDOWN_TIMEOUT:
            told.pop("shutdown_timeout", None)
        if self.exit_barrier_timeout == _DEFAULT_EXIT_BARRIER_TIMEOUT:
            told.pop("exit_barrier_timeout", None)
        size = f"nodes={self.min_nodes}:{self.max_nodes}, nproc_per_node={self.nproc_per_node}"
        return f"LaunchConfig({', '.join([size, *(f'{k}={v!r}' for k, v in told.items())])})"

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
