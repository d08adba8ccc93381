"""The connections of this process's gloo, which it does not give up by itself."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
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


def end_waits(own: set[Address], published: bytes, size: int) -> None:
    """Ends gloo's waits for connections from other workers, to which no connection belongs yet.

    Of two workers one connects to the other, which waits for it for 25 s, five times its timeout,
    even if the peer is gone. A connection says first which pair it is for, by the number that the
    waiting side has published. So these are connections in the peers' place, which end at once.

    Args:
        own: where gloo listens in this process.
        published: what gloo has told the other workers of itself, which ends with the numbers.
            Nothing is done if it has another form.
        size: of the group, in which each worker has a number.
    """
    try:
        (host,) = struct.unpack_from("<Q", published)
        (address,) = struct.unpack_from("<Q", published, 8 + host)
        numbers = struct.unpack(f"<{size}q", published[16 + host + address :])
    except struct.error:
        return
    for at in own:
        for number in numbers:
            with contextlib.suppress(OSError), socket.create_connection(at, 1.0) as s:
                s.sendall(struct.pack("<q", number))
