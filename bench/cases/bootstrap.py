"""What a round's store takes for the ranks of a job that is about to train with NCCL.

Each rank counts itself, passes two barriers and gets four unique ids: 15 requests over one
connection (store/bootstrap). What counts is the server's CPU time a rank. It grows with the
ranks, for each has a connection of its own that the kernel and the server find cold. The
reference is torch's libuv server, by turns.
"""

from __future__ import annotations

import resource

from pinned import BUILD, LIBUV, OURS, Child, Place, build
from result import Row, Sample

NAME = "bootstrap"

RANKS = (512, 1024, 4096, 16000)
REPEAT = 3
JOBS = 16000  # ranks of all jobs that one figure is taken of: the clock ticks each 10 ms
SPARE = 200  # descriptors
MOST = 1.1  # in figures of torch's server


def measure(repeat: int | None, reference: bool) -> list[Row]:
    build()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return [_row(n, repeat or REPEAT, reference) for n in RANKS if n + SPARE <= hard]


def _row(ranks: int, repeat: int, reference: bool) -> Row:
    samples = {OURS: Sample(), **({LIBUV: Sample()} if reference else {})}
    for i in range(repeat):
        for kind in samples if i % 2 == 0 else reversed(list(samples)):
            samples[kind].values.append(_cpu(kind, ranks))
    row = Row(NAME, f"{ranks} ranks: CPU a rank", samples[OURS], "us")
    if reference:
        row.reference = samples[LIBUV]
        row.target = MOST * (row.reference.median or 0)
        row.target_why = f"{MOST:g} times torch's"
    return row


def _cpu(kind: str, ranks: int) -> float:
    """Microseconds of the server's CPU for a rank."""
    place = Place()
    command = [str(BUILD / "bootstrap")]
    with (
        place.server(kind) as of,
        Child([*command, of.greeting, str(ranks)], place.client_cores) as job,
    ):
        job.ask("first")
        before, jobs = of.cpu(), max(1, JOBS // ranks)
        for i in range(jobs):
            job.ask(i)
        return (of.cpu() - before) / (jobs * ranks) * 1e6
