"""Rallypoint: brings the processes of a distributed job together.

With PyTorch: torchrun --rdzv-backend=rallypoint. From Python without torch: Member
(join a run, get a rank), connect_store, connect_etcd, StoreServer and EtcdServer;
elastic_launch runs workers, and record tells launchers why one failed. For torch's own
classes see rallypoint.handler, rallypoint.agent and EtcdStore. Nothing is loaded before it
is used, and torch only where it is installed.
"""

from __future__ import annotations

TYPE_CHECKING = False  # of typing, which takes longer to import than the command to run
if TYPE_CHECKING:
    from typing import Any

    from ._backend import RendezvousBackend, StoreBackend
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
        StartError,
        StateError,
        UnsupportedError,
    )
    from ._etcd import EtcdServer, connect_etcd
    from ._etcd_store import EtcdStore
    from ._failure_plain import ChildFailedError, ProcessFailure, SignalException
    from ._launch import LaunchConfig, LogsSpecs, elastic_launch, launch_agent
    from ._member import Ending, Member, Outcome
    from ._record import ErrorHandler, get_error_handler, record
    from ._store import FileStore, HashStore, PrefixStore, Store, StoreServer, connect_store
    from .handler import DynamicRendezvousHandler

    __version__: str

__all__ = [
    "AuthenticationError",
    "CanceledError",
    "ChildFailedError",
    "ClosedError",
    "Code",
    "ConnectionFailedError",
    "DeadlineError",
    "DynamicRendezvousHandler",
    "EmptyError",
    "Ending",
    "ErrorHandler",
    "EtcdServer",
    "EtcdStore",
    "FileStore",
    "ForkedError",
    "GracefulExitError",
    "HashStore",
    "InvalidError",
    "LaunchConfig",
    "LibraryError",
    "LogsSpecs",
    "Member",
    "Outcome",
    "PrefixStore",
    "ProcessFailure",
    "RallypointError",
    "RendezvousBackend",
    "SignalException",
    "StartError",
    "StateError",
    "Store",
    "StoreBackend",
    "StoreServer",
    "UnsupportedError",
    "__version__",
    "connect_etcd",
    "connect_store",
    "elastic_launch",
    "get_error_handler",
    "launch_agent",
    "record",
]

_MODULES = {
    "ChildFailedError": "_failure",
    "DynamicRendezvousHandler": "handler",
    "Ending": "_member",
    "ErrorHandler": "_record",
    "EtcdServer": "_etcd",
    "EtcdStore": "_etcd_store",
    "FileStore": "_store",
    "HashStore": "_store",
    "LaunchConfig": "_launch",
    "LogsSpecs": "_launch",
    "Member": "_member",
    "Outcome": "_member",
    "PrefixStore": "_store",
    "ProcessFailure": "_failure",
    "RendezvousBackend": "_backend",
    "SignalException": "_failure",
    "Store": "_store",
    "StoreBackend": "_backend",
    "StoreServer": "_store",
    "connect_etcd": "_etcd",
    "connect_store": "_store",
    "elastic_launch": "_launch",
    "get_error_handler": "_record",
    "launch_agent": "_launch",
    "record": "_record",
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
