"""What it costs a worker to report its step, from Python and from C."""

from __future__ import annotations

import os
import statistics
import struct
import subprocess
import sys
import tempfile
import time
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


# What --auto-progress may cost: microseconds a step beside the optimizer's own, and seconds at the
# start of a worker.
HOOK, START = 1.0, 0.015
STARTS = 20

_STEPS = """
import statistics, time
import torch
weight = torch.nn.Parameter(torch.zeros(1))
weight.grad = torch.zeros(1)
optimizer = torch.optim.SGD([weight])
times = []
for _ in range(200):
    began = time.thread_time_ns()
    for _ in range(100):
        optimizer.step()
    times.append((time.thread_time_ns() - began) / 100)
print("step", statistics.median(times))
"""


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
        *_automatic(repeat or REPEAT),
    ]


def _automatic(repeat: int) -> list[Row]:
    """What it costs that steps are seen without a call, by jobs with and without it in turn."""
    hook, start = Sample(), Sample()
    with tempfile.TemporaryDirectory() as folder:
        steps, nothing = Path(folder) / "steps.py", Path(folder) / "nothing.py"
        steps.write_text(_STEPS)
        nothing.write_text("")
        for _ in range(repeat):
            on, off = (float(_job(flag, steps).split()[1]) for flag in _FLAGS)
            hook.values.append((on - off) / 1000)
        spent: dict[str, list[float]] = {flag: [] for flag in _FLAGS}
        for _ in range(STARTS):
            for flag in _FLAGS:
                began = time.monotonic()
                _job(flag, nothing)
                spent[flag].append(time.monotonic() - began)
        on, off = (statistics.median(spent[flag]) for flag in _FLAGS)
        start.values.append(on - off)
    return [
        Row(NAME, "a step that torch's hook counts, beside the step", hook, "us", target=HOOK),
        Row(NAME, "a cold start with the hook, beside one without", start, target=START),
    ]


_FLAGS = ("--auto-progress", "--max-restarts=0")  # the latter is the default


def _job(flag: str, script: Path) -> str:
    done = subprocess.run(
        [str(ROOT / "build" / "rallypoint"), "run", "--standalone", flag, str(script)],
        env={**os.environ, "PYTHON_EXEC": sys.executable, "LOGLEVEL": "ERROR"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def _memory() -> str | None:
    """Where agents make records, if it exists."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK | os.X_OK) else None


def _take(sample: Sample, output: str) -> None:
    sample.values.append(float(output.split()[1]) / 1000)
