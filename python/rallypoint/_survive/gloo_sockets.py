"""The connections of this process's gloo, which it does not give up by itself."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from collections.abc import Iterator

Address = tuple[str, int]


def _descriptors(kind: str) -> Iterator[int]:
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(kind):
                yield int(name)


def _sockets() -> Iterator[tuple[int, socket.socket]]:
    """Each TCP socket of this process, also as a descriptor of its own that is closed after it."""
    for number in _descriptors("socket:"):
        with contextlib.suppress(OSError), _again(number) as s:
            if s.type == socket.SOCK_STREAM and s.family in (socket.AF_INET, socket.AF_INET6):
                yield number, s


def _again(number: int) -> socket.socket:
    """Another descriptor of a socket. Whether the socket blocks stays as it is: with
    socket.setdefaulttimeout() a new object would have none of its descriptors block.
    """
    blocks = os.get_blocking(number)
    s = socket.socket(fileno=os.dup(number))
    os.set_blocking(number, blocks)
    return s


def listening() -> set[Address]:
    """The addresses on which this process listens."""
    return {
        s.getsockname()[:2]
        for _, s in _sockets()
        if s.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    }


def connections(own: set[Address], peers: set[Address]) -> dict[int, str]:
    """The connections between workers: the link in /proc of each, by its descriptor.

    A connection that has ended on both sides is not found: it has no address any more.

    Args:
        own: where gloo listens in this process.
        peers: the same of the other workers.
    """
    found = {}
    for number, s in _sockets():
        with contextlib.suppress(OSError):
            if s.getpeername()[:2] in peers or s.getsockname()[:2] in own:
                found[number] = os.readlink(f"/proc/self/fd/{number}")
    return found


def _open(of: dict[int, str]) -> Iterator[int]:
    """The connections whose descriptors have not been closed, nor reused, since they were found."""
    for number, link in of.items():
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{number}") == link:
                yield number


def shut(between: dict[int, str]) -> None:
    """Ends connections, and with them the waits of both sides."""
    for number in _open(between):
        with contextlib.suppress(OSError), _again(number) as s:
            s.shutdown(socket.SHUT_RDWR)


def take(between: dict[int, str]) -> None:
    """Puts what never has an event in the place of connections that ended long ago.

    gloo does not close one whose next data nobody wants any more, nor does it read it, so that its
    thread would be woken without a pause.
    """
    for number in _open(between):
        for loop in _descriptors("anon_inode:[eventpoll]"):
            with contextlib.suppress(OSError), select.epoll.fromfd(os.dup(loop)) as epoll:
                # It would stay in there as long as a forked process has it open. OSError: it is
                # in another one.
                epoll.unregister(number)
                silent, _other_end = os.pipe()
                os.dup2(silent, number, inheritable=False)
                os.close(silent)
                epoll.register(number, select.EPOLLIN)  # gloo takes it out in the end


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
