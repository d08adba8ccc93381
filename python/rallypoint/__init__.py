"""Rallypoint: elastic rendezvous and launcher for PyTorch and other distributed jobs.

With PyTorch: torchrun --rdzv-backend=rallypoint. From Python without torch: Member
(join a run, get a rank), connect_store, connect_etcd, StoreServer and EtcdServer.
elastic_launch runs workers. In a worker, record tells launchers why it failed, progress reports
its step, directive returns what the job is asked for, and saved confirms a checkpoint.
rallypoint.admin sends requests to a job from outside.
For torch's own classes see rallypoint.handler, rallypoint.agent and EtcdStore. Nothing is
loaded before it is used, except that the record of a worker's steps is mapped at once. torch is
loaded only where it is installed.

Example:
    with rallypoint.Member("job7", "host0:29400", min_nodes=2, max_nodes=4) as member:
        place = member.next()  # waits for the others
        store = rallypoint.connect_store(place.store_addr, place.store_port)
        print(place.rank, place.world_size, store.add("here", 1))
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # of typing, which takes longer to import than the command to run
if TYPE_CHECKING:
    from typing import Any

    from . import admin as admin
    from . import agent as agent
    from . import handler as handler
    from . import survive as survive
    from . import timer as timer
    from ._errors import (
        AuthenticationError,
        CanceledError,
        ClosedError,
        Code,
        ConnectionFailedError,
        DeadlineError,
        EmptyError,
        FencedError,
        ForkedError,
        GracefulExitError,
        InvalidError,
        LibraryError,
        MissingKeyError,
        NoProgressError,
        RallypointError,
        RequeueError,
        StartError,
        StateError,
        UnfitError,
        UnsupportedError,
    )
    from ._launch.busy import busy
    from ._launch.config import LaunchConfig, LogsSpecs
    from ._launch.directive import Directive
    from ._launch.failure_plain import ChildFailedError, ProcessFailure, SignalException
    from ._launch.fence import Fence, fence
    from ._launch.launch import elastic_launch, launch_agent
    from ._launch.progress import directive, progress, saved
    from ._launch.record import ErrorHandler, get_error_handler, record
    from ._launch.world import (
        RegroupUnsupportedError,
        World,
        WorldLostError,
        WorldStore,
        can_regroup,
        changing,
        regroup,
        world,
    )
    from ._rendezvous.backend import RendezvousBackend
    from ._rendezvous.member import Ending, Member, Outcome
    from ._stores.etcd import EtcdServer, connect_etcd
    from ._stores.store import FileStore, HashStore, PrefixStore, Store, StoreServer, connect_store
    from ._torch.etcd_store import EtcdStore
    from ._torch.store_backend import StoreBackend
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
    "Directive",
    "DynamicRendezvousHandler",
    "EmptyError",
    "Ending",
    "ErrorHandler",
    "EtcdServer",
    "EtcdStore",
    "Fence",
    "FencedError",
    "FileStore",
    "ForkedError",
    "GracefulExitError",
    "HashStore",
    "InvalidError",
    "LaunchConfig",
    "LibraryError",
    "LogsSpecs",
    "Member",
    "MissingKeyError",
    "NoProgressError",
    "Outcome",
    "PrefixStore",
    "ProcessFailure",
    "RallypointError",
    "RegroupUnsupportedError",
    "RendezvousBackend",
    "RequeueError",
    "SignalException",
    "StartError",
    "StateError",
    "Store",
    "StoreBackend",
    "StoreServer",
    "UnfitError",
    "UnsupportedError",
    "World",
    "WorldLostError",
    "WorldStore",
    "__version__",
    "busy",
    "can_regroup",
    "changing",
    "connect_etcd",
    "connect_store",
    "directive",
    "elastic_launch",
    "fence",
    "get_error_handler",
    "launch_agent",
    "progress",
    "record",
    "regroup",
    "saved",
    "world",
]

# Modules that need no import of their own.
_SUBMODULES = ("admin", "agent", "handler", "survive", "timer")

# Names that importing torch gives; without it `import *` and help() leave them out.
_OF_TORCH = ("DynamicRendezvousHandler", "EtcdStore")

_MODULES = {
    name: module
    for module, names in (
        ("_launch.busy", "busy"),
        ("_launch.config", "LaunchConfig LogsSpecs"),
        ("_launch.directive", "Directive"),
        ("_launch.failure", "ChildFailedError ProcessFailure SignalException"),
        ("_launch.fence", "Fence fence"),
        ("_launch.launch", "elastic_launch launch_agent"),
        ("_launch.progress", "directive progress saved"),
        ("_launch.record", "ErrorHandler get_error_handler record"),
        ("_launch.world", "RegroupUnsupportedError World WorldLostError WorldStore"),
        ("_launch.world", "can_regroup changing regroup world"),
        ("_rendezvous.backend", "RendezvousBackend"),
        ("_rendezvous.member", "Ending Member Outcome"),
        ("_stores.etcd", "EtcdServer connect_etcd"),
        ("_stores.store", "FileStore HashStore PrefixStore Store StoreServer connect_store"),
        ("_torch.etcd_store", "EtcdStore"),
        ("_torch.store_backend", "StoreBackend"),
        ("handler", "DynamicRendezvousHandler"),
    )
    for name in names.split()
}


def _torch_installed() -> bool:
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    return PathFinder.find_spec("torch") is not None


if not _torch_installed():
    __all__ = [name for name in __all__ if name not in _OF_TORCH]


if not TYPE_CHECKING:  # else checkers would believe that every name exists

    def __getattr__(name: str) -> Any:
        if name in _SUBMODULES:
            return import_module(f".{name}", __name__)
        if name not in _MODULES and name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: Any
        if name == "__version__":
            from importlib.metadata import version

            value = version("rallypoint")
        else:
            try:
                value = getattr(import_module(f".{_MODULES.get(name, '_errors')}", __name__), name)
            except ModuleNotFoundError as e:
                if name not in _OF_TORCH:
                    raise
                raise ImportError(
                    f"rallypoint.{name} needs torch, which cannot be imported: {e}"
                ) from e
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    return sorted(__all__)


def _become_worker() -> None:
    """Follows a template that has imported this package and becomes a worker (template.py)."""
    from ._launch import progress

    progress.begin()


if os.environ.get("RALLYPOINT_PROGRESS_FILE"):
    # A worker shows from here on that it takes directives: one that has not come to its first
    # step would else be taken for one that never does, and not be waited for.
    from ._launch import progress as _progress  # noqa: F401

if os.environ.get("RALLYPOINT_STACKS_FILE"):
    from ._launch import stacks as _stacks

    _stacks.register()
