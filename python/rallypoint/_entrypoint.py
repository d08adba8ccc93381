"""What torch finds under the entry point group torchrun.handlers.

torch loads it in the middle of the import of its rendezvous package, whether this
backend is wanted or not: so nothing is imported here but when a handler is made.
"""

from __future__ import annotations

from typing import Any, Callable


def _create_handler(params: Any) -> Any:
    from .handler import create_handler

    return create_handler(params)


def creator_factory() -> Callable[[Any], Any]:
    """Returns what makes a handler from torch's RendezvousParameters.

    Always the same object: torch may ask twice, and takes another one for a conflict.
    """
    return _create_handler
