"""Which errors say that a peer, or the world, is gone."""

from __future__ import annotations

import re

from .._errors import Code, RallypointError
from .._launch.world import changing

#: What errors say of a store whose world is over, or soon will be.
_GONE = (Code.TIMEOUT, Code.CANCELED, Code.CONNECTION, Code.ROUND_OVER)

#: What gloo's errors of a broken or timed out connection have in their texts.
_CUT = re.compile(r"\bgloo\b|Connection (closed|reset) by peer", re.IGNORECASE)


def is_cut(error: BaseException) -> bool:
    """Whether an error says so, of a collective or of the store in which workers meet."""
    if isinstance(error, RallypointError):
        closed = error.code is Code.HANDLE and changing()  # the watch has closed the store
        return closed or error.code in _GONE
    return isinstance(error, RuntimeError) and bool(_CUT.search(str(error)))
