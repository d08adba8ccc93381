"""A function and its arguments on their way into workers, by multiprocessing's own pickler.

Each worker fetches them from the launcher, by a socket in the folder of the job. They are
pickled for each worker that starts, as multiprocessing does for a process that it spawns:
shared tensors count their receivers when they are pickled. Descriptors travel beside the bytes.
"""

from __future__ import annotations

import contextlib
import io
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from multiprocessing import context, reduction, resource_tracker
from typing import IO, Any, Callable

from .._native.log import logger

_SOCKET = "arguments"
_HEADER = struct.Struct("!?I")  # whether pickling failed, number of descriptors
_MOST_AT_ONCE = 253  # Linux's SCM_MAX_FD
_PAUSE = 0.1  # after a worker could not be accepted, in seconds

_received: list[int] = []  # in a worker


class Descriptor:
    """A descriptor on its way, in the place of multiprocessing's DupFd.

    Args:
        index: among those that travel with the bytes.
    """

    def __init__(self, index: int) -> None:
        self._index = index

    def detach(self) -> int:
        """The descriptor in the worker; the caller closes it. For one call."""
        return _received[self._index]


class _Payload:
    """What one worker gets. Stands for the Popen for which multiprocessing pickles."""

    DupFd = Descriptor

    def __init__(self) -> None:
        self.descriptors: list[int] = []
        self.data = io.BytesIO()

    def duplicate_for_child(self, descriptor: int) -> int:
        """The index of a duplicate, which is no other's: each is closed by its receiver."""
        self.descriptors.append(os.dup(descriptor))
        return len(self.descriptors) - 1

    def close(self) -> None:
        while self.descriptors:
            os.close(self.descriptors.pop())


class _Pickler(reduction.ForkingPickler):
    """multiprocessing's pickler, which refuses locks that only a fork hands on. Python before 3.11
    passes their addresses, at which another process has something else."""

    def reducer_override(self, thing: Any) -> Any:
        synchronize: Any = sys.modules.get("multiprocessing.synchronize")
        lock = synchronize is not None and isinstance(thing, synchronize.SemLock)
        if lock and thing._semlock.name is None:
            raise RuntimeError(f"{thing!r} is of the fork context, and only a fork hands it on")
        return NotImplemented


def _pack(objects: tuple[object, ...]) -> _Payload:
    payload = _Payload()
    spawning: Any = context  # which knows Popen classes only
    before = spawning.get_spawning_popen()
    spawning.set_spawning_popen(payload)  # of this thread
    try:
        # Named shared memory must outlive the worker that opens it: one tracker for all.
        tracker: Any = resource_tracker.getfd()
        payload.duplicate_for_child(tracker)
        for thing in objects:
            _Pickler(payload.data).dump(thing)
    except BaseException:
        payload.close()
        raise
    finally:
        spawning.set_spawning_popen(before)
    return payload


@contextlib.contextmanager
def _address(folder: str) -> Iterator[str]:
    """The name of the socket, which may have 107 bytes where the folder's may have more."""
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}/{_SOCKET}"
    finally:
        os.close(descriptor)


class ArgumentServer:
    """Hands objects to each worker that asks, by threads of its own, until it is closed.

    Args:
        folder: of the job, which only this user may enter.
        objects: pickled one after another.

    Raises whatever pickling raises, before it listens.
    """

    def __init__(self, folder: str, objects: tuple[object, ...]) -> None:
        self._objects = objects
        # Tells what cannot be pickled before a worker starts; then it is the first worker's.
        self._first: _Payload | None = _pack(objects)
        self._lock = threading.Lock()  # of _first, _connections and _closed; a leaf
        self._connections: set[socket.socket] = set()
        self._closed = threading.Event()
        self._senders: list[threading.Thread] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with _address(folder) as address:
                self._listener.bind(address)
            self._listener.listen(1024)
            self._acceptor = self._start(self._accept)
        except BaseException:
            self._listener.close()
            self._first.close()
            raise

    @staticmethod
    def _start(target: Callable[..., None], *args: object) -> threading.Thread:
        thread = threading.Thread(target=target, args=args, name="rallypoint-arguments")
        thread.daemon = True
        thread.start()
        return thread

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:  # closed, or there are no descriptors left for now
                if self._closed.wait(_PAUSE):
                    return
                continue
            with self._lock:
                if self._closed.is_set():
                    connection.close()
                    return
                self._connections.add(connection)
            self._senders = [t for t in self._senders if t.is_alive()]
            try:
                self._senders.append(self._start(self._serve, connection))
            except RuntimeError:  # there are no more threads
                self._serve(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            self._send(connection)
        except OSError as e:
            logger.debug("a worker ended before it had its arguments: %s", e)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()

    def _send(self, connection: socket.socket) -> None:
        with self._lock:
            payload, self._first = self._first, None
        try:
            payload = payload or _pack(self._objects)
        except Exception as e:  # the program changed them since the first worker started
            connection.sendall(_HEADER.pack(True, 0))
            connection.sendall(f"{type(e).__name__}: {e}".encode("utf-8", "replace"))
            return
        try:
            connection.sendall(_HEADER.pack(False, len(payload.descriptors)))
            for first in range(0, len(payload.descriptors), _MOST_AT_ONCE):
                some = payload.descriptors[first : first + _MOST_AT_ONCE]
                socket.send_fds(connection, [b"\0"], some)
            connection.sendall(payload.data.getbuffer())
        finally:
            payload.close()

    def close(self) -> None:
        """Ends the threads. Workers that still wait get an end of file."""
        with self._lock:
            self._closed.set()
            connections = list(self._connections)
        for end in (self._listener, *connections):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        for thread in self._senders:
            thread.join()
        self._listener.close()
        if self._first is not None:
            self._first.close()
        self._objects = ()


@contextlib.contextmanager
def fetched(folder: str) -> Iterator[IO[bytes]]:
    """In a worker: the pickled objects, with what they need to be unpickled.

    Args:
        folder: of the job.

    Raises:
        RuntimeError: the launcher could not pickle them.
    """
    with contextlib.ExitStack() as stack:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.connect(stack.enter_context(_address(folder)))
        failed, count = _HEADER.unpack(_exactly(connection, _HEADER.size))
        if failed:
            with connection.makefile("rb") as text:
                raise RuntimeError(
                    "the launcher cannot pickle the arguments again: "
                    + text.read(1 << 16).decode("utf-8", "replace")
                )
        while len(_received) < count:
            _, descriptors, _, _ = socket.recv_fds(connection, 1, _MOST_AT_ONCE)
            if not descriptors:
                raise EOFError("the launcher ended while it sent the arguments")
            for descriptor in descriptors:
                os.set_inheritable(descriptor, False)
            _received.extend(descriptors)
        tracker: Any = resource_tracker._resource_tracker
        tracker._fd = _received[0]
        yield stack.enter_context(connection.makefile("rb"))


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise EOFError("the launcher ended before it sent the arguments")
        data += part
    return data
