"""What must hold of the starts of workers: each is a line of its agent's name, the round,
GROUP_RANK, RANK, WORLD_SIZE, the store's address, and the agent's process id."""

from __future__ import annotations

import heapq
import json
import subprocess
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import wraps
from pathlib import Path
from types import MappingProxyType
from typing import ParamSpec

from conftest import REPOSITORY
from guarantee import GuaranteeBroken

Starts = list[list[str]]
P = ParamSpec("P")


def starts_in(history: Path) -> Starts:
    """The starts so far. The last line may be half written: a reader does not wait for a writer."""
    return [line.split() for line in history.read_text().rpartition("\n")[0].splitlines()]


def judged(judge: Callable[P, None]) -> Callable[P, None]:
    """Makes what a check asserts final: the test is not run again."""

    @wraps(judge)
    def judges(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            judge(*args, **kwargs)
        except AssertionError as e:
            raise GuaranteeBroken(*e.args) from e

    return judges


def generations(records: Iterable[str]) -> dict[tuple[str, str], str]:
    """By round number and store address, the generation of the control plane that has
    completed the round; the two together name a round."""
    found: dict[tuple[str, str], str] = {}
    for line in records:
        for effect in json.loads(line).get("effects") or []:
            if outcome := (effect.get("Reply", {}).get("Result") or {}).get("Outcome"):
                store = f"{outcome['StoreAddr']}:{outcome['StorePort']}"
                found[str(outcome["Round"]), store] = outcome["Generation"]
    return found


@judged
def check(
    history: Starts,
    least: int,
    most: int,
    generations: Mapping[tuple[str, str], str] = MappingProxyType({}),
) -> None:
    """Holds what the workers have written down against the guarantees 1 to 3. Without
    generations all rounds are those of one: no control plane has founded the run anew."""
    rounds: dict[tuple[str, int], list[list[str]]] = defaultdict(list)
    last: dict[str, int] = {}
    for start in history:
        name, number = start[0], int(start[1])
        assert number > last.get(name, 0), f"{name} went from round {last[name]} to {number}"
        last[name] = number
        rounds[generations.get((start[1], start[5]), ""), number].append(start)
    for (_, number), starts in sorted(rounds.items()):
        sizes = {s[4] for s in starts}
        assert len(sizes) == 1, f"round {number} has several sizes: {starts}"
        size = int(sizes.pop())
        assert least <= size <= most, f"round {number} has {size} nodes"
        ranks = [int(s[3]) for s in starts]
        assert len(set(ranks)) == len(ranks), f"round {number} has a rank twice: {starts}"
        assert all(0 <= rank < size for rank in ranks), f"round {number}: {starts}"
        assert all(s[2] == s[3] for s in starts), f"round {number}: {starts}"
        assert len({s[5] for s in starts}) == 1, f"round {number} has several stores: {starts}"


@judged
def check_places(history: Starts, records: Iterable[str]) -> None:
    """Holds the starts of workers against the lines that the control plane has recorded:
    each was given to the agent that started it, and no agent that ran its workers left
    its round before it had to."""
    places: dict[tuple[int, int], set[tuple[str, str]]] = defaultdict(set)  # by round, rank
    agents: dict[str, str] = {}
    told: dict[str, int] = {}  # session -> how many wait, as it was told last
    reason: dict[str, bool] = {}  # whether it was told since its outcome that some do
    member: dict[str, bool] = {}  # whether its workers run
    last: dict[str, int] = {}  # number of its last join
    for line in records:
        record = json.loads(line)
        event, effects = record.get("event") or {}, record.get("effects") or []
        if hello := event.get("Hello"):
            agents[hello["Session"]] = hello["Label"].rsplit(" ", 1)[1]
        if (join := event.get("Join")) and join["Number"] > last.get(join["Session"], 0):
            session = join["Session"]
            last[session] = join["Number"]
            if member.pop(session, False):
                # The reason may be gone by now: a newcomer has died while the workers stopped.
                assert reason.get(session), f"a regroup for no reason: {line}"
        for effect in effects:
            if note := effect.get("Welcome") or effect.get("Notify"):
                session, waiting = note["Session"], note["Notice"]["Waiting"]
                told[session] = waiting
                reason[session] = reason.get(session, False) or waiting > 0
            if outcome := (effect.get("Reply", {}).get("Result") or {}).get("Outcome"):
                session = effect["Reply"]["Session"]
                member[session] = True
                reason[session] = told.get(session, 0) > 0
                store = f"{outcome['StoreAddr']}:{outcome['StorePort']}"
                places[outcome["Round"], outcome["Rank"]].add((agents[session], store))
    for name, number, _, rank, _, store, agent in history:
        assert (agent, store) in places[int(number), int(rank)], (
            f"{name} started a worker in round {number} as rank {rank}: {places}"
        )


def in_order(*records: Path) -> Iterable[str]:
    """The lines of all files as they were written, one after the other. A process that was
    killed has left half a line at most."""

    def when(line: str) -> datetime:
        return datetime.fromisoformat(json.loads(line)["at"])

    files = [
        [line for line in record.read_text().splitlines() if line.endswith("}")]
        for record in records
    ]
    return heapq.merge(*files, key=when)


@judged
def audit(*records: Path) -> None:
    """Holds what was recorded against the guarantees."""
    command = [REPOSITORY / "build" / "rallypoint-audit", *records]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout[:5000])
    assert done.returncode == 0, f"{done.stderr}\n{done.stdout[:5000]}\nsee {records}"
