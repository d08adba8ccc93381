"""RendezvousBackend: the user's own storage as the meeting point of a run's nodes.

It has the shape of torch's class of this name. No torch is needed.
"""

from __future__ import annotations

import abc
import collections
import ctypes
import itertools
import sys
import threading
from typing import Any, Optional

from .._errors import Code, ConnectionFailedError, RallypointError
from .._native import abi, library

# What is stored, and its token; set_state adds whether that is because of the call.
State = Optional[tuple[bytes, Any]]
Written = Optional[tuple[bytes, Any, bool]]


class RendezvousBackend(abc.ABC):
    """One value that all nodes of a run share, and that can be compared and set.

    The same methods as torch's class of this name, objects of which serve as well, and
    without torch. They are called by threads of the library, several at once, may wait,
    but not for ever, and should not be given locks of the program.

    Errors: torch's RendezvousStateError, ValueError, TypeError and the like end the node's
    part in the run; all others (OSError, RuntimeError) are taken for a connection that may
    come back, and the call is repeated: until read_timeout is over before the backend was
    reached once, and afterwards as long as the node is in the run. RendezvousConnectionError,
    torch's or without torch ConnectionFailedError, says that the backend itself has tried long
    enough: before it was reached once, the node's next() raises it at once; afterwards the call is
    repeated, too.
    """

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The backend's name, human-readable."""

    @abc.abstractmethod
    def get_state(self) -> State:
        """What is stored and its fencing token, any object; None if nothing is stored."""

    @abc.abstractmethod
    def set_state(self, state: bytes, token: Any | None = None) -> Written:
        """Stores a state if `token` is that of what is stored.

        Args:
            state: the bytes to store.
            token: the fencing token that get_state() or an earlier set_state() gave; None if
                nothing was stored then.

        Returns:
            What is stored now, its token, and whether that is because of this call; None if
                nothing is stored.
        """


class _Tokens:
    """Tokens of the user, which are any objects, by the bytes that the library gets."""

    _KEPT = 64  # the library asks for the last ones only

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._known: collections.OrderedDict[bytes, Any] = collections.OrderedDict()

    def add(self, token: Any) -> bytes:
        with self._lock:
            last = next(reversed(self._known), None)
            if last is not None and _equal(self._known[last], token):
                return last
            name = b"%d" % next(self._numbers)
            self._known[name] = token
            if len(self._known) > self._KEPT:
                self._known.popitem(last=False)
            return name

    def find(self, name: bytes) -> tuple[Any] | None:
        with self._lock:
            return (self._known[name],) if name in self._known else None


def _equal(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # a user's class
        return False


class _Table:
    """A backend that the library has, until it gives it back."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.tokens = _Tokens()

    def get(self) -> Written:
        found = self.backend.get_state()
        return None if found is None else (found[0], found[1], False)

    def set(self, state: bytes, name: bytes | None) -> Written:
        token: tuple[Any] | None = (None,) if name is None else self.tokens.find(name)
        if token is None:  # too old to be remembered
            return self.get()
        written: Written = self.backend.set_state(state, token[0])
        return written


_tables: dict[int, _Table] = {}
_ids = itertools.count(1)


def _answer(table: _Table, reply: Any, err: Any, found: Written) -> int:
    if found is None:
        state, token, stored = None, None, False
    else:
        state, token, stored = _bytes(found[0]), table.tokens.add(found[1]), bool(found[2])
    return int(
        library.load().rp_backend_answer(
            reply, state, len(state or b""), token, len(token or b""), stored, err
        )
    )


def _bytes(state: Any) -> bytes:
    try:
        return bytes(memoryview(state))
    except TypeError:
        raise TypeError(f"a state is bytes, not {type(state).__name__}") from None


def _report(err: Any, backend: Any, what: str, error: BaseException) -> int:
    """Tells the library of an error. What went wrong must not go wrong here, too: an exception
    would be lost, and the library get any number."""
    try:
        message = str(error)
    except Exception:
        message = "(its text cannot be had)"
    text = f"backend {_name(backend)}: {what}: {type(error).__name__}: {message}"
    code = _code(error)
    err[0].code = code
    err[0].retryable = -1 if _given_up(error) else 0
    err[0].message = text.encode("utf-8", "replace")[:2000].replace(b"\0", b" ")
    return code


def _code(error: BaseException) -> int:
    torch = sys.modules.get("torch.distributed.elastic.rendezvous.api")
    if isinstance(error, RallypointError):
        return int(getattr(error, "code", Code.INTERNAL))
    if torch is not None and isinstance(error, torch.RendezvousStateError):
        return int(Code.STATE)
    wrong = (ValueError, TypeError, LookupError, AttributeError, NameError, AssertionError)
    if isinstance(error, (*wrong, NotImplementedError)):
        return int(Code.INVALID)
    return int(Code.CONNECTION)


def _given_up(error: BaseException) -> bool:
    """Whether a backend says that it has tried to reach its place itself."""
    torch = sys.modules.get("torch.distributed.elastic.rendezvous.api")
    of_torch = torch is not None and isinstance(error, torch.RendezvousConnectionError)
    return of_torch or isinstance(error, ConnectionFailedError)


def _name(backend: Any) -> str:
    try:
        return str(backend.name)
    except Exception:
        return type(backend).__name__


def _on_get(user: int, reply: Any, err: Any) -> int:
    table = _tables[user]
    try:
        return _answer(table, reply, err, table.get())
    except BaseException as e:
        return _report(err, table.backend, "get_state", e)


def _on_set(
    user: int, state: int, state_len: int, token: int, token_len: int, reply: Any, err: Any
) -> int:
    table = _tables[user]
    try:
        name = ctypes.string_at(token, token_len) if token is not None else None
        return _answer(table, reply, err, table.set(ctypes.string_at(state, state_len), name))
    except BaseException as e:
        return _report(err, table.backend, "set_state", e)


def _on_release(user: int) -> None:
    _tables.pop(user, None)


# What the library is given: they live as long as the process.
_get = abi.BackendGet(_on_get)
_set = abi.BackendSet(_on_set)
_release = abi.BackendRelease(_on_release)


def open_member(config: Any, backend: Any, handle: Any) -> None:
    """rp_member_open_backend for a RendezvousBackend, torch's or ours."""
    user = next(_ids)
    _tables[user] = _Table(backend)
    table = abi.Backend(user=user, get=_get, set=_set, release=_release)
    try:
        library.call("rp_member_open_backend", config, ctypes.byref(table), handle)
    except BaseException:
        _tables.pop(user)
        raise
