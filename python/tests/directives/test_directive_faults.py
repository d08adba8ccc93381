"""An agent that is stopped, cut off or killed in each phase of the agreement on a step."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import until

from rallypoint import admin

from .test_directed_jobs import HERE, Job, once_each, same_step

STEPS, AWAY = 60, 3.0  # seconds; less than an agreement takes at most


class Link:
    """A way to a server that can be cut, and mended again."""

    def __init__(self, port: int) -> None:
        self.server = ("127.0.0.1", port)
        self.ends: list[socket.socket] = []
        self.port = 0
        self.mend()

    def mend(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self.accept, args=(self.listener,), daemon=True).start()

    def cut(self) -> None:
        for end in (self.listener, *self.ends):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self.ends.clear()

    def accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(self.server)
                self.ends += [near, far]
                for pair in ((near, far), (far, near)):
                    threading.Thread(target=self.carry, args=pair, daemon=True).start()

    def carry(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)


class Phases(Job):
    """Two nodes of a server: n0 reaches it directly, n1 by a link."""

    conf = f"{Job.conf},reconnect_grace=10"  # one that is cut off is waited for

    def __init__(self, folder: Path, *options: str) -> None:
        super().__init__(folder, STEPS, 2, str(HERE / "lockstep.py"), str(STEPS), "0.03")
        self.hold = folder / "hold"  # else the job can be over before a directive is given
        self.hold.write_text(str(STEPS // 2))
        self.server = subprocess.Popen(
            [sys.executable, "-m", "rallypoint", "serve", "--listen=127.0.0.1:0"],
            stdout=subprocess.PIPE,
            stderr=(folder / "serve.err").open("w"),
            text=True,
        )
        assert self.server.stdout is not None
        self.port = int(self.server.stdout.readline().rpartition(":")[2])
        self.link = Link(self.port)
        for node, port in enumerate((self.port, self.link.port)):
            self.endpoint = f"127.0.0.1:{port}"
            self.start(f"n{node}", f"--node-rank={node}", *options)
        self.endpoint = f"127.0.0.1:{self.port}"

    def stop(self) -> None:
        for node in self.nodes:
            node.send_signal(signal.SIGCONT)
        super().stop()
        self.link.cut()
        self.server.kill()
        self.server.communicate()

    def gate(self, name: str) -> Path:
        path = self.folder / f"gate.{name}"
        path.touch()
        return path

    def status(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/status") as answer:
            return dict(json.load(answer)["runs"][0])

    def until_status(self, condition: Callable[[dict[str, Any]], object]) -> None:
        until(lambda: condition(self.status()))

    def until_directive(self, phase: str, *missing: str) -> None:
        """Waits until the nodes that a phase waits for are these."""

        def there(status: dict[str, Any]) -> bool:
            return any(
                d["phase"] == phase
                and {name.partition(" ")[0] for name in d["missing"]} == set(missing)
                for d in status["directives"]
            )

        self.until_status(there)

    def drain(self) -> None:
        self.admin("drain", "--node=n1")
        self.hold.unlink()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Phases]:
    job = Phases(tmp_path)
    yield job
    job.stop()


def announced(job: Phases, begin: Callable[[], None]) -> None:
    begin()
    job.drain()
    job.until_directive("agreeing", "n1")


def collecting(job: Phases, begin: Callable[[], None]) -> None:
    job.nodes[0].send_signal(signal.SIGSTOP)
    job.drain()
    job.until_directive("agreeing", "n0")  # n1 has answered
    begin()
    job.nodes[0].send_signal(signal.SIGCONT)


def agreed(job: Phases, begin: Callable[[], None]) -> None:
    gate = job.gate("report.1")
    job.drain()
    job.until_directive("agreed", "n0", "n1")
    begin()
    gate.unlink()


def saving(job: Phases, begin: Callable[[], None]) -> None:
    gate = job.gate("save.1")
    job.drain()
    until(lambda: all((job.folder / f"saving.{rank}").exists() for rank in (2, 3)))
    begin()
    gate.unlink()


def leaving(job: Phases, begin: Callable[[], None]) -> None:
    gate = job.gate("save.0")
    job.drain()
    job.until_directive("agreed", "n0")  # n1 has saved
    begin()
    gate.unlink()
    job.until_status(lambda status: [d["node"] for d in status["drained"]] == ["n1"])


PHASES = (announced, collecting, agreed, saving, leaving)


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("fault", ["stopped", "cut off"])
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_an_agent_that_comes_back_costs_no_step(
    job: Phases, phase: Callable[[Phases, Callable[[], None]], None], fault: str
) -> None:
    node = job.nodes[1]
    job.until(10)
    if fault == "stopped":
        phase(job, lambda: node.send_signal(signal.SIGSTOP))
        time.sleep(AWAY)
        node.send_signal(signal.SIGCONT)
    else:
        phase(job, job.link.cut)
        time.sleep(AWAY)
        job.link.mend()
    directives = job.end(0, 0)
    assert len(directives) == 1
    same_step(directives, 4)
    once_each(job)
    assert "drained" in (job.folder / "n1.err").read_text()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.parametrize("phase", PHASES, ids=lambda phase: phase.__name__)
def test_an_agent_that_dies_takes_the_directive_with_it(
    job: Phases, phase: Callable[[Phases, Callable[[], None]], None]
) -> None:
    """The other node continues from what was saved last; nothing stands any more."""

    job.until(10)
    phase(job, job.nodes[1].kill)
    job.nodes[1].wait()
    directives = job.end(0, -signal.SIGKILL)
    if phase is not announced:  # where no step is agreed, since n1 has not answered
        for taken in directives.values():
            assert len({step for _, step in taken}) == 1, taken
    assert {step for step, _ in job.losses()} == set(range(STEPS))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_drain_that_is_canceled_in_the_agreement(job: Phases) -> None:
    """The workers that are held for it continue; the next one is agreed as if it had not been."""
    job.until(10)
    job.nodes[1].send_signal(signal.SIGSTOP)
    lost = admin.drain(job.endpoint, "job", "n1", reason="a test", within=60)
    job.until_directive("agreeing", "n1")
    admin.cancel(job.endpoint, "job", lost.directive, reason="it was a mistake")
    job.nodes[1].send_signal(signal.SIGCONT)
    job.until(20)
    given = admin.drain(job.endpoint, "job", ["n1"], reason="now", within=60)
    job.hold.unlink()
    directives = job.end(0, 0)
    assert list(directives) == [given.directive]
    same_step(directives, 4)
    once_each(job)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_deadline_during_the_save(job: Phases) -> None:
    """The node leaves without its save: its workers are ended, and the others continue."""
    gate = job.gate("save.1")
    job.until(10)
    admin.drain(job.endpoint, "job", "n1", reason="a test", within=5)
    job.hold.unlink()
    directives = job.end(0, 0)
    assert gate.exists() and len(directives) == 1
    same_step(directives, 4)
    once_each(job)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_failure_while_a_directive_stands(tmp_path: Path) -> None:
    """The next round agrees again, on a step of its own."""
    job = Phases(tmp_path, "--max-restarts=1")
    try:
        gate = job.gate("save.0")
        job.until(10)
        job.drain()
        job.until_directive("agreed", "n0")
        until(lambda: all((job.folder / f"saving.{rank}").exists() for rank in range(4)))
        os.kill(int((job.folder / "saving.3").read_text()), signal.SIGKILL)
        job.until_status(lambda status: status["round"] == 2)
        gate.unlink()
        directives = job.end(0, 0)
        (taken,) = directives.values()
        steps = {step for _, step in taken}
        assert len(steps) == 2, taken
        for step in steps:
            assert sorted(rank for rank, at in taken if at == step) == ["0", "1", "2", "3"], taken
        once_each(job)
    finally:
        job.stop()


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_drained_node_hosts_and_has_rank_0(tmp_path: Path) -> None:
    job = Job(tmp_path, STEPS * 4, 2, str(HERE / "lockstep.py"), str(STEPS * 4), "0.03")
    try:
        job.start("n0", "--node-rank=0")
        until((tmp_path / "losses.txt").exists)  # it is alone, and hosts
        job.start("n1", "--node-rank=1")
        job.until(60)
        admin.drain(job.endpoint, "job", "n0", reason="a test", within=60)
        directives = job.end(0, 0)
        assert len(directives) == 1
        same_step(directives, 4)
        assert "drained" in (tmp_path / "n0.err").read_text()
        ((_, saved), *_) = next(iter(directives.values()))
        after = [step for step, _ in job.losses() if step > saved]
        assert after == list(range(saved + 1, STEPS * 4)), "a step is missing or repeated"
    finally:
        job.stop()
