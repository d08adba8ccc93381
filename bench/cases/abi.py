"""What a call through the C interface costs, beside the same call made from Go."""

from __future__ import annotations

import tempfile
from pathlib import Path

from processes import ROOT, compiled, go_benchmarks, go_figures, output_of
from result import Row, Sample

NAME = "abi"

REPEAT = 5
CALLS = 200_000  # as in calls.c

# Microseconds that the way through C may add to a call.
ALLOWED = 0.5

LIBRARY = ROOT / "build" / "librallypoint.so"


def measure(repeat: int | None) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        through_c = compiled(ROOT / "bench" / "abi" / "calls.c", LIBRARY, Path(folder))
        direct = go_benchmarks("core/store", Path(folder))
        ours: dict[str, Sample] = {}
        floors: dict[str, Sample] = {}
        for _ in range(repeat or REPEAT):
            _take(ours, output_of(through_c))
            for name, figures in go_figures(direct, "BenchmarkMemory", CALLS, "cpu-ns/op").items():
                floors.setdefault(name, Sample()).values.append(figures[0] / 1000)
    rows = []
    for name, sample in ours.items():
        floor = floors.get(name)
        row = Row(NAME, f"{name.replace('_', ' ')}: a call from C", sample, "us", floor=floor)
        if floor is not None:
            assert floor.median is not None
            row.target = floor.median + ALLOWED
            row.target_why = f"the same call from Go and {ALLOWED} us"
        rows.append(row)
    return rows


def _take(samples: dict[str, Sample], output: str) -> None:
    for line in output.splitlines():
        name, nanoseconds = line.split()
        samples.setdefault(name, Sample()).values.append(float(nanoseconds) / 1000)
