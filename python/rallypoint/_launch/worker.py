"""The main program of a worker whose entry point is a function; see function.py."""

from __future__ import annotations

import os
import pickle
import signal
import string
from multiprocessing import process, spawn
from typing import Any

from .arguments import fetched
from .function import result_file
from .record import record


def main(folder: str, local_rank: str) -> None:
    """Runs the function of a job and writes down what it returns.

    Args:
        folder: that of the job.
        local_rank: the worker's true local rank.
    """
    try:
        record(_run)(folder, local_rank)
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
    path = result_file(folder, os.environ["RALLYPOINT_ROUND"], os.environ["RANK"])
    if value is not None:
        with open(path + ".part", "xb") as file:
            pickle.dump(value, file, pickle.HIGHEST_PROTOCOL)
        os.rename(path + ".part", path)


def _substitute(argument: Any, local_rank: str) -> Any:
    """Replaces ${local_rank} in texts, as in the arguments of commands."""
    if isinstance(argument, str):
        return string.Template(argument).safe_substitute(local_rank=local_rank)
    return argument
