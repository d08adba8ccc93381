"""The limits of a process (ulimit), below which the library cannot be loaded.

Go's runtime reserves addresses, starts threads and opens descriptors when it starts, and ends the
process with a dump of itself where it cannot. So the limits are asked first.
"""

from __future__ import annotations

import _thread
import os
import resource
import time

_ADDRESSES = 1_900_000 << 10  # measured: 1 700 000 KiB fail in most starts, 1 800 000 in none of 15
_DESCRIPTORS = 16  # measured: 7 fail in the runtime, 14 when a worker is started
_THREADS = 20  # measured: the runtime fails with up to 12 now and then, and with 16 in no start
_PLENTY = 1 << 15  # processes of one user


def too_low() -> str:
    """Why this process cannot load the library, for the user; "" if it can."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < _ADDRESSES:
        return (
            f"the limit of addresses of this process (ulimit -v) is {limit >> 10} KiB, and a Go "
            "program reserves more when it starts: set it to 2000000 or more (the command uses 20 "
            "to 30 MB of memory), or limit memory by a cgroup"
        )
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < _DESCRIPTORS:
        return (
            f"this process may open {limit} descriptors (ulimit -Hn), and needs at least "
            f"{_DESCRIPTORS}: set it to 1024 or more"
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if os.getuid() and limit != resource.RLIM_INFINITY and limit < _PLENTY and not _may_start():
        return (
            f"user {os.getuid()} may have {limit} processes and threads (ulimit -u), and not "
            f"{_THREADS} more than run now: raise the limit, or end some (ps -L -u {os.getuid()})"
        )
    return ""


def _may_start() -> bool:
    """Whether the kernel allows the threads; they have ended when it returns."""
    gate = _thread.allocate_lock()
    gate.acquire()
    started = 0
    ended: list[None] = []

    def wait() -> None:
        gate.acquire()
        gate.release()
        ended.append(None)

    try:
        for _ in range(_THREADS):
            _thread.start_new_thread(wait, ())
            started += 1
    except RuntimeError:
        return False
    finally:
        gate.release()
        while len(ended) < started:
            time.sleep(0.0001)
    return True
