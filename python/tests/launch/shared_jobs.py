"""What the workers of test_shared_arguments.py run."""

from __future__ import annotations

import os
import signal
from typing import Any


def attempt() -> int:
    return int(os.environ["TORCHELASTIC_RESTART_COUNT"])


def meet(*shared: Any) -> str:
    """Uses each of the objects; rank 1 of the first attempt fails after it."""
    queue, simple, lock, value, array, event, pipe, semaphore, condition = shared
    rank = int(os.environ["RANK"])
    assert event.is_set()
    with lock:
        value.value += 1
        array[rank] += 10.5
    with condition, semaphore:
        condition.notify_all()
    queue.put((attempt(), rank))
    simple.put((attempt(), rank))
    pipe.send_bytes(b"%d" % rank)
    if attempt() == 0 and rank == 1:
        queue.close()
        queue.join_thread()
        raise RuntimeError("once")
    if attempt() == 0:
        queue.close()
        queue.join_thread()
        signal.pause()
    return "met"


def fill(tensors: Any, plain: Any) -> None:
    """Writes to shared tensors; the first attempt fails, but its data stays."""
    rank = int(os.environ["RANK"])
    if attempt() == 0:
        plain[rank] = rank
        if rank == 0:
            raise RuntimeError("once")
        signal.pause()
    plain[rank] += 1
    for tensor in tensors:
        tensor[rank] = rank + 1


def managed(table: Any, array: Any) -> None:
    """Uses a manager's proxy, which needs the launcher's key."""
    table[os.environ["RANK"]] = attempt()
    array[0] = 7


def named(block: Any) -> None:
    """Opens shared memory by name; the end of a worker must not remove it."""
    block.buf[int(os.environ["RANK"])] = 1
    block.close()


class Arrived:
    """A descriptor that the program has wrapped, in the worker."""

    def __init__(self, descriptor: Any) -> None:
        self.descriptor: int = descriptor.detach()


def detach(*files: Arrived) -> int:
    """The sizes of files; each descriptor is this worker's own."""
    total = 0
    for file in files:
        total += len(os.pread(file.descriptor, 100, 0))
        os.close(file.descriptor)
    return total


def arguments(*args: Any) -> tuple[Any, ...]:
    return args


def size(data: bytes) -> int:
    return len(data)


def fail_once(_: Any) -> None:
    if attempt() == 0:
        raise RuntimeError("once")
