"""Losing the node that hosts the control plane: from its signal until all others train again."""

from __future__ import annotations

import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from processes import BenchError
from result import Row, Sample

from cases.launch import BINARY

NAME = "succession"

REPEAT = 10
LIMIT = 30.0
SETTLED = 1.0  # seconds in which the standbys find each other
NODES = (2, 3, 8)

# Says when it starts, in which round; ends with the job, or with its round.
_WORKER = (
    'trap "exit 0" TERM; echo "$(date +%s.%N) $WORLD_SIZE" >> said; '
    "until [ -e finish ]; do sleep 0.05; done"
)


class _Job:
    """Nodes of `rallypoint run`; the first of them hosts, the others stand by in their order."""

    def __init__(self, folder: str, nodes: int) -> None:
        self.folder = Path(folder)
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            endpoint = f"127.0.0.1:{s.getsockname()[1]}"
        command = [
            *BINARY,
            f"--nnodes=1:{nodes}",
            f"--rdzv-endpoint={endpoint}",
            "--rdzv-conf=last_call_timeout=10",
            "--no-python",
            "--no-macros",
        ]
        self.processes = []
        for i in range(nodes):
            process = subprocess.Popen(
                [*command, "sh", "-c", _WORKER],
                cwd=folder,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            self.processes.append(process)
            if i == 0:
                self._await_listening(endpoint)
        self.await_world(nodes, 0.0)
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


def measure(repeat: int | None) -> list[Row]:
    repeat = repeat or REPEAT
    rows = [
        Row(
            NAME,
            f"host killed, {n} nodes, until all others' workers run",
            _sample(n, signal.SIGKILL, repeat),
            target=0.2,
            target_why="three dials take 0.1 s by design",
        )
        for n in NODES
    ]
    rows.append(
        Row(NAME, "host ended in order, 3 nodes, the same", _sample(3, signal.SIGTERM, repeat))
    )
    return rows
