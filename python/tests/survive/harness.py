"""Jobs of real processes, each a Member, of which some are killed."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conftest import REPOSITORY
from harness import PATIENCE, free_port

HERE = Path(__file__).parent
EXAMPLE = REPOSITORY / "examples" / "survive" / "train.py"
WORKER = HERE / "worker.py"

_STEP = re.compile(r"rank (\d+) pid (\d+) step (\d+)")


class Worker:
    """A process of a job, and what it has printed."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | environment,
        )
        self.lines: list[str] = []
        self.steps: list[tuple[int, int]] = []  # rank and step
        self.hash = ""
        self._news: queue.Queue[None] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip("\n"))
            if found := _STEP.match(line):
                assert int(found[2]) == self.process.pid
                self.steps.append((int(found[1]), int(found[3])))
            elif line.startswith("hash "):
                self.hash = line.split()[1]
            self._news.put(None)
        self._news.put(None)

    def until(self, condition: str) -> None:
        """Waits for a line that matches."""
        end = time.monotonic() + PATIENCE
        seen = 0
        while True:
            for line in self.lines[seen:]:
                if re.search(condition, line):
                    return
            seen = max(0, len(self.lines) - 1)
            if not self._reader.is_alive() and self._news.empty():
                raise AssertionError(f"no line {condition!r} of {self.text()}")
            left = end - time.monotonic()
            assert left > 0, f"no line {condition!r} of {self.text()}"
            try:
                self._news.get(timeout=left)
            except queue.Empty:
                continue

    @property
    def rank(self) -> int:
        return self.steps[-1][0]

    @property
    def step(self) -> int:
        return self.steps[-1][1]

    def kill(self, number: int = signal.SIGKILL) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    def text(self) -> str:
        return f"pid {self.process.pid}:\n" + "\n".join(self.lines[-60:])


class Job:
    """Workers of one run.

    Args:
        size: how many workers the first world has, and none has more.
        script: what they run.
        arguments: of the script.
    """

    def __init__(self, size: int, script: Path, *arguments: str) -> None:
        self._port, self._script, self._arguments = free_port(), script, arguments
        self._size = size
        self.workers: list[Worker] = []

    def start(self, **environment: str) -> Worker:
        command = [
            sys.executable,
            str(HERE / "member.py"),
            f"job{self._port}",
            f"127.0.0.1:{self._port}",
            str(self._size),
            str(self._script),
            *self._arguments,
        ]
        worker = Worker(command, {"OMP_NUM_THREADS": "1"} | environment)
        self.workers.append(worker)
        return worker

    def survivors_end(self, *lost: Worker) -> str:
        """Waits for all but the lost ones, and returns the one hash of their states."""
        left = [w for w in self.workers if w not in lost]
        for worker in left:
            assert worker.end() == 0, worker.text()
        hashes = {w.hash for w in left}
        assert len(hashes) == 1 and "" not in hashes, "\n\n".join(w.text() for w in left)
        return hashes.pop()


@contextmanager
def job(size: int, script: Path, *arguments: str) -> Iterator[Job]:
    made = Job(size, script, *arguments)
    try:
        yield made
    finally:
        for worker in made.workers:
            if worker.process.poll() is None:
                worker.process.kill()
            worker.end()
