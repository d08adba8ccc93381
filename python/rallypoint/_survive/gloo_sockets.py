"""The connections of this process's gloo, which it does not give up by itself."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

Address = tuple[str, int]


def _sockets() -> Iterator[socket.socket]:
    """Each TCP socket of this process, as a descriptor of its own that is closed after it."""
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as s:
                if s.type == socket.SOCK_STREAM and s.family in (socket.AF_INET, socket.AF_INET6):
                    yield s


def listening() -> set[Address]:
    """The addresses on which this process listens."""
    return {
        s.getsockname()[:2]
        for s in _sockets()
        if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def shut(own: set[Address], peers: set[Address]) -> None:
    """Ends connections, and with them the waits of both sides.

    Args:
        own: where gloo listens in this process.
        peers: the same of the other workers.
    """
    for s in _sockets():
        with contextlib.suppress(OSError):
            if s.getpeername()[:2] in peers or s.getsockname()[:2] in own:
                s.shutdown(socket.SHUT_RDWR)
