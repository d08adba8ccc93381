"""A run that has ended stays ended (guarantee 9), whatever clocks and etcd do meanwhile.

The rows of docs/decisions/0110: a wall clock that is set does not end `closed_for`. And a node
that came before the end learns of it, though the etcd or the nodes themselves stand still for
longer than a lease around it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from chaos import clock
from conftest import etcd_of, etcd_to_test
from harness import until

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
                 "-c", "touch $NAME.ran; while [ ! -e finish ]; do sleep 0.05; done"],
                cwd=self.folder, stdout=log, stderr=log, env={**os.environ, "NAME": name},
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


def times(address: str) -> tuple[float, float]:
    """Since when a control plane is up, and its time of day, in seconds since the epoch."""
    with urllib.request.urlopen(f"http://{address}/status", timeout=PATIENCE) as answer:
        said = json.load(answer)["server"]
    began, now = (datetime.fromisoformat(said[name]) for name in ("started_at", "now"))
    return began.timestamp(), now.timestamp()


@contextmanager
def served() -> Iterator[tuple[str, psutil.Process]]:
    """The endpoint of a `rallypoint serve`, and its process."""
    command = [RALLYPOINT, "serve", "--listen", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout
            yield server.stdout.readline().split()[-1], psutil.Process(server.pid)
        finally:
            server.kill()


@contextmanager
def etcd_of_its_own() -> Iterator[tuple[str, psutil.Process]]:
    """The endpoint of an etcd, and its process."""
    binary = etcd_to_test()
    with etcd_of(binary) as server:
        [process] = [p for p in psutil.Process().children() if p.cmdline()[0] == binary]
        try:
            yield f"etcd://{server.get_endpoint()}", process
        finally:
            process.resume()


Place = Callable[[], AbstractContextManager[tuple[str, psutil.Process]]]


@contextmanager
def job(folder: Path, endpoint: str) -> Iterator[Job]:
    """A job of two nodes that run."""
    made = Job(folder, endpoint)
    try:
        made.start("a", "2:2"), made.start("b", "2:2")
        until(lambda: made.ran("a") and made.ran("b"), PATIENCE, "both nodes run")
        yield made
    finally:
        made.end()


@pytest.mark.skipif(not clock.AVAILABLE, reason="clocks are moved on x86-64 only")
@pytest.mark.parametrize("place", [served, etcd_of_its_own])
def test_a_wall_clock_that_is_set_opens_no_closed_run(place: Place, tmp_path: Path) -> None:
    with ExitStack() as stack:
        endpoint, process = stack.enter_context(place())
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
            if place is served:
                began, now = times(endpoint)
                assert 0 <= now - began < HOUR / 2
                assert abs(now - time.time() - offset) < HOUR / 2


@pytest.mark.parametrize("still", ["the etcd", "the etcd and its nodes", "the nodes", "the spare"])
def test_a_node_that_came_before_the_end_learns_of_it(still: str, tmp_path: Path) -> None:
    """The workers end while some stand still for longer than a lease."""
    with ExitStack() as stack:
        endpoint, etcd = stack.enter_context(etcd_of_its_own())
        run = stack.enter_context(job(tmp_path, endpoint))
        members = list(run.nodes)
        spare = run.start("spare", "2:2")
        until(lambda: "spare until" in run.said("spare"), PATIENCE, "the third node waits")
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
