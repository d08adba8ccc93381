"""What a job answers: the types of rallypoint.admin, and how they are read."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from typing import Any


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
        name: what people call it: its machine, or its id where nodes share that.
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

    def __repr__(self) -> str:
        return (
            f"<rallypoint.admin.Stacks of {self.run_id}, round {self.round}: "
            f"{self.ranks} rank{'s' * (self.ranks != 1)} on "
            f"{self.nodes} node{'s' * (self.nodes != 1)}; {self.verdict}>"
        )


@dataclasses.dataclass(frozen=True)
class LogStream:
    """What a worker wrote last to one of its streams.

    Attributes:
        ranks: who writes there; several if they write into one file.
        node: the id of their node.
        host: the name of its machine.
        stream: "stdout", "stderr", or "output" for both in one.
        before: how many bytes of it came before.
        text: lines that a terminal can show.
        why: why nothing is known of it; "" if it is.
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
    """What the workers of a job wrote last.

    Attributes:
        run_id: the job's.
        round: in which they wrote it.
        nodes: of the round that runs.
        failure: how the worker ended that failed first, if that was asked for.
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
