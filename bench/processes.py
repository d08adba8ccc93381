"""Processes that stand for nodes: forked from this one, talking to it over pipes."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import resource
import signal
import socket
import subprocess
import time
import traceback
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).resolve().parents[1]

ANSWER_TIMEOUT = 60.0

PR_SET_PDEATHSIG = 1

# fork and not spawn: importing torch a hundred times would drown what is measured.
_FORK = multiprocessing.get_context("fork")


class BenchError(Exception):
    """Something broke; a figure that could not be measured is no figure."""


def output_of(*command: object) -> str:
    """Runs a command to its end, in the root of the repository, and returns what it prints."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, cwd=ROOT)
    if done.returncode:
        raise BenchError(f"{command[0]}: {done.stderr}")
    return done.stdout


def go_benchmarks(package: str, folder: Path) -> Path:
    """Builds the benchmarks of a Go package of ours."""
    program = folder / f"{package.replace('/', '-')}.test"
    output_of(os.environ.get("GO", "go"), "test", "-c", "-o", program, f"./{package}")
    return program


def go_figures(
    program: Path, name: str, times: int, unit: str, *before: object, batches: int = 1
) -> dict[str, list[float]]:
    """Runs a benchmark, with words before the command, and returns its figures by their names.

    The name is the last part of that of the benchmark, without the number of CPUs. The unit is
    ns/op, or cpu-ns/op where the benchmark reports it.
    """
    words = [f"-test.benchtime={times}x", f"-test.count={batches}"]
    words += ["-test.run=^$", f"-test.bench=^{name}$"]
    figures: dict[str, list[float]] = {}
    for line in output_of(*before, program, *words).splitlines():
        if line.startswith("Benchmark"):
            title, _, *pairs = line.split()
            short = title.removeprefix("Benchmark").rsplit("/")[-1].split("-")[0]
            figures.setdefault(short, []).append(float(pairs[pairs.index(unit) - 1]))
    return figures


def children_cpu() -> float:
    """Seconds of CPU time that ended children have used: other load changes it less than time."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def compiled(source: Path, library: Path, folder: Path) -> Path:
    """Compiles a program of C against the library, and returns it."""
    (folder / "librallypoint.so.0").symlink_to(library)
    program = folder / "program"
    options = ("-std=c11", "-D_GNU_SOURCE", "-O2", f"-I{ROOT / 'include'}", "-o", program)
    output_of("cc", *options, source, library, f"-Wl,-rpath,{folder}")
    return program


class Link:
    """A child's end of its pipes."""

    def __init__(self, connection: Connection, gate: int) -> None:
        self._connection = connection
        self._gate = gate

    def send(self, value: object) -> None:
        self._connection.send(value)

    def ready(self) -> None:
        """Says so, and returns when the parent opens the gate for all at once."""
        self.send("ready")
        os.read(self._gate, 1)

    def hold(self) -> None:
        """Waits to be killed, with everything that this process has open."""
        while True:
            signal.pause()


class Group:
    """`count` processes that run `work(link)`; killed when the `with` block ends.

    Nothing of Rallypoint's library may run in the parent: it does not survive a fork.
    """

    def __init__(self, count: int, work: Callable[[Link], None]) -> None:
        self._gate_read, self._gate_write = os.pipe()
        self._connections: list[Connection] = []
        self.processes: list[Any] = []
        for _ in range(count):
            ours, theirs = _FORK.Pipe()
            process = _FORK.Process(target=self._run, args=(work, theirs), daemon=True)
            process.start()
            theirs.close()
            self._connections.append(ours)
            self.processes.append(process)
        try:
            for i in range(count):
                self.receive(i)  # "ready"
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kills and reaps the processes."""
        for process in self.processes:
            process.kill()
        for process, connection in zip(self.processes, self._connections):
            process.join()
            connection.close()
        os.close(self._gate_read)
        os.close(self._gate_write)

    def open_gate(self) -> None:
        os.write(self._gate_write, b"." * len(self.processes))

    def receive(self, i: int, timeout: float = ANSWER_TIMEOUT) -> Any:
        """Returns what child `i` sends next. Raises TimeoutError, or BenchError if it failed."""
        if not self._connections[i].poll(timeout):
            raise TimeoutError(f"process {i} did not answer within {timeout:.0f} s")
        try:
            value = self._connections[i].recv()
        except EOFError:
            raise BenchError(f"process {i} ended") from None
        if isinstance(value, _Failure):
            raise BenchError(f"process {i} failed:\n{value.text}")
        return value

    def receive_all(
        self, which: Iterable[int] | None = None, timeout: float = ANSWER_TIMEOUT
    ) -> list[Any]:
        """Returns what each child sends next, within `timeout` in all."""
        deadline = time.monotonic() + timeout
        indices = range(len(self.processes)) if which is None else list(which)
        return [self.receive(i, max(deadline - time.monotonic(), 0)) for i in indices]

    def silent(self, timeout: float) -> bool:
        """Whether no child says anything for so long."""
        return not wait(self._connections, timeout)

    def signal(self, i: int, number: signal.Signals) -> float:
        """Sends a signal to child `i` and returns the monotonic time of that."""
        at = time.monotonic()
        os.kill(self.processes[i].pid, number)
        return at

    def listener(self, port: int) -> int:
        """Returns the child that listens on `port`."""
        for i, process in enumerate(self.processes):
            for c in psutil.Process(process.pid).net_connections("tcp"):
                if c.status == psutil.CONN_LISTEN and c.laddr.port == port:
                    return i
        raise BenchError(f"no process listens on port {port}")

    def _run(self, work: Callable[[Link], None], connection: Connection) -> None:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's
        try:
            work(Link(connection, self._gate_read))
        except BaseException:
            connection.send(_Failure(traceback.format_exc()))


class _Failure:
    def __init__(self, text: str) -> None:
        self.text = text


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
