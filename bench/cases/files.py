"""Operations on a FileStore, from Python and from Go, beside torch's own on the same files."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from processes import go_benchmarks, go_figures
from result import Row, Sample

NAME = "files"

REPEAT = 5
TIMES = 20000
LARGE = 4 << 20  # bytes of the file that is opened

OPERATIONS = {
    "get": "get of a known key in a FileStore",
    "set": "set in a FileStore",
    "add": "add in a FileStore",
    "open": "opening a FileStore of 4 MB, and the first get",
}
#: How many times faster ours has to be, from Go.
FASTER = {"get": 5, "set": 1, "add": 2, "open": 5}

Samples = dict[str, Sample]


def measure(repeat: int | None) -> list[Row]:
    from torch.distributed import FileStore as TorchStore

    from rallypoint import FileStore

    reference, python, go = ({name: Sample() for name in OPERATIONS} for _ in range(3))
    with tempfile.TemporaryDirectory() as folder:
        program, large = go_benchmarks("filestore", Path(folder)), Path(folder) / "large"
        _fill(FileStore(large, -1), large)
        for i in range(repeat or REPEAT):
            _take(reference, TorchStore, Path(folder) / f"torch{i}", large)
            _take(python, FileStore, Path(folder) / f"python{i}", large)
            for name in OPERATIONS:
                times = 1 if name == "open" else TIMES
                took = go_figures(program, f"Benchmark{name.capitalize()}", times, "ns/op")
                go[name].values.append(took[name.capitalize()][0] / 1000)
    rows = []
    for name, what in OPERATIONS.items():
        median = reference[name].median
        assert median is not None
        for words, ours, faster in ("Python", python, 1), ("Go", go, FASTER[name]):
            row = Row(NAME, f"{what}, from {words}", ours[name], "us", reference[name])
            row.target = median / faster
            row.target_why = f"{faster} x as fast as torch's from Python"
            rows.append(row)
    return rows


def _fill(store: Any, path: Path) -> None:
    count = 0
    while path.stat().st_size < LARGE:
        keys = [f"key{count + i}" for i in range(1000)]
        store.multi_set(keys, ["v" * 12] * len(keys))
        count += len(keys)
    store.close()


def _take(samples: Samples, kind: Any, small: Path, large: Path) -> None:
    """Measures one implementation; both have the same constructor, get, set and add."""
    store = kind(str(small), -1)
    store.set("k", "v")
    for name, operation, times in (
        ("get", lambda: store.get("k"), TIMES),
        ("set", lambda: store.set("k", "v"), TIMES),
        ("add", lambda: store.add("n", 1), TIMES),
        ("open", lambda: kind(str(large), -1).get("key0"), 1),
    ):
        began = time.perf_counter()
        for _ in range(times):
            operation()
        samples[name].values.append((time.perf_counter() - began) * 1e6 / times)
