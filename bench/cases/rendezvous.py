"""One rendezvous of N nodes that start together: first call to last return."""

from __future__ import annotations

import time
from collections.abc import Sequence

from backends import OURS, REFERENCE, Settings, meet, serve_torchs_store
from processes import Group, Link
from result import Row, Sample

NAME = "rendezvous"

REPEAT = {2: 15, 32: 5, 128: 3}
REFERENCE_REPEAT = {2: 5, 32: 2, 128: 1}
REFERENCE_TIMEOUT = 180.0

TARGET_OF_2 = 0.06
FLOORS = 2.0  # with more nodes: so many times what the processes need anyway


def measure(
    counts: Sequence[int], repeat: int | None, reference: bool, reference_max: int
) -> list[Row]:
    rows = []
    for n in counts:
        times = repeat or REPEAT.get(n, 3)
        ours, floor = Sample(), Sample()
        for _ in range(times):  # by turns, so that both see the same machine
            floor.values.append(_floor(n))
            ours.values.append(rendezvous(OURS, n))
        row = Row(NAME, f"rendezvous of {n} nodes", ours, floor=floor)
        if n == 2:
            row.target, row.target_why = TARGET_OF_2, ""
        else:
            row.target, row.target_why = FLOORS * (floor.median or 0), f"{FLOORS:g} x floor"
        if reference:
            row.reference = _reference(n, repeat, reference_max)
        rows.append(row)
    return rows


def _reference(n: int, repeat: int | None, most: int) -> Sample:
    if n > most:
        return Sample(note=f"skipped above {most}")
    times = min(repeat or 9, REFERENCE_REPEAT.get(n, 1))
    try:
        return Sample([rendezvous(REFERENCE, n) for _ in range(times)])
    except TimeoutError:
        return Sample(note=f"> {REFERENCE_TIMEOUT:.0f} s")


def rendezvous(backend: str, n: int, options: dict[str, object] | None = None) -> float:
    settings = Settings(backend, n, n, options or {})
    return meet(backend, n, lambda: settings.handler, REFERENCE_TIMEOUT)


def _floor(n: int) -> float:
    """The same for processes that only load the library and connect to a TCPStore of torch."""

    with Group(1, serve_torchs_store) as host:
        host.open_gate()
        port = host.receive(0)

        def node(link: Link) -> None:
            from torch.distributed import TCPStore

            from rallypoint._native import library

            link.ready()
            began = time.monotonic()
            library.load()
            store = TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
            link.send((began, time.monotonic()))
            link.hold()
            del store

        with Group(n, node) as group:
            group.open_gate()
            outcomes = group.receive_all()
    return float(max(o[1] for o in outcomes) - min(o[0] for o in outcomes))
