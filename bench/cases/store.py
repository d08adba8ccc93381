"""The TCPStore server beside torch's libuv server.

A server is pinned to one core and the load generator (store/load.c) to another; all
servers face the same one. What counts is the server's CPU time a request: it says how
much one core can carry and does not depend on how fast the clients are. The floor is a
bare epoll echo in C of the same bytes (store/echo.c).
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from pinned import ECHO, LIBUV, OURS, Child, Place, build
from result import Row, Sample

NAME = "store"

REPEAT = 3
SECONDS = 1.0  # of one measurement
WARM_UP = 0.3

LARGE = 64 << 10


@dataclass(frozen=True)
class Case:
    """A mode of load.c, and the most that ours may take, in libuv's figures."""

    mode: str
    connections: int
    value: int = 64
    most: float = 1.1
    always: bool = False  # also if not all cases are asked for

    @property
    def name(self) -> str:
        size = "" if self.value == 64 else f" of {self.value >> 10} KiB"
        return f"{self.mode}{size}, {self.connections} connections"


REQUESTS = [
    *(Case("get", n, always=True) for n in (64, 1000, 10000)),
    *(
        Case(mode, n, always=n == 64)
        for mode in ("set_get", "add", "check", "compare_set", "multi_get")
        for n in (64, 1000, 10000)
    ),
    Case("wake", 1000, always=True),
    Case("get", 64, LARGE, most=1.0, always=True),
    Case("set_get", 64, LARGE, most=1.0, always=True),
]

LOOPS_MOST = 1.15
LOOPS_CORES = 4  # for two loops and their clients
LOADS = 2  # of these clients

MEMORY = 10000  # connections
MEMORY_MOST = 64  # MiB
MEMORY_EACH = 6 << 10  # bytes a connection, when there are as many as descriptors allow
MOST = 100000  # connections, if descriptors allow
RESERVED = 500  # descriptors that are left for other things than connections

STORM = 10000  # connects in one second

# The bad clients that others are not to notice: mode of load.c, how many, value.
BAD = [("idle", 10000, 64), ("slow", 1000, 4 << 10), ("drip", 1, 64)]
BAD_MOST = 2.0


def measure(repeat: int | None, reference: bool, everything: bool) -> list[Row]:
    build()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    kinds = [OURS, LIBUV] if reference else [OURS]
    place = Place()
    times = repeat or REPEAT
    try:
        return [
            *_requests([c for c in REQUESTS if c.always or everything], times, kinds, place),
            *_loops(times, place),
            _memory(MEMORY, times, kinds, place),
            _each(min(hard, MOST) - RESERVED, kinds, place),
            _storm(times, kinds, place),
            *_bad_clients(times, kinds, place),
        ]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _requests(
    cases: Sequence[Case], repeat: int, kinds: Sequence[str], place: Place
) -> Iterator[Row]:
    with ExitStack() as stack:
        servers = {kind: stack.enter_context(place.server(kind)) for kind in [*kinds, ECHO]}
        for case in cases:
            of = dict(servers)
            if case.mode != "get" or case.value != 64:
                del of[ECHO]
            cost = _costs(case, of, repeat, place)
            row = Row(NAME, case.name, cost[OURS], "us")
            row.reference, row.floor = cost.get(LIBUV), cost.get(ECHO)
            _bound(row, row.reference, case.most, LIBUV)
            yield row


def _loops(repeat: int, place: Place) -> list[Row]:
    """What a second loop costs, and whether it helps. The floor is one loop.

    The cost can be seen with two cores: both servers have all of them, one for the client
    if there are more. The use of it wants a core for each loop and for two clients, since
    one loop alone keeps a client busy.
    """
    case = Case("get", 1000)
    with place.server_with_loops(1) as one, place.server_with_loops(2) as two:
        cost = _costs(case, {"one": one, "two": two}, repeat, place)
    row = Row(NAME, f"{case.name}, two loops", cost["two"], "us", floor=cost["one"])
    _bound(row, row.floor, LOOPS_MOST, "one loop")
    use = Row(NAME, f"{case.name}, two loops: time of all for a request", Sample(), "us")
    if place.cores < LOOPS_CORES:
        use.ours.note = f"not measured: it takes {LOOPS_CORES} cores, here are {place.cores}"
    else:
        use.floor = Sample()
        with place.server_with_loops(1, LOADS) as one, place.server_with_loops(2, LOADS) as two:
            times = {one: use.floor, two: use.ours}
            for _ in range(repeat):
                for of, sample in times.items():
                    sample.values.append(1e6 / _rate(case, of, place))
    return [row, use]


def _rate(case: Case, of: Child, place: Place) -> float:
    """Requests a second that several clients, each on a core of its own, get answered."""
    each = case.connections // LOADS
    with ExitStack() as stack:
        loads = [
            stack.enter_context(place.clients(of, case.mode, each, case.value, number))
            for number in range(LOADS)
        ]
        for seconds in (WARM_UP, SECONDS):
            for load in loads:
                load.begin(seconds)
            done = [load.result() for load in loads]
    return float(sum(load["requests"] / load["seconds"] for load in done))


def _costs(case: Case, servers: dict[str, Child], repeat: int, place: Place) -> dict[str, Sample]:
    """Returns microseconds of the servers' CPU time a request."""
    cost = {name: Sample() for name in servers}
    for name in _in_turn(repeat, list(servers)):
        of = servers[name]
        with place.clients(of, case.mode, case.connections, case.value) as clients:
            clients.ask(WARM_UP)
            before = of.cpu()
            done = clients.ask(SECONDS)
            used = of.cpu() - before
        cost[name].values.append(1e6 * used / done["requests"])
    return cost


def _memory(connections: int, repeat: int, kinds: Sequence[str], place: Place) -> Row:
    held = {kind: Sample() for kind in kinds}
    for kind in _in_turn(repeat, kinds):
        with place.server(kind) as of, place.clients(of, "idle", connections):
            held[kind].values.append(of.memory() / (1 << 20))
    row = Row(NAME, f"memory with {connections} silent connections", held[OURS], "MiB")
    row.reference = held.get(LIBUV)
    row.target = MEMORY_MOST
    return row


def _each(connections: int, kinds: Sequence[str], place: Place) -> Row:
    """What a connection adds, at a quarter, half and all of what is possible."""
    each = {kind: Sample() for kind in kinds}
    steps = [connections // 4, connections // 2, connections]
    for kind in kinds:
        found = []
        for count in steps:
            with place.server(kind) as of:
                empty = of.memory()
                with place.clients(of, "idle", count):
                    found.append((of.memory() - empty) / count)
        each[kind].values.append(found[-1])
        each[kind].note = f"{kind}, {', '.join(f'{n}: {b:.0f}' for n, b in zip(steps, found))}"
    row = Row(NAME, f"memory a connection, {connections} connections", each[OURS], "bytes")
    row.reference = each.get(LIBUV)
    row.target = MEMORY_EACH
    return row


def _storm(repeat: int, kinds: Sequence[str], place: Place) -> Row:
    """Connects that are not answered, while 64 clients keep the server busy."""
    failed = {kind: Sample() for kind in kinds}
    for kind in _in_turn(repeat, kinds):
        with (
            place.server(kind) as of,
            place.clients(of, "get", 64) as busy,
            place.clients(of, "storm", STORM) as clients,
        ):
            busy.begin(2)
            done = clients.ask(1)
            busy.result()
        sample = failed[kind]
        sample.values.append(done["failed"])
        text = f"{1e3 * done['median']:.1f}/{1e3 * done['p99']:.1f}/{1e3 * done['max']:.1f}"
        sample.note += f"{', ' if sample.note else f'{kind}, median/p99/most in ms: '}{text}"
    row = Row(NAME, f"storm of {STORM} connects in 1 s: failed", failed[OURS], "")
    row.reference = failed.get(LIBUV)
    row.target = 0
    return row


def _bad_clients(repeat: int, kinds: Sequence[str], place: Place) -> list[Row]:
    """How long a good client waits while others are silent, slow or stuck.

    The floor is the same on a server without other clients.
    """
    figures = ("median", "p99")
    alone = {(kind, figure): Sample() for kind in kinds for figure in figures}
    beset = {(kind, figure): Sample() for kind in kinds for figure in figures}
    for kind in _in_turn(repeat, kinds):
        with place.server(kind) as of, place.clients(of, "probe", 1) as good:
            good.ask(WARM_UP)
            _spread(alone, kind, good.ask(SECONDS))
            with ExitStack() as stack:
                bad = [stack.enter_context(place.clients(of, *words)) for words in BAD]
                for clients in bad[1:]:
                    clients.begin(SECONDS + 2)
                time.sleep(0.5)  # the burst of their first requests is over
                _spread(beset, kind, good.ask(SECONDS))
                held = of.memory() / (1 << 20)
        beset[kind, "median"].note = f"{kind} holds {held:.0f} MiB"
    rows = []
    for figure in figures:
        row = Row(NAME, f"get among bad clients, {figure}", beset[OURS, figure], "us")
        row.reference, row.floor = beset.get((LIBUV, figure)), alone[OURS, figure]
        _bound(row, row.floor, BAD_MOST, "without them")
        rows.append(row)
    return rows


def _spread(to: dict[tuple[str, str], Sample], kind: str, done: dict[str, float]) -> None:
    for (whose, figure), sample in to.items():
        if whose == kind:
            sample.values.append(1e6 * done[figure])


def _bound(row: Row, by: Sample | None, factor: float, name: str) -> None:
    if by and by.median is not None:
        row.target, row.target_why = factor * by.median, f"{factor:g} x {name}"


def _in_turn(repeat: int, names: Sequence[str]) -> Iterator[str]:
    """Each name so often, in an order that favours none."""
    for i in range(repeat):
        yield from names if i % 2 == 0 else reversed(names)
