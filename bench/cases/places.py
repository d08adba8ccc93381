"""One rendezvous of N nodes without a control plane: in a shared directory, in a blob.

Each beside the reference in the same place: torch's c10d over its FileStore, and over a
value in a TCPStore, which is the blob here, too: the same server, the same processes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence

from backends import OURS, REFERENCE, Settings, meet, serve_torchs_store
from processes import Group
from result import Row, Sample

NAME = "places"

REPEAT = {2: 9, 32: 3, 64: 3, 128: 1}
TIMEOUT = 180.0

TARGET_OF_2 = 0.1
TARGET_BLOB_OF_64 = 2.0


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
