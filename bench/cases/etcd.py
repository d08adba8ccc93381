"""One rendezvous of N nodes that meet in an etcd, beside torch's c10d over its TCPStore.

The etcd is the one that `make etcd` builds, a single member on this machine, with its
usual writes to the disk. torch has no rendezvous for an etcd with the v3 API.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence

from backends import OURS, REFERENCE, Settings
from processes import BenchError, Group, Link
from result import Row, Sample

NAME = "etcd"

REPEAT = {2: 9, 32: 3, 128: 2}
TIMEOUT = 180.0

BINARY = "RALLYPOINT_TEST_ETCD"


def measure(
    counts: Sequence[int], repeat: int | None, reference: bool, reference_max: int
) -> list[Row]:
    if not os.environ.get(BINARY):
        return [Row(NAME, "rendezvous in etcd", Sample(note=f"{BINARY} names no etcd"))]
    rows = []
    for n in counts:
        ours, theirs = Sample(), Sample()
        for _ in range(repeat or REPEAT.get(n, 3)):  # by turns: both see the same machine
            ours.values.append(_in_etcd(n))
            if reference and n <= reference_max and not theirs.note:
                try:
                    theirs.values.append(_rendezvous(n, Settings(REFERENCE, n, n).handler))
                except TimeoutError:
                    theirs = Sample(note=f"> {TIMEOUT:.0f} s")
        row = Row(NAME, f"{n} nodes in etcd", ours)
        if reference and n <= reference_max:
            row.reference = theirs
        rows.append(row)
    return rows


def _in_etcd(n: int) -> float:
    def server(link: Link) -> None:
        from rallypoint import EtcdServer

        os.environ["TORCHELASTIC_ETCD_BINARY_PATH"] = os.environ[BINARY]
        etcd = EtcdServer()
        etcd.start()
        link.ready()
        link.send(etcd.get_endpoint())
        link.hold()
        etcd.stop()

    with Group(1, server) as host:
        host.open_gate()
        endpoint = host.receive(0)

        def handler():  # type: ignore[no-untyped-def]
            from torch.distributed.elastic.rendezvous import RendezvousParameters

            from rallypoint.handler import create_handler

            return create_handler(
                RendezvousParameters(OURS, f"etcd://{endpoint}", "bench", n, n, "127.0.0.1")
            )

        return _rendezvous(n, handler)


def _rendezvous(n: int, make) -> float:  # type: ignore[no-untyped-def]
    """Seconds from the first node's call to the last one's return (see rendezvous.py)."""

    def node(link: Link) -> None:
        link.ready()
        began = time.monotonic()
        handler = make()
        info = handler.next_rendezvous()
        link.send((began, time.monotonic(), info.rank, info.world_size))
        link.hold()

    with Group(n, node) as group:
        group.open_gate()
        outcomes = group.receive_all(timeout=TIMEOUT)
    if sorted(o[2] for o in outcomes) != list(range(n)) or {o[3] for o in outcomes} != {n}:
        raise BenchError(f"wrong ranks or world sizes: {outcomes}")
    return float(max(o[1] for o in outcomes) - min(o[0] for o in outcomes))
