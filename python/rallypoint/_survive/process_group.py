"""torch's default process group, whose workers change, over gloo.

gloo can leave a worker waiting. When a connection ends, it does not tell a send that is half
done, and it reads no further from a connection whose data nobody wants any more. The thread that
works on such a collective comes back after the group's timeout, half an hour. So each world has a
gloo group of its own, and a collective ends when its world is left, whatever becomes of gloo's.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from types import FunctionType
from typing import Any, Callable

import torch
import torch.distributed as dist

#: How long gloo's threads may take to come back once their connections have ended, in seconds.
_BACK = 0.5

#: Of what ends because its world is left; an error of gloo, as others see it.
_CHANGE = "gloo: the workers of the process group change"

#: What a group is asked to do, by the names of torch's Backend.
_OPERATIONS = (
    "_allgather_base",
    "_reduce_scatter_base",
    "all_gather_single",
    "all_gather_single_coalesced",
    "all_to_all_single",
    "allgather",
    "allgather_coalesced",
    "allgather_into_tensor_coalesced",
    "allreduce",
    "allreduce_coalesced",
    "alltoall",
    "alltoall_base",
    "barrier",
    "broadcast",
    "gather",
    "monitored_barrier",
    "recv",
    "recv_anysource",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "reduce_scatter_tensor_coalesced",
    "scatter",
    "send",
)


class _Collective(dist.Work):
    """One on which gloo works. It ends with gloo's, or when the world is left."""

    def __init__(self, of_gloo: Any, unfinished: set[_Collective]) -> None:
        super().__init__()
        self._of_gloo, self._unfinished, self._left = of_gloo, unfinished, False
        self._first = threading.Lock()
        self._end: Any = torch.futures.Future()
        self._future = self._end.then(self._result)
        unfinished.add(self)
        of_gloo.add_done_callback(self._finish)

    def _result(self, _: object = None) -> Any:
        if self._left:
            raise RuntimeError(_CHANGE)
        return self._of_gloo.value()

    def _finish(self, _: object) -> None:
        self._unfinished.discard(self)
        if self._first.acquire(blocking=False):
            self._end.set_result(None)

    def leave(self) -> None:
        if self._first.acquire(blocking=False):
            self._left = True
            self._end.set_result(None)

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        if timeout:
            ended = threading.Event()
            self._future.add_done_callback(lambda _: ended.set())
            if not ended.wait(timeout.total_seconds()):
                raise RuntimeError("Operation timed out!")
        try:
            self._future.wait()
        except RuntimeError:
            self._result()  # the error without the text that a future adds
        return True

    def get_future(self) -> Any:
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def result(self) -> Any:
        return self._future.value()


class ProcessGroup(dist.ProcessGroup):
    """A process group over the gloo group of the present world.

    Args:
        store: what torch knows as the group's.
        timeout: of an operation.
        devices: of gloo; None makes one.
    """

    def __init__(
        self, store: dist.Store, timeout: timedelta, devices: list[Any] | None = None
    ) -> None:
        super().__init__(store, 0, 1)
        # What torch asks for the group's name and options. It refuses all operations.
        gloo = dist.ProcessGroupGloo(store, 0, 1, timeout, enable_reconfigure=True)
        self._register_backend(torch.device("cpu"), self.BackendType.GLOO, gloo)
        self._set_default_backend(self.BackendType.GLOO)
        self._timeout = timeout
        self._devices = devices or [dist.ProcessGroupGloo.create_default_device()]
        self._unfinished: set[_Collective] = set()
        self.connect(dist.HashStore(), 0, 1, timeout)

    def connect(self, store: dist.Store, rank: int, size: int, timeout: timedelta) -> None:
        """Turns to other workers.

        Args:
            store: where they meet, with keys of this group alone.
            timeout: until all are connected.
        """
        options = dist.ProcessGroupGloo._Options()
        options._devices, options._timeout = self._devices, timeout
        self._gloo = dist.ProcessGroupGloo(store, rank, size, options)
        self._gloo._set_default_timeout(self._timeout)
        self._left = False
        self.place(rank, range(size))

    def place(self, rank: int, ranks: Sequence[int]) -> None:
        """Tells torch who is in the group, connected or not.

        Args:
            rank: this process's in the group.
            ranks: all processes', in the default group.
        """
        self._rank, self._size = rank, len(ranks)
        dist.distributed_c10d._world.pg_group_ranks[self] = {r: i for i, r in enumerate(ranks)}

    def place_alone(self) -> None:
        """Has torch find this process's place in the group by the rank of one that is alone."""
        dist.distributed_c10d._world.pg_group_ranks[self][0] = self._rank

    def part(self, name: str, rank: int, ranks: Sequence[int]) -> ProcessGroup:
        """A group of some of the workers, which is not connected yet.

        Args:
            name: by which torch finds it.
            rank: as of place().
            ranks: as of place().
        """
        store = dist.HashStore()
        part = ProcessGroup(store, self._timeout, self._devices)
        world = dist.distributed_c10d._world
        world.pg_map[part], world.pg_names[part] = ("gloo", store), name
        world.pg_backend_config[part] = "cpu:gloo"
        part._set_group_name(name)
        part._set_group_desc(name)
        dist.distributed_c10d._register_process_group(name, part)
        part.place(rank, ranks)
        return part

    def leave(self) -> bool:
        """Ends what waits, once its connections have been ended, and all until connect().

        Returns:
            Whether gloo has left some of it waiting.
        """
        self._left = True
        end = time.monotonic() + _BACK
        while self._unfinished and time.monotonic() < end:
            time.sleep(0.001)
        forgotten = self._unfinished.copy()
        if forgotten:  # gloo's group waits for its threads when it is freed, so this one never is
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._gloo))
        for one in forgotten:
            self._unfinished.discard(one)
            one.leave()
        return bool(forgotten)

    def split_group(self, *_: object, **__: object) -> Any:
        raise RuntimeError(
            "the workers of this process group change, so that it is not split: make the other one "
            "with torch.distributed.new_group"
        )

    def free(self) -> None:
        """Frees what has been left, with all connections of which gloo knows."""
        self._gloo = None

    def getRank(self) -> int:
        return self._rank

    def getSize(self) -> int:
        return self._size

    rank, size = getRank, getSize

    def getBackendName(self) -> str:
        return "gloo"


def _operation(name: str) -> Callable[..., Any]:
    def operation(self: ProcessGroup, *args: Any, **kwargs: Any) -> Any:
        if self._left:
            raise RuntimeError(_CHANGE)
        work = getattr(self._gloo, name)(*args, **kwargs)
        try:
            future = work.get_future()
        except (AttributeError, RuntimeError):
            return work  # of one peer alone, with whose connection it ends
        return _Collective(future, self._unfinished)

    return operation


for _name in _OPERATIONS:
    if hasattr(dist.ProcessGroupGloo, _name):
        setattr(ProcessGroup, _name, _operation(_name))


def _hide_from_compiler() -> None:
    """Has torch.compile not look into what a compiled model calls here, where it would fail.

    torch.compiler.disable does the same, and imports the compiler for it.
    """
    from torch._C._dynamo import eval_frame

    skip = eval_frame._FrameAction.SKIP
    for part in (*vars(ProcessGroup).values(), *vars(_Collective).values()):
        if isinstance(part, FunctionType):
            strategy = eval_frame._FrameExecStrategy(skip, skip)
            eval_frame.set_code_exec_strategy(part.__code__, strategy)


def initialise(store: dist.Store, timeout: timedelta | None) -> ProcessGroup:
    """Makes torch's default group, with this process alone."""
    _hide_from_compiler()
    dist.Backend._ensure_backend_registered("gloo")
    plugins = dist.Backend._plugins
    gloo = plugins["GLOO"]
    plugins["GLOO"] = gloo._replace(
        creator_fn=lambda options, _: ProcessGroup(options.store, options.timeout)
    )
    try:
        more = {} if timeout is None else {"timeout": timeout}
        dist.init_process_group("gloo", store=store, rank=0, world_size=1, **more)
    finally:
        plugins["GLOO"] = gloo
    group = dist.group.WORLD
    assert isinstance(group, ProcessGroup)
    return group
