"""A group of processes for serving and RL that goes on with those that live.

Members have slots with fixed numbers; `mask` says which of them live. The methods are those of
vLLM's StatelessProcessGroup, without pickle. The group survives the loss of any member, its rank 0
included, since each world has a store of its own.

    rallypoint run --standalone --nproc-per-node=4 --max-restarts=9 --on-failure regroup \\
        examples/regroup/group.py 500

Kill one of its processes while it runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

import rallypoint

PATIENCE = 2.0  # seconds for one operation of the store


class Changed(Exception):
    """The world has changed: call regroup, and repeat what was cut."""


class Group:
    """The members of a world. A member that is new takes the lowest slot that is free.

    Args:
        slots: how many there are.
    """

    Changed = Changed

    def __init__(self, slots: int) -> None:
        self.slots, self.slot = slots, -1
        rallypoint.can_regroup()
        self._enter(rallypoint.world())

    def regroup(self) -> None:
        """Waits for the next world, and enters it."""
        self._enter(rallypoint.regroup())

    def _enter(self, world: rallypoint.World) -> None:
        while True:
            self.rank, self.size, self.epoch = world.rank, world.size, world.epoch
            self._store, self._count = None, 0
            try:
                kept = self.all_gather_obj(self.slot)
                break
            except Changed:  # once more
                world = rallypoint.regroup()
        free = iter(slot for slot in range(self.slots) if slot not in kept)
        owners = [slot if slot >= 0 else next(free) for slot in kept]
        self.slot = owners[self.rank]
        self.mask = [slot in owners for slot in range(self.slots)]

    def all_gather_obj(self, value: Any) -> list[Any]:
        """What each rank gave, as JSON."""
        key = self._next("gather")
        self._do(lambda store: store.set(f"{key}/{self.rank}", json.dumps(value)))
        return [self._get(f"{key}/{rank}") for rank in range(self.size)]

    def broadcast_obj(self, value: Any, src: int) -> Any:
        """What the rank src gave."""
        key = self._next("broadcast")
        if self.rank == src:
            self._do(lambda store: store.set(key, json.dumps(value)))
        return self._get(key)

    def barrier(self) -> None:
        """Waits until all ranks are here."""
        self.all_gather_obj(None)

    def _next(self, what: str) -> str:
        self._count += 1
        return f"{what}/{self._count}"

    def _get(self, key: str) -> Any:
        while not self._do(lambda store: store.check([key])):
            time.sleep(0.001)
        return json.loads(self._do(lambda store: store.get(key)))

    def _do(self, operation: Any) -> Any:
        """An operation of the world's store, as long as the world stands."""
        if rallypoint.changing():
            raise Changed
        try:
            if self._store is None:
                self._store = rallypoint.world().store.client(timeout=PATIENCE)
            return operation(self._store)
        except rallypoint.RallypointError as e:  # the store has ended with its round
            raise Changed from e


def say(line: str) -> None:
    print(line + "\n", end="", flush=True)  # one write: the members share one output


def main(rounds: int) -> None:
    group = Group(slots=int(os.environ["WORLD_SIZE"]))
    done = 0
    while done < rounds:
        try:
            done = max(group.all_gather_obj(done))  # a new member begins where the others are
            work = group.broadcast_obj({"round": done} if group.rank == 0 else None, src=0)
            group.barrier()
            done = work["round"] + 1
            time.sleep(0.01)
            if done % 50 == 0:
                mask = "".join("x" if lives else "." for lives in group.mask)
                say(f"slot {group.slot} epoch {group.epoch} round {done} {mask}")
        except Changed:
            group.regroup()
    say(f"slot {group.slot} ends: {done} rounds")


if __name__ == "__main__":
    main(int(sys.argv[1]))
