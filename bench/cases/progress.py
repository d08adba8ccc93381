"""What it costs a worker to report its step, from Python and from C."""

from __future__ import annotations

import os
import struct
import sys
import tempfile
from pathlib import Path

from processes import ROOT, compiled, output_of
from result import Row, Sample

NAME = "progress"

REPEAT = 7

# Microseconds that a report may take.
PYTHON, C = 0.3, 0.02

LIBRARY = ROOT / "build" / "librallypoint.so"

RECORD = struct.pack("<8sIIq40x", b"rp-steps", 1, 64, -1)

_SCRIPT = """
import sys, time
from rallypoint import progress
steps = range(int(sys.argv[1]))
progress(0)
began = time.thread_time_ns()
for step in steps:
    progress(step)
print("python", (time.thread_time_ns() - began) / len(steps))
"""

CALLS = 1_000_000


def measure(repeat: int | None) -> list[Row]:
    python, c = Sample(), Sample()
    with tempfile.TemporaryDirectory(dir=_memory()) as folder:
        record = Path(folder) / "record"
        record.write_bytes(RECORD)
        program = compiled(ROOT / "bench" / "progress" / "calls.c", LIBRARY, Path(folder))
        before = os.environ.get("RALLYPOINT_PROGRESS_FILE")
        os.environ["RALLYPOINT_PROGRESS_FILE"] = str(record)
        try:
            for _ in range(repeat or REPEAT):
                _take(python, output_of(sys.executable, "-c", _SCRIPT, str(CALLS)))
                _take(c, output_of(program))
        finally:
            del os.environ["RALLYPOINT_PROGRESS_FILE"]
            if before is not None:
                os.environ["RALLYPOINT_PROGRESS_FILE"] = before
        (step,) = struct.unpack_from("<q", record.read_bytes(), 16)
        assert step > 0, "no step is in the record"
    return [
        Row(NAME, "progress(step) from Python", python, "us", target=PYTHON),
        Row(NAME, "rp_progress(step) from C", c, "us", target=C),
    ]


def _memory() -> str | None:
    """Where agents make records, if it is there."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


def _take(sample: Sample, output: str) -> None:
    sample.values.append(float(output.split()[1]) / 1000)
