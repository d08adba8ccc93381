"""Events of a training process: one JSON object a line, appended to a file.

A program that watches a run follows the files; nothing has to be parsed out
of logs. Several processes may share a file: a line is written by one system call.
"""

from __future__ import annotations

import json
import os
import time


class Events:
    """Appends events to a file; without a path it does nothing.

    Each line carries `time` (seconds since 1970), `event`, and the fields given to the
    constructor and to `emit`.
    """

    def __init__(self, path: str | None, **fields: object) -> None:
        self._fields = fields
        self._fd = -1
        if path:
            self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def emit(self, event: str, *, at: float | None = None, **fields: object) -> None:
        """Appends one event; `at` is its time, now if not given."""
        if self._fd < 0:
            return
        line = {"time": time.time() if at is None else at, "event": event}
        os.write(self._fd, (json.dumps({**line, **self._fields, **fields}) + "\n").encode())


def process_start() -> float:
    """Returns when this process was started, in seconds since 1970.

    A script learns of itself only after its imports, and torch's takes seconds.
    """
    with open("/proc/self/stat", encoding="ascii", errors="replace") as f:
        ticks = int(f.read().rpartition(")")[2].split()[19])  # field 22: since the machine's boot
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - age
