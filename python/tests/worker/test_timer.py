"""Timers of workers (docs/spec/agent.md, A89, A92)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import launch_jobs as jobs
import pytest

from rallypoint import ChildFailedError, LaunchConfig, elastic_launch, timer


@pytest.fixture(autouse=True)
def nothing_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "_client", None)
    monkeypatch.delenv("TORCHELASTIC_TIMER_FILE", raising=False)


class Watchdog:
    """The reading end of a FIFO."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self.fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)

    def requests(self) -> list[dict[str, Any]]:
        with contextlib.suppress(BlockingIOError):
            return [json.loads(line) for line in os.read(self.fd, 1 << 20).splitlines()]
        return []


@pytest.fixture
def watchdog(tmp_path: Path) -> Iterator[Watchdog]:
    made = Watchdog(tmp_path / "fifo")
    yield made
    os.close(made.fd)


class Recorder(timer.TimerClient):
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.at = 0.0

    def acquire(self, scope_id: str, expiration_time: float) -> None:
        self.calls.append(("acquire", scope_id))
        self.at = expiration_time

    def release(self, scope_id: str) -> None:
        self.calls.append(("release", scope_id))


def test_block() -> None:
    client = Recorder()
    timer.configure(client)
    before = time.time()
    with timer.expires(after=60, scope="step"):
        assert client.calls == [("acquire", "step")]
    assert client.calls == [("acquire", "step"), ("release", "step")]
    assert before + 60 <= client.at <= time.time() + 60


def test_exception_passes_and_releases() -> None:
    client = Recorder()
    with pytest.raises(KeyError), timer.expires(60, "step", client):
        raise KeyError
    assert client.calls == [("acquire", "step"), ("release", "step")]


def test_no_client() -> None:
    with pytest.raises(RuntimeError, match="configure"), timer.expires(60):
        raise AssertionError
    with pytest.raises(ValueError, match="TORCHELASTIC_ENABLE_FILE_TIMER"):
        timer.FileTimerClient()


def test_scope_is_the_caller() -> None:
    """Also through an ExitStack; a recursion takes one timer again and again."""
    client = Recorder()
    with timer.expires(60, client=client):
        pass
    with contextlib.ExitStack() as stack:
        stack.enter_context(timer.expires(60, client=client))

    def recurse(depth: int) -> None:
        with timer.expires(60, client=client):
            if depth:
                recurse(depth - 1)

    recurse(2)
    scopes = [scope for what, scope in client.calls if what == "acquire"]
    lines = [int(scope.removeprefix(__file__ + "#")) for scope in scopes]
    assert lines[0] < lines[1] < lines[2] == lines[3] == lines[4]


def test_requests(watchdog: Watchdog) -> None:
    client = timer.FileTimerClient(watchdog.path)
    client.acquire("\u00fc", 12.5)
    client.release("\u00fc")
    timer.FileTimerClient(watchdog.path, signal=signal.SIGUSR1).acquire("x", 1)
    one = {"version": 1, "pid": os.getpid(), "scope_id": "\u00fc"}
    assert watchdog.requests() == [
        {**one, "expiration_time": 12.5, "signal": signal.SIGKILL},
        {**one, "expiration_time": -1, "signal": 0},
        {**one, "scope_id": "x", "expiration_time": 1, "signal": signal.SIGUSR1},
    ]


def test_requests_are_those_of_torch(watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed.elastic.timer as of_torch

    monkeypatch.setenv("TORCHELASTIC_TIMER_FILE", watchdog.path)
    clients = [timer.FileTimerClient(), of_torch.FileTimerClient(watchdog.path)]
    sent = []
    for client in clients:
        client.acquire("x", 12.5)
        client.release("x")
        sent.append(watchdog.requests())
    assert sent[0] == sent[1]
    # Either client fits either function.
    with timer.expires(60, "y", clients[1]), of_torch.expires(60, "z", clients[0]):
        pass
    assert [r["scope_id"] for r in watchdog.requests()] == ["y", "z", "z", "y"]


def test_many_clients(watchdog: Watchdog) -> None:
    """No request is lost or torn."""

    def send(thread: int) -> None:
        client = timer.FileTimerClient(watchdog.path)
        for i in range(50):
            client.acquire(f"{thread}.{i}", 60)

    threads = [threading.Thread(target=send, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    got: list[str] = []
    while len(got) < 200:
        select.select([watchdog.fd], [], [], 60)
        got += [r["scope_id"] for r in watchdog.requests()]
    for thread in threads:
        thread.join()
    assert sorted(got) == sorted(f"{t}.{i}" for t in range(4) for i in range(50))


def test_no_watchdog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "_PAUSE", 0.001)
    client = timer.FileTimerClient(str(tmp_path / "none"))
    with pytest.raises(BrokenPipeError, match=r"not available.*none") as caught:
        client.acquire("x", 1)
    assert caught.value.errno == errno.ENOENT
    os.mkfifo(tmp_path / "none")  # which no process reads
    with pytest.raises(BrokenPipeError) as caught:
        client.release("x")
    assert caught.value.errno == errno.ENXIO


def test_watchdog_that_does_not_read(watchdog: Watchdog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timer, "_PAUSE", 0.001)
    client = timer.FileTimerClient(watchdog.path)
    with pytest.raises(BrokenPipeError, match="does not read"):
        for _ in range(100_000):
            client.acquire("x", 1)


def test_long_request(watchdog: Watchdog) -> None:
    client = timer.FileTimerClient(watchdog.path)
    with pytest.raises(RuntimeError, match=f"at most {select.PIPE_BUF}"):
        client.acquire("x" * select.PIPE_BUF, 1)
    assert watchdog.requests() == []


def launch_with_timers(entrypoint: Any, max_restarts: int = 0) -> dict[int, Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
        config = LaunchConfig(1, 1, 2, run_id="job", max_restarts=max_restarts)
        return elastic_launch(config, entrypoint)()


def test_worker_whose_timer_expires() -> None:
    """It is killed by the agent, in whatever depth it hangs, and restarted."""
    assert launch_with_timers(jobs.hang_once, max_restarts=1) == {0: 1, 1: 1}
    with pytest.raises(ChildFailedError) as caught:
        launch_with_timers(jobs.hang_once)
    rank, failure = caught.value.get_first_failure()
    assert (rank, failure.exitcode) == (1, -signal.SIGKILL)
    assert 'The timer "too deep" of process ' in failure.message


def test_workers_without_a_watchdog() -> None:
    with pytest.raises(ChildFailedError, match="TORCHELASTIC_TIMER_FILE is not set"):
        elastic_launch(LaunchConfig(1, 1, 1, run_id="job", max_restarts=0), jobs.hang_once)()


def test_imports_little() -> None:
    code = (
        "import sys, rallypoint.timer; sys.exit(any(m in sys.modules for m in ('torch', 'ctypes')))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
