"""What it costs to store every change before it is answered: serve with and without --data-dir.

Without it is the floor. What the disk itself takes is in the notes: a commit waits for it
twice. A get of what is stored waits for no commit, also while others write.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from pathlib import Path

from processes import BenchError
from result import Row, Sample

from cases.scale import BUILD, cpu_of, serving, swarm_of

NAME = "durable"

NODES = 1000
REPEAT = 5
SINGLE, MANY = (1, 500), (100, 50)  # nodes, adds of each
READS = (1, 3000), (2, 3000)  # nodes, gets of the first; the others add meanwhile
READ_TARGET = 1.5  # times one without --data-dir
SYNCS = 200


def measure(repeat: int | None) -> list[Row]:
    with tempfile.TemporaryDirectory(dir=BUILD) as folder:
        disk = f"the disk takes {_sync(Path(folder)) * 1e3:.2f} ms to sync 4 KiB"
    joins, cpu, one, rate, alone, beside = ((Sample(), Sample()) for _ in range(6))
    for _ in range(repeat or REPEAT):
        for stored in (False, True):
            with tempfile.TemporaryDirectory(dir=BUILD) as folder:
                options = ["--data-dir", folder] if stored else []
                with serving(*options) as (server, address):
                    before = cpu_of(server)
                    figures = _figures("meet", address, NODES, 1)
                    cpu[stored].values.append((cpu_of(server) - before) / NODES * 1e6)
                    joins[stored].values.append(figures["connect_s"] + figures["first_join_s"])
                    one[stored].values.append(_figures("add", address, *SINGLE)["each_s"] * 1e3)
                    many = _figures("add", address, *MANY)
                    rate[stored].values.append(1e6 / many["rate"])
                    for get, load in zip((alone, beside), READS):
                        get[stored].values.append(_figures("get", address, *load)["each_s"] * 1e6)
    joins[True].note = disk
    return [
        _row(f"{NODES} nodes: first connection to last outcome", joins, "s"),
        _row(f"{NODES} nodes: the server's CPU for hello and join of one", cpu, "us"),
        _row("one add of the agents, no other node", one, "ms"),
        _row(f"the same of {MANY[0]} nodes at once: time an add", rate, "us"),
        _read("one get of the agents, no other node", alone),
        _read("one get beside a node that adds all the time", beside),
    ]


def _read(name: str, samples: tuple[Sample, Sample]) -> Row:
    row = _row(name, samples, "us")
    row.target = READ_TARGET * (samples[False].median or 0)
    row.target_why = f"{READ_TARGET:g} times one without --data-dir"
    return row


def _row(name: str, samples: tuple[Sample, Sample], unit: str) -> Row:
    without, stored = samples
    return Row(NAME, name, stored, unit, floor=without)


def _figures(mode: str, address: str, nodes: int, times: int) -> dict[str, float]:
    swarm = swarm_of(mode, address, str(nodes), str(times))
    out, err = swarm.communicate(timeout=300)
    if swarm.returncode:
        raise BenchError(f"swarm {mode} of {nodes}: {err}")
    figures: dict[str, float] = json.loads(out)
    return figures


def _sync(folder: Path) -> float:
    """Seconds to write and sync one page, as a commit does twice."""
    with open(folder / "page", "wb", buffering=0) as f:
        f.write(bytes(1 << 20))
        os.fdatasync(f)
        began = time.monotonic()
        for i in range(SYNCS):
            os.pwrite(f.fileno(), bytes([i % 256]) * 4096, i * 4096)
            os.fdatasync(f)
    return (time.monotonic() - began) / SYNCS
