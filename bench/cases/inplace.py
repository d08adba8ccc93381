"""A lost worker or node, until the others are through their next collective.

The same script in place (`--on-failure regroup`), restarted from the warm template, and restarted
by torchrun.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from processes import BenchError, free_port
from result import Row, Sample

from cases.warm import BINARY, TORCHRUN

NAME = "inplace"

REPEAT = 3
LIMIT = 100.0
TARGET = {"worker": 0.3, "node": 0.3, "host": 0.5}

# Says when it is through each collective, and in which round.
_SCRIPT = """
import os
import time

import rallypoint
import torch
import torch.distributed as dist
from rallypoint import survive

survive.init_process_group("gloo")
run = survive.Run(values={})
for step in run.steps(10**9):
    with run.attempt():
        time.sleep(0.01)
        dist.all_reduce(torch.ones(1))
        at = time.monotonic()
        start = os.environ.get("RALLYPOINT_ROUND", os.environ["TORCHELASTIC_RESTART_COUNT"])
        os.write(1, f"{os.getpid()} {rallypoint.world().epoch or start} {at}\\n".encode())
"""


class _Job:
    """A job that has come to its collectives, of one node or of several with a worker each."""

    def __init__(self, command: Sequence[str], workers: int, nodes: int, folder: str) -> None:
        self.folder = Path(folder)
        (self.folder / "train.py").write_text(_SCRIPT)
        self._output = open(self.folder / "output", "wb")  # noqa: SIM115
        self._errors = open(self.folder / "errors", "wb")  # noqa: SIM115
        options = ["--max-restarts=3", f"--nproc-per-node={workers // nodes}"]
        if nodes == 1:
            options.append("--standalone")
        else:
            port = free_port()
            options += [f"--nnodes=1:{nodes}", f"--rdzv-endpoint=127.0.0.1:{port}"]
        environment = os.environ | {
            "OMP_NUM_THREADS": "1",
            "LOGLEVEL": "ERROR",
            "PYTHON_EXEC": sys.executable,
        }
        self.agents = [
            subprocess.Popen(
                [*command, *options, "train.py", str(workers)],
                cwd=folder,
                env=environment,
                stdout=self._output,
                stderr=self._errors,
            )
            for _ in range(nodes)
        ]

    def through(self, workers: int, after: str = "") -> tuple[str, dict[int, float]]:
        """Waits until so many workers are through a collective, in a round after the one given.

        Returns the round, and when each was through its first one of these.
        """
        end = time.monotonic() + LIMIT
        while time.monotonic() < end:
            first: dict[int, float] = {}
            turn = ""
            for line in (self.folder / "output").read_text().splitlines()[:-1]:
                pid, turn, at = line.split()
                if turn != after:
                    first.setdefault(int(pid), float(at))
            if len(first) >= workers:
                return turn, first
            time.sleep(0.02)
        raise BenchError((self.folder / "errors").read_text()[-2000:])

    def lose(self, what: str, workers: set[int]) -> tuple[float, set[int]]:
        """Kills a worker, or an agent with its worker, and returns when and who is left."""
        if what == "worker":
            lost = {sorted(workers)[1]}
            os.kill(*lost, signal.SIGKILL)
            return time.monotonic(), workers - lost
        agent = self.agents.pop(0 if what == "host" else 1)
        lost = {pid for pid in workers if _parent(pid) == agent.pid}
        for pid in (agent.pid, *lost):
            os.kill(pid, signal.SIGKILL)
        at = time.monotonic()
        agent.wait()
        return at, workers - lost

    def end(self) -> None:
        for agent in self.agents:
            agent.terminate()
        for agent in self.agents:
            agent.wait(LIMIT)
        self._output.close()
        self._errors.close()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _loss(command: Sequence[str], what: str, workers: int) -> tuple[float, float]:
    """From a kill until all others, and until all, are through a collective of the next round.

    Where the others do not survive, it is until as many are.
    """
    with tempfile.TemporaryDirectory() as folder:
        job = _Job(command, workers, 1 if what == "worker" else workers, folder)
        try:
            turn, first = job.through(workers)
            time.sleep(0.5)
            at, left = job.lose(what, set(first))
            _, after = job.through(workers - (what != "worker"), turn)
            kept = left & after.keys()
            others = [after[pid] for pid in kept] if kept == left else list(after.values())
            return max(others) - at, max(after.values()) - at
        finally:
            job.end()


def _reference(what: str, workers: int) -> Sample:
    try:
        return Sample([_loss(TORCHRUN, what, workers)[0]])
    except BenchError:
        return Sample([], "its restart failed")


def measure(repeat: int | None, reference: bool) -> list[Row]:
    times = repeat or REPEAT
    keeping = [*BINARY, "--warm", "--on-failure", "regroup"]
    rows = []
    for what, workers in (("worker", 3), ("worker", 8), ("node", 3), ("host", 3)):
        lost = f"{what} of {workers} killed"
        taken = [_loss(keeping, what, workers) for _ in range(times)]
        name = f"{lost}, until the others' next collective"
        rows.append(Row(NAME, f"{name}, in place", Sample([a for a, _ in taken])))
        rows[-1].target, rows[-1].target_why = TARGET[what], "the specification"
        if what == "worker":
            name = f"{lost}, until its replacement's first collective"
            rows.append(Row(NAME, f"{name}, in place", Sample([b for _, b in taken]), target=1))
        restarts = [_loss([*BINARY, "--warm"], what, workers)[0] for _ in range(times)]
        name = f"{lost}, until the next collective of all"
        rows.append(Row(NAME, f"{name}, restarted warm", Sample(restarts)))
        if reference and workers == 3 and what == "worker":
            rows[-1].reference = _reference(what, workers)
    return rows
