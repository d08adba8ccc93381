"""Losing the node that hosts the control plane: from its signal until all others train again."""

from __future__ import annotations

import contextlib
import http
import http.client
import json
import resource
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
from processes import BenchError, children_cpu, free_port
from result import Row, Sample

from cases.launch import BINARY
from cases.scale import cpu_of, swarm_of

NAME = "succession"

SERVE = [BINARY[0], "serve"]

REPEAT = 10
LIMIT = 30.0
SETTLED = 1.0  # seconds in which the standbys find each other
NODES = (2, 3, 8)
CROWDS = {1000: 0.5, 10000: 2.0}  # the targets of so many clients
CROWD_REPEAT = 3
SILENT_CROWD = 1000
STANDBYS = 5
IDLE = 10.0  # seconds at rest

# Says when it starts, in which round; ends with the job, or with its round.
_WORKER = (
    'trap "exit 0" TERM; echo "$(date +%s.%N) $WORLD_SIZE" >> said; '
    "until [ -e finish ]; do sleep 0.05; done"
)


class _Job:
    """Nodes of `rallypoint run`; the first of them hosts, the others stand by in their order.

    Guests, which come last, never host.
    """

    def __init__(self, folder: str, nodes: int, guests: int = 0) -> None:
        self.folder = Path(folder)
        endpoint = f"127.0.0.1:{free_port()}"
        command = [
            *BINARY,
            f"--nnodes=1:{nodes + guests}",
            f"--rdzv-endpoint={endpoint}",
        ]
        self.processes = []
        for i in range(nodes + guests):
            conf = "--rdzv-conf=last_call_timeout=10" + (",is_host=0" if i >= nodes else "")
            worker = ["--no-python", "--no-macros", "sh", "-c", _WORKER]
            process = _quiet([*command, conf, *worker], folder)
            self.processes.append(process)
            if i == 0:
                self._await_listening(endpoint)
        self.await_world(nodes + guests, 0.0)
        time.sleep(SETTLED)

    def _await_listening(self, endpoint: str) -> None:
        host, port = endpoint.split(":")
        self._await(lambda: _connects(host, int(port)))

    def _await(self, done: Callable[[], bool]) -> None:
        deadline = time.monotonic() + LIMIT
        while not done():
            if time.monotonic() > deadline:
                raise BenchError(f"{NAME}: the nodes do not come together within {LIMIT} s")
            time.sleep(0.002)

    def await_world(self, nodes: int, since: float) -> float:
        """Waits for a round of so many workers and returns when the last one began."""
        began: list[float] = []

        def complete() -> bool:
            said = self.folder / "said"
            lines = said.read_text().splitlines() if said.exists() else []
            pairs = [line.split() for line in lines if len(line.split()) == 2]
            began[:] = [float(at) for at, world in pairs if int(world) == nodes]
            began[:] = [at for at in began if at > since]
            return len(began) >= nodes

        self._await(complete)
        return max(began)

    def lose_host(self, sig: signal.Signals) -> float:
        """Signals the host; the result is how long the others were without a round."""
        at = time.time()
        host = self.processes.pop(0)
        host.send_signal(sig)
        seconds = self.await_world(len(self.processes), at) - at
        host.wait(LIMIT)
        return seconds

    def end(self) -> None:
        (self.folder / "finish").touch()
        for process in self.processes:
            process.wait(LIMIT)


def _connects(host: str, port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex((host, port)) == 0


def _sample(nodes: int, sig: signal.Signals, repeat: int) -> Sample:
    values = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            job = _Job(folder, nodes)
            values.append(job.lose_host(sig))
            job.end()
    return Sample(values)


def _idle() -> list[Row]:
    """What standing by costs a node at rest: the last of five beside one that never hosts."""
    with tempfile.TemporaryDirectory() as folder:
        job = _Job(folder, 1 + STANDBYS, guests=1)
        standby, guest = (psutil.Process(p.pid) for p in job.processes[-2:])
        connections = len(standby.net_connections("tcp")) - len(guest.net_connections("tcp"))
        before = [cpu_of(p) for p in (standby, guest)]
        time.sleep(IDLE)
        spent = [cpu_of(p) - b for p, b in zip((standby, guest), before, strict=True)]
        # Memory that no other process shares, and that was written.
        memory = [p.memory_full_info().uss / 1e6 for p in (standby, guest)]
        job.end()
    name = "standing by, at rest"
    return [
        Row(NAME, f"{name}: sockets", Sample([connections]), "", target=6),
        Row(NAME, f"{name}: memory", Sample([memory[0] - memory[1]]), "MB", target=0.2),
        Row(NAME, f"{name}: CPU", Sample([(spent[0] - spent[1]) / IDLE]), "cores", target=0.001),
    ]


def _swarm(what: str, n: int, repeat: int) -> list[dict[str, float]]:
    """The losses of hosts of so many clients that share one process; two more nodes stand by."""
    runs = []
    for _ in range(repeat):
        done = swarm_of(what, f"127.0.0.1:{free_port()}", str(n))
        out, err = done.communicate(timeout=120)
        if done.returncode:
            raise BenchError(f"swarm of {n}: {err}")
        runs.append(json.loads(out))
    return runs


def _crowd(n: int, repeat: int) -> Iterator[Row]:
    runs = _swarm("lose", n, repeat)
    name = f"host killed, {n} clients"
    served = Sample([run["served_s"] for run in runs])
    cpu = Sample([run["cpu_s"] for run in runs]).median
    host = Sample([run["host_cpu_s"] for run in runs]).median
    why = f"CPU time of the clients, in one process: {cpu:.1f} s; of the standbys: {host:.1f} s"
    yield Row(NAME, f"{name}: until all are served", served, target=CROWDS[n], target_why=why)
    placed = Sample([run["round_s"] for run in runs])
    yield Row(NAME, f"{name}: until all have the next round", placed)


def _vote_cost(nodes: int, pairs: int) -> Row:
    """What the vote costs a job that ends at once: with and without, in turns."""
    ratios = []
    for i in range(pairs):
        spent = {}
        for quorum in (0, 1) if i % 2 else (1, 0):
            endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
            conf = f"--rdzv-conf=quorum={quorum}"
            before = children_cpu()
            command = [*BINARY, f"--nnodes={nodes}", endpoint, conf, "--no-python", "true"]
            job = [_quiet(command) for _ in range(nodes)]
            codes = [process.wait(LIMIT) for process in job]
            if any(codes):
                raise BenchError(f"{NAME}: a job of true failed")
            spent[quorum] = children_cpu() - before
        ratios.append(spent[1] / spent[0])
    name = f"job of true, {nodes} nodes, start to end: CPU time, beside one with quorum=0"
    return Row(NAME, name, Sample(ratios), "x", target=1.02)


class _Servers:
    """Three servers that stand in for each other, and the nodes of one job that they serve."""

    def __init__(self, folder: str, nodes: int) -> None:
        self.addresses = [f"127.0.0.1:{free_port()}" for _ in range(3)]
        peers = ",".join(self.addresses)
        self.servers = {
            address: _quiet([*SERVE, "--peers", peers, "--listen", address, "--self", address])
            for address in self.addresses
        }
        endpoint = f"--rdzv-endpoint={peers}"
        worker = ["sh", "-c", "until [ -e finish ]; do sleep 0.05; done"]
        self.nodes = [
            _quiet([*BINARY, f"--nnodes={nodes}", endpoint, "--no-python", *worker], folder)
            for _ in range(nodes)
        ]
        self.leader, _ = self._served(nodes)
        time.sleep(SETTLED)

    def _served(self, nodes: int) -> tuple[str, float]:
        """Waits until a server serves all nodes; returns which one, and when that was seen."""
        deadline = time.monotonic() + LIMIT
        while time.monotonic() < deadline:
            for address in self.servers:
                if _serving(address) == nodes:
                    return address, time.monotonic()
            time.sleep(0.005)
        raise BenchError(f"{NAME}: no server serves the {nodes} nodes within {LIMIT} s")

    def lose_leader(self) -> float:
        """Kills the leader; the result is how long until another serves all nodes."""
        leader = self.servers.pop(self.leader)
        began = time.monotonic()
        leader.kill()
        _, at = self._served(len(self.nodes))
        leader.wait(LIMIT)
        return at - began

    def end(self, folder: str) -> None:
        (Path(folder) / "finish").touch()
        for node in self.nodes:
            node.wait(LIMIT)
        for server in self.servers.values():
            server.terminate()
            server.wait(LIMIT)


def _quiet(command: list[str], folder: str | None = None) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _serving(address: str) -> int:
    """Returns how many connected members the server there shows, if it leads."""
    conn = http.client.HTTPConnection(address, timeout=1)
    with contextlib.closing(conn), contextlib.suppress(OSError, http.client.HTTPException):
        conn.request("GET", "/status")
        answer = conn.getresponse()
        if answer.status == http.HTTPStatus.OK:
            runs = json.load(answer)["runs"]
            members = [m for run in runs for m in run["members"]]
            return sum(m["alive"] and not m["reconnecting"] for m in members)
    return 0


def _leader_killed(nodes: int, repeat: int) -> Row:
    values = []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as folder:
            job = _Servers(folder, nodes)
            values.append(job.lose_leader())
            job.end(folder)
    name = f"leader of three servers killed, {nodes} nodes: until all are served"
    return Row(NAME, name, Sample(values), target=0.3)


def _silence(n: int, repeat: int) -> Iterator[Row]:
    runs = _swarm("silence", n, repeat)
    for what, key, target in (
        ("are served", "served_s", 0.7),
        ("have the next round", "round_s", 1.3),
    ):
        yield Row(
            NAME,
            f"host silent for good, {n} clients: until all {what}",
            Sample([run[key] / run["lease_s"] for run in runs]),
            "leases",
            target=target,
        )


def measure(repeat: int | None) -> list[Row]:
    repeat = repeat or REPEAT
    rows = [
        Row(
            NAME,
            f"host killed, {n} nodes, until all others' workers run",
            _sample(n, signal.SIGKILL, repeat),
            target=0.2,
            target_why="three dials take 0.04 s by design",
        )
        for n in NODES
    ]
    rows.append(
        Row(NAME, "host ended in order, 3 nodes, the same", _sample(3, signal.SIGTERM, repeat))
    )
    rows += [_leader_killed(n, repeat) for n in (3, 8)]
    rows += [_vote_cost(n, 4 * repeat) for n in (3, 8)]
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100
    for n in (n for n in CROWDS if n <= most):
        rows += _crowd(n, min(repeat, CROWD_REPEAT))
    if most >= SILENT_CROWD:
        rows += _silence(SILENT_CROWD, min(repeat, CROWD_REPEAT))
    rows += _idle()
    return rows
