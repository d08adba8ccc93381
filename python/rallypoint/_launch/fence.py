"""Lets only that process write a checkpoint which loaded the present one or wrote it."""

from __future__ import annotations

import ctypes
import math
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Union

from .._errors import DeadlineError, FencedError, make_error
from .._native import abi, library

if TYPE_CHECKING:
    from datetime import timedelta

    Timeout = Union[float, timedelta, None]  # float: seconds; None: none

DEFAULT_TIMEOUT = 300.0


def fence(
    path: str | os.PathLike[str], *, into: bool = False, timeout: Timeout = DEFAULT_TIMEOUT
) -> Fence:
    """Remembers which version of a checkpoint is there; call it before loading that.

    From then on this process may write the checkpoint as long as nobody else does. So two jobs
    on one checkpoint, or two halves of a job that are cut off from each other, never overwrite
    each other's work, whatever the numbers of their rounds: the second to write gets a
    FencedError, and resumes from the present checkpoint when it is started again.

        fence = rallypoint.fence("checkpoint.pt")
        if fence.exists:
            model.load_state_dict(torch.load(fence.path))
        ...
        with fence.replace() as new:
            torch.save(model.state_dict(), new)

    Only one process of the job writes, that of rank 0, say, and it alone needs a fence. It works
    in any process, whether `rallypoint run`, torchrun or nothing has started it. The version and
    its writer are in a small file beside the checkpoint, NAME.fence, and all machines that share
    the folder must have locks (flock) over it.

    Args:
        path: the file or folder that is replaced as a whole. It need not exist.
        into: the path is a folder in which each checkpoint has its own name; use claim()
            instead of replace().
        timeout: seconds to wait for a process that is writing the checkpoint. None: no limit.

    Returns:
        The fence.

    Raises:
        DeadlineError: another process was still writing the checkpoint.
        StateError: the record of who wrote it is damaged, or another user's.
        UnsupportedError: the file system has no locks over all machines.
        InvalidError: the system refuses the path.
    """
    return Fence(path, into=into, timeout=timeout)


class Fence(library.Handle):
    """One writer's knowledge of a checkpoint, made by rallypoint.fence, which says more.

    `path` is the checkpoint, `exists` whether there was one when the fence was made.

    Args:
        path: the file or folder that is replaced as a whole.
        into: the path is a folder in which each checkpoint has its own name.
        timeout: seconds to wait for a process that is writing the checkpoint. None: no limit.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        into: bool = False,
        timeout: Timeout = DEFAULT_TIMEOUT,
    ) -> None:
        self.path = os.path.abspath(path)
        config = abi.FenceConfig(path=library.text(self.path), flags=abi.FENCE_INTO if into else 0)
        self._handle = abi.FenceHandle()
        self._finalizer = library.owned(self, "rp_fence_close", self._handle)
        _wait("rp_fence_open", ctypes.byref(config), timeout, ctypes.byref(self._handle))
        self.exists = bool(self._state().existed)

    def __repr__(self) -> str:
        return f"<{library.name(self)} of {self.path!r}>"

    def _state(self) -> abi.FenceState:
        state = abi.FenceState()
        library.call("rp_fence_get_state", self._handle, ctypes.byref(state))
        return state

    @property
    def version(self) -> str:
        """The version that this process has loaded or written; "" if there was none."""
        return bytes(self._state().version).decode()

    @contextmanager
    def replace(self, timeout: Timeout = DEFAULT_TIMEOUT) -> Iterator[str]:
        """Replaces the checkpoint by what the body writes.

        A context manager, whose value is a new path in the same folder: the body writes a file
        there, or makes a folder. When it ends, that takes the checkpoint's place in one step, and
        is on the disk. If the body raises, the checkpoint stays as it was.

        Args:
            timeout: seconds to wait for another process that has the lock. None: no limit.

        Returns:
            The context manager.

        Raises:
            FencedError: another process has written the checkpoint since this one loaded it or
                wrote it. It is raised before the body, where that is known then already.
            DeadlineError, StateError, UnsupportedError, InvalidError: as in rallypoint.fence.
        """
        new = self._prepare(timeout)
        try:
            try:
                yield new
            except Exception as e:
                try:  # a writer that has replaced the checkpoint has removed the body's files
                    self._prepare(0)
                except FencedError as fenced:
                    raise fenced from e
                except Exception:  # the body's says more
                    pass
                raise
            _wait("rp_fence_commit", self._handle, timeout)
        finally:
            self._release()

    def _prepare(self, timeout: Timeout) -> str:
        out = abi.Buffer()
        _wait("rp_fence_prepare", self._handle, timeout, ctypes.byref(out))
        try:
            return os.fsdecode(library.bytes_of(out))
        finally:
            library.load().rp_buffer_free(ctypes.byref(out))

    @contextmanager
    def claim(self, timeout: Timeout = DEFAULT_TIMEOUT) -> Iterator[str]:
        """Lets the body write a checkpoint into the folder (`into`).

        A context manager, whose value is the folder's path. Until the body ends, no other process
        can open or claim the folder.

        Args:
            timeout: seconds to wait for another process that has claimed it. None: no limit.

        Returns:
            The context manager.

        Raises:
            FencedError: another process has claimed the folder since this one opened it or
                claimed it. It is raised before the body; after it, if the lock was lost meanwhile.
            DeadlineError, StateError, UnsupportedError, InvalidError: as in rallypoint.fence.
        """
        _wait("rp_fence_claim", self._handle, timeout)
        try:
            yield self.path
        finally:
            self._release()

    def _release(self) -> None:
        if self._finalizer.alive:
            library.call("rp_fence_release", self._handle)

    def close(self) -> None:
        """Forgets the version; closing again does nothing."""
        library.close(self._finalizer)

    def __enter__(self) -> Fence:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _wait(name: str, subject: Any, timeout: Timeout, *args: Any) -> None:
    """Calls a function that waits for the lock, in slices, so that signals are acted on."""
    limit = library.milliseconds(timeout)
    end = math.inf if limit == library.FOREVER else time.monotonic() + limit / 1000
    while True:
        left = max(0, round(min(end - time.monotonic(), 1) * 1000))
        try:
            library.call(name, subject, min(library.SLICE_MS, left), *args)
            return
        except DeadlineError as e:
            if time.monotonic() >= end:
                text = f"{e} (waited for {limit / 1000:g} s)"
                raise make_error(e.code, text, e.retryable) from None
