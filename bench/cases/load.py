"""What it costs a fresh interpreter to import the package and to load the library."""

from __future__ import annotations

import json
import subprocess
import sys

from processes import BenchError
from result import Row, Sample

NAME = "load"

REPEAT = 7

# VmHWM and not ru_maxrss, which a process inherits from the one that started it.
_SCRIPT = """
import json, sys, time
def peak():
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith("VmHWM")) / 1024
before = peak()
began = time.perf_counter()
exec(sys.argv[1])
print(json.dumps([(time.perf_counter() - began) * 1e3, peak() - before]))
"""

IMPORT = "import rallypoint"
LIBRARY = "from rallypoint._native import library; library.load()"
TORCH = "import torch.distributed.run"


def measure(repeat: int | None, reference: bool) -> list[Row]:
    times = repeat or REPEAT
    imported, loaded = _runs(IMPORT, times), _runs(LIBRARY, times)
    rows = [
        Row(NAME, "import rallypoint", imported[0], "ms", target=30.0),
        Row(NAME, "import rallypoint: memory", imported[1], "MB"),
        Row(NAME, "import and load the library", loaded[0], "ms"),
        Row(NAME, "import and load the library: memory", loaded[1], "MB"),
    ]
    if reference:
        torch = _runs(TORCH, min(times, 3))
        rows[2].reference, rows[3].reference = torch
    return rows


def _runs(statement: str, times: int) -> tuple[Sample, Sample]:
    """Returns the milliseconds that the statement takes, and the memory that it adds, in MB."""
    milliseconds, megabytes = Sample(), Sample()
    for _ in range(times):
        done = subprocess.run(
            [sys.executable, "-c", _SCRIPT, statement], capture_output=True, text=True
        )
        if done.returncode:
            raise BenchError(f"{statement}: {done.stderr}")
        wall, peak = json.loads(done.stdout)
        milliseconds.values.append(wall)
        megabytes.values.append(peak)
    return milliseconds, megabytes
