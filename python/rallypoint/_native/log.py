"""The library's log, passed on to Python's logging.

The library never calls back; its records are taken at every call of this package
that a program makes. They go to the logger "rallypoint". A program that configures
logging decides where they go; for one that does not (torchrun), a handler of ours
prints them to stderr. RALLYPOINT_LOG sets the level: debug, info (the default),
warning, error or off.

A thread calls the handlers, since they are the program's: one that waits for a reader, or
raises, must not hold up or end a call about the job. A call waits until its records are
shown, but not long.
"""

from __future__ import annotations

import atexit
import collections
import ctypes
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import MutableMapping
from typing import Any

from . import abi, library

LEVELS = {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "off": 100}

# How late a record of the library's log is shown where nothing else happens.
LOG_MS = 500

# How long a call waits for the handlers, in seconds. When they took longer, the next calls do
# not wait until they have caught up.
PATIENCE = 0.5

# How many records wait for the handlers.
_MOST = 1024

_draining = threading.Lock()
_record: abi.LogRecord | None = None
_ready = False


class _Show:
    """Hands records to the program's handlers, in a thread that begins with the first record."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._records: collections.deque[logging.LogRecord] = collections.deque()
        self._dropped = 0
        self._busy = False  # a handler has a record
        self._late = False  # somebody waited in vain, and the handlers have not caught up
        self._thread: threading.Thread | None = None

    def add(self, record: logging.LogRecord) -> None:
        with self._changed:
            if self._thread is None:
                self._start()
            if self._thread is not None:
                if len(self._records) >= _MOST:
                    self._dropped += 1
                else:
                    self._records.append(record)
                    self._changed.notify_all()
                return
        _handle(record)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="rallypoint-log", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # the interpreter ends, or there are no more threads
            self._thread = None

    def wait(self) -> None:
        """Waits until all records are shown, unless the handlers take too long."""
        if threading.current_thread() is self._thread:
            return
        with self._changed:
            if not self._late and not self._changed.wait_for(self._idle, PATIENCE):
                self._late = True

    def _idle(self) -> bool:
        return not self._records and not self._busy

    def _run(self) -> None:
        while True:
            with self._changed:
                self._busy = False
                if not self._records:
                    self._late = False
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._records)
                record = self._records.popleft()
                self._busy = True
                dropped = 0
                if not self._records:
                    dropped, self._dropped = self._dropped, 0
            _handle(record)
            if dropped:
                text = "%d log records were lost here: the handlers of the log are too slow"
                _handle(_make(logging.WARNING, text, (dropped,)))


_program = logging.getLogger("rallypoint")
_show = _Show()


def _make(level: int, text: str, args: Any = (), exc_info: Any = None) -> logging.LogRecord:
    return _program.makeRecord(_program.name, level, "librallypoint", 0, text, args, exc_info)


def _handle(record: logging.LogRecord) -> None:
    try:
        _program.handle(record)
    except BaseException:
        if logging.raiseExceptions:  # as for a handler that reports its errors itself
            traceback.print_exc()


class _Logger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """The logger "rallypoint" for this package: its methods neither wait nor raise."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> Any:
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if self.isEnabledFor(level):
            exc_info = kwargs.get("exc_info")
            _show.add(_make(level, str(msg), args, sys.exc_info() if exc_info else None))
            _show.wait()


logger = _Logger(_program, {})


class _Formatter(logging.Formatter):
    """Lines like torchrun's: I1121 12:00:00.123 4711 rallypoint] text."""

    def format(self, record: logging.LogRecord) -> str:
        when = time.strftime("%m%d %H:%M:%S", time.localtime(record.created))
        head = (
            f"{record.levelname[:1]}{when}.{int(record.msecs):03d} {record.process} {record.name}] "
        )
        return head + record.getMessage().replace("\n", "\n" + head)


class _Fallback(logging.Handler):
    """Prints to the stderr of the moment unless the program has handlers of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        if logging.getLogger().handlers or _program.handlers != [self]:
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _after_fork_in_child() -> None:
    global _draining, _show
    _draining = threading.Lock()
    _show = _Show()


atexit.register(lambda: _show.wait())
os.register_at_fork(after_in_child=_after_fork_in_child)


def _set_up() -> None:
    global _ready, _record
    _ready = True
    _record = abi.LogRecord()
    wanted = os.environ.get("RALLYPOINT_LOG", "").strip().lower()
    if wanted in LEVELS:
        _program.setLevel(LEVELS[wanted])
    elif _program.level == logging.NOTSET:
        _program.setLevel(logging.INFO)
    if not _program.hasHandlers():
        fallback = _Fallback()
        fallback.setFormatter(_Formatter())
        _program.addHandler(fallback)
    library.call("rp_log_set_level", _program.getEffectiveLevel())
    if wanted and wanted not in LEVELS:
        logger.warning(
            "RALLYPOINT_LOG is %r, expected one of %s; info is taken", wanted, ", ".join(LEVELS)
        )


def drain() -> None:
    """Shows what the library has logged so far. Cheap if that is nothing."""
    if library.forked() or not _draining.acquire(blocking=False):
        return  # another thread is at it
    taken = False
    try:
        if not _ready:
            _set_up()
        record = _record
        assert record is not None
        while library.call("rp_log_next", ctypes.byref(record)) == abi.OK:
            taken = True
            if record.dropped:
                _show.add(
                    _make(logging.WARNING, "%d log records were lost here", (record.dropped,))
                )
            _emit(record)
    finally:
        _draining.release()
    if taken:
        _show.wait()


def _emit(record: abi.LogRecord) -> None:
    if not _program.isEnabledFor(record.level):
        return
    line = _make(record.level, record.text.decode("utf-8", "replace"))
    line.created = record.time_ms / 1000
    line.msecs = record.time_ms % 1000
    _show.add(line)
