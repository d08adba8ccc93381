"""The control plane among bad clients: how long a good one waits, alone and beset.

The server has one core and all clients another one. Bad are ten thousand connections that
say nothing, a thousand nodes that ask for much and read a KiB a second, and some that send a
byte a second. They yield the clients' core to the good client (nice), for it is the server
that is measured. The server cuts each of them off after ten seconds: the first figures are
taken before that, by turns with those of the good client alone; the last ones while all of
them come again as soon as they are cut off.
"""

from __future__ import annotations

import resource
import time

from pinned import Child, Place
from processes import BenchError
from result import Row, Sample

from cases.scale import BUILD, serving

NAME = "beset"

REPEAT = 5
SECONDS = 1.0  # of each operation; with SETTLE less than a bad client lives
WARM_UP = 0.3
SETTLE = 1.5

SILENT, SLOW, DRIPS = 10000, 1000, 20
AT_ONCE = 5000  # silent connects a second
AGAIN = 1000  # the same, when each of them comes again after the ten seconds that it lives
AGAIN_SETTLE = 12.0
SPARE = 4000  # descriptors of the crowd for slow readers, which take three each, and the rest
MOST = 2.0  # times what it is alone
MEMORY = 300.0  # MiB, of all bad clients
RUNS = ("--max-runs-per-address", "1000000")  # the good client begins thousands

OPERATIONS = {
    "add": "an agent's add",
    "healthz": "GET /healthz",
    "meet": "two nodes from first connection to last outcome",
}

Figures = dict[tuple[str, str], Sample]


def measure(repeat: int | None) -> list[Row]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    silent = min(SILENT, hard - SPARE)
    if silent < 100:
        raise BenchError(f"beset: {hard} descriptors a process are too few")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        return _measure(repeat or REPEAT, silent)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _measure(repeat: int, silent: int) -> list[Row]:
    place = Place()
    alone, beset, again = (_figures() for _ in range(3))
    taken, held = Sample(), Sample()
    for _ in range(repeat):
        with (
            serving(*RUNS, cores=place.server_cores) as (server, address),
            _swarm(place, 0, "probe", address) as good,
        ):
            empty = server.memory_info().rss
            with _swarm(place, 19, "crowd", address, silent, 0, 0, AT_ONCE):
                taken.values.append((server.memory_info().rss - empty) / (1 << 20))
            good.ask(WARM_UP)
            _ask(good, alone)
            with _swarm(place, 19, "crowd", address, silent, SLOW, DRIPS, AT_ONCE):
                time.sleep(SETTLE)
                _ask(good, beset)
                held.values.append((server.memory_info().rss - empty) / (1 << 20))
    with (
        serving(*RUNS, cores=place.server_cores) as (_, address),
        _swarm(place, 0, "probe", address) as good,
        _swarm(place, 19, "crowd", address, silent, SLOW, DRIPS, AGAIN),
    ):
        time.sleep(AGAIN_SETTLE)
        for _ in range(repeat):
            _ask(good, again)
    everybody = f"{silent} silent, {SLOW} slow, {DRIPS} a byte a second"
    most = Row(NAME, f"memory with {everybody}", held, "MiB", target=MEMORY)
    most.target_why = "5 KiB a silent one, a quarter of a MiB a slow one"
    return [
        *_rows("among bad clients", beset, alone, MOST),
        *_rows("among those that come again", again, alone, None),
        Row(NAME, f"memory with {silent} silent connections", taken, "MiB"),
        most,
    ]


def _figures() -> Figures:
    return {
        (operation, figure): Sample() for operation in OPERATIONS for figure in ("median", "p99")
    }


def _rows(among: str, figures: Figures, alone: Figures, most: float | None) -> list[Row]:
    rows = []
    for (operation, figure), sample in figures.items():
        row = Row(NAME, f"{OPERATIONS[operation]} {among}, {figure}", sample, "us")
        row.floor = alone[operation, figure]
        if most and row.floor.median is not None:
            row.target, row.target_why = most * row.floor.median, f"{most:g} x without them"
        rows.append(row)
    return rows


def _swarm(place: Place, nice: int, *words: object) -> Child:
    command = [str(BUILD / "swarm"), *map(str, words)]
    return Child(["nice", "-n", str(nice), *command], place.client_cores)


def _ask(good: Child, figures: Figures) -> None:
    """Has the good client do its work, and adds what it took, in us."""
    done = good.ask(SECONDS)
    for (operation, figure), sample in figures.items():
        sample.values.append(1e6 * done[operation][figure])
