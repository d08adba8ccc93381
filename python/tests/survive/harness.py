"""Jobs of `rallypoint run --on-failure regroup`, of which some workers die."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from conftest import REPOSITORY
from harness import PATIENCE as _PATIENCE

PATIENCE = 2 * _PATIENCE  # such a job has four interpreters with torch
EXAMPLE = REPOSITORY / "examples" / "survive" / "train.py"
WORKER = Path(__file__).parent / "worker.py"
OPERATIONS = Path(__file__).parent / "operations.py"
SHARDED = Path(__file__).parent / "sharded.py"

_STEP = re.compile(r"rank (\d+) pid (\d+) step (\d+)")


@dataclass
class Worker:
    """What a worker has printed."""

    pid: int
    steps: list[tuple[int, int]] = field(default_factory=list)  # rank and step

    @property
    def rank(self) -> int:
        return self.steps[-1][0]

    @property
    def numbers(self) -> list[int]:
        return [step for _, step in self.steps]

    def made_every_step(self, but: int = 1) -> bool:
        """... once, without those whose result it had from another worker."""
        numbers = self.numbers
        return numbers == sorted(set(numbers)) and len(numbers) > numbers[-1] - but

    def kill(self, number: int = signal.SIGKILL) -> None:
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)


class Job:
    """A run of one node or one of its agents, with its workers in the order of their first steps.

    Args:
        arguments: of `rallypoint run`, the script and its arguments.
        faults: by "RESTARTS.RANK" of the worker at its start, what worker.py does.
    """

    def __init__(self, *arguments: str, faults: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [
                str(Path(sys.executable).parent / "rallypoint"),
                "run",
                "--on-failure",
                "regroup",
                *("--warm", "--preload-timeout=150"),  # cold starts would take longer yet
                *arguments,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ
            | {"FAULTS": json.dumps(faults or {}), "OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"},
        )
        self.lines: list[str] = []
        self.workers: dict[int, Worker] = {}
        self.begun: list[int] = []  # processes of worker.py
        self.hashes: list[str] = []
        self._news: queue.Queue[None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if found := _STEP.search(line):
                pid = int(found[2])
                worker = self.workers.setdefault(pid, Worker(pid))
                worker.steps.append((int(found[1]), int(found[3])))
            elif "begins as pid " in line:
                self.begun.append(int(line.split()[-1]))
            elif "hash " in line:
                self.hashes.append(line.split()[-1])
            self.lines.append(line.rstrip("\n"))
            self._news.put(None)
        self._news.put(None)

    def until(self, condition: str, times: int = 1, since: int = 0) -> None:
        """Waits for so many lines that match, from this one on."""
        seen, left = since, times

        def found() -> bool:
            nonlocal seen, left
            new, seen = self.lines[seen:], len(self.lines)
            left -= sum(bool(re.search(condition, line)) for line in new)
            return left <= 0

        self._wait(found, f"{times} lines {condition!r}")

    def until_workers(self, count: int) -> None:
        """Waits until so many have made a step, those that are dead among them."""
        self._wait(lambda: len(self.workers) >= count, f"{count} workers")

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + PATIENCE
        while True:
            ended = not self._reader.is_alive()
            if holds():
                return
            left = end - time.monotonic()
            assert left > 0 and not ended, f"not seen: {what} in {self.text()}"
            with suppress(queue.Empty):
                self._news.get(timeout=left)

    def ends(self, workers: int) -> list[Worker]:
        """Waits for the end of a job that succeeds, and returns those who made the last step."""
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        assert code == 0, self.text()
        assert len(self.hashes) == workers and len(set(self.hashes)) == 1, self.text()
        return list(self.workers.values())

    def text(self) -> str:
        return "\n".join(line[:300] for line in self.lines[-120:])

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self.process.kill()
        self._reader.join(PATIENCE)


@contextmanager
def job(*arguments: object, faults: dict[str, str] | None = None) -> Iterator[Job]:
    made = Job(*map(str, arguments), faults=faults)
    try:
        yield made
    finally:
        made.end()


def listens(port: int, pid: int | None = None) -> bool:
    """Whether somebody, or that process, listens at a port of this machine."""
    connections = (psutil.Process(pid) if pid else psutil).net_connections("tcp")
    return any(c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in connections)


def endless(folder: Path, script: Path = WORKER) -> tuple[object, ...]:
    """Workers that make steps until the folder has a file "over"."""
    return (script, "--steps", 10**9, "--until", folder / "over")


def standalone(workers: int, restarts: int = 3) -> tuple[str, ...]:
    return ("--standalone", f"--nproc-per-node={workers}", f"--max-restarts={restarts}")
