"""Where a worker is, for its agent: on a signal faulthandler writes its stack into a file.

faulthandler does so in C, without the interpreter's lock, into a file of the agent's. What workers
load before their script (agent/process/sitecustomize.py) has the same: it imports no package.
"""

from __future__ import annotations

import os
import sys

_FILE = "RALLYPOINT_STACKS_FILE"
_MAIN, _ALL = 61, 62


def register() -> None:
    """Has the signals answered, unless an ancestor of this process answers it.

    Without a file (RALLYPOINT_STACKS_FILE), and where it cannot be, nothing happens.
    """
    path = os.environ.get(_FILE)
    if not path:
        return
    try:
        import faulthandler
        import fcntl

        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            if os.fstat(fd).st_size:
                return
            # Out of the way of the numbers that the script's own files get.
            limit = os.sysconf("SC_OPEN_MAX")
            lowest = (min(limit, 1024) if limit > 0 else 1024) * 3 // 4
            high = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, lowest)
        finally:
            os.close(fd)
        # To read the frames of threads that run may end the process: only before it is killed.
        # Before 3.11 to read a thread's own may, too.
        faulthandler.register(_ALL, file=high, all_threads=True)
        if sys.version_info >= (3, 11):
            faulthandler.register(_MAIN, file=high, all_threads=False)
        os.write(high, b"rallypoint-stacks %d %d\n" % (os.getpid(), high))
    except (ImportError, OSError, RuntimeError, ValueError):
        pass  # the job runs as well
