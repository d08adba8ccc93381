"""Nodes of the demonstration: each is a launcher with its workers, on this machine."""

from __future__ import annotations

import ctypes
import dataclasses
import ipaddress
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

PR_SET_CHILD_SUBREAPER = 36

# What starts a node: each takes torchrun's command line.
LAUNCHERS = {
    "torchrun": [sys.executable, "-m", "torch.distributed.run"],
    "rallypoint run": [str(Path(sys.executable).with_name("rallypoint")), "run"],
}


ESTABLISHED, LISTEN = 1, 10  # of the kernel


@dataclasses.dataclass(frozen=True)
class Setting:
    """Where and with what a node is started."""

    prefix: Sequence[str] = ()  # before its command
    options: Sequence[str] = ("--local-addr=127.0.0.1",)
    environment: Mapping[str, str] = dataclasses.field(
        default_factory=lambda: {"GLOO_SOCKET_IFNAME": "lo"}
    )


@dataclasses.dataclass(frozen=True)
class Socket:
    """One of a process's TCP sockets over IPv4."""

    state: int
    address: str
    port: int
    peer_port: int


class Node:
    """One launcher, in a session of its own, its output in `folder`/`name`.log."""

    def __init__(
        self, name: str, folder: Path, launcher: str, command: Sequence[str], setting: Setting
    ) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self.events = folder / f"{name}.events.jsonl"
        self._read = 0
        arguments = [*setting.options, *command, f"--events={self.events}"]
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHONUNBUFFERED": "1",
            **setting.environment,
        }
        with open(self.log, "wb") as log:
            log.write(f"$ {launcher} {' '.join(arguments)}\n".encode())
            log.flush()
            self.process = psutil.Popen(
                [*setting.prefix, *LAUNCHERS[launcher], *arguments],
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
        """Whether the agent itself (not a worker) has the port."""
        return any(s.port == port for s in self.listeners())

    def listeners(self) -> list[Socket]:
        """Where the agent itself (not a worker) listens."""
        return [s for s in self._sockets() if s.state == LISTEN]

    def connected_to(self, port: int) -> bool:
        return any(s.state == ESTABLISHED and s.peer_port == port for s in self._sockets())

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

    def _sockets(self) -> Iterator[Socket]:
        """The agent's sockets. Those of its own network namespace, which psutil does not see."""
        of = Path(f"/proc/{self.process.pid}")
        try:
            links = [os.readlink(fd) for fd in (of / "fd").iterdir()]
            table = (of / "net/tcp").read_text().splitlines()[1:]
        except OSError:  # it has ended, or has closed one meanwhile
            return
        own = {m[1] for link in links if (m := re.fullmatch(r"socket:\[(\d+)\]", link))}
        for _, local, peer, state, *_, inode in (line.split()[:10] for line in table):
            if inode in own:
                address, port = local.split(":")
                place = ipaddress.IPv4Address(bytes.fromhex(address)[::-1])
                yield Socket(int(state, 16), str(place), int(port, 16), int(peer.split(":")[1], 16))


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
