"""Requests to a job from outside, by an administrator or a program.

The same code as `rallypoint admin`. A scheduler, a cloud's preemption notice or a notebook can make
a job save, release nodes, or end. torch is not needed. Unless the control plane has a token, every
process that can reach its port can do this.

Example:
    run = rallypoint.admin.Run("host0:29400", "job7")
    answer = run.drain("gpu17", reason="maintenance", within=120, away=7200)
    print(answer.text)
    run.cancel(answer.directive, reason="it is off")

Each method is also a function, for a program that sends one request:
`rallypoint.admin.save(endpoint)`.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import TYPE_CHECKING, Any, TypeVar

from ._answers import (
    Answer,
    Change,
    Frame,
    Group,
    Logs,
    LogStream,
    Member,
    SilentNode,
    Stacks,
    Status,
    Thread,
    Worker,
    logs_of,
    stacks_of,
    status_of,
)
from ._errors import invalid
from ._native import abi, library
from ._stores.request import finished

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Union

    Time = Union[float, timedelta]
    Path = Union[str, os.PathLike[str], None]

_T = TypeVar("_T")

__all__ = [
    "Answer",
    "Change",
    "Frame",
    "Group",
    "LogStream",
    "Logs",
    "Member",
    "Run",
    "SilentNode",
    "Stacks",
    "Status",
    "Thread",
    "Worker",
    "cancel",
    "close",
    "cordon",
    "drain",
    "evict",
    "forget",
    "logs",
    "save",
    "scale",
    "stacks",
    "status",
    "stop",
    "uncordon",
    "undrain",
]


class Run:
    """One run at an endpoint, and the author of requests to it.

    It keeps no connection: each method sends a request and waits for the answer. Any thread may
    use it.

    Each method raises InvalidError if the job or a node does not exist or the request does not fit
    the job (a deadline in the past; a target that min, max or node_unit forbid; a closed job). It
    raises DeadlineError (a TimeoutError) if no answer comes in time, ConnectionFailedError (a
    ConnectionError) if nothing answers at the endpoint, and AuthenticationError if the control
    plane does not know the token.

    Args:
        endpoint: the job's endpoint: host[:port] of the control plane, file:///directory or
            etcd://host.
        run_id: the job's run id. None: the only job at the endpoint.
        by: the author that the job's nodes see. None: this user and machine.
        token_file: the control plane's token file. None: $RALLYPOINT_TOKEN_FILE, if set.
        timeout: longest wait for an answer, in seconds. A request that was not answered in
            time may have been received nevertheless.
    """

    def __init__(
        self,
        endpoint: str,
        run_id: str | None = None,
        *,
        by: str | None = None,
        token_file: Path = None,
        timeout: Time = 5,
    ) -> None:
        self._endpoint, self._run_id, self._by = endpoint, run_id, by
        self._token_file, self._timeout = token_file, timeout

    def __repr__(self) -> str:
        return (
            f"rallypoint.admin.Run({library.without_password(self._endpoint)!r}, {self._run_id!r})"
        )

    def status(self) -> Status:
        """Asks for the status of a job: its members, and which nodes are missing, and why.

        The same as `rallypoint status`. It changes nothing.

        Returns:
            The state of the job.
        """
        return status_of(self._ask(abi.ADMIN_STATUS).text)

    def stacks(self) -> Stacks:
        """Asks where the workers of a job are at this moment. It changes nothing.

        The same as `rallypoint stacks`. The request goes through the store of the job's round,
        which this machine must be able to reach.

        Returns:
            The stacks of all workers, equal ones as one group.

        Raises:
            InvalidError: also if no round of the job runs.
        """
        return stacks_of(self._ask(abi.ADMIN_STACKS).text)

    def logs(self, rank: int | None = None, *, culprit: bool = False) -> Logs:
        """Asks for the last output of a job's workers, on any node.

        The same as `rallypoint logs`. The request goes through the store of the job's round,
        which this machine must be able to reach. The result names nodes that do not answer within
        2 s.

        Args:
            rank: one worker, the last 64 KiB of each stream. None: all workers, less of each.
            culprit: instead of a rank, the worker that failed first in the most recent failure.

        Returns:
            The end of each stream.

        Raises:
            InvalidError: also if there is no such rank, or no worker has failed.
        """
        if rank is not None and (culprit or rank < 0):
            raise invalid(f"rank is {rank}: it must be 0 or above, and None with culprit")
        target = -2 if culprit else -1 if rank is None else rank
        return logs_of(self._ask(abi.ADMIN_LOGS, target=target).text)

    def save(
        self, *, reason: str | None = None, within: Time = 120, directive: str | None = None
    ) -> Answer:
        """Has all workers of a job save a checkpoint at the same step; the job continues.

        Args:
            reason: the reason that the job's nodes receive and log. None: they log that none was
                given.
            within: time until the deadline, in seconds.
            directive: an id of your own; a second request with the same id does nothing. None: a
                new one.

        Returns:
            What is done.
        """
        return self._ask(abi.ADMIN_SAVE, reason=reason, within=within, directive=directive)

    def drain(
        self,
        nodes: str | Iterable[str],
        *,
        reason: str | None = None,
        within: Time = 120,
        away: Time = 0,
        directive: str | None = None,
    ) -> Answer:
        """Has nodes leave a job once all workers have saved.

        No restart is charged, and spares take their places. If there is no other node, the job ends
        so that it can be queued again.

        Args:
            nodes: the id of a node, or several: the nodes' node_id option, or the ids that
                `rallypoint status` shows.
            reason: as for save.
            within: longest time until they leave, in seconds; 0: at once.
            away: time for which they are refused after they leave, in seconds; 0: until `undrain`.
            directive: as for save.

        Returns:
            What is done.
        """
        return self._ask(
            abi.ADMIN_DRAIN,
            nodes=nodes,
            reason=reason,
            within=within,
            away=away,
            directive=directive,
        )

    def scale(
        self,
        target: int,
        *,
        reason: str | None = None,
        within: Time = 120,
        directive: str | None = None,
    ) -> Answer:
        """Continues a job with another number of nodes once all workers have saved.

        Args:
            target: the number of nodes, between min and max and a multiple of node_unit. Surplus
                nodes become spares; spares join if nodes are missing.
            reason: as for save.
            within: longest time until the job does so, in seconds; 0: at once.
            directive: as for save.

        Returns:
            What is done.
        """
        return self._ask(
            abi.ADMIN_SCALE, target=target, reason=reason, within=within, directive=directive
        )

    def stop(
        self, *, reason: str | None = None, within: Time = 120, directive: str | None = None
    ) -> Answer:
        """Ends a job once all workers have saved, so that it can be queued again.

        Args:
            reason: as for save.
            within: longest time until the job ends, in seconds; 0: at once.
            directive: as for save.

        Returns:
            What is done.
        """
        return self._ask(abi.ADMIN_STOP, reason=reason, within=within, directive=directive)

    def cancel(self, directive: str, *, reason: str | None = None) -> Answer:
        """Cancels a directive that has not been carried out. Workers held for it continue.

        Args:
            directive: its id.
            reason: as for save.

        Returns:
            What is done.

        Raises:
            InvalidError: also if there is no current directive with that id.
        """
        return self._ask(abi.ADMIN_CANCEL, directive=directive, reason=reason)

    def cordon(self, node: str, *, reason: str | None = None, away: Time = 0) -> Answer:
        """Keeps a node out of a job, even one that has not joined yet.

        A node whose workers are running stays until its round ends; a spare leaves at once.

        Args:
            node: its id, or a host name, which means all nodes on that host.
            reason: as for save.
            away: time for which it is kept out, in seconds; 0 is until `uncordon`.

        Returns:
            What is done.
        """
        return self._ask(abi.ADMIN_CORDON, nodes=node, reason=reason, away=away)

    def uncordon(self, node: str, *, reason: str | None = None) -> Answer:
        """The same as undrain."""
        return self.undrain(node, reason=reason)

    def undrain(self, node: str, *, reason: str | None = None) -> Answer:
        """Lets a drained node join its job again before its time is over.

        Args:
            node: its id.
            reason: as for save.

        Returns:
            What is done.

        Raises:
            InvalidError: also if it is not drained.
        """
        return self._ask(abi.ADMIN_UNDRAIN, nodes=node, reason=reason)

    def evict(self, node: str, *, reason: str | None = None) -> Answer:
        """Removes a live node from a job immediately. Nothing prevents it from joining again.

        Args:
            node: its id.
            reason: as for save.

        Returns:
            What is done.
        """
        return self._ask(abi.ADMIN_EVICT, nodes=node, reason=reason)

    def close(self, *, reason: str | None = None, fail: bool = False) -> Answer:
        """Closes a job: no more nodes can join, and the running round continues to its end.

        Args:
            reason: as for save.
            fail: end the job as failed: all nodes stop their workers immediately.

        Returns:
            What is done. Closing a job that is already closed changes nothing.
        """
        return self._ask(abi.ADMIN_FAIL if fail else abi.ADMIN_CLOSE, reason=reason)

    def forget(self, *, reason: str | None = None) -> Answer:
        """Lets a job that has succeeded or was closed begin again before its `closed_for` is over.

        None of its nodes may be alive.

        Args:
            reason: as for save; it is also recorded in the job's history.

        Returns:
            What is done.

        Raises:
            InvalidError: also if the job has not ended, or would begin again without this.
        """
        return self._ask(abi.ADMIN_FORGET, reason=reason)

    def _ask(
        self,
        action: int,
        *,
        reason: str | None = None,
        nodes: str | Iterable[str] = (),
        target: int = 0,
        directive: str | None = None,
        within: Time = 0,
        away: Time = 0,
    ) -> Answer:
        """Makes a request and waits for its answer, in slices that let Ctrl-C through."""
        names = [library.text(n) for n in ([nodes] if isinstance(nodes, str) else nodes)]
        token = self._token_file
        request = abi.AdminRequest(
            endpoint=library.text(self._endpoint),
            run_id=library.text(self._run_id),
            reason=library.text(reason),
            by=library.text(self._by),
            action=action,
            target=target,
            nodes=(ctypes.c_char_p * max(1, len(names)))(*names),
            nodes_len=len(names),
            directive=library.text(directive),
            within_ms=_milliseconds("within", within),
            for_ms=_milliseconds("away", away),
            token_file=None if token is None else library.text(os.fspath(token)),
        )
        limit = library.milliseconds(self._timeout)
        result = finished("rp_admin_start", ctypes.byref(request), limit)
        try:
            text = library.bytes_of(result.value).decode("utf-8", "replace")
            given = [item.decode("utf-8", "replace") for item in library.items_of(result.list)]
        finally:
            library.load().rp_store_result_free(ctypes.byref(result))
        return Answer(text, *given)


def _function(method: Callable[..., _T]) -> Callable[..., _T]:
    """A function that sends one request: it takes Run's arguments, and those of the method."""
    run, own = signature(Run).parameters, list(signature(method).parameters.values())[1:]
    named = [p for p in own if p.kind is not Parameter.KEYWORD_ONLY]
    first = [run["endpoint"], run["run_id"]]
    if named and named[0].default is Parameter.empty:
        first[1] = first[1].replace(default=Parameter.empty)
    options = [p for p in run.values() if p.kind is Parameter.KEYWORD_ONLY]

    @wraps(method)
    def function(endpoint: str, run_id: str | None = None, *args: object, **more: object) -> _T:
        bound: dict[str, Any] = {p.name: more.pop(p.name) for p in options if p.name in more}
        return method(Run(endpoint, run_id, **bound), *args, **more)

    ask = [p for p in own if p.kind is Parameter.KEYWORD_ONLY]
    function.__signature__ = signature(method).replace(parameters=first + named + ask + options)  # type: ignore[attr-defined]
    function.__qualname__ = function.__name__
    function.__doc__ = f"The same as Run.{function.__name__}."
    return function


status, stacks, logs = _function(Run.status), _function(Run.stacks), _function(Run.logs)
save, drain, scale = _function(Run.save), _function(Run.drain), _function(Run.scale)
stop, cancel, close = _function(Run.stop), _function(Run.cancel), _function(Run.close)
cordon, uncordon = _function(Run.cordon), _function(Run.uncordon)
undrain, evict, forget = _function(Run.undrain), _function(Run.evict), _function(Run.forget)


def _milliseconds(name: str, time: Time) -> int:
    """A time for the library, which says what is wrong with one that is negative."""
    value: float = library.seconds(time)
    if not math.isfinite(value):
        raise invalid(f"{name} is {value}, which is not a time")
    value = max(-1e12, min(value, 1e12)) * 1000
    return math.floor(value) if value < 0 else math.ceil(value)
