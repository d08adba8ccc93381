"""What torch finds under the entry point group torchrun.handlers.

torch loads it in the middle of the import of its rendezvous package, whether this
backend is wanted or not, so nothing is imported here until a handler is made.
"""

from __future__ import annotations

from typing import Any, Callable


def _create_handler(params: Any) -> Any:
    from .handler import create_handler

    return create_handler(params)


def creator_factory() -> Callable[[Any], Any]:
    """Returns the function that makes a handler from torch's RendezvousParameters.

    It is always the same object: torch may ask twice, and treats another one as a conflict.
    """
    return _create_handler
