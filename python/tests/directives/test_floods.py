"""A job with a token that starts while strangers flood each of its ports with handshakes."""

from __future__ import annotations

import contextlib
import random
import select
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

LOCKSTEP = Path(__file__).parent / "lockstep.py"
SOURCES = [f"127.9.9.{n}" for n in range(1, 4)]  # few: of many a firewall has to keep some out
HELD = 250  # connections at each port: more than the handshakes that such sources may begin there

Address = tuple[str, int]


def hello() -> bytes:
    """What a client of TLS says first."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    said = ssl.MemoryBIO()
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), said).do_handshake()
    return said.read()


class Flood:
    """Connections that begin a handshake and say no more, always as many as the servers take."""

    def __init__(self, targets: Callable[[], list[Address]]) -> None:
        self.full = threading.Event()  # half of them are held
        self.hit: set[int] = set()  # ports
        self._targets, self._stopped = targets, threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        held: dict[Address, list[socket.socket]] = {}
        text = hello()
        while not self._stopped.wait(0.01):
            for target in self._targets():
                mine = held.setdefault(target, [])
                ended = select.select(mine, [], [], 0)[0] if mine else []
                for s in ended:
                    s.close()
                    mine.remove(s)
                if len(mine) >= HELD // 2:
                    self.full.set()
                for _ in range(min(50, HELD - len(mine))):
                    s = socket.socket()
                    mine.append(s)
                    with contextlib.suppress(OSError):
                        s.bind((random.choice(SOURCES), 0))
                        s.settimeout(1)
                        s.connect(target)
                        s.send(text)
                        self.hit.add(target[1])
        for connections in held.values():
            for s in connections:
                s.close()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def listeners(processes: list[subprocess.Popen[str]]) -> list[Address]:
    """Where processes listen for other machines; the workers' own addresses admit this user."""
    found = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            for c in psutil.Process(process.pid).net_connections("tcp4"):
                if c.status == psutil.CONN_LISTEN and c.laddr.ip == "127.0.0.1":
                    found.append((c.laddr.ip, c.laddr.port))
    return found


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_job_starts(
    processes: list[subprocess.Popen[str]], tmp_path: Path, token_file: Path
) -> None:
    """All ports of control plane and round store are flooded, from before the nodes
    come until they end."""
    command = [sys.executable, "-m", "rallypoint"]
    serve = subprocess.Popen(
        [*command, "serve", "--listen=127.0.0.1:0", f"--token-file={token_file}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    processes.append(serve)
    assert serve.stdout and serve.stdout.readline()
    ((_, port),) = listeners(processes)
    flood = Flood(lambda: listeners(processes))
    try:
        flood.full.wait()
        node = [*command, "run", "--nnodes=2", "--nproc-per-node=2", f"--token-file={token_file}"]
        node += [f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", str(LOCKSTEP), "20", "0.1"]
        nodes = [
            subprocess.Popen(
                node,
                cwd=tmp_path,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for _ in range(2)
        ]
        processes += nodes
        said = "".join(node.communicate()[0] for node in nodes)
    finally:
        flood.stop()
    assert [node.returncode for node in nodes] == [0, 0], said
    assert len((tmp_path / "losses.txt").read_text().splitlines()) == 20
    assert len(flood.hit) > 1, "the flood met no port of a node"
