"""The classes of failures that users see: torch's too where torch is installed.

They are made on first use, so that importing the package never imports torch.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .failure_plain import ChildFailedError, ProcessFailure, SignalException

__all__ = ["ChildFailedError", "ProcessFailure", "SignalException"]

_TORCH = "torch.distributed.elastic.multiprocessing"

_making = threading.RLock()


def has_torch() -> bool:
    """Whether torch can be imported; it is not imported for that."""
    if "torch" in sys.modules:
        return sys.modules["torch"] is not None
    try:
        return importlib.util.find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with _making:
        if name not in globals():  # another thread may have made it meanwhile
            globals()[name] = getattr(_module(name), name)
    return globals()[name]


def _module(name: str) -> Any:
    # A program that catches torch's SignalException has imported it; importing it for a
    # Ctrl-C would delay the exit by seconds.
    if has_torch() if name != "SignalException" else _TORCH in sys.modules:
        try:
            return importlib.import_module(".failure_torch", __package__)
        except ImportError:  # a torch without its distributed part
            pass
    return importlib.import_module(".failure_plain", __package__)
