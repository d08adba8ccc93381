"""Timers with which a worker guards steps that must not hang.

The watchdog of the agent (TORCHELASTIC_ENABLE_FILE_TIMER=1) kills a worker whose timer has
expired, and the workers are restarted. The protocol and the names are those of
torch.distributed.elastic.timer (docs/spec/agent.md, A89 and A92); either client may be given
to either `expires`. Importing this module imports neither torch nor the library.
"""

from __future__ import annotations

import abc
import contextlib
import errno
import json
import os
import select
import signal as _signal
import sys
import time
from collections.abc import Iterator
from types import FrameType

__all__ = ["FileTimerClient", "TimerClient", "configure", "expires"]

#: How often, and how long apart in seconds, a client looks for the watchdog.
_TRIES, _PAUSE = 10, 0.1

_GONE = "the watchdog (FileTimerServer) is not available"
_PATH = "TORCHELASTIC_TIMER_FILE"


class TimerClient(abc.ABC):
    """The source of timers for `expires`."""

    @abc.abstractmethod
    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Acquires a timer, or changes the expiration time of one already acquired.

        Args:
            scope_id: its name in this process.
            expiration_time: when it expires, in seconds since 1970.
        """

    @abc.abstractmethod
    def release(self, scope_id: str) -> None:
        """Releases a timer.

        Args:
            scope_id: its name; an unknown name is ignored.
        """


class FileTimerClient(TimerClient):
    """Acquires timers from the watchdog of this machine, through its FIFO.

    It keeps nothing open between calls. Any thread may use it, and so may a forked process.

    Args:
        file_path: path of the FIFO. None: $TORCHELASTIC_TIMER_FILE, which the agent sets
            if its watchdog is enabled.
        signal: the signal that the watchdog sends to this process when a timer has expired.
            With 0 the watchdog only records an event.

    Raises:
        ValueError: file_path is None and the variable is not set.
    """

    def __init__(self, file_path: str | None = None, signal: int = _signal.SIGKILL) -> None:
        path = file_path or os.environ.get(_PATH)
        if not path:
            raise ValueError(
                f"no path of a FIFO, and {_PATH} is not set: "
                "start the agent with TORCHELASTIC_ENABLE_FILE_TIMER=1"
            )
        self._path = path
        self.signal = signal

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        """Acquires a timer for this process; blocks for about two seconds at most.

        Args:
            scope_id: its name; a second one of that name replaces the first.
            expiration_time: when it expires, in seconds since 1970.

        Raises:
            BrokenPipeError: the watchdog was not available within a second.
            RuntimeError: the request is longer than a pipe accepts in one atomic write.
        """
        self._send(scope_id, expiration_time, int(self.signal))

    def release(self, scope_id: str) -> None:
        """Releases a timer of this process; blocks for about two seconds at most.

        Args:
            scope_id: its name.

        Raises:
            BrokenPipeError, RuntimeError: as in acquire().
        """
        self._send(scope_id, -1, 0)

    def _send(self, scope_id: str, expiration_time: float, signal: int) -> None:
        request = {
            "version": 1,
            "pid": os.getpid(),
            "scope_id": scope_id,
            "expiration_time": expiration_time,
            "signal": signal,
        }
        line = (json.dumps(request) + "\n").encode()
        if len(line) > select.PIPE_BUF:  # it could be mixed with those of others
            raise RuntimeError(
                f"a timer's request has {len(line)} bytes, at most {select.PIPE_BUF} are possible: "
                f"{line[:100]!r}..."
            )
        fd = self._open()
        try:
            for _ in range(_TRIES):
                try:
                    os.write(fd, line)  # all of it or nothing
                    return
                except BlockingIOError:
                    select.select([], [fd], [], _PAUSE)
            raise BrokenPipeError(errno.EAGAIN, f"{_GONE}: it does not read {self._path}")
        finally:
            os.close(fd)

    def _open(self) -> int:
        """Opens the FIFO without waiting for a reader that may never come."""
        for attempt in range(_TRIES):
            try:
                return os.open(self._path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as e:
                if attempt == _TRIES - 1:
                    raise BrokenPipeError(e.errno, f"{_GONE}: {e}") from e
            time.sleep(_PAUSE)
        raise AssertionError


_client: TimerClient | None = None


def configure(timer_client: TimerClient) -> None:
    """Sets the client from which `expires` gets its timers.

    Args:
        timer_client: the client, for all threads.
    """
    global _client
    _client = timer_client


@contextlib.contextmanager
def expires(
    after: float, scope: str | None = None, client: TimerClient | None = None
) -> Iterator[None]:
    """Bounds the time of a block: with expires(after=60): step().

    The timer is released at the end of the block, even if the block raises.

    Args:
        after: seconds that the block may take.
        scope: name of the timer. None: file#line of the caller, so that a function which
            calls itself uses one timer, which the innermost call resets.
        client: the client that provides the timer. None: the configured one.

    Returns:
        A context manager, for one block.

    Raises:
        RuntimeError: there is no client.
        BrokenPipeError: the watchdog is not there.
    """
    client = client or _client
    if client is None:
        raise RuntimeError("no timer client: call rallypoint.timer.configure() first")
    if scope is None:
        caller: FrameType | None = sys._getframe(1)
        while caller is not None and caller.f_code.co_filename == contextlib.__file__:
            caller = caller.f_back
        assert caller is not None
        scope = f"{caller.f_code.co_filename}#{caller.f_lineno}"
    client.acquire(scope, time.time() + after)
    try:
        yield
    finally:
        client.release(scope)
