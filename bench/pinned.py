"""Servers and clients as processes of their own, pinned to cores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from processes import BenchError

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "bench" / "store"
BUILD = ROOT / "build" / "bench"

OURS = "rallypoint"
LIBUV = "libuv"
ECHO = "echo"

# One process holds torch's server and nothing else. It has one client, its own.
_LIBUV_SERVER = """
import sys, torch.distributed as d
s = d.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=True, wait_for_workers=False)
print(s.port, flush=True)
sys.stdin.read()
"""

_TICK = 1 / os.sysconf("SC_CLK_TCK")


class Child:
    """A process that prints a line when it is ready and ends with its input."""

    def __init__(self, command: Sequence[str], cores: set[int], preload: str = "") -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "LD_PRELOAD": preload},
            preexec_fn=lambda: os.sched_setaffinity(0, cores),
        )
        self.greeting = self._line()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> None:
        try:
            self._process.communicate(timeout=1 if error else 20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()

    def ask(self, text: object) -> dict[str, Any]:
        """Sends a line and returns the JSON that answers it."""
        self.begin(text)
        return self.result()

    def begin(self, text: object) -> None:
        """Sends a line, which `result` returns the answer to."""
        assert self._process.stdin
        self._process.stdin.write(f"{text}\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def cpu(self) -> float:
        """Seconds of CPU that all threads have used."""
        text = Path(f"/proc/{self._process.pid}/stat").read_text()
        user, system = text.rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) * _TICK

    def memory(self) -> float:
        """Resident bytes."""
        for line in Path(f"/proc/{self._process.pid}/smaps_rollup").read_text().splitlines():
            name, _, amount = line.partition(":")
            if name == "Rss":
                return float(int(amount.split()[0]) << 10)
        raise BenchError("no Rss in smaps_rollup")

    def _line(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise BenchError(f"{self._process.args!r} ended with {self._process.wait()}")
        return line.strip()


class Place:
    """One core for a server and another one for all clients, if there are two, or one for all."""

    def __init__(self, one_core: bool = False) -> None:
        self._cores = sorted(os.sched_getaffinity(0))[: 1 if one_core else None]
        self.server_cores, self.client_cores = {self._cores[0]}, {self._cores[-1]}

    def server(self, kind: str) -> Child:
        """Starts a server with an empty store. Its greeting is its port."""
        if kind == LIBUV:
            command = [sys.executable, "-c", _LIBUV_SERVER]
            return Child(command, self.server_cores, str(BUILD / "numeric_names.so"))
        name = "echo" if kind == ECHO else "server"
        return Child([str(BUILD / name)], self.server_cores)

    def secured(self, token: str) -> Child:
        """Starts ours with the token of a file: it takes connections by TLS alone."""
        return Child([str(BUILD / "server"), "-token", token], self.server_cores)

    def carrier(self, of: Child, token: str = "") -> Child:
        """Starts a node's forwarder of the clients' connections, by TLS if there is a token."""
        words = ["-server", of.greeting, "-token", token]
        return Child([str(BUILD / "carrier"), *words], self.client_cores)

    def hop(self, of: Child) -> Child:
        """Starts the least that clients can have before a server."""
        return Child([str(BUILD / "hop"), of.greeting], self.client_cores)

    @property
    def cores(self) -> int:
        return len(self._cores)

    def server_with_loops(self, loops: int, clients: int = 1) -> Child:
        """Ours with so many loops, on all cores; not on the clients' if there are enough."""
        cores = set(self._cores if len(self._cores) <= 2 else self._cores[:-clients])
        return Child([str(BUILD / "server"), "-loops", str(loops)], cores)

    def clients(
        self, of: Child, mode: str, connections: int, value: int = 64, number: int = 0
    ) -> Child:
        """Starts load.c on a server, by number on another core; returns when all are connected."""
        words = [of.greeting, mode, str(connections), str(value)]
        return Child([str(BUILD / "load"), *words], {self._cores[-1 - number]})


def build() -> None:
    """Builds the load generator and the servers that need building."""
    BUILD.mkdir(parents=True, exist_ok=True)
    compiler = [os.environ.get("CC", "cc"), "-std=gnu11", "-O2"]
    go = [os.environ.get("GO", "go"), "build"]
    for command, target, source in (
        (compiler, "load", "load.c"),
        (compiler, "echo", "echo.c"),
        (compiler, "hop", "hop.c"),
        ([*compiler, "-shared", "-fPIC"], "numeric_names.so", "numeric_names.c"),
        (go, "server", "server/main.go"),
        (go, "carrier", "carrier/main.go"),
        (go, "bootstrap", "bootstrap/main.go"),
    ):
        words = [*command, "-o", str(BUILD / target), str(SOURCES / source)]
        if subprocess.run(words, cwd=ROOT).returncode:
            raise BenchError(f"cannot build {source}")
