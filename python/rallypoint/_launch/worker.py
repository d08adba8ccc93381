"""The main program of a worker whose entry point is a function; see function.py."""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import pickle
import signal
import string
import sys
import threading
from contextlib import suppress
from multiprocessing import process, spawn
from typing import Any

from .arguments import fetched
from .function import result_file
from .record import record
from .world import place


def main(folder: str, local_rank: str | None = None) -> None:
    """Runs the function of a job and writes down what it returns.

    Args:
        folder: that of the job.
        local_rank: the worker's true local rank; None: $LOCAL_RANK is.
    """
    code = 0
    try:
        try:
            record(_run)(folder, local_rank or os.environ["LOCAL_RANK"])
        except SystemExit as e:
            if not isinstance(e.code, (int, type(None))):
                raise  # a text, which the interpreter prints
            code = e.code or 0
        except Exception:
            sys.excepthook(*sys.exc_info())
            code = 1
        _leave(code)
    except KeyboardInterrupt:
        # The launcher passes Ctrl-C on; a traceback of each worker says nothing.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)


def _run(folder: str, local_rank: str) -> None:
    with fetched(folder) as file:
        this: Any = process.current_process()
        this._inheriting = True  # refuses launches by a main module that is imported
        try:
            spawn.prepare(pickle.load(file))
            function, args = pickle.load(file)
        finally:
            del this._inheriting
    value = function(*(_substitute(a, local_rank) for a in args))
    path = result_file(folder, *place())
    if value is not None:
        with open(path + ".part", "xb") as file:
            pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
        os.rename(path + ".part", path)


def _leave(code: int) -> None:
    """Ends the process without the interpreter's finalisation.

    Before Python 3.14 finalisation ends each thread that asks for the interpreter lock, which
    aborts the process where C++ asked: a process group that was not destroyed has such threads,
    and turned a function that had returned into a failed worker, and any code into SIGABRT.
    What a program expects of its end is done here: threads are awaited, exit callbacks run, and
    files flushed.
    """
    threading._shutdown()  # type: ignore[attr-defined]
    with suppress(Exception):  # before Python 3.10 the last one's, which is printed already
        atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except Exception:
        sys.exit(code)  # the interpreter says it, and exits with 120
    for file in gc.get_objects():
        if issubclass(type(file), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with suppress(OSError, ValueError):
                file.flush()
    ctypes.CDLL(None).fflush(None)
    os._exit(code & 0xFF)


def _substitute(argument: Any, local_rank: str) -> Any:
    """Replaces ${local_rank} in texts, as in the arguments of commands."""
    if isinstance(argument, str):
        return string.Template(argument).safe_substitute(local_rank=local_rank)
    return argument
