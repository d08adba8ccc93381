"""Rallypoint: brings the processes of a distributed job together.

With PyTorch: torchrun --rdzv-backend=rallypoint. From Python without torch: Member
(join a run, get a rank), connect_store and StoreServer. For torch's own classes see
rallypoint.handler. Nothing is loaded before it is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ._errors import (
        AuthenticationError,
        CanceledError,
        ClosedError,
        Code,
        ConnectionFailedError,
        DeadlineError,
        EmptyError,
        ForkedError,
        GracefulExitError,
        InvalidError,
        LibraryError,
        RallypointError,
        StateError,
    )
    from ._member import Ending, Member, Outcome
    from ._store import FileStore, HashStore, PrefixStore, Store, StoreServer, connect_store

    __version__: str

__all__ = [
    "AuthenticationError",
    "CanceledError",
    "ClosedError",
    "Code",
    "ConnectionFailedError",
    "DeadlineError",
    "EmptyError",
    "Ending",
    "FileStore",
    "ForkedError",
    "GracefulExitError",
    "HashStore",
    "InvalidError",
    "LibraryError",
    "Member",
    "Outcome",
    "PrefixStore",
    "RallypointError",
    "StateError",
    "Store",
    "StoreServer",
    "__version__",
    "connect_store",
]

_MODULES = {
    "Ending": "_member",
    "Member": "_member",
    "Outcome": "_member",
    "FileStore": "_store",
    "HashStore": "_store",
    "PrefixStore": "_store",
    "Store": "_store",
    "StoreServer": "_store",
    "connect_store": "_store",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: Any
    if name == "__version__":
        from importlib.metadata import version

        value = version("rallypoint")
    else:
        from importlib import import_module

        value = getattr(import_module(f".{_MODULES.get(name, '_errors')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
