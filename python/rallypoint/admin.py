"""What an administrator, or a program of theirs, asks a job for from outside.

The same as `rallypoint admin`, by the same code: a scheduler, a cloud's notice or a notebook may
have a job save, give nodes back, or end. torch is not needed. Every process that can reach the
control plane's port may do this, unless it has a token.

Example:
    answer = rallypoint.admin.drain(
        "host0:29400", "job7", ["gpu17"], reason="maintenance", within=120, away=7200
    )
    print(answer.text)
    rallypoint.admin.cancel("host0:29400", "job7", answer.directive, reason="it is off")
"""

from __future__ import annotations

import ctypes
import dataclasses
import json
import math
import os
from collections.abc import Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ._errors import invalid
from ._native import abi, library
from ._stores.request import finished

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Union

    Time = Union[float, timedelta]

__all__ = [
    "Answer",
    "Change",
    "Frame",
    "Group",
    "Member",
    "SilentNode",
    "Stacks",
    "Status",
    "Thread",
    "Worker",
    "cancel",
    "close",
    "drain",
    "evict",
    "forget",
    "save",
    "scale",
    "stacks",
    "status",
    "stop",
    "undrain",
]


@dataclasses.dataclass(frozen=True)
class Answer:
    """What a job has been asked for.

    Attributes:
        text: what is done, in one sentence.
        directive: the id of the directive, for `cancel`; "" if there is none.
    """

    text: str
    directive: str = ""


@dataclasses.dataclass(frozen=True)
class Frame:
    """One call.

    Attributes:
        file: the path of its source, or what stands for one.
        line: the line in it; 0 if it is not known.
        function: the name of the function.
    """

    file: str
    line: int
    function: str


@dataclasses.dataclass(frozen=True)
class Thread:
    """The stack of one thread.

    Attributes:
        main: it is the worker's main thread.
        frames: the innermost call first.
        cut: outer calls were left out.
    """

    main: bool
    frames: tuple[Frame, ...]
    cut: bool


@dataclasses.dataclass(frozen=True)
class Group:
    """Ranks whose workers are at the same place.

    Attributes:
        ranks: in their order.
        source: "faulthandler" or "py-spy"; "kernel" where there is no stack.
        threads: the main one first; empty if there is no stack.
        state: what the kernel says of the workers, where there is no stack.
        why: why there is no stack.
    """

    ranks: tuple[int, ...]
    source: str
    threads: tuple[Thread, ...]
    state: str
    why: str


@dataclasses.dataclass(frozen=True)
class SilentNode:
    """A node that did not answer.

    Attributes:
        rank: of the node.
        node: its id.
        label: its host name and process.
    """

    rank: int
    node: str
    label: str


@dataclasses.dataclass(frozen=True)
class Worker:
    """The process of a worker.

    Attributes:
        rank: of all workers.
        node: the id of its node.
        host: the name of its machine.
        pid: there.
        state: what the kernel says of it, in words.
        step: the last one that it has reported; None: it has reported none.
    """

    rank: int
    node: str
    host: str
    pid: int
    state: str
    step: int | None


@dataclasses.dataclass(frozen=True)
class Stacks:
    """Where the workers of a job are.

    Attributes:
        run_id: the job's.
        round: which round of it.
        nodes: of the round.
        ranks: of which something is known.
        verdict: what the stacks say, in one sentence.
        suspects: ranks that stand out, where most are at one place; empty: none does.
        silent: nodes that did not answer.
        groups: of equal stacks, the smallest first.
        workers: by rank, at most 256 a node; none of a node of an older release.
        groups_cut: how many groups were left out.
        ranks_cut: the ranks of these.
        frames_cut: outer calls were left out to keep the answer small.
    """

    run_id: str
    round: int
    nodes: int
    ranks: int
    verdict: str
    suspects: tuple[int, ...]
    silent: tuple[SilentNode, ...]
    groups: tuple[Group, ...]
    workers: tuple[Worker, ...]
    groups_cut: int
    ranks_cut: tuple[int, ...]
    frames_cut: bool


def stacks(
    endpoint: str,
    run_id: str,
    *,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Stacks:
    """Asks where the workers of a job are at this moment. It changes nothing and stops none.

    The same as `rallypoint stacks`. The question goes through the store of the job's round, which
    this machine has to reach.

    Args:
        endpoint: as for save.
        run_id: as for save.
        token_file: as for save.
        timeout: longest wait for the answers, in seconds; nodes that have not answered by then
            are named.

    Returns:
        The stacks of all workers, equal ones as one group.

    Raises:
        InvalidError: the job is not there, or no round of it runs.
        DeadlineError: nothing has answered in time; a TimeoutError.
        ConnectionFailedError: nothing answers there; a ConnectionError.
        AuthenticationError: the token is another one.
    """
    answer = _ask(abi.ADMIN_STACKS, endpoint, run_id, None, None, token_file, timeout)
    told: dict[str, Any] = json.loads(answer.text)
    groups = tuple(
        Group(
            tuple(group["ranks"]),
            group["source"],
            tuple(
                Thread(t["main"], tuple(_only(Frame, frame) for frame in t["frames"]), t["cut"])
                for t in group["threads"]
            ),
            group["state"],
            group["why"],
        )
        for group in told["groups"]
    )
    told |= {
        "suspects": tuple(told["suspects"]),
        "silent": tuple(_only(SilentNode, node) for node in told["silent"]),
        "groups": groups,
        "workers": tuple(_only(Worker, worker) for worker in told["workers"]),
        "ranks_cut": tuple(told["ranks_cut"]),
    }
    result: Stacks = _only(Stacks, told)
    return result


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of the last round.

    Attributes:
        rank: of the node.
        node: its id.
        label: its host name and process.
        address: under which the other nodes reach it.
        state: "running", "unknown", "rejoined", "finished" or "lost".
        cause: why it was lost.
        alive: a connection of it stands.
        step: the largest that its workers have reported; None: they have reported none.
    """

    rank: int
    node: str
    label: str
    address: str
    state: str
    cause: str
    alive: bool
    step: int | None


@dataclasses.dataclass(frozen=True)
class Change:
    """What has happened to a job.

    Attributes:
        at: when, in seconds since 1970.
        text: what.
        round: the last round then.
    """

    at: float
    text: str
    round: int


@dataclasses.dataclass(frozen=True)
class Status:
    """How a job stands.

    Attributes:
        run_id: the job's.
        phase: "empty", "forming", "running", "regroup", "finishing" or "closed".
        state: the phase, or what tells more of it: "stalled", or "restarting" after a failure.
        round: the last complete one; 0: none.
        not_started: why no round has been completed; "" unless one is to be.
        stalled: why the job makes no step, and where its workers are; "": it does, as far as is
            known.
        stopping: who announced the stop of the last round, and why; "": nobody has.
        members: of the last round, by rank.
        changes: the last ones, oldest first.
        document: all that is known, as docs/status.md has it.
    """

    run_id: str
    phase: str
    state: str
    round: int
    not_started: str
    stalled: str
    stopping: str
    members: tuple[Member, ...]
    changes: tuple[Change, ...]
    document: dict[str, Any] = dataclasses.field(repr=False)


def status(
    endpoint: str,
    run_id: str,
    *,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Status:
    """Asks how a job stands: who takes part, who is missing, and why.

    The same as `rallypoint status`. It changes nothing.

    Args:
        endpoint: as for save.
        run_id: as for save.
        token_file: as for save.
        timeout: longest wait for the answer, in seconds.

    Returns:
        The state of the job.

    Raises:
        InvalidError: the job is not there.
        DeadlineError: no answer in time; a TimeoutError.
        ConnectionFailedError: nothing answers there; a ConnectionError.
        AuthenticationError: the token is another one.
    """
    answer = _ask(abi.ADMIN_STATUS, endpoint, run_id, None, None, token_file, timeout)
    told: dict[str, Any] = json.loads(answer.text)
    members = tuple(
        _only(Member, {**member, "step": (member["progress"] or {}).get("step")})
        for member in told["members"]
    )
    changes = tuple(
        Change(_seconds(change["at"]), change["text"], change["round"])
        for change in told["changes"]
    )
    known = {**told, "members": members, "changes": changes, "document": told}
    result: Status = _only(Status, known)
    return result


def _seconds(time: str) -> float:
    """A time of the document, in seconds since 1970."""
    return datetime.fromisoformat(time.replace("Z", "+00:00")).timestamp()


def _only(kind: type[Any], told: dict[str, Any]) -> Any:
    """Makes a value of the fields that this release knows."""
    return kind(**{field.name: told[field.name] for field in dataclasses.fields(kind)})


def save(
    endpoint: str,
    run_id: str,
    *,
    reason: str | None = None,
    within: Time = 120,
    directive: str | None = None,
    by: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Answer:
    """Has all workers of a job save a checkpoint at the same step; the job goes on.

    Args:
        endpoint: where the job's nodes meet: host[:port] of the control plane,
            file:///directory or etcd://host.
        run_id: the job's.
        reason: what the job's nodes receive and log. None: that none was given.
        within: time until the deadline, in seconds.
        directive: an id of your own, which makes a repetition do nothing. None: a new one.
        by: who asks, for the job's nodes. None: this user and machine.
        token_file: of the control plane. None: $RALLYPOINT_TOKEN_FILE, if set.
        timeout: longest wait for the answer, in seconds. What was not answered in time may
            have been received.

    Returns:
        What is done.

    Raises:
        InvalidError: the job, or a node, is not there, or what is asked for does not fit it: a
            deadline in the past, a target that min, max or node_unit forbid; it is closed.
        DeadlineError: no answer in time; a TimeoutError.
        ConnectionFailedError: nothing there answers; a ConnectionError.
        AuthenticationError: the control plane does not know the token.
    """
    return _ask(abi.ADMIN_SAVE, **_given(locals()))


def drain(
    endpoint: str,
    run_id: str,
    nodes: str | Iterable[str],
    *,
    reason: str | None = None,
    within: Time = 120,
    away: Time = 0,
    directive: str | None = None,
    by: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Answer:
    """Has nodes leave a job when all workers have saved, or at the deadline.

    No restart is charged and spares take the places. If no other node is there the job ends, to
    be queued again.

    Args:
        endpoint: as for save.
        run_id: as for save.
        nodes: the id of a node, or several: their node_id option, or as `rallypoint status`
            shows them.
        reason: as for save.
        within: time until they leave at the latest, in seconds; 0 is now.
        away: time for which they are refused, from when they leave; 0 is until `undrain`.
        directive: as for save.
        by: as for save.
        token_file: as for save.
        timeout: as for save.

    Returns:
        What is done.

    Raises:
        What save raises.
    """
    return _ask(abi.ADMIN_DRAIN, **_given(locals()))


def scale(
    endpoint: str,
    run_id: str,
    target: int,
    *,
    reason: str | None = None,
    within: Time = 120,
    directive: str | None = None,
    by: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Answer:
    """Has a job go on with another number of nodes when all workers have saved, or at the deadline.

    Args:
        endpoint: as for save.
        run_id: as for save.
        target: the number of nodes, between min and max and a multiple of node_unit. Those
            above it become spares, spares below it join.
        reason: as for save.
        within: time until that at the latest, in seconds; 0 is now.
        directive: as for save.
        by: as for save.
        token_file: as for save.
        timeout: as for save.

    Returns:
        What is done.

    Raises:
        What save raises.
    """
    return _ask(abi.ADMIN_SCALE, **_given(locals()))


def stop(
    endpoint: str,
    run_id: str,
    *,
    reason: str | None = None,
    within: Time = 120,
    directive: str | None = None,
    by: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Answer:
    """Ends a job, to be queued again, when all workers have saved, or at the deadline.

    Args:
        endpoint: as for save.
        run_id: as for save.
        reason: as for save.
        within: time until that at the latest, in seconds; 0 is now.
        directive: as for save.
        by: as for save.
        token_file: as for save.
        timeout: as for save.

    Returns:
        What is done.

    Raises:
        What save raises.
    """
    return _ask(abi.ADMIN_STOP, **_given(locals()))


def cancel(
    endpoint: str,
    run_id: str,
    directive: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Answer:
    """Takes back a directive that was not carried out; workers that are held for it go on.

    Args:
        endpoint: as for save.
        run_id: as for save.
        directive: its id.
        reason: as for save.
        by: as for save.
        token_file: as for save.
        timeout: as for save.

    Returns:
        What is done.

    Raises:
        What save raises; InvalidError, too, if it does not stand.
    """
    return _ask(abi.ADMIN_CANCEL, **_given(locals()))


def undrain(
    endpoint: str,
    run_id: str,
    node: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Answer:
    """Lets a drained node join its job again before its time is over.

    Args:
        endpoint: as for save.
        run_id: as for save.
        node: its id.
        reason: as for save.
        by: as for save.
        token_file: as for save.
        timeout: as for save.

    Returns:
        What is done.

    Raises:
        What save raises; InvalidError, too, if it is not drained.
    """
    return _ask(abi.ADMIN_UNDRAIN, **_given(locals()))


def evict(
    endpoint: str,
    run_id: str,
    node: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Answer:
    """Takes a live node out of a job at once. Nothing keeps it from joining again.

    Args:
        endpoint: as for save.
        run_id: as for save.
        node: its id.
        reason: as for save.
        by: as for save.
        token_file: as for save.
        timeout: as for save.

    Returns:
        What is done.

    Raises:
        What save raises.
    """
    return _ask(abi.ADMIN_EVICT, **_given(locals()))


def close(
    endpoint: str,
    run_id: str,
    *,
    reason: str | None = None,
    fail: bool = False,
    by: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Answer:
    """Lets no more nodes join a job; the running round goes on to its end.

    Args:
        endpoint: as for save.
        run_id: as for save.
        reason: as for save.
        fail: end the job as failed: all nodes stop their workers at once.
        by: as for save.
        token_file: as for save.
        timeout: as for save.

    Returns:
        What is done; a job that is closed already is none to do anything about.

    Raises:
        What save raises.
    """
    given = _given(locals())
    given.pop("fail")
    return _ask(abi.ADMIN_FAIL if fail else abi.ADMIN_CLOSE, **given)


def forget(
    endpoint: str,
    run_id: str,
    *,
    reason: str | None = None,
    by: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    timeout: Time = 5,
) -> Answer:
    """Lets a job that has succeeded or was closed begin again before its `closed_for` is over.

    No node of it may be alive.

    Args:
        endpoint: as for save.
        run_id: as for save.
        reason: as for save; the job's history has it.
        by: as for save.
        token_file: as for save.
        timeout: as for save.

    Returns:
        What is done.

    Raises:
        What save raises; InvalidError, too, if it has not ended, or begins again anyway.
    """
    return _ask(abi.ADMIN_FORGET, **_given(locals()))


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    """A function's arguments for _ask."""
    node = arguments.pop("node", None)
    if node is not None:
        arguments["nodes"] = [node]
    return arguments


def _ask(
    action: int,
    endpoint: str,
    run_id: str,
    reason: str | None,
    by: str | None,
    token_file: str | os.PathLike[str] | None,
    timeout: Time,
    nodes: str | Iterable[str] = (),
    target: int = 0,
    directive: str | None = None,
    within: Time = 0,
    away: Time = 0,
) -> Answer:
    """Makes a request and waits for its answer, in slices that let Ctrl-C through."""
    names = [library.text(n) for n in ([nodes] if isinstance(nodes, str) else nodes)]
    request = abi.AdminRequest(
        endpoint=library.text(endpoint),
        run_id=library.text(run_id),
        reason=library.text(reason),
        by=library.text(by),
        action=action,
        target=target,
        nodes=(ctypes.c_char_p * max(1, len(names)))(*names),
        nodes_len=len(names),
        directive=library.text(directive),
        within_ms=_milliseconds("within", within),
        for_ms=_milliseconds("away", away),
        token_file=None if token_file is None else library.text(os.fspath(token_file)),
    )
    limit = library.milliseconds(timeout)
    result = finished("rp_admin_start", ctypes.byref(request), limit)
    try:
        text = library.bytes_of(result.value).decode("utf-8", "replace")
        given = [item.decode("utf-8", "replace") for item in library.items_of(result.list)]
    finally:
        library.load().rp_store_result_free(ctypes.byref(result))
    return Answer(text, *given)


def _milliseconds(name: str, time: Time) -> int:
    """A time for the library, which says what is wrong with one that is negative."""
    value: float = library.seconds(time)
    if not math.isfinite(value):
        raise invalid(f"{name} is {value}, which is no time")
    value = max(-1e12, min(value, 1e12)) * 1000
    return math.floor(value) if value < 0 else math.ceil(value)
