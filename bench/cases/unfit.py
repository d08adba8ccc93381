"""A node leaves because its worker fails: from the failure until the spare's worker runs."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path

from processes import BenchError
from result import Row, Sample

from cases.launch import BINARY
from cases.scale import serving

NAME = "unfit"

REPEAT = 10
LIMIT = 30.0
NODES = 3
AT_MOST = 1.1  # of what the loss of a node takes

# Says when it starts, of which node and in which round; ends with its round.
_WORKER = 'echo "$(date +%s.%N) $NODE $RALLYPOINT_ROUND $$" >> said; exec sleep 1000'


def measure(repeat: int | None) -> list[Row]:
    leaves, lost, restarts = Sample(), Sample(), Sample()
    for _ in range(repeat or REPEAT):
        for sample, policy, agent in (
            (leaves, "leave:1", False),
            (lost, "leave:1", True),
            (restarts, "restart", False),
        ):
            sample.values.append(_seconds(policy, agent))
    name = f"{NODES} nodes and a spare"
    left = Row(NAME, f"{name}: worker killed, its node leaves, until the spare's runs", leaves)
    left.target, left.target_why = AT_MOST * (lost.median or 0), f"{AT_MOST:g} x a lost node"
    return [
        left,
        Row(NAME, f"{name}: node killed, no grace, until the spare's worker runs", lost),
        Row(NAME, f"{name}: worker killed, until all are started again", restarts),
    ]


def _seconds(policy: str, agent: bool) -> float:
    """Seconds from the SIGKILL of a node's agent, or of its worker, to the round that follows."""
    with serving() as (_, address), tempfile.TemporaryDirectory() as folder:
        nodes: list[subprocess.Popen[bytes]] = []

        def start() -> None:
            name = f"n{len(nodes)}"
            nodes.append(
                subprocess.Popen(
                    [
                        *BINARY,
                        f"--nnodes={NODES}",
                        f"--rdzv-endpoint={address}",
                        "--rdzv-id=unfit",
                        "--max-restarts=3",
                        f"--on-failure={policy}",
                        f"--rdzv-conf=reconnect_grace=0,node_id={name},host_name={name}",
                        "--no-python",
                        "--no-macros",
                        *("sh", "-c", _WORKER),
                    ],
                    cwd=folder,
                    env={**os.environ, "NODE": name},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )

        try:
            for _ in range(NODES):
                start()
            said = Path(folder, "said")
            worker = {node: pid for _, node, pid in _round(said, 1)}["n1"]
            if policy != "restart":
                start()
                _await_spare(address)
            at = time.time()
            os.kill(nodes[1].pid if agent else worker, signal.SIGKILL)
            lines = _round(said, 2)
            if policy == "restart":
                return max(line[0] for line in lines) - at
            return next(line[0] for line in lines if line[1] == "n3") - at
        finally:
            for node in nodes:
                node.terminate()
            for node in nodes:
                node.wait(LIMIT)


def _round(said: Path, number: int) -> list[tuple[float, str, int]]:
    """Waits until the workers of a round run: when, of which node, and which process each is."""
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        words = [line.split() for line in said.read_text().splitlines()] if said.exists() else []
        lines = [
            (float(w[0]), w[1], int(w[3])) for w in words if len(w) == 4 and int(w[2]) == number
        ]
        if len(lines) == NODES:
            return lines
        time.sleep(0.002)
    raise BenchError(f"{NAME}: round {number} is not whole within {LIMIT:.0f} s")


def _await_spare(address: str) -> None:
    deadline = time.monotonic() + LIMIT
    while time.monotonic() < deadline:
        command = [BINARY[0], "status", address]
        if "n3" in subprocess.run(command, capture_output=True, text=True).stdout:
            return
        time.sleep(0.01)
    raise BenchError(f"{NAME}: the spare does not join within {LIMIT:.0f} s")
