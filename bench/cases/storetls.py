"""The TCPStore server with a token: what TLS costs it, beside the same without.

The clients are those of the case "store", behind a process that carries each of their
connections to the server (store/carrier), by TLS or, for the floor, as it is. The server has
a core of its own: what counts is its CPU time, and its memory.
"""

from __future__ import annotations

import resource
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pinned import OURS, Child, Place, build
from result import Row, Sample

from cases.store import SECONDS, WARM_UP

NAME = "store-tls"

REPEAT = 5
LARGE = 64 << 10

# Mode of load.c, connections, bytes of a value, and the most in figures of the plain server.
REQUESTS = [("get", 64, 64, 1.5), ("set_get", 64, 64, 1.5), ("get", 8, LARGE, 3.0)]

OTHERS = 500
CONNECTIONS = 1000
EACH = 8 << 10  # bytes of the server for an idle connection
OPENING = 0.55  # ms of CPU at both ends to open one


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
            return [*_requests(place, token, times), *_connections(place, token, times)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def _both(place: Place, token: str) -> Iterator[dict[str, tuple[Child, Child]]]:
    """Servers and what carries clients to them."""
    with (
        place.secured(token) as secured,
        place.server(OURS) as plain,
        place.carrier(secured, token) as to_secured,
        place.carrier(plain) as to_plain,
    ):
        yield {"tls": (secured, to_secured), "plain": (plain, to_plain)}


def _requests(place: Place, token: str, times: int) -> Iterator[Row]:
    with _both(place, token) as servers:
        for mode, connections, value, most in REQUESTS:
            cost = {name: Sample() for name in servers}
            for turn in range(times):
                for name in list(servers)[:: 1 if turn % 2 == 0 else -1]:
                    server, carrier = servers[name]
                    with place.clients(carrier, mode, connections, value) as clients:
                        clients.ask(WARM_UP)
                        before = server.cpu()
                        done = clients.ask(SECONDS)
                        used = server.cpu() - before
                    cost[name].values.append(1e6 * used / done["requests"])
            size = "" if value == 64 else f" of {value >> 10} KiB"
            row = Row(NAME, f"{mode}{size} over TLS, {connections} connections", cost["tls"], "us")
            row.floor = cost["plain"]
            if row.floor.median is not None:
                row.target, row.target_why = most * row.floor.median, f"{most:g} x plain"
            yield row


def _connections(place: Place, token: str, times: int) -> list[Row]:
    """What an idle connection adds to others, and what it costs to open one and make a get."""
    held = {"tls": Sample(), "plain": Sample()}
    spent = {"tls": Sample(), "plain": Sample()}
    for _ in range(times):
        with _both(place, token) as servers:
            for name, (server, carrier) in servers.items():
                with place.clients(carrier, "idle", OTHERS):
                    others, before = server.memory(), server.cpu() + carrier.cpu()
                    with place.clients(carrier, "idle", CONNECTIONS):
                        held[name].values.append((server.memory() - others) / CONNECTIONS)
                        used = server.cpu() + carrier.cpu() - before
                        spent[name].values.append(1e3 * used / CONNECTIONS)
    name = f"memory a connection over TLS, {CONNECTIONS} connections"
    memory = Row(NAME, name, held["tls"], "bytes")
    memory.floor, memory.target = held["plain"], EACH
    name = "a connection and a get, beyond a plain one: CPU of both ends"
    opening = Row(NAME, name, Sample(), "ms")
    pairs = zip(spent["tls"].values, spent["plain"].values)
    opening.ours.values = [tls - plain for tls, plain in pairs]
    opening.target = OPENING
    return [memory, opening]
