"""The worlds of a process that is a member of a run by itself, without an agent."""

from __future__ import annotations

import dataclasses

from .._stores.store import PrefixStore, Store, connect_store
from .member import Member


@dataclasses.dataclass(frozen=True)
class WorldStore:
    """Where the keys of one world are."""

    host: str
    port: int
    prefix: str

    def client(self) -> Store:
        return PrefixStore(self.prefix, connect_store(self.host, self.port))


@dataclasses.dataclass(frozen=True)
class World:
    """Who takes part, from one loss or arrival to the next."""

    epoch: int
    rank: int
    size: int
    store: WorldStore


class MemberWorlds:
    """The worlds of a Member: each of its rounds is one.

    Args:
        member: of the run; this object calls its next().
    """

    def __init__(self, member: Member) -> None:
        self._member = member
        self._world: World | None = None

    def world(self) -> World:
        """The world that this process is in; the first call waits for it."""
        return self._world or self.regroup()

    def changing(self) -> int:
        """0, or not: the world is about to change."""
        return self._member.nodes_waiting()

    def can_regroup(self) -> None:
        """Does nothing: a member can."""

    def regroup(self, timeout: float | None = None) -> World:
        """Leaves the present world and waits for the next."""
        place = self._member.next()
        store = WorldStore(place.store_addr, place.store_port, f"world/{place.round}")
        self._world = World(place.round, place.rank, place.world_size, store)
        return self._world
