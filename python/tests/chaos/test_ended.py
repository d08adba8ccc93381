"""A run that has ended stays ended (guarantee 9), whatever clocks and etcd do meanwhile.

The rows of docs/decisions/0110: a wall clock that is set does not end `closed_for`. And a node
that came before the end learns of it, though the etcd or the nodes themselves stand still for
longer than a lease around it.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import pytest
from chaos import clock

RALLYPOINT = Path(sys.executable).with_name("rallypoint")
LEASE = 1.0
SETTINGS = f"lease_timeout={LEASE},last_call_timeout=0.2,join_timeout=60,regroup_timeout=10"
HOUR = 3600  # more than closed_for
PATIENCE = 60.0


class Job:
    """Nodes of `rallypoint run` whose workers run until they are told to end."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder, self.endpoint = folder, endpoint
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, name: str, nnodes: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            node = subprocess.Popen(
                [RALLYPOINT, "run", f"--nnodes={nnodes}", "--rdzv-id=job",
                 f"--rdzv-endpoint={self.endpoint}", f"--rdzv-conf={SETTINGS}", "--no-python", "sh",
                 "-c", f"touch {name}.ran; while [ ! -e finish ]; do sleep 0.05; done"],
                cwd=self.folder, stdout=log, stderr=log,
            )  # fmt: skip
        self.nodes.append(node)
        return node

    def ran(self, name: str) -> bool:
        return (self.folder / f"{name}.ran").exists()

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def finish(self) -> None:
        (self.folder / "finish").touch()

    def ends_well(self) -> None:
        for node in self.nodes:
            assert node.wait(PATIENCE) == 0

    def end(self) -> None:
        for node in self.nodes:
            node.kill()
            node.wait()


def await_true(what: str, holds: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < deadline, f"not within {PATIENCE:.0f} s: {what}"
        time.sleep(0.02)


@contextmanager
def server(*command: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def accepts(port: int) -> bool:
    with socket.socket() as s:
        return s.connect_ex(("127.0.0.1", port)) == 0


def times(address: str) -> tuple[float, float]:
    """Since when a control plane is up, and its time of day, in seconds since the epoch."""
    with urllib.request.urlopen(f"http://{address}/status", timeout=PATIENCE) as answer:
        said = json.load(answer)["server"]
    began, now = (datetime.fromisoformat(said[name]) for name in ("started_at", "now"))
    return began.timestamp(), now.timestamp()


@contextmanager
def place(kind: str, folder: Path) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """An endpoint, and the process that serves it."""
    port = free_port()
    if kind == "serve":
        command = [RALLYPOINT, "serve", "--listen", f"127.0.0.1:{port}"]
        endpoint = f"127.0.0.1:{port}"
    else:
        binary = os.environ.get("RALLYPOINT_TEST_ETCD")
        if not binary:
            pytest.skip("RALLYPOINT_TEST_ETCD names no etcd; make test-python builds one and does")
        client, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
        command = [
            Path(binary), "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", client, "--advertise-client-urls", client,
            "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
            "--initial-cluster", f"default={peer}",
        ]  # fmt: skip
        endpoint = f"etcd://127.0.0.1:{port}"
    with server(*command) as process:
        await_true(f"{kind} accepts connections", lambda: accepts(port))
        yield endpoint, process


@contextmanager
def job(folder: Path, endpoint: str) -> Iterator[Job]:
    """A job of two nodes that run."""
    made = Job(folder, endpoint)
    try:
        made.start("a", "2:2"), made.start("b", "2:2")
        await_true("both nodes run", lambda: made.ran("a") and made.ran("b"))
        yield made
    finally:
        made.end()


@pytest.mark.skipif(not clock.AVAILABLE, reason="clocks are moved on x86-64 only")
@pytest.mark.parametrize("kind", ["serve", "etcd"])
def test_a_wall_clock_that_is_set_opens_no_closed_run(kind: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        endpoint, process = stack.enter_context(place(kind, tmp_path))
        try:
            wall = clock.Clock(process.pid)
        except PermissionError as e:
            pytest.skip(f"processes cannot be debugged: {e}")
        run = stack.enter_context(job(tmp_path, endpoint))
        run.finish()
        run.ends_well()
        for offset in HOUR, -HOUR:
            wall.move(offset)
            late = run.start(f"late{offset}", "1:2")
            assert late.wait(PATIENCE) == 0
            assert "this node was not needed" in run.said(f"late{offset}")
            assert not run.ran(f"late{offset}")
            if kind == "serve":
                began, now = times(endpoint)
                assert 0 <= now - began < HOUR / 2
                assert abs(now - time.time() - offset) < HOUR / 2


@pytest.mark.parametrize("still", ["the etcd", "the etcd and its nodes", "the nodes", "the spare"])
def test_a_node_that_came_before_the_end_learns_of_it(still: str, tmp_path: Path) -> None:
    """The workers end while some stand still for longer than a lease."""
    with ExitStack() as stack:
        endpoint, etcd = stack.enter_context(place("etcd", tmp_path))
        run = stack.enter_context(job(tmp_path, endpoint))
        members = list(run.nodes)
        spare = run.start("spare", "2:2")
        await_true("the third node waits", lambda: "spare until" in run.said("spare"))
        stopped = {
            "the etcd": [etcd],
            "the etcd and its nodes": [etcd, *members, spare],
            "the nodes": [*members, spare],
            "the spare": [spare],
        }[still]
        for process in stopped:
            process.send_signal(signal.SIGSTOP)
        run.finish()
        time.sleep(2.5 * LEASE)  # what stands still is heard of by nobody
        for process in stopped:
            process.send_signal(signal.SIGCONT)
        run.ends_well()
        assert not run.ran("spare")
        assert "not needed" in run.said("spare")
