"""The limit of addresses, below which the library cannot be loaded.

Go's runtime reserves addresses when it starts, and its C threads add arenas of malloc. If they
do not fit, the runtime ends the process with a dump of itself, so the limit is asked first.
"""

from __future__ import annotations

import resource

_NEEDED = 1_900_000 << 10  # measured: 1 700 000 KiB fail in most starts, 1 800 000 in none of 15


def too_low() -> str:
    """Why this process cannot load the library, for the user; "" if it can."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY or limit >= _NEEDED:
        return ""
    return (
        f"the limit of addresses of this process (ulimit -v) is {limit >> 10} KiB, and a Go "
        "program reserves more when it starts: set it to 2000000 or more (the command uses 20 to "
        "30 MB of memory), or limit memory by a cgroup"
    )
