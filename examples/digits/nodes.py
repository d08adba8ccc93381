"""Nodes of the demonstration: each is a launcher with its workers, on this machine."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36

# What starts a node: each takes torchrun's command line.
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "rallypoint run": [str(Path(sys.executable).with_name("rallypoint")), "run"],
}


class Node:
    """One launcher, in a session of its own, its output in `folder`/`name`.log."""

    def __init__(self, name: str, folder: Path, launcher: str, command: Sequence[str]) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.events = folder / f"{name}.events.jsonl"
        self._read = 0
        arguments = [*command, f"--events={self.events}"]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "PYTHONUNBUFFERED": "1",
        }
        with open(self.log, "wb") as log:
            log.write(f"$ {launcher} {' '.join(arguments)}\n".encode())
            log.flush()
            self.process = psutil.Popen(
                [*LAUNCHERS[launcher], *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )

    def new_events(self) -> Iterator[dict[str, object]]:
        """Yields what the node's workers have written since the last call."""
        if not self.events.exists():
            return
        with open(self.events, "rb") as f:
            f.seek(self._read)
            for line in f:
                if not line.endswith(b"\n"):
                    return
                self._read += len(line)
                yield {**json.loads(line), "node": self.name}

    def exit_code(self) -> int | None:
        code: int | None = self.process.poll()
        return code

    def listens_on(self, port: int) -> bool:
        """Whether the agent itself (not a worker) has the port: then it is the endpoint's host."""
        return any(
            c.status == psutil.CONN_LISTEN and c.laddr.port == port for c in self._connections()
        )

    def connected_to(self, port: int) -> bool:
        return any(
            c.status == psutil.CONN_ESTABLISHED and c.raddr and c.raddr.port == port
            for c in self._connections()
        )

    def has_open_below(self, folder: Path) -> bool:
        """Whether the agent itself has a file below the folder open."""
        try:
            return any(Path(f.path).is_relative_to(folder) for f in self.process.open_files())
        except psutil.Error:
            return False

    def kill(self) -> list[int]:
        """Kills agent and workers as a crash of the machine would; returns their pids."""
        try:
            self.process.suspend()  # so that it cannot start another worker meanwhile
            children = self.process.children(recursive=True)
            workers = [p.pid for p in children if "rallypoint-guard" not in p.cmdline()]
        except psutil.NoSuchProcess:
            return []
        for process in (self.process, *children):
            os.kill(process.pid, signal.SIGKILL)
        self.process.wait()
        return [self.process.pid, *workers]

    def log_tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _connections(self) -> Sequence[psutil._common.pconn]:
        try:
            return self.process.net_connections("tcp")
        except psutil.Error:
            return []


def adopt_orphans() -> None:
    """Makes this process the parent of workers whose agent has died, for kill_orphans."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_orphans() -> None:
    """Kills whatever of this process's descendants is left, and reaps it."""
    for child in psutil.Process().children(recursive=True):
        try:
            child.kill()
            child.wait(5)
        except psutil.Error:
            pass


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])
