"""A key of a store of torch's shape as the meeting point of a run's nodes.

It does not import torch; programs without torch may use it.
"""

from __future__ import annotations

import base64
import sys
from typing import Any, Callable, Protocol

from .._errors import Code, ConnectionFailedError, RallypointError, StateError
from .._rendezvous.backend import RendezvousBackend, State, Written


class TorchLike(Protocol):
    """The methods of torch's Store that StoreBackend uses."""

    def get(self, key: str) -> bytes: ...

    def compare_set(self, key: str, expected: str, desired: str) -> bytes: ...


class StoreBackend(RendezvousBackend):
    """A key of any torch Store (TCPStore, FileStore, HashStore, PrefixStore) as a backend.

    It may be used from any thread if the store may.

    Args:
        store: the store. It outlives the run, and so must the process that holds it: a TCPStore
            server in the process of a node ends with that node. A FileStore keeps every
            write, some ten kB each.
        key: the key, which is for one run; give each run, or each prefix, its own.
    """

    # Written first, because get() of a key that does not exist would wait.
    _NOTHING = "bm90aGluZw=="

    def __init__(self, store: TorchLike, key: str = "rallypoint") -> None:
        self._store = store
        self._key = key
        self._prepared = False

    @property
    def name(self) -> str:
        """The backend's name: rallypoint-store."""
        return "rallypoint-store"

    def get_state(self) -> State:
        self._prepare()
        return self._decode(self._ask(self._store.get))

    def set_state(self, state: bytes, token: Any | None = None) -> Written:
        self._prepare()
        expected = self._NOTHING if token is None else token
        if not isinstance(expected, str):  # no token of ours
            now = self.get_state()
            return None if now is None else (*now, False)
        desired = base64.b64encode(state).decode()
        stored = _text(self._ask(self._store.compare_set, expected, desired))
        now = self._decode(stored)
        return None if now is None else (*now, stored == desired)

    def _prepare(self) -> None:
        if not self._prepared:
            self._ask(self._store.compare_set, "", self._NOTHING)
            self._prepared = True

    def _ask(self, call: Callable[..., bytes], *args: str) -> bytes:
        """The store's answer, or torch's RendezvousConnectionError, as of its own backends."""
        try:
            return call(self._key, *args)
        except Exception as e:
            raise _for_torch(
                ConnectionFailedError(
                    f"the store of the key {self._key!r} does not answer: {e}", Code.CONNECTION
                )
            ) from e

    def _decode(self, stored: bytes | str) -> State:
        text = _text(stored)
        if text == self._NOTHING:
            return None
        try:
            return base64.b64decode(text, validate=True), text
        except ValueError:
            raise _for_torch(
                StateError(
                    f"the key {self._key!r} of the store holds something else: {text[:50]!r}",
                    Code.STATE,
                )
            ) from None


def _for_torch(error: RallypointError) -> RallypointError:
    """The error, which is one of torch's, too, for those who use torch."""
    if "torch.distributed" not in sys.modules:
        return error
    from .errors import rendezvous_error

    return rendezvous_error(error)


def _text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("utf-8", "replace")
