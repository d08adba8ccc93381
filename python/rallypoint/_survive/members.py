"""Whose state workers that meet go on with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .._errors import Code
from .group import StateLostError

#: What workers that meet say of themselves, in the order of their ranks.
Members = list[dict[str, Any]]

#: How new a state is: it is not merely what the script has loaded, so many steps are complete, and
#: the last of them has reached its end.
Age = tuple[bool, int, bool]


def ages(members: Members) -> list[Age]:
    """How new the state of each worker is.

    A worker that is prepared for its step completes it if another one has, so that its state is
    then the newest, too.

    Raises:
        StateLostError: none of them has a whole state.
    """
    found = [(not m["fresh"], m["completed"], m["ended"]) for m in members]
    newest = max(found)
    if newest[1] < 0:
        raise StateLostError(
            f"none of the {len(members)} workers that are left has a whole state", Code.STATE
        )
    return [
        newest if m["prepared"] and newest[0] and newest[1] == m["completed"] + 1 else age
        for m, age in zip(members, found)
    ]


def sources(members: Members, ages: list[Age]) -> Iterator[tuple[Any, int]]:
    """Each shard, and the lowest rank that has it in the newest state.

    Raises:
        StateLostError: none has.
    """
    newest = max(ages)
    for shard in sorted({m["shard"] for m in members}, key=str):
        have = [i for i, m in enumerate(members) if m["shard"] == shard and ages[i] == newest]
        if not have:
            raise StateLostError(
                f"no worker that is left has shard {shard} after step {newest[1]}", Code.STATE
            )
        yield shard, have[0]
