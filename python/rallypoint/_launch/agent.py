"""The library's agent (rp_agent_*), as the launchers of this package use it."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import select
import signal
import tempfile
import threading
import uuid
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, Callable

from .._errors import RallypointError, invalid
from .._native import abi, library, log
from .._rendezvous.endpoint import MemberConfig


@dataclasses.dataclass
class Job:
    """What an agent runs. Times are in seconds."""

    argv: Sequence[str]
    environment: Mapping[str, str]
    workers: int
    rendezvous: MemberConfig | None = None
    member: Any = None  # a abi.MemberHandle, instead of rendezvous
    max_restarts: int = 0
    restart_window: float = 0  # 0: max_restarts counts for all of the run
    max_no_progress: int = 0
    directive_signal: int = 0
    on_signal: str | None = None
    drain_timeout: float = 120
    hang_timeout: float | str = "auto"
    on_hang: str = "report"
    on_failure: str = "restart"
    checks: Sequence[str] = ()  # commands of a shell that examine this node
    check_timeout: float = 30
    check_every: float = 0  # 0: not beside the workers
    check_away: float = 3600
    preload: Sequence[str] | None = None  # None: what the script imports at its top
    role: str = "default"
    name: str = ""
    command: str | None = None  # what runs, if argv does not say it
    monitor_interval: float = 0.1
    shutdown_timeout: float = 30
    exit_barrier_timeout: float = 300
    log_dir: str | None = None
    redirects: str | None = None
    tee: str | None = None
    log_prefix: str | None = None
    local_ranks: Sequence[int] | None = None
    stdout_filters: Sequence[str] = ()
    stderr_filters: Sequence[str] = ()
    flags: int = 0
    numa_binding: str | None = None
    numa_devices: Sequence[str] = ()
    logs: Any = None  # decides where output goes: torch's LogsSpecs
    on_event: Callable[[str], None] | None = None  # gets events as JSON
    on_rdzv_event: Callable[[str], None] | None = None  # those of the rendezvous
    on_metric: Callable[[str, int, str], object] | None = None  # gets name, value, group
    on_step: Callable[[abi.AgentEvent], object] | None = None  # gets each step of the run
    logs_fd: int = 0
    events_fd: int = 0

    def native(self) -> abi.AgentConfig:
        """The struct of the header."""
        config = abi.AgentConfig(
            workers=self.workers,
            max_restarts=self.max_restarts,
            restart_window_ms=_duration("restart_window", self.restart_window),
            max_no_progress=self.max_no_progress,
            directive_signal=self.directive_signal,
            on_signal=library.text(self.on_signal or None),
            drain_timeout_ms=_duration("drain_timeout", self.drain_timeout),
            hang_timeout_ms=_hang_timeout(self.hang_timeout),
            on_hang=_on_hang(self.on_hang),
            on_failure=library.text(self.on_failure),
            check_timeout_ms=_duration("check_timeout", self.check_timeout),
            check_every_ms=_duration("check_every", self.check_every),
            check_away_ms=_duration("check_away", self.check_away),
            role=library.text(self.role),
            name=library.text(self.name),
            command=library.text(self.command),
            monitor_interval_ms=_duration("monitor_interval", self.monitor_interval),
            shutdown_timeout_ms=_duration("shutdown_timeout", self.shutdown_timeout),
            exit_barrier_timeout_ms=_duration("exit_barrier_timeout", self.exit_barrier_timeout),
            log_dir=None if self.log_dir is None else os.fsencode(self.log_dir),
            redirects=library.text(self.redirects),
            tee=library.text(self.tee),
            log_prefix=library.text(self.log_prefix),
            flags=self.flags,
            numa_binding=library.text(self.numa_binding),
            logs_fd=self.logs_fd,
            events_fd=self.events_fd,
        )
        _fill(config, "numa_devices", self.numa_devices)
        _fill(config, "argv", self.argv)
        _fill(config, "checks", self.checks)
        if self.preload is not None:
            _fill(config, "preload", self.preload)
        _fill(config, "environment", [f"{k}={v}" for k, v in self.environment.items()])
        _fill(config, "stdout_filters", self.stdout_filters)
        _fill(config, "stderr_filters", self.stderr_filters)
        if self.local_ranks is not None:
            # An array of no items must not be NULL, which says: all ranks.
            config.local_ranks = (ctypes.c_int32 * max(1, len(self.local_ranks)))(*self.local_ranks)
            config.local_ranks_len = len(self.local_ranks)
        if self.rendezvous is not None:
            config.rendezvous = ctypes.pointer(self.rendezvous.native())
        if self.member is not None:
            config.member = self.member
        return config


def _fill(config: abi.AgentConfig, name: str, values: Sequence[str]) -> None:
    texts = [os.fsencode(value) for value in values]
    for text in texts:
        if b"\0" in text:
            raise invalid(f"{name} holds a NUL: {text!r}")
    setattr(config, name, (ctypes.c_char_p * max(1, len(texts)))(*texts))
    setattr(config, name + "_len", len(texts))


def _duration(name: str, seconds: float) -> int:
    """A time for the library, where 0 is the default and -1 none."""
    if not seconds >= 0:
        raise invalid(f"{name} must be non-negative, got {seconds}")
    return -1 if seconds == 0 else max(1, round(min(seconds, 1e12) * 1000))


def _hang_timeout(given: float | str) -> int:
    """When a job is said to hang, for the library: 0 is its own choice and -1 never."""
    if given == "auto":
        return 0
    if given == "off":
        return -1
    if isinstance(given, str) or not given > 0:
        raise invalid(f"hang_timeout must be auto, off or more than 0 seconds, got {given!r}")
    return _duration("hang_timeout", given)


_ON_HANG = {"report": abi.HANG_REPORT, "stacks": abi.HANG_STACKS, "restart": abi.HANG_RESTART}


def _on_hang(given: str) -> int:
    """What follows when a job is said to hang, for the library."""
    if given not in _ON_HANG:
        raise invalid(f"on_hang must be one of {', '.join(_ON_HANG)}, got {given!r}")
    return _ON_HANG[given]


@dataclasses.dataclass(frozen=True)
class Worker:
    """How one worker of the last attempt ended."""

    local_rank: int
    rank: int
    role_rank: int
    role_world_size: int
    pid: int
    exit_code: int


@dataclasses.dataclass(frozen=True)
class Failure:
    """One failure, as the library tells of it."""

    rank: int
    local_rank: int
    pid: int
    exit_code: int
    terminated: bool
    timestamp: float
    host: str
    error_file: str
    error_data: bytes
    message: str


@dataclasses.dataclass(frozen=True)
class Result:
    """How a run ended."""

    state: int  # abi.AGENT_...
    error: RallypointError | None
    signal: int
    round: int
    restarts: int
    group_rank: int
    group_world_size: int
    world_size: int
    workers: tuple[Worker, ...]
    failures: tuple[Failure, ...]
    root: int | None  # index in failures
    report: str


_TIMER_FILE = "TORCHELASTIC_TIMER_FILE"

_timer_files: set[str] = set()  # paths of the agents of this process


def _name_timers() -> str:
    """Names the FIFO of the workers' timers in this process, too, as torch's documents say of an
    agent, and returns it; "" if there are no timers, or the user has named it."""
    if os.environ.get("TORCHELASTIC_ENABLE_FILE_TIMER") != "1":
        return ""
    worker = "TORCHELASTIC_RESTART_COUNT" in os.environ  # of an agent whose FIFO is named here
    if _TIMER_FILE in os.environ and os.environ[_TIMER_FILE] not in _timer_files and not worker:
        return ""
    path = os.path.join(tempfile.gettempdir(), f"watchdog_timer_{uuid.uuid4()}")
    _timer_files.add(path)
    os.environ.setdefault(_TIMER_FILE, path)
    return path


def _forget_timers(path: str) -> None:
    _timer_files.discard(path)
    if path and os.environ.get(_TIMER_FILE) == path:
        del os.environ[_TIMER_FILE]


class Agent(library.Handle):
    """Runs a job once. Safe for use by several threads; run() is for one."""

    def __init__(self, job: Job) -> None:
        self._handle = abi.AgentHandle()
        self._finalizer = library.owned(self, "rp_agent_close", self._handle)
        self._on_step = job.on_step
        self._timers = _name_timers()
        if self._timers:
            job = dataclasses.replace(
                job, environment={**(job.environment or os.environ), _TIMER_FILE: self._timers}
            )
        try:
            config = job.native()
            library.call("rp_agent_open", ctypes.byref(config), ctypes.byref(self._handle))
        except BaseException:
            _forget_timers(self._timers)
            raise
        finally:
            log.drain()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills the workers if they run, and releases everything."""
        self._finalizer()
        _forget_timers(self._timers)
        if not library.forked():
            log.drain()

    def stop(self, number: int, grace: float | None = None) -> None:
        """Ends a run: sends the workers a signal, and kills them after the grace.

        A call within 5 s of the first is the same request, a later one kills them at
        once; so does, at any time, SIGKILL, a grace of 0, or a second SIGINT from the
        keyboard. `grace` is in seconds, None the job's own.
        """
        limit = -1 if grace is None else round(grace * 1000)
        library.call("rp_agent_stop", self._handle, number, limit)

    def run(self) -> Result:
        """Runs the job until its end, however it ends.

        An exception that a signal handler raises meanwhile, such as KeyboardInterrupt,
        stops the workers by SIGINT, a later one kills them (see stop), and the first one
        is raised once they are gone.
        """
        interrupt: BaseException | None = None
        error: RallypointError | None = None
        event = abi.AgentEvent()
        changes = self._changes()
        while True:
            try:
                done = library.call("rp_agent_run", self._handle, 0) == abi.OK
                self._drain(event)
                while not done and not changes.poll(log.LOG_MS):
                    log.drain()
            except RallypointError as e:
                error = e
                break
            except BaseException as e:
                interrupt = interrupt or e
                self.stop(signal.SIGINT)
                continue
            if done:
                break
        log.drain()
        if interrupt is not None:
            raise interrupt
        return self._result(error)

    def _changes(self) -> select.poll:
        """Waits for events and for the end. A signal ends that at once, unlike a call into
        the library, so that an agent at rest need not wake for it."""
        fd = ctypes.c_int32()
        library.call("rp_agent_fd", self._handle, ctypes.byref(fd))
        changes = select.poll()
        changes.register(fd.value, select.POLLIN)
        return changes

    def _drain(self, event: abi.AgentEvent) -> None:
        log.drain()
        while library.call("rp_agent_next_event", self._handle, ctypes.byref(event)) == abi.OK:
            if self._on_step is not None:
                self._on_step(event)

    def _result(self, error: RallypointError | None) -> Result:
        r = abi.AgentResult()
        library.call("rp_agent_get_result", self._handle, ctypes.byref(r))
        try:
            report = _text(r.report)
        finally:
            library.load().rp_agent_result_free(ctypes.byref(r))
        return Result(
            state=r.state,
            error=error,
            signal=r.signal,
            round=r.round,
            restarts=r.restarts,
            group_rank=r.group_rank,
            group_world_size=r.group_world_size,
            world_size=r.world_size,
            workers=tuple(self._worker(i) for i in range(r.workers)),
            failures=tuple(self._failure(i) for i in range(r.failures)),
            root=None if r.root_cause < 0 else r.root_cause,
            report=report,
        )

    def _worker(self, local_rank: int) -> Worker:
        w = abi.WorkerResult()
        library.call("rp_agent_get_worker", self._handle, local_rank, ctypes.byref(w))
        library.load().rp_worker_result_free(ctypes.byref(w))
        return Worker(w.local_rank, w.rank, w.role_rank, w.role_world_size, w.pid, w.exit_code)

    def _failure(self, index: int) -> Failure:
        f = abi.Failure()
        library.call("rp_agent_get_failure", self._handle, index, ctypes.byref(f))
        try:
            return Failure(
                rank=f.rank,
                local_rank=f.local_rank,
                pid=f.pid,
                exit_code=f.exit_code,
                terminated=bool(f.terminated),
                timestamp=f.time_ms / 1000,
                host=_text(f.host),
                error_file=_text(f.error_file),
                error_data=library.bytes_of(f.error_data),
                message=_text(f.message),
            )
        finally:
            library.load().rp_failure_free(ctypes.byref(f))


def _text(buffer: abi.Buffer) -> str:
    return library.bytes_of(buffer).decode("utf-8", "replace")


class Signals:
    """Passes signals on to an agent while it runs, as torchrun does.

    Only in the main thread, where alone Python can; elsewhere nothing is done, and what
    a signal does then is the program's own affair. `received` is the first that came.
    """

    def __init__(self, agent: Agent, names: str, on_signal: str | None = None) -> None:
        self.received: int | None = None
        self._agent = agent
        self._names = [*names.split(","), *_named(on_signal)]
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is not threading.main_thread():
            return self
        for name in dict.fromkeys(filter(None, (part.strip() for part in self._names))):
            number = getattr(signal, name, None)
            if not isinstance(number, signal.Signals):
                log.logger.warning("Signal %s is not known on this system", name)
                continue
            if number == signal.SIGHUP and signal.getsignal(number) is signal.SIG_IGN:
                continue  # started by nohup: closing the terminal must end nothing
            try:
                self._before[number] = signal.signal(number, self._pass_on)
            except (OSError, ValueError) as e:
                log.logger.warning("Signal %s cannot be handled: %s", name, e)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            # None: a handler that was not set by Python, and which it cannot set.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if self.received is None:
            self.received = number
        with contextlib.suppress(RallypointError):  # the run is over
            self._agent.stop(number)


def _named(on_signal: str | None) -> list[str]:
    """The signals in LaunchConfig.on_signal, which the library has checked."""
    names = (item.partition(":")[0].strip().upper() for item in (on_signal or "").split(","))
    return ["SIG" + name.removeprefix("SIG") for name in names if name]
