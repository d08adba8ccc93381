"""The library's log, passed on to Python's logging.

The library never calls back; its records are taken at every call of this package
that a program makes. They go to the logger "rallypoint". A program that configures
logging decides where they go; for one that does not (torchrun), a handler of ours
prints them to stderr. RALLYPOINT_LOG sets the level: debug, info (the default),
warning, error or off.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
import threading
import time

from . import abi, library

logger = logging.getLogger("rallypoint")

LEVELS = {"debug": 10, "info": 20, "warning": 30, "warn": 30, "error": 40, "off": 100}

# How late a record of the library's log is shown where nothing else happens.
LOG_MS = 500

_draining = threading.Lock()
_record: abi.LogRecord | None = None
_ready = False


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
        if logging.getLogger().handlers or logger.handlers != [self]:
            return
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _after_fork_in_child() -> None:
    global _draining
    _draining = threading.Lock()


os.register_at_fork(after_in_child=_after_fork_in_child)


def _set_up() -> None:
    global _ready, _record
    _ready = True
    _record = abi.LogRecord()
    wanted = os.environ.get("RALLYPOINT_LOG", "").strip().lower()
    if wanted in LEVELS:
        logger.setLevel(LEVELS[wanted])
    elif logger.level == logging.NOTSET:
        logger.setLevel(logging.INFO)
    if not logger.hasHandlers():
        fallback = _Fallback()
        fallback.setFormatter(_Formatter())
        logger.addHandler(fallback)
    library.call("rp_log_set_level", logger.getEffectiveLevel())
    if wanted and wanted not in LEVELS:
        logger.warning(
            "RALLYPOINT_LOG is %r, expected one of %s; info is taken", wanted, ", ".join(LEVELS)
        )


def drain() -> None:
    """Shows what the library has logged so far. Cheap if that is nothing."""
    if library.forked() or not _draining.acquire(blocking=False):
        return  # another thread is at it
    try:
        if not _ready:
            _set_up()
        record = _record
        assert record is not None
        while library.call("rp_log_next", ctypes.byref(record)) == abi.OK:
            if record.dropped:
                logger.warning("%d log records were lost here", record.dropped)
            _emit(record)
    finally:
        _draining.release()


def _emit(record: abi.LogRecord) -> None:
    if not logger.isEnabledFor(record.level):
        return
    line = logger.makeRecord(
        logger.name,
        record.level,
        "librallypoint",
        0,
        record.text.decode("utf-8", "replace"),
        (),
        None,
    )
    line.created = record.time_ms / 1000
    line.msecs = record.time_ms % 1000
    logger.handle(line)
