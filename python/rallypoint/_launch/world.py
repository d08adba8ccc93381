"""Which world a worker is in, and how it goes to the next one (docs/world-record.md).

A worker that can regroup keeps its process, imports, memory and state when others are lost or
join. Its agent tells it by a record in memory that both have mapped: `changing` is one load, and
`regroup` waits there. Neither torch nor the library is loaded.
"""

from __future__ import annotations

import math
import os
import struct
import threading
import time
from dataclasses import dataclass, field

from .._errors import (
    Code,
    DeadlineError,
    RallypointError,
    StateError,
    UnsupportedError,
    invalid,
)
from .mapped import map_record

TYPE_CHECKING = False
if TYPE_CHECKING:
    import mmap
    from datetime import timedelta
    from typing import Any

_FILE = "RALLYPOINT_WORLD_FILE"

_MAGIC, _VERSION, _SIZE = b"rp-world", 1, 2048
# The record's words of eight bytes.
_OVER, _CAN, _WAITS, _ENTERED = 2, 4, 5, 6
# Its bytes.
_TURN, _LOST, _SLOTS, _SLOT, _TEXT = 24, 25, 64, 448, 1024
_NUMBERS = struct.Struct("<Q8I24x64s320s")

_FIRST_PAUSE, _LONGEST_PAUSE, _LATER_PAUSE = 50e-6, 2e-3, 20e-3


class RegroupUnsupportedError(UnsupportedError):
    """This worker cannot regroup: its agent starts workers anew (UNSUPPORTED).

    So it is under torchrun, without an agent, and under `rallypoint run` without
    `--on-failure regroup`.
    """


class WorldLostError(RallypointError):
    """There is no other world for this worker (CLOSED): it should end.

    Its node is out of the run, the run is over, or all workers have to begin again. The message
    says why.
    """


RegroupUnsupportedError.__module__ = WorldLostError.__module__ = "rallypoint"


@dataclass(frozen=True)
class WorldStore:
    """The store of a world: where it is, and the prefix of the keys that are this world's alone.

    Args:
        host: the address of the server, for this machine.
        port: its port.
        prefix: what the names of all keys of this world begin with.
    """

    host: str
    port: int
    prefix: str

    def client(self, timeout: float | timedelta = 300.0) -> Any:
        """Connects to the store.

        Args:
            timeout: seconds that the connection and each operation may take.

        Returns:
            A rallypoint.PrefixStore.
        """
        from .._stores.store import PrefixStore, connect_store

        return PrefixStore(self.prefix, connect_store(self.host, self.port, timeout=timeout))


@dataclass(frozen=True)
class World:
    """The set of workers that a worker belongs to: rallypoint.world and regroup return it.

    Args:
        epoch: its number. It grows, and never repeats in a run's life: the number of the round, or
            0 under torchrun.
        rank: of this worker.
        size: the number of workers.
        local_rank: of this worker on its node.
        local_size: the number of workers on its node.
        node_rank: of its node.
        carried: how many of its workers continue from an earlier world; 0 if all begin in this one.
        store: where the workers of this world, and no others, meet.
    """

    epoch: int
    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    carried: int
    store: WorldStore = field(repr=False)

    def torch_store(self, timeout: float | timedelta = 300.0) -> Any:
        """Connects torch's store to the same keys as store.client().

        Args:
            timeout: seconds that the connection and each operation may take.

        Returns:
            A torch.distributed.PrefixStore.
        """
        from datetime import timedelta

        from torch.distributed import PrefixStore, TCPStore

        limit = timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)
        at = self.store
        return PrefixStore(at.prefix, TCPStore(at.host, at.port, timeout=limit))


class _Record:
    """The mapped record of this process, and the world that it is in."""

    def __init__(self, record: mmap.mmap) -> None:
        self.bytes = memoryview(record)
        self.words = self.bytes.cast("Q")
        self.world: World | None = None

    def read(self) -> World:
        """The last world that the agent has written."""
        while True:
            turn = self.bytes[_TURN]
            at = _SLOTS + (turn & 1) * _SLOT
            slot = bytes(self.bytes[at : at + _SLOT])
            if self.bytes[_TURN] == turn:
                break
        epoch, rank, size, local, locals_, node, _, port, carried, _, addr = _NUMBERS.unpack(slot)
        store = WorldStore(addr.rstrip(b"\0").decode(), port, f"rallypoint/world/{epoch}")
        return World(epoch, rank, size, local, locals_, node, carried, store)

    def enter(self, new: World) -> World:
        self.world = new
        self.words[_ENTERED] = new.epoch
        self.words[_WAITS] = 0
        return new

    def lost(self) -> WorldLostError:
        why = bytes(self.bytes[_TEXT:]).split(b"\0", 1)[0].decode(errors="replace")
        return WorldLostError(f"there is no other world for this worker: {why}", Code.CLOSED)


_lock = threading.Lock()
_record: _Record | None = None
_mapped = ""  # the path of what _record is; a forked child may have another environment


def _find() -> _Record | None:
    """The record of this process; None if its agent has made none."""
    global _record, _mapped
    path = os.environ.get(_FILE, "")
    if path == _mapped:
        return _record
    with _lock:
        _record, _mapped = (_Record(_map(path)) if path else None), path
        return _record


def _map(path: str) -> mmap.mmap:
    try:
        return map_record(path, "world", _MAGIC, _VERSION, _SIZE)
    except (OSError, ValueError) as e:
        raise StateError(f"the world record {path} cannot be used: {e}", Code.STATE) from None


def changeable() -> bool:
    """Whether the agent of this worker lets it regroup."""
    return _find() is not None


def world() -> World:
    """Returns the world that this process is in: its rank, the number of workers, the store.

    It changes only by regroup. Without an agent that lets workers regroup, it is what the
    environment says, and its epoch is 0.

    Returns:
        The world.

    Raises:
        InvalidError: there is no agent, and the environment has no rank.
        StateError: the record of this worker cannot be mapped, or is of another version.
    """
    record = _find()
    if record is None:
        return _from_environment()
    return record.world or record.enter(record.read())


def _from_environment() -> World:
    env = os.environ
    try:
        rank, size = int(env["RANK"]), int(env["WORLD_SIZE"])
        prefix = f"rallypoint/world/0/{env.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        store = WorldStore(env["MASTER_ADDR"], int(env["MASTER_PORT"]), prefix)
        local, locals_ = int(env.get("LOCAL_RANK", rank)), int(env.get("LOCAL_WORLD_SIZE", size))
        return World(0, rank, size, local, locals_, int(env.get("GROUP_RANK", 0)), 0, store)
    except (KeyError, ValueError) as e:
        raise invalid(
            f"the environment says no world: {e!r}; start the program by a launcher"
        ) from None


def place() -> tuple[object, object]:
    """The number of the round that this worker's agent has it in now, and its rank there."""
    record = _find()
    if record is None:
        return os.environ["RALLYPOINT_ROUND"], os.environ["RANK"]
    last = record.read()
    return last.epoch, last.rank


def can_regroup() -> bool:
    """Tells the agent that this worker can regroup: it looks at changing, and calls regroup.

    To be called once, before the first step, by one process of each worker. If a worker of the job
    has not called it, all are started anew when one is lost, as ever.

    Returns:
        Whether the agent lets workers regroup.
    """
    record = _find()
    if record is None:
        return False
    world()
    record.words[_CAN] = 1
    return True


def changing() -> bool:
    """Tells whether the world is about to change, so that this worker should call regroup.

    When workers join, it turns true on all workers after the same step, if they report steps
    by progress; when one is lost, at once. It is one load from memory.

    Returns:
        True until regroup returns.
    """
    record = _record if _mapped else _find()
    if record is None or record.world is None:
        return record is not None and record.words[_OVER] >= world().epoch
    return record.words[_OVER] >= record.world.epoch


def _seconds(timeout: float | timedelta) -> float:
    return timeout if isinstance(timeout, (int, float)) else timeout.total_seconds()


def depart() -> None:
    """Has this process leave its world, at the step on which the workers have agreed."""
    record = _find()
    if record is not None:
        record.words[_OVER] = max(record.words[_OVER], world().epoch)


def regroup(timeout: float | timedelta | None = None) -> World:
    """Leaves the world, waits for the next one, and returns it.

    All workers of the old world that still run call it, when changing is true or when a worker
    does not answer. It may be called early: the agent learns of a loss within moments. Where fewer
    workers are left than the job needs, it waits until others come.

    Args:
        timeout: seconds to wait. None: no limit. After a DeadlineError it may be called again.

    Returns:
        The next world.

    Raises:
        RegroupUnsupportedError: this worker cannot regroup, as under torchrun.
        WorldLostError: there is no other world for this worker, which should end.
        DeadlineError: there was none in time.
    """
    record = _find()
    if record is None:
        raise RegroupUnsupportedError(
            "this worker cannot regroup: it needs `rallypoint run --on-failure regroup`",
            Code.UNSUPPORTED,
        )
    left = world().epoch
    can_regroup()
    record.words[_WAITS] = left
    began = time.monotonic()
    seconds = math.inf if timeout is None else _seconds(timeout)
    end = began + seconds
    pause = _FIRST_PAUSE
    while True:
        if record.bytes[_LOST]:
            raise record.lost()
        new = record.read()
        if new.epoch > left and record.words[_OVER] < new.epoch:
            return record.enter(new)
        now = time.monotonic()
        if not now < end:  # nor is it before NaN
            raise DeadlineError(
                f"no world came after that of epoch {left} within {seconds:g} s", Code.TIMEOUT, True
            )
        time.sleep(max(0.0, min(pause, end - now)))
        pause = min(2 * pause, _LONGEST_PAUSE if now - began < 1 else _LATER_PAUSE)
