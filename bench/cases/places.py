"""One rendezvous of N nodes without a control plane: in a shared directory, in a blob.

Each beside the reference in the same place: torch's c10d over its FileStore, and over a
value in a TCPStore, which is the blob here, too: the same server, the same processes.

And whole jobs of `rallypoint run true`: the CPU time of a node in a directory and in the
etcd of `make etcd`, and the time until the last node has ended. Their floor is the same
job with a control plane that its first node hosts.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence

from backends import OURS, REFERENCE, Settings, meet, serve_torchs_store
from processes import BenchError, Group, children_cpu, free_port
from result import Row, Sample

from cases.etcd import BINARY as ETCD
from cases.etcd import serve_etcd
from cases.launch import BINARY

NAME = "places"

REPEAT = {2: 9, 32: 3, 64: 3, 128: 1}
TIMEOUT = 180.0

TARGET_OF_2 = 0.1
TARGET_BLOB_OF_64 = 2.0

JOBS = {10: 5, 50: 3, 100: 3}  # nodes of whole jobs, and how often
MOST_CPU = 2.0  # of a node at 100 nodes, in a node's at 10
MOST_TIME = 3.0  # of 100 nodes, in the hosted job's


def measure(
    counts: Sequence[int], repeat: int | None, reference: bool, reference_max: int
) -> list[Row]:
    rows = []
    for n in counts:
        row = Row(NAME, f"{n} nodes in a directory", Sample())
        row.target = TARGET_OF_2 if n == 2 else None
        _fill(row, n, repeat, reference and n <= reference_max, _in_directory)
        rows.append(row)
    for n in sorted({*counts, 64}):
        row = Row(NAME, f"{n} nodes in a blob", Sample())
        row.target = {2: TARGET_OF_2, 64: TARGET_BLOB_OF_64}.get(n)
        _fill(row, n, repeat, reference and n <= reference_max, _in_blob)
        rows.append(row)
    return rows


def measure_jobs(repeat: int | None) -> list[Row]:
    rows = _jobs("a directory", "", repeat)
    if os.environ.get(ETCD):
        with Group(1, serve_etcd) as host:
            host.open_gate()
            rows += _jobs("etcd", host.receive(0), repeat)
    return rows


def _jobs(place: str, endpoint: str, repeat: int | None) -> list[Row]:
    """Jobs in a place, an etcd's or else a new directory, by turns with hosted ones."""
    rows = []
    for n, times in JOBS.items():
        cpu, hosted_cpu, took, hosted_took = (Sample() for _ in range(4))
        for i in range(repeat or times):
            with tempfile.TemporaryDirectory(prefix="rallypoint-bench-") as folder:
                used, seconds = _job(n, endpoint or f"file://{folder}", f"{n}-{i}")
            cpu.values.append(used)
            took.values.append(seconds)
            used, seconds = _job(n, f"127.0.0.1:{free_port()}", "hosted")
            hosted_cpu.values.append(used)
            hosted_took.values.append(seconds)
        rows += [
            Row(NAME, f"CPU of a node of {n}, {place}", cpu, "ms", floor=hosted_cpu),
            Row(NAME, f"{n} nodes of `true`, {place}", took, floor=hosted_took),
        ]
    if not endpoint:
        rows[-2].target = MOST_CPU * (rows[0].ours.median or 0)
        rows[-2].target_why = f"{MOST_CPU:g} times that of {min(JOBS)}"
        rows[-1].target = MOST_TIME * (hosted_took.median or 0)
        rows[-1].target_why = f"{MOST_TIME:g} times the hosted job"
    return rows


def _job(n: int, endpoint: str, run: str) -> tuple[float, float]:
    """The CPU time of a node in milliseconds, and the seconds until all have ended."""
    command = [*BINARY, f"--rdzv-endpoint={endpoint}", f"--rdzv-id={run}", f"--nnodes={n}"]
    before, began = children_cpu(), time.monotonic()
    nodes = [
        subprocess.Popen(
            [*command, "--no-python", "true"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        for _ in range(n)
    ]
    try:
        codes = [node.wait(TIMEOUT) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
            node.wait()
    took, used = time.monotonic() - began, children_cpu() - before
    if any(codes):
        raise BenchError(f"{n} nodes at {endpoint}: exit codes {codes}")
    return used / n * 1e3, took


def _fill(
    row: Row, n: int, repeat: int | None, reference: bool, once: Callable[[str, int], float]
) -> None:
    """Ours and the reference by turns, so that both see the same machine."""
    theirs = Sample()
    for _ in range(repeat or REPEAT.get(n, 3)):
        row.ours.values.append(once(OURS, n))
        if reference and not theirs.note:
            try:
                theirs.values.append(once(REFERENCE, n))
            except TimeoutError:
                theirs = Sample(note=f"> {TIMEOUT:.0f} s")
    if reference:
        row.reference = theirs


def _in_directory(backend: str, n: int) -> float:
    folder = tempfile.mkdtemp(prefix="rallypoint-bench-")
    try:
        if backend == OURS:
            settings = Settings(backend, n, n, endpoint=f"file://{folder}")
        else:
            settings = Settings(
                backend, n, n, {"store_type": "file"}, endpoint=f"{folder}/rendezvous"
            )
        return meet(backend, n, lambda: settings.handler, TIMEOUT)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_blob(backend: str, n: int) -> float:
    with Group(1, serve_torchs_store) as host:
        host.open_gate()
        port = host.receive(0)

        def connected() -> Callable[[], object]:  # torch's store looks up names
            from torch.distributed import TCPStore
            from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
                C10dRendezvousBackend,
            )
            from torch.distributed.elastic.rendezvous.dynamic_rendezvous import (
                DynamicRendezvousHandler as Theirs,
            )

            from rallypoint.handler import DynamicRendezvousHandler as Ours

            store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
            place = C10dRendezvousBackend(store, "bench")
            make = (Ours if backend == OURS else Theirs).from_backend
            return lambda: make("bench", store, place, n, n, "127.0.0.1")

        return meet(backend, n, connected, TIMEOUT)
