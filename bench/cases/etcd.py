"""One rendezvous of N nodes that meet in an etcd, beside torch's c10d over its TCPStore.

The etcd is the one that `make etcd` builds, a single member on this machine, with its
usual writes to the disk. torch has no rendezvous for an etcd with the v3 API.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from backends import OURS, REFERENCE, Settings, meet
from processes import Group, Link
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
                    theirs.values.append(_theirs(n))
                except TimeoutError:
                    theirs = Sample(note=f"> {TIMEOUT:.0f} s")
        row = Row(NAME, f"{n} nodes in etcd", ours)
        if reference and n <= reference_max:
            row.reference = theirs
        rows.append(row)
    return rows


def _theirs(n: int) -> float:
    settings = Settings(REFERENCE, n, n)
    return meet(REFERENCE, n, lambda: settings.handler, TIMEOUT)


def serve_etcd(link: Link) -> None:
    """Runs the etcd that the environment names, and sends its endpoint."""
    from rallypoint import EtcdServer

    os.environ["TORCHELASTIC_ETCD_BINARY_PATH"] = os.environ[BINARY]
    etcd = EtcdServer()
    etcd.start()
    link.ready()
    link.send(f"etcd://{etcd.get_endpoint()}")
    link.hold()
    etcd.stop()


def _in_etcd(n: int) -> float:
    with Group(1, serve_etcd) as host:
        host.open_gate()
        endpoint = host.receive(0)

        def handler():  # type: ignore[no-untyped-def]
            from torch.distributed.elastic.rendezvous import RendezvousParameters

            from rallypoint.handler import create_handler

            return create_handler(RendezvousParameters(OURS, endpoint, "bench", n, n, "127.0.0.1"))

        return meet(OURS, n, lambda: handler, TIMEOUT)
