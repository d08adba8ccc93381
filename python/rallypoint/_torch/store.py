"""Stores as torch takes them.

Imports torch; nothing of this package imports it before torch is used.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Callable, TypeVar

import torch.distributed as dist

from .._errors import RallypointError
from .._native import library
from .._stores.request import Text
from .._stores.store import Store
from .errors import store_error

_T = TypeVar("_T")


def _like_torch(method: Callable[..., _T]) -> Callable[..., _T]:
    @functools.wraps(method)
    def wrapped(*args: Any, **kwargs: Any) -> _T:
        try:
            return method(*args, **kwargs)
        except ValueError:
            raise
        except RallypointError as e:
            raise store_error(e) from None

    return wrapped


def as_timedelta(timeout: timedelta | float) -> timedelta:
    return timeout if isinstance(timeout, timedelta) else timedelta(seconds=timeout)


# Below it a timeout says: look whether the keys are there now. On a network that
# takes longer than the smallest timeouts that torch's agent uses (1 ms).
_LOOK = 1.0


class TorchStore(library.Handle, dist.Store):
    """A Store as torch takes it: torch.distributed.Store over ours.

    Behaves like torch's TCPStore: the same methods, DistStoreError (StoreTimeoutError)
    when the timeout has passed. Every error is also a RallypointError. Unlike there, a
    wait for keys that exist never times out, however short its timeout; and over
    Member.keys() no call fails because another node died. May be wrapped in
    torch.distributed.PrefixStore and used from several threads.

    torch's C++ side does not keep the Python object alive: a program that wraps it must
    also hold it.
    """

    def __init__(self, store: Store, timeout: timedelta = timedelta(seconds=300)) -> None:
        dist.Store.__init__(self)
        self._store = store
        self._clones: list[TorchStore] = []
        self.set_timeout(timeout)

    def _again(self) -> tuple[Callable[..., object], tuple[object, ...]] | None:
        return TorchStore, (self._store, self.timeout)

    def __repr__(self) -> str:
        return f"<{library.name(self)} over {self._store!r}>"

    def close(self) -> None:
        """Closes the store that this one is over; closing again does nothing."""
        self._store.close()

    def set_timeout(self, timeout: timedelta | float) -> None:
        """torch's method, which also takes seconds."""
        super().set_timeout(as_timedelta(timeout))

    def _limit(self, timeout: timedelta | float | None = None) -> float:
        return float(library.seconds(self.timeout if timeout is None else timeout))

    @_like_torch
    def set(self, key: str, value: Text) -> None:
        self._store.set(key, value, self._limit())

    @_like_torch
    def get(self, key: str) -> bytes:
        return self._store.get(key, self._limit())

    @_like_torch
    def add(self, key: str, amount: int) -> int:
        return self._store.add(key, amount, self._limit())

    @_like_torch
    def compare_set(self, key: str, expected: Text, desired: Text) -> bytes:
        return self._store.compare_set(key, expected, desired, self._limit())

    @_like_torch
    def append(self, key: str, value: Text) -> None:
        self._store.append(key, value, self._limit())

    @_like_torch
    def check(self, keys: Sequence[str]) -> bool:
        return self._store.check(keys, self._limit())

    @_like_torch
    def wait(
        self,
        keys: Sequence[str],
        timeout: timedelta | None = None,
        override_timeout: timedelta | None = None,
    ) -> None:
        limit = self._limit(override_timeout if timeout is None else timeout)
        if limit < _LOOK and self._store.check(keys, max(limit, self._limit())):
            return
        self._store.wait(keys, limit)

    @_like_torch
    def delete_key(self, key: str) -> bool:
        return self._store.delete_key(key, self._limit())

    @_like_torch
    def num_keys(self) -> int:
        return self._store.num_keys(self._limit())

    @_like_torch
    def list_keys(self) -> list[str]:
        return self._store.list_keys(self._limit())

    @_like_torch
    def multi_get(self, keys: Sequence[str]) -> list[bytes]:
        return self._store.multi_get(keys, self._limit())

    @_like_torch
    def multi_set(self, keys: Sequence[str], values: Sequence[Text]) -> None:
        self._store.multi_set(keys, values, self._limit())

    @_like_torch
    def queue_push(self, key: str, value: Text) -> None:
        self._store.queue_push(key, value, self._limit())

    @_like_torch
    def queue_pop(self, key: str, block: bool = True) -> bytes:
        return self._store.queue_pop(key, block, self._limit())

    @_like_torch
    def queue_len(self, key: str) -> int:
        return self._store.queue_len(key, self._limit())

    @_like_torch
    def barrier(self, key: str, world_size: int, timeout: timedelta | None = None) -> None:
        self._store.barrier(key, world_size, self._limit(timeout))

    def has_extended_api(self) -> bool:
        return True

    def clone(self) -> TorchStore:
        """A store over the same connection, which may be used at the same time."""
        other = self._twin()
        self._clones.append(other)  # see above: the caller may be C++
        return other

    def _twin(self) -> TorchStore:
        return TorchStore(self._store, self.timeout)

    # The names by which torch's C++ side (PrefixStore and others) looks these up.
    deleteKey = delete_key
    getNumKeys = num_keys
