"""torch's default process group in a worker whose world changes."""

from __future__ import annotations

import atexit
import json
import logging
import os
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from .._errors import Code, DeadlineError, InvalidError, RallypointError, StateError
from .._launch.world import WorldLostError, can_regroup, changing, regroup, world
from .._stores.store import PrefixStore
from . import gloo_sockets, process_group
from .moving_store import MovingStore

_log = logging.getLogger("rallypoint")

#: How long it may take to connect to the store of a new world, and gloo to connect its workers,
#: in seconds. Then they meet again.
_CONNECT = 5.0

#: After this time first, and then twice as long each time, it is seen whether the world changes.
_FIRST_CONNECT = 0.1

#: Between two looks at whether the world changes, of a worker that is not ready, in seconds.
_PAUSE = 0.01

#: Between two looks at whether a worker that is ready is admitted, in seconds.
_LOOK = 0.02


class StateLostError(StateError):
    """No worker that is left has a whole state: the job has to start from a checkpoint."""


StateLostError.__module__ = "rallypoint.survive"


class Group:
    """The default process group of torch, which moves from world to world.

    Its first workers are those that continue from the world before, or all if none does. Workers
    that begin in a world where others continue come in between two steps, as soon as they are
    ready, and the group then has another generation.

    Attributes:
        world: the present one.
        joining: whether this worker is still to come into its first group.
        mesh: of workers that hold shards of a model, and replicas of those; None: there is none.
        shard: the number of this worker's.
        looped: whether a loop of steps has begun.
    """

    mesh: Any = None
    shard: int | None = None
    looped = False

    def __init__(self, timeout: timedelta | None) -> None:
        self.store = MovingStore(changing)
        self.world = world()
        self.joining = self.world.carried > 0
        before = gloo_sockets.listening()
        self._torch = process_group.initialise(self.store, timeout)
        self.store.set_timeout(timeout or dist.distributed_c10d.default_pg_timeout)
        self._listeners = gloo_sockets.listening() - before
        self._made = dist.distributed_c10d._world.group_count
        self._peers: set[gloo_sockets.Address] = set()
        self._connections: dict[int, str] = {}
        self._present = 1
        self._limit = _CONNECT
        self._connecting = 0  # the size of the group while gloo connects it
        self._place: tuple[int, int] | None = None
        self._parts: list[tuple[process_group.ProcessGroup, str, range]] = []
        self._ready = threading.Event()
        self._process = os.getpid()
        atexit.register(self._end)
        if self.joining:
            can_regroup()
            self._prepares = threading.Thread(target=self._prepare, daemon=True)
            self._prepares.start()
        else:  # until the loop begins none comes again, and all wait as torch has them wait
            self._limit = self.store.timeout.total_seconds()
            self._turn()
            self._gather(self.world.size, {})

    def _turn(self) -> None:
        self.store.move(self._connect())
        self._generation, self._admitted = 0, 0
        self._leave: dict[str, int] | None = None

    def _connect(self) -> PrefixStore:
        """Connects to the store of the world, which may have ended meanwhile."""
        limit = _FIRST_CONNECT
        while True:
            try:
                return PrefixStore("survive", self.world.store.client(limit))
            except DeadlineError:
                if changing() or limit > self._limit:
                    raise
            limit *= 2

    def meet(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Meets those that continue in the world, and returns what each reports about itself."""
        self._turn()
        return self._exchange(self.world.carried, mine)

    def _gather(self, count: int, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Makes a group of so many workers."""
        members = self._exchange(count, mine)
        self.connect(members)
        return members

    def _exchange(self, count: int, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """What so many workers say, in the order of their ranks in the world."""
        mine = mine | {
            "rank": self.world.rank,
            "place": self._place,
            "listeners": sorted(self._listeners),
        }
        prefix = f"member/{self._generation}"
        _arrive(self.store, prefix, count, mine)
        return sorted(_arrived(self.store, prefix, count), key=lambda m: m["rank"])

    def connect(self, members: list[dict[str, Any]]) -> None:
        """Makes the group of workers that have met."""
        self._peers.update((host, port) for m in members for host, port in m["listeners"])
        rank = [m["rank"] for m in members].index(self.world.rank)
        self._join(self._torch, "", rank, len(members))
        self._present = len(members)
        if self.mesh is not None and self.world.size > self.mesh.size():
            raise InvalidError(
                f"{self.world.size} workers are more than the mesh has: give the job a fixed "
                "number of nodes",
                Code.INVALID,
            )
        if self.mesh is not None and len(members) == self.mesh.size():
            if len({tuple(m["place"]) for m in members}) < len(members):
                raise StateLostError("two workers have the same place in the mesh", Code.STATE)
            self._join_parts()

    @property
    def pending(self) -> int:
        """How many workers are still to come in, of the world or, if there is one, the mesh."""
        return (self.world.size if self.mesh is None else int(self.mesh.size())) - self._present

    def _join(self, group: process_group.ProcessGroup, name: str, rank: int, size: int) -> None:
        self._connecting = size
        try:
            store = dist.PrefixStore(f"gloo/{self._generation}/{name}", self.store)
            group.connect(store, rank, size, timedelta(seconds=self._limit))
        finally:
            self._connecting = 0
            self._connections |= gloo_sockets.connections(self._listeners, self._peers)

    def _join_parts(self) -> None:
        """Connects the workers of the same shard, and those of the same replica."""
        for group, name, ranks in self._parts:
            rank = group.rank()
            self._join(group, name, rank, len(ranks))
            group.place(rank, ranks)

    def make_mesh(self, shards: int) -> Any:
        """The mesh of all workers, each row of which holds a model in so many shards."""
        from torch.distributed.device_mesh import DeviceMesh

        size, rank = self.world.size, self.world.rank
        if shards < 1 or size % shards:
            raise InvalidError(f"{size} workers are no whole rows of {shards}", Code.INVALID)
        replica, self.shard = self._place = divmod(rank, shards)
        now = self._torch.rank(), range(self._torch.size())
        self._torch.place(rank, range(size))  # as it will be
        try:
            for name, at, ranks in (
                (f"replicate/{self.shard}", replica, range(self.shard, size, shards)),
                (
                    f"shard/{replica}",
                    self.shard,
                    range(rank - self.shard, rank - self.shard + shards),
                ),
            ):
                self._parts.append(
                    (self._torch.part(name.partition("/")[0], at, ranks), name, ranks)
                )
            mesh = DeviceMesh.from_group(
                [group for group, _, _ in self._parts],
                "cpu",
                mesh=torch.arange(size).reshape(-1, shards),
                mesh_dim_names=("replicate", "shard"),
            )
        finally:
            self._torch.place(*now)
        if self.joining:  # its place is known, though its rank in the default group is not yet
            for group, _, _ in self._parts:
                group.place_alone()
        else:
            self._join_parts()
        self.mesh = mesh
        return mesh

    def leave(self) -> None:
        """Leaves the group, and wakes workers that wait for this one.

        gloo wakes a worker only when the one that it waits for is gone.
        """
        self._limit = _CONNECT
        self.wake()
        self._connections.clear()
        for group in self._groups():
            group.free()
        self._peers.clear()

    def _end(self) -> None:
        """Frees gloo before the interpreter ends: a thread of it that then still comes back from a
        collective would end the process by SIGABRT (Python before 3.14).
        """
        if os.getpid() == self._process:  # not in a fork, which has the connections, too
            self.leave()

    def has_others(self) -> bool:
        """Whether the script has made groups of torch beside this one and those of its mesh."""
        return bool(dist.distributed_c10d._world.group_count > self._made)

    def _groups(self) -> list[process_group.ProcessGroup]:
        return [self._torch, *(group for group, _, _ in self._parts)]

    def _prepare(self) -> None:
        """Follows the worlds while this worker makes its model, so that no other waits for it."""
        continues = (
            str(self.world.epoch) != os.environ["RALLYPOINT_ROUND"]
        )  # that it was started in
        while True:
            while continues and not changing():
                try:
                    store = self._connect()
                    store.set_timeout(_CONNECT)
                    absent = {"rank": self.world.rank, "absent": True}
                    _arrive(store, "member/0", self.world.carried, absent)
                    break
                except RallypointError as e:
                    _log.info("the world %d cannot be told of this worker: %s", self.world.epoch, e)
                    time.sleep(_PAUSE)
            while not changing():
                if self._ready.wait(_PAUSE):
                    return
            try:
                self.world, continues = regroup(), True
            except WorldLostError:
                return  # and the script comes to the same

    def ready(self) -> None:
        """Ends the preparation of a worker that joins: from here on its world stays the same."""
        self._ready.set()
        self._prepares.join()

    def wake(self) -> None:
        """Ends the waits of the group's worker, in gloo and in the store, by an error each."""
        self.store.close()
        found = gloo_sockets.connections(self._listeners, self._peers.copy())
        connections = self._connections | found
        gloo_sockets.shut(connections)
        if isinstance(self.store.last, bytes) and (size := self._connecting):
            gloo_sockets.end_waits(self._listeners, self.store.last, size)
        if sum(group.leave() for group in self._groups()):
            gloo_sockets.take(connections)

    def admission(self, step: int, last: int) -> bool:
        """Whether the group admits workers before this step; it is the same in all its workers.

        The first one to see that a worker is ready says that all leave after the step that it is
        about to begin, which nobody can complete without it.

        Args:
            step: which all workers of the group come to.
            last: before which they wait for workers that join.
        """
        if self._leave is None:
            key = f"leave/{self._generation + 1}"
            if not self.store.check([f"ready/{self._admitted}"]):
                return False
            ready = self.store.add("ready", 0)
            count = self._present + ready - self._admitted
            mine = json.dumps({"step": min(step + 1, last), "ready": ready, "count": count})
            self._leave = json.loads(self.store.compare_set(key, "", mine))
        return step >= self._leave["step"]

    def admit(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Makes the group of the next generation."""
        assert self._leave is not None
        self._generation += 1
        self._admitted, count = self._leave["ready"], self._leave["count"]
        self._leave = None
        return self._gather(count, mine)

    def left(self) -> None:
        """Notes that this worker has left the loop of steps before its end, as all do then."""
        if self.pending:
            self.store.set_timeout(timedelta(seconds=_CONNECT))
            with suppress(RallypointError):
                self.store.set(f"left/{self.world.rank}", "")

    def join(self, mine: dict[str, Any]) -> list[dict[str, Any]]:
        """Waits until the group of the others admits this worker.

        If none of those that continue has a state, all workers of the world come here, and make
        its first group.

        Raises:
            SystemExit: the others have left their loop. This worker has no state, and ends.
        """
        self._turn()
        self.store.set_timeout(timedelta(days=365))
        others = _arrived(self.store, "member/0", self.world.carried)
        if not others:
            self._generation = 1
            return self._gather(self.world.size, mine)
        number = int(self.store.add("ready", 1)) - 1
        self.store.set(f"ready/{number}", "")
        while True:
            key = f"leave/{self._generation + 1}"
            while not self.store.check([key]):
                if self.store.check([f"left/{m['rank']}" for m in others]):
                    _log.warning("the others have left the loop of steps: this worker ends")
                    raise SystemExit(0)
                time.sleep(_LOOK)
            leave = json.loads(self.store.get(key))
            if number < leave["ready"]:
                self._leave = leave
                return self.admit(mine)
            self._generation += 1


def _arrive(store: Any, where: str, count: int, mine: dict[str, Any]) -> None:
    """Registers this worker as one of `count`. Registering twice takes one place."""
    text = json.dumps(mine)
    for i in range(count):
        place = f"{where}/{(mine['rank'] + i) % count}"
        if store.compare_set(place, "", text) == text.encode():
            return
    raise StateError(f"more than {count} workers have come", Code.STATE)


def _arrived(store: Any, where: str, count: int) -> list[dict[str, Any]]:
    """What so many workers say, without those that are not ready."""
    texts = store.multi_get([f"{where}/{number}" for number in range(count)])
    return [said for said in map(json.loads, texts) if not said.get("absent")]
