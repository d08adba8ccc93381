"""The hooks of a launching program: a LogsSpecs that says where logs go, listeners for events.

Each has a thread and a socket to the library, so that neither the agent nor the caller
waits for it without a limit.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
from typing import Any, Callable

from .._errors import invalid
from .._native import abi
from .._native.log import logger
from .agent import Job

#: How long the end of a launch waits for callbacks that are behind, in seconds.
PATIENCE = 5.0

_DEST = (
    "stdouts",
    "stderrs",
    "tee_stdouts",
    "tee_stderrs",
    "error_files",
)
#: What older versions of torch do not have.
_NEWER_DEST = ("filtered_stdout", "filtered_stderr")


def has_reify(logs: Any) -> bool:
    """Whether a LogsSpecs has a reify of its own, which torch's default has not."""
    reify = getattr(type(logs), "reify", None)
    own = "torch.distributed.elastic.multiprocessing.api"
    return reify is not None and getattr(reify, "__module__", own) != own


def event_handler(name: str) -> Callable[[str], None]:
    """What hands an event to the logging handler that torch knows under a name."""
    try:
        from torch.distributed.elastic.events import get_logging_handler

        handler = get_logging_handler(name)
    except Exception as e:
        raise invalid(
            f"unknown event_log_handler {name!r}: there are null, console, and the handlers of "
            f"torch ({type(e).__name__}: {e})"
        ) from e

    def handle(event: str) -> None:
        handler.handle(logging.LogRecord("events", logging.INFO, "", 0, event, None, None))

    return handle


class Hooks:
    """Serves the hooks of a job while the context lasts; the agent must end in it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._theirs: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._complained = False

    def __enter__(self) -> Hooks:
        try:
            self._begin()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _begin(self) -> None:
        job = self._job
        if job.logs is not None:
            job.logs_fd = self._serve("logs", self._answer)
        if job.on_rdzv_event is not None:
            job.flags |= abi.AGENT_RDZV_EVENTS
        if job.on_metric is not None:
            job.flags |= abi.AGENT_METRICS
        if job.on_event or job.on_rdzv_event or job.on_metric:
            job.events_fd = self._serve("events", self._pass_on)

    def _serve(self, name: str, serve: Callable[[socket.socket], None]) -> int:
        theirs, ours = socket.socketpair()
        self._theirs.append(theirs)
        if theirs.fileno() == 0:  # which says: none
            theirs = theirs.dup()
            self._theirs.append(theirs)

        def run() -> None:
            with ours:
                serve(ours)

        thread = threading.Thread(target=run, name=f"rallypoint-{name}", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # there are no more threads
            ours.close()
            raise
        self._threads.append(thread)
        return theirs.fileno()

    def opened(self) -> None:
        """To be called once the agent is open: the library has its own duplicates then."""
        for end in self._theirs:
            end.close()

    def __exit__(self, *_: object) -> None:
        self.opened()
        self._job.logs_fd = self._job.events_fd = 0
        for thread in self._threads:
            thread.join(PATIENCE)
            if thread.is_alive():
                logger.warning("%s hangs: the launch does not wait for it", thread.name)

    def _answer(self, ours: socket.socket) -> None:
        with ours.makefile("r", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                try:
                    text = self._ask(line)
                except BaseException as e:
                    logger.debug("the plug-in for logs failed", exc_info=True)
                    text = json.dumps({"error": f"{type(e).__name__}: {e}"[:500]})
                try:
                    ours.sendall((text + "\n").encode("utf-8", "surrogateescape"))
                except OSError:  # the run is over
                    return

    def _ask(self, line: str) -> str:
        envs = dict(enumerate(json.loads(line)))
        dest = self._job.logs.reify(envs)
        answer = {name: getattr(dest, name) for name in _DEST}
        answer.update((name, getattr(dest, name, "")) for name in _NEWER_DEST)
        answer["envs"] = {
            rank: {str(k): str(v) for k, v in env.items()} for rank, env in envs.items()
        }
        return json.dumps(answer, default=os.fspath, ensure_ascii=False)

    def _pass_on(self, ours: socket.socket) -> None:
        with ours.makefile("r", encoding="utf-8", errors="surrogateescape") as lines:
            for line in lines:
                if not line.endswith("\n"):  # the agent has ended without waiting for this reader
                    return
                text = line.rstrip("\n")
                fields = json.loads(text)
                if "group_name" in fields:
                    self._measure(fields)
                    continue
                listener = self._job.on_event
                if "node_state" in fields:
                    listener = self._job.on_rdzv_event
                try:
                    if listener is not None:
                        listener(text)
                except Exception:
                    logger.exception("on_event, or an event handler, failed")

    def _measure(self, fields: dict[str, Any]) -> None:
        assert self._job.on_metric is not None
        try:
            self._job.on_metric(fields["name"], fields["value"], fields["group_name"])
        except Exception:
            # There are some ten a second: once is enough.
            if not self._complained:
                self._complained = True
                logger.exception("the handler of metrics failed")
