"""How workers fail, without torch. failure.py says when these are used as they are."""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import signal
import socket
import time
from typing import Any

from .._errors import Code, RallypointError
from .._native.log import logger
from . import record
from .record import NOT_AVAILABLE

_NO_TRACEBACK = "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html"
_WIDEST = 60  # border of a report


@dataclasses.dataclass
class ProcessFailure:
    """One worker that ended badly; with torch installed it is torch's own class.

    Attributes:
        local_rank: rank of the worker on its node.
        pid: process id on its node.
        exitcode: its exit code; minus the number of the signal that ended it.
        error_file: path of what it wrote about its failure, or "<N/A>".
        error_file_data: the content of that file.
        message: the message in the file (a dict as `record` writes it, or a text), or a
            sentence made from the exit code.
        timestamp: when it failed, in whole seconds since 1970.
    """

    local_rank: int
    pid: int
    exitcode: int
    error_file: str
    error_file_data: Any = dataclasses.field(init=False)
    message: Any = dataclasses.field(init=False)
    timestamp: int = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.error_file_data = {"message": "<NONE>"}
        self.message = ""
        self.timestamp = int(time.time())
        if os.path.isfile(self.error_file):
            with open(self.error_file) as file:
                self.error_file_data = json.load(file)
            self.message = self.error_file_data["message"]
            if isinstance(self.message, str):
                self.timestamp = int(self.error_file_data.get("timestamp", 0))
            else:
                self.timestamp = int(self.message["extraInfo"]["timestamp"])
        else:
            self.error_file = NOT_AVAILABLE
        if not self.message:
            if self.exitcode < 0:
                self.message = (
                    f"Signal {-self.exitcode} ({self.signal_name()}) received by PID {self.pid}"
                )
            else:
                self.message = _NO_TRACEBACK

    def signal_name(self) -> str:
        """The name of the signal that ended the worker, "<N/A>" if none did."""
        if self.exitcode >= 0:
            return NOT_AVAILABLE
        try:
            return signal.Signals(-self.exitcode).name
        except ValueError:
            return NOT_AVAILABLE

    def timestamp_isoformat(self) -> str:
        """timestamp as local time, 2026-11-21_04:30:43."""
        return datetime.datetime.fromtimestamp(self.timestamp).isoformat(sep="_")


class ChildFailedError(RallypointError):
    """Workers failed for good; with torch installed also torch's class of this name.

    str() is the report that torchrun prints. `failures` and `name` are attributes.

    Args:
        name: the entry point, for the title of the report.
        failures: the failures by global rank, in the order in which they were noticed; at
            least one. Workers that the agent stopped are among them if what ran was a
            command; the report names them always.
        report: the report; made from the failures if it is not given.
        root: the global rank whose failure caused the others; the earliest if it is not
            given.
        code: WORKERS if workers of this node failed; CLOSED if another node ended the run
            because of its own.
    """

    def __init__(
        self,
        name: str,
        failures: dict[int, Any],
        *,
        report: str | None = None,
        root: int | None = None,
        code: Code = Code.WORKERS,
    ) -> None:
        assert failures, "a ChildFailedError needs a failure"
        self.name = name
        self.failures = failures
        self._report = report
        self._root = root
        # torch's class, if it is a base, would take other arguments.
        Exception.__init__(self, self.format_msg())
        self.code = code
        self.retryable = False

    def __reduce__(self) -> tuple[Any, ...]:
        given = {"report": self._report, "root": self._root, "code": self.code}
        return _rebuild, (self.name, self.failures, given)

    def __repr__(self) -> str:
        rank, failure = self.get_first_failure()
        more = len(self.failures) - 1
        others = f", {more} more" if more else ""
        return (
            f"<rallypoint.ChildFailedError of {self.name}: rank {rank} ended with "
            f"{failure.exitcode}{others}>"
        )

    def get_first_failure(self) -> tuple[int, Any]:
        """The failure that caused the others: its global rank and its record."""
        root = self._root
        if root is None:
            root = min(self.failures, key=lambda rank: int(self.failures[rank].timestamp))
        return root, self.failures[root]

    def format_msg(self, boarder_delim: str = "=", section_delim: str = "-") -> str:
        """Makes the report.

        Args:
            boarder_delim: what its border is made of.
            section_delim: what its rules are made of.

        Returns:
            The report.
        """
        if self._report is not None and (boarder_delim, section_delim) == ("=", "-"):
            return self._report
        root = self.get_first_failure()[0]
        title = f"{self.name} FAILED"
        texts = {
            rank: _record_text(i, rank, failure)
            for i, (rank, failure) in enumerate(self.failures.items())
        }
        lines = [title, *(line for text in texts.values() for line in text.split("\n"))]
        width = min(max(map(len, lines)), _WIDEST)
        first = texts.pop(root)
        others = list(texts.values()) or ["  <NO_OTHER_FAILURES>"]
        border, rule = boarder_delim * width, section_delim * width
        cause = "Root Cause (first observed failure):"
        parts = ["", border, title, rule, "Failures:", *others, rule, cause, first, border]
        return "\n".join(parts)


def _rebuild(name: str, failures: dict[int, Any], given: dict[str, Any]) -> BaseException:
    from .. import ChildFailedError as Class  # this process's own

    return Class(name, failures, **given)


def _record_text(index: int, rank: int, failure: Any) -> str:
    message = failure.message
    if isinstance(message, dict):
        message = message.get("extraInfo", {}).get(
            "py_callstack", message.get("message", NOT_AVAILABLE)
        )
        message = message.replace("\n", "\n  ")
    if failure.exitcode < 0:
        message = _enriched(message, failure.error_file)
    name = failure.signal_name()
    name = "" if name == NOT_AVAILABLE else f" ({name})"
    return (
        f"[{index}]:\n"
        f"  time      : {failure.timestamp_isoformat()}\n"
        f"  host      : {socket.getfqdn()}\n"
        f"  rank      : {rank} (local_rank: {failure.local_rank})\n"
        f"  exitcode  : {failure.exitcode} (pid: {failure.pid}) {name}\n"
        f"  error_file: {failure.error_file}\n"
        f"  traceback : {message}"
    )


def _enriched(message: str, error_file: str) -> str:
    """The message as the program's error handler shows it."""
    try:
        return record.get_error_handler().maybe_enrich_signal_failure_message(message, error_file)
    except Exception:
        logger.warning("the error handler cannot enrich a failure's message", exc_info=True)
        return message


class SignalException(RallypointError):
    """A signal ended the launch; if torch was imported before, also torch's class of this name.

    Args:
        msg: what happened.
        sigval: the signal.
    """

    def __init__(self, msg: str, sigval: signal.Signals) -> None:
        Exception.__init__(self, msg)  # see ChildFailedError
        self.sigval = sigval
        self.code = Code.CANCELED
        self.retryable = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild_signal, (str(self), self.sigval)


def _rebuild_signal(text: str, sigval: signal.Signals) -> BaseException:
    from .. import SignalException as Class  # this process's own

    return Class(text, sigval)
