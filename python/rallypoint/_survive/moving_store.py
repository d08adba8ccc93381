"""The store of a process group that outlives its rounds."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Callable

from .._errors import CanceledError, Code, DeadlineError
from .._stores.request import Text
from .._stores.store import HashStore, Store
from .._torch.store import TorchStore, _like_torch

#: Between two looks at whether the world is about to change, of a call that waits, in seconds: the
#: first, and the longest, since a server may take longer to answer than the first.
_SLICE, _LONGEST = 0.05, 1.0


class MovingStore(TorchStore):
    """A store whose keys are those of the present world.

    gloo meets through the store that its process group was made with, and a round's store
    ends with the round. So the group is given this one, and move() gives it the store of
    each new world. A call that waits ends with the code CANCELED when the world is about to
    change again.

    Attributes:
        last: the value that was set last.

    Args:
        changing: tells whether the world is about to change.
    """

    def __init__(self, changing: Callable[[], object]) -> None:
        self._changing = changing
        self.last: Text = b""
        super().__init__(HashStore())

    def move(self, store: Store | None = None) -> None:
        """Turns to the store of another world; None: to one of this process alone."""
        self._store.close()
        self._store = HashStore() if store is None else store

    def set(self, key: str, value: Text) -> None:
        self.last = value
        super().set(key, value)

    @_like_torch
    def get(self, key: str) -> bytes:
        self._await([key], self._limit())
        return self._store.get(key, self._limit())

    @_like_torch
    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self._await(keys, self._limit())
        return self._store.multi_get(keys, self._limit())

    @_like_torch
    def wait(
        self,
        keys: Sequence[str],
        timeout: timedelta | None = None,
        override_timeout: timedelta | None = None,
    ) -> None:
        self._await(keys, self._limit(override_timeout if timeout is None else timeout))

    def _await(self, keys: Sequence[str], limit: float) -> None:
        end, pause = time.monotonic() + limit, _SLICE
        while True:
            left = end - time.monotonic()
            try:
                return self._store.wait(keys, max(0.001, min(pause, left)))
            except DeadlineError:
                if left <= pause:
                    raise
            pause = min(2 * pause, _LONGEST)
            if self._changing():
                raise CanceledError(
                    f"{self!r}: the world changes while {keys} is awaited", Code.CANCELED
                )

    def _twin(self) -> TorchStore:
        return self  # it has to move, too
