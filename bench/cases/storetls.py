"""The TCPStore server with a token: what TLS and a node's forwarder cost.

The clients are those of the case "store". Three ways lead them to a store: "tls", behind a
forwarder (store/carrier) that speaks TLS, as workers of another node come; "hop", behind the
same that carries their bytes as they are to a server without a token; "direct", straight to
that. The server has a core of its own. What counts is CPU time, and memory.

One client alone has all on one core: what it waits for is then the work on its way, while the
time that another core takes to wake up varies more than that. There "least" is the way over
store/hop.c.
"""

from __future__ import annotations

import resource
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pinned import BUILD, OURS, Child, Place, build
from processes import go_benchmarks, go_figures
from result import Row, Sample

from cases.store import SECONDS, WARM_UP

NAME = "store-tls"

REPEAT = 5
TURNS = 9  # of the requests of many clients: medians of 5 differ by a tenth from run to run
LARGE = 64 << 10

# Mode of load.c, connections, bytes of a value, and the most at the store in direct figures.
REQUESTS = [("get", 64, 64, 1.5), ("set_get", 64, 64, 1.5), ("get", 8, LARGE, 3.0)]
BOTH = 1.25  # the most at store and forwarder together, in figures of a plain hop
ONE_HOPS = 1.1  # the most for one client, likewise
ONE_MORE = 1.5  # the most for one client over direct, in figures of the least hop there is

OTHERS = 500
CONNECTIONS = 1000
EACH = 8 << 10  # bytes of the server for an idle connection
EACH_AGENT = 16 << 10  # of the forwarder
OPENING = 0.55  # ms of CPU at both ends of a handshake and its proofs
CROWD = 1.0  # s until as many that connect at once are open
USER_CHECK = 15.0  # us
SLOW = 1000  # that send a byte a second of their TLS hello
SLOW_SECONDS = 5.0  # as long as one lives
SLOW_MOST = 2.0  # times what it is without them


@dataclass
class Way:
    """One that leads clients to a store."""

    server: Child
    forwarder: Child | None = None

    @property
    def entrance(self) -> Child:
        return self.forwarder or self.server

    def cpu(self) -> tuple[float, float]:
        """Seconds at the store, and at store and forwarder together."""
        at_store = self.server.cpu()
        return at_store, at_store + (self.forwarder.cpu() if self.forwarder else 0)


def measure(repeat: int | None) -> list[Row]:
    build()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    place, times = Place(), repeat or REPEAT
    try:
        with tempfile.TemporaryDirectory() as folder:
            token = str(Path(folder, "token"))
            Path(token).write_text(secrets.token_hex(32))
            Path(token).chmod(0o600)
            return [
                *_requests(place, token, repeat or TURNS),
                *_one_client(token, times),
                *_among_handshakes(place, token, times),
                *_connections(place, token, times),
                _opening(place, times),
                _crowd(place, token, times),
                _user_check(times),
            ]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _ways(place: Place, token: str) -> Iterator[dict[str, Way]]:
    with (
        place.secured(token) as secured,
        place.server(OURS) as plain,
        place.carrier(secured, token) as to_secured,
        place.carrier(plain) as to_plain,
    ):
        yield {"tls": Way(secured, to_secured), "hop": Way(plain, to_plain), "direct": Way(plain)}


def _in_turn(turn: int, ways: dict[str, Way]) -> list[tuple[str, Way]]:
    """All ways, in an order that favours none."""
    return list(ways.items())[:: 1 if turn % 2 == 0 else -1]


def _requests(place: Place, token: str, times: int) -> Iterator[Row]:
    with _ways(place, token) as ways:
        for mode, connections, value, most in REQUESTS:
            store = {name: Sample() for name in ways}
            both = {name: Sample() for name in ways}
            for turn in range(times):
                for name, way in _in_turn(turn, ways):
                    with place.clients(way.entrance, mode, connections, value) as clients:
                        clients.ask(WARM_UP)
                        before = way.cpu()
                        done = clients.ask(SECONDS)
                        used = [1e6 * (b - a) / done["requests"] for a, b in zip(before, way.cpu())]
                    store[name].values.append(used[0])
                    both[name].values.append(used[1])
            size = "" if value == 64 else f" of {value >> 10} KiB"
            name = f"{mode}{size} over TLS, {connections} connections"
            row = Row(NAME, name, store["tls"], "us", floor=store["direct"])
            # Of a forwarder requests come one by one, and the store wakes up for each.
            row.ours.note = f"behind a plain hop {store['hop'].median or 0:.3g} us"
            yield _bounded(row, most, "direct")
            row = Row(NAME, f"{name}: store and agent", both["tls"], "us", floor=both["hop"])
            if value == 64:
                _bounded(row, BOTH, "a plain hop")
            yield row


def _one_client(token: str, times: int) -> list[Row]:
    """How long one client waits for the value of a key."""
    place = Place(one_core=True)
    with _ways(place, token) as ways, place.hop(ways["direct"].server) as hop:
        ways["least"] = Way(ways["direct"].server, hop)
        waited = {name: Sample() for name in ways}
        for turn in range(times):
            for name, way in _in_turn(turn, ways):
                with place.clients(way.entrance, "probe", 1) as client:
                    client.ask(WARM_UP)
                    waited[name].values.append(1e6 * client.ask(SECONDS)["median"])
    name = "get of one client over TLS, median"
    row = Row(NAME, name, waited["tls"], "us", floor=waited["hop"])
    _bounded(row, ONE_HOPS, "a plain hop")

    def over_direct(way: str) -> Sample:
        pairs = zip(waited[way].values, waited["direct"].values)
        return Sample([there - here for there, here in pairs])

    more = Row(NAME, f"{name}: over direct", over_direct("tls"), "us", floor=over_direct("least"))
    return [row, _bounded(more, ONE_MORE, "the least hop")]


def _among_handshakes(place: Place, token: str, times: int) -> list[Row]:
    """How long one client waits while others open connections, and never end their handshake.

    They yield the clients' core to it (nice): it is the server that is measured.
    """
    took = {figure: (Sample(), Sample()) for figure in ("median", "p99")}
    swarm = ("nice", "-n", "19", str(BUILD.parent / "swarm"))
    with _ways(place, token) as ways:
        way = ways["tls"]
        address = f"127.0.0.1:{way.server.greeting}"
        with place.clients(way.entrance, "probe", 1) as client:
            client.ask(WARM_UP)
            for _ in range(times):
                alone = client.ask(SLOW_SECONDS)
                command = [*swarm, "handshakes", address, str(SLOW)]
                with Child(command, place.client_cores):
                    beset = client.ask(SLOW_SECONDS)
                for figure, (among, without) in took.items():
                    among.values.append(1e6 * beset[figure])
                    without.values.append(1e6 * alone[figure])
    name = f"get of one client over TLS among {SLOW} handshakes of a byte a second"
    return [
        _bounded(Row(NAME, f"{name}, {figure}", among, "us", floor=without), SLOW_MOST, "without")
        for figure, (among, without) in took.items()
    ]


def _connections(place: Place, token: str, times: int) -> list[Row]:
    """What an idle connection adds to others, and what it costs to open one and make a get."""
    held = {name: Sample() for name in ("tls", "hop")}
    agent = {name: Sample() for name in held}
    spent = {name: Sample() for name in held}
    for turn in range(times):
        with _ways(place, token) as ways:
            del ways["direct"]
            for name, way in _in_turn(turn, ways):
                assert way.forwarder
                with place.clients(way.forwarder, "idle", OTHERS):
                    others, here = way.server.memory(), _at_rest(way.forwarder)
                    before = way.cpu()[1]
                    with place.clients(way.forwarder, "idle", CONNECTIONS):
                        spent[name].values.append(1e3 * (way.cpu()[1] - before) / CONNECTIONS)
                        held[name].values.append((way.server.memory() - others) / CONNECTIONS)
                        more = _at_rest(way.forwarder) - here
                        agent[name].values.append(more / CONNECTIONS)
    name = f"memory a connection over TLS, {CONNECTIONS} connections"
    memory = Row(NAME, name, held["tls"], "bytes", floor=held["hop"], target=EACH)
    there = Row(NAME, f"{name}: agent", agent["tls"], "bytes", floor=agent["hop"])
    there.target = EACH_AGENT
    name = "a connection and a get: CPU of store and agent, their waits for each other included"
    whole = Row(NAME, name, spent["tls"], "ms", floor=spent["hop"])
    return [memory, there, whole]


def _at_rest(forwarder: Child) -> float:
    """Its memory without what openings have left to be collected, which goes within minutes."""
    forwarder.ask("collect")
    return forwarder.memory()


def _opening(place: Place, times: int) -> Row:
    """A handshake and its proofs, beyond a plain connection, both ends in one process.

    The least of many batches each: what other programs on the machine add is no cost of it.
    """
    pinned = ("taskset", "-c", ",".join(map(str, place.server_cores)))
    cost = Sample()
    with tempfile.TemporaryDirectory() as folder:
        program = go_benchmarks("tcpstore", Path(folder))
        for _ in range(times):
            took = go_figures(program, "BenchmarkOpening", 100, "cpu-ns/op", *pinned, batches=20)
            cost.values.append((min(took["tls"]) - min(took["plain"])) / 1e6)
    return Row(NAME, "handshake and proofs, CPU of both ends", cost, "ms", target=OPENING)


def _crowd(place: Place, token: str, times: int) -> Row:
    """Workers that connect at once: until the last has been answered by the store."""
    took = {name: Sample() for name in ("tls", "hop")}
    for turn in range(times):
        with _ways(place, token) as ways:
            del ways["direct"]
            for name, way in _in_turn(turn, ways):
                with place.clients(way.entrance, "storm", CONNECTIONS) as clients:
                    done = clients.ask(0.001)
                took[name].values.append(done["seconds"])
                if done["failed"]:
                    took[name].note += f"{done['failed']} failed "
    row = Row(NAME, f"{CONNECTIONS} workers at once are connected", took["tls"], floor=took["hop"])
    row.target = CROWD
    return row


def _user_check(times: int) -> Row:
    """Whose a connection is, asked of the kernel."""
    with tempfile.TemporaryDirectory() as folder:
        program = go_benchmarks("core/peer", Path(folder))
        took = go_figures(program, "BenchmarkAdmit", 5000, "cpu-ns/op", batches=times)
    asked = Sample([one / 1000 for one in took["Admit"]])
    return Row(NAME, "user check of a loopback connection", asked, "us", target=USER_CHECK)


def _bounded(row: Row, factor: float, name: str) -> Row:
    if row.floor and row.floor.median is not None:
        row.target, row.target_why = factor * row.floor.median, f"{factor:g} x {name}"
    return row
