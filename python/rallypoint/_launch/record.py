"""Error files: how a worker tells its launcher what went wrong.

The protocol is torch's (TORCHELASTIC_ERROR_FILE, its JSON), and needs no torch.
"""

from __future__ import annotations

import faulthandler
import functools
import json
import logging
import os
import sys
import time
import traceback
from typing import Any, Callable, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])

logger = logging.getLogger("rallypoint")

ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
NOT_AVAILABLE = "<N/A>"


class ErrorHandler:
    """Writes the error file that TORCHELASTIC_ERROR_FILE names.

    `record` calls it. A subclass may override any method to keep other records. Without
    that variable, or if it is empty, nothing is written.
    """

    _fn_name = "<unknown>"

    def set_entrypoint_fn_name(self, fn_name: str) -> None:
        """Takes the name of the recorded function, for log lines.

        Args:
            fn_name: its name.
        """
        self._fn_name = fn_name

    def initialize(self) -> None:
        """Prepares the process: tracebacks of all threads when it crashes."""
        try:
            faulthandler.enable(all_threads=True)
        except Exception as e:
            logger.warning("Unable to enable fault handler. %s: %s", type(e).__name__, e)

    def record_exception(self, e: BaseException) -> None:
        """Writes an exception, with its traceback, to the error file.

        Args:
            e: the exception; it is being handled.
        """
        path = os.environ.get(ERROR_FILE)
        if not path:
            return
        text = "".join(traceback.format_exception(type(e), e, e.__traceback__))
        extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
        self._write(path, {"message": {"message": f"{type(e).__name__}: {e}", "extraInfo": extra}})

    def record_success(self) -> None:
        """Called after the function has returned. Writes nothing."""

    def override_error_code_in_rootcause_data(
        self, rootcause_error_file: str, rootcause_error: dict[str, Any], error_code: int = 0
    ) -> None:
        """Puts a worker's exit code into what it wrote.

        Args:
            rootcause_error_file: path that the content was read from.
            rootcause_error: the content, which is changed.
            error_code: the exit code.
        """
        message = rootcause_error.get("message")
        if isinstance(message, dict):
            message["errorCode"] = error_code
        else:
            logger.warning(
                "error file %s has no message object: the exit code %d is not added",
                rootcause_error_file,
                error_code,
            )

    def dump_error_file(self, rootcause_error_file: str, error_code: int = 0) -> None:
        """Propagates a worker's error file: copies it to this process's own.

        Args:
            rootcause_error_file: path of the worker's file.
            error_code: the worker's exit code; added to the copy unless it is 0.
        """
        with open(rootcause_error_file) as file:
            data = json.load(file)
        if error_code:
            self.override_error_code_in_rootcause_data(rootcause_error_file, data, error_code)
        path = os.environ.get(ERROR_FILE)
        if not path:
            logger.error("no error file to propagate to (%s); it would be: %s", ERROR_FILE, data)
            return
        if os.path.exists(path):
            logger.warning("%s exists already and is replaced", path)
        self._write(path, data)

    def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
        """Adds what is known about a worker that a signal ended.

        Args:
            message: what would be shown.
            error_file: path of the worker's error file.

        Returns:
            The text to show; here it is the same text.
        """
        return message

    @staticmethod
    def _write(path: str, data: object) -> None:
        try:
            with open(path, "w") as file:
                json.dump(data, file)
        except OSError as e:
            logger.warning("cannot write the error file %s: %s", path, e)


def get_error_handler() -> ErrorHandler:
    """Returns the handler that `record` uses unless it is given one."""
    return ErrorHandler()


def _failed_children() -> tuple[type[BaseException], ...]:
    """The classes of ChildFailedError that exist in this process: no other can be raised."""
    classes = []
    torch_errors = sys.modules.get("torch.distributed.elastic.multiprocessing.errors")
    plain = sys.modules.get("rallypoint._launch.failure_plain")
    for module in (torch_errors, plain):
        cls = getattr(module, "ChildFailedError", None)
        if isinstance(cls, type):
            classes.append(cls)
    return tuple(classes)


def record(fn: _F, error_handler: ErrorHandler | None = None) -> _F:
    """Decorates the main function of a worker, so that its launcher learns why it failed.

    An exception that leaves the function is written to the file that the variable
    TORCHELASTIC_ERROR_FILE names, and raised further; its traceback is then part of the
    launcher's report. After a ChildFailedError it is the file of the worker that failed
    first that is propagated. SystemExit(0) becomes a return of None.

    Example:
        @rallypoint.record
        def main():
            ...

    Args:
        fn: the function. It may take and return anything.
        error_handler: what writes the file; get_error_handler() if it is not given.

    Returns:
        The function, decorated. Workers started with a function need no `record`.
    """
    handler = error_handler or get_error_handler()

    @functools.wraps(fn)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        handler.set_entrypoint_fn_name(getattr(fn, "__qualname__", repr(fn)))
        handler.initialize()
        try:
            result = fn(*args, **kwargs)
        except SystemExit as e:
            if e.code == 0:
                return None
            raise
        except Exception as e:
            if isinstance(e, _failed_children()):
                _propagate(handler, e)
            else:
                handler.record_exception(e)
            raise
        handler.record_success()
        return result

    return wrapped  # type: ignore[return-value]


def _propagate(handler: ErrorHandler, error: Any) -> None:
    rank, failure = error.get_first_failure()
    if failure.error_file == NOT_AVAILABLE:
        logger.info("local_rank %d FAILED with no error file", failure.local_rank)
        return
    try:
        handler.dump_error_file(failure.error_file, failure.exitcode)
    except (OSError, ValueError) as e:
        logger.warning("cannot propagate the error file of rank %d: %s", rank, e)
