"""What a job answers: the types of rallypoint.admin, and how they are read."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from typing import Any


@dataclasses.dataclass(frozen=True)
class Answer:
    """A job's answer to a request.

    Attributes:
        text: what the job does, in one sentence.
        directive: the id of the directive, for `cancel`; "" if there is none.
    """

    text: str
    directive: str = ""


@dataclasses.dataclass(frozen=True)
class Frame:
    """One call on a stack.

    Attributes:
        file: the path of its source file, or a placeholder if it has none.
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
        main: whether it is the worker's main thread.
        frames: its calls, the innermost first.
        cut: whether outer calls were left out.
    """

    main: bool
    frames: tuple[Frame, ...]
    cut: bool


@dataclasses.dataclass(frozen=True)
class Group:
    """Ranks whose workers are at the same place.

    Attributes:
        ranks: in ascending order.
        source: "faulthandler" or "py-spy"; "kernel" where there is no stack.
        threads: the main one first; empty if there is no stack.
        state: the workers' kernel state, in words, if there is no stack.
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
        rank: its node rank.
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
        rank: its rank among all workers.
        node: the id of its node.
        host: the name of its machine.
        pid: its process id on that machine.
        state: its kernel state, in words.
        step: the last step that it has reported; None if it has reported none.
    """

    rank: int
    node: str
    host: str
    pid: int
    state: str
    step: int | None


@dataclasses.dataclass(frozen=True)
class Stacks:
    """Where the workers of a job are: their stacks.

    Attributes:
        run_id: the job's run id.
        round: the number of its round.
        nodes: the number of nodes in the round.
        ranks: the number of ranks of which something is known.
        verdict: the conclusion from the stacks, in one sentence.
        suspects: ranks that differ from the others, if most are at one place; empty if none does.
        silent: nodes that did not answer.
        groups: ranks with equal stacks, the smallest group first.
        workers: by rank, at most 256 per node; none from a node of an older release.
        groups_cut: the number of groups that were left out.
        ranks_cut: the ranks in those groups.
        frames_cut: whether outer calls were left out to keep the answer small.
        nccl: what NCCL's counts show, in one sentence; "" if NCCL has not answered.
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
    nccl: str = ""

    def __repr__(self) -> str:
        return (
            f"<rallypoint.admin.Stacks of {self.run_id}, round {self.round}: "
            f"{self.ranks} rank{'s' * (self.ranks != 1)} on "
            f"{self.nodes} node{'s' * (self.nodes != 1)}; {self.verdict}>"
        )


@dataclasses.dataclass(frozen=True)
class LogStream:
    """The end of one output stream of a worker.

    Attributes:
        ranks: the workers that write to it; several if they share one file.
        node: the id of their node.
        host: the name of its machine.
        stream: "stdout", "stderr", or "output" for both in one.
        before: the number of bytes in the stream before `text`.
        text: its last lines, safe to show in a terminal.
        why: why its output is not known; "" if it is known.
    """

    ranks: tuple[int, ...]
    node: str
    host: str
    stream: str
    before: int
    text: str
    why: str


@dataclasses.dataclass(frozen=True)
class Logs:
    """The last output of a job's workers.

    Attributes:
        run_id: the job's run id.
        round: the round in which they wrote it.
        nodes: the number of nodes in the current round.
        failure: with `culprit`, how the worker that failed first ended; "" otherwise.
        silent: nodes that did not answer.
        streams: by rank.
    """

    run_id: str
    round: int
    nodes: int
    failure: str
    silent: tuple[SilentNode, ...]
    streams: tuple[LogStream, ...]


@dataclasses.dataclass(frozen=True)
class Member:
    """A member of the last round.

    Attributes:
        rank: its node rank.
        name: what people call it: its machine, or its id where nodes share one.
        node: its id.
        label: its host name and process.
        address: where the other nodes reach it.
        state: "running", "unknown", "rejoined", "finished" or "lost".
        cause: why it was lost.
        alive: whether it is connected.
        step: the highest step that its workers have reported; None if they have reported none.
    """

    rank: int
    name: str
    node: str
    label: str
    address: str
    state: str
    cause: str
    alive: bool
    step: int | None


@dataclasses.dataclass(frozen=True)
class Change:
    """One change in a job's history.

    Attributes:
        at: when it happened, in seconds since 1970.
        text: what happened.
        round: the last complete round at that time.
    """

    at: float
    text: str
    round: int


@dataclasses.dataclass(frozen=True)
class Status:
    """The status of a job.

    Attributes:
        run_id: the job's run id.
        phase: "empty", "forming", "running", "regroup", "finishing" or "closed".
        state: the phase, or a more specific state: "stalled", or "restarting" after a failure.
        round: the last complete round; 0 if there is none.
        not_started: why no round has been completed yet; "" if no round is forming.
        stalled: why the job makes no progress, and where its workers are; "" if it makes
            progress, as far as is known.
        stopping: which node announced that the last round stops, and why; "" if none has.
        members: the members of the last round, by rank.
        changes: the last changes, oldest first.
        document: the whole status, with the fields of docs/status.md.
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

    def __repr__(self) -> str:
        running = sum(member.state == "running" for member in self.members)
        return (
            f"<rallypoint.admin.Status of {self.run_id}: {self.state}, round {self.round}, "
            f"{running} of {len(self.members)} members run>"
        )


def stacks_of(document: str) -> Stacks:
    """Reads the answer to a question for stacks."""
    told: dict[str, Any] = json.loads(document)
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


def logs_of(document: str) -> Logs:
    """Reads the answer to a question for the workers' output."""
    told: dict[str, Any] = json.loads(document)
    told |= {
        "silent": tuple(_only(SilentNode, node) for node in told["silent"]),
        "streams": tuple(
            _only(LogStream, {**stream, "ranks": tuple(stream["ranks"])})
            for stream in told["streams"]
        ),
    }
    result: Logs = _only(Logs, told)
    return result


def status_of(document: str) -> Status:
    """Reads the answer to a question for the status."""
    told: dict[str, Any] = json.loads(document)
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
