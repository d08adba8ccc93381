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


def _passed_on(name: str) -> Any:
    """A method of torch's stores that is ours of the same name, within the store's timeout."""

    @_like_torch
    def method(self: TorchStore, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._store, name)(*args, timeout=self._limit(), **kwargs)

    method.__name__ = name
    return method


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

    set, get, add = _passed_on("set"), _passed_on("get"), _passed_on("add")
    compare_set, append = _passed_on("compare_set"), _passed_on("append")
    check, delete_key = _passed_on("check"), _passed_on("delete_key")
    num_keys, list_keys = _passed_on("num_keys"), _passed_on("list_keys")
    multi_get, multi_set = _passed_on("multi_get"), _passed_on("multi_set")
    queue_push, queue_pop = _passed_on("queue_push"), _passed_on("queue_pop")
    queue_len = _passed_on("queue_len")

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
