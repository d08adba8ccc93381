"""Which errors say that a peer, or the world, is gone."""

from __future__ import annotations

import re

from .._errors import Code, RallypointError
from .._launch.world import changing

#: What errors say of a store whose world is over, or soon will be.
_GONE = (Code.TIMEOUT, Code.CANCELED, Code.CONNECTION, Code.ROUND_OVER)

#: What gloo's errors have in their texts: the path of a source file of it.
_CUT = re.compile(r"\bgloo\b", re.IGNORECASE)


def is_cut(error: BaseException) -> bool:
    """Whether an error says so, of a collective or of the store in which workers meet."""
    if isinstance(error, RallypointError):
        closed = error.code is Code.HANDLE and changing()  # the watch has closed the store
        return closed or error.code in _GONE
    return isinstance(error, RuntimeError) and bool(_CUT.search(str(error)))
