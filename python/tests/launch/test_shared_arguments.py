"""What multiprocessing and torch share arrives in workers, also in those of a restart."""

from __future__ import annotations

import errno
import gc
import multiprocessing
import os
import socket
import subprocess
import sys
import textwrap
import threading
from multiprocessing import reduction, shared_memory
from pathlib import Path
from typing import Any

import pytest
from launch import shared_jobs as jobs

import rallypoint
from rallypoint import LaunchConfig, elastic_launch
from rallypoint._launch.arguments import ArgumentServer

SPAWN = multiprocessing.get_context("spawn")


def alone(workers: int = 2, restarts: int = 0) -> LaunchConfig:
    return LaunchConfig(1, 1, workers, run_id="job", max_restarts=restarts)


class Shared:
    """One of each kind, and what two workers of two attempts leave in them."""

    def __init__(self) -> None:
        self.queue: Any = SPAWN.Queue()
        self.simple: Any = SPAWN.SimpleQueue()
        self.value: Any = SPAWN.Value("i", 0)
        self.array: Any = SPAWN.Array("d", 2)
        self.event = SPAWN.Event()
        self.event.set()
        self.reader, self.writer = SPAWN.Pipe(duplex=False)
        self.objects = (
            self.queue,
            self.simple,
            SPAWN.Lock(),
            self.value,
            self.array,
            self.event,
            self.writer,
            SPAWN.Semaphore(2),
            SPAWN.Condition(),
        )

    def check(self) -> None:
        expected = {(0, 1), (1, 0), (1, 1)}  # rank 0 of the first attempt may be stopped before
        queued = [self.queue.get(timeout=30) for _ in expected]
        while not self.queue.empty():
            queued.append(self.queue.get())
        assert set(queued) - {(0, 0)} == expected
        simple = []
        while not self.simple.empty():
            simple.append(self.simple.get())
        assert set(simple) - {(0, 0)} == expected
        assert self.value.value in (3, 4)
        assert self.array[1] == 21 and self.array[0] in (10.5, 21)
        sent = set()
        while self.reader.poll():
            sent.add(self.reader.recv_bytes())
        assert sent == {b"0", b"1"}


def test_shared_objects_of_launch() -> None:
    shared = Shared()
    assert elastic_launch(alone(restarts=1), jobs.meet)(*shared.objects) == {0: "met", 1: "met"}
    shared.check()


def test_shared_objects_of_agent() -> None:
    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from rallypoint.agent import RallypointElasticAgent
    from rallypoint.handler import create_handler

    shared = Shared()
    handler = create_handler(RendezvousParameters("rallypoint", "127.0.0.1:0", "job", 1, 1))
    spec = WorkerSpec("w", 2, handler, entrypoint=jobs.meet, args=shared.objects, max_restarts=1)
    result = RallypointElasticAgent(spec).run()
    assert result.return_values == {0: "met", 1: "met"}
    shared.check()


@pytest.mark.parametrize(
    ("strategy", "workers"),
    [("file_descriptor", 2), pytest.param("file_system", 1, marks=pytest.mark.long)],
)
def test_shared_tensors(strategy: str, workers: int) -> None:
    """What workers write to them the launcher reads; views of one storage stay that."""
    import torch
    import torch.multiprocessing as mp

    before = mp.get_sharing_strategy()
    mp.set_sharing_strategy(strategy)
    try:
        shared = torch.zeros(4).share_memory_()
        plain = torch.zeros(2)  # becomes shared when it is pickled, as in torch
        config = alone(workers, restarts=1)
        elastic_launch(config, jobs.fill)([shared[:2], shared[2:]], plain)
        assert shared.tolist() == ([1, 2, 1, 2] if workers == 2 else [1, 0, 1, 0])
        assert plain.tolist()[0] == 1
        assert plain.tolist()[1] in ((1, 2) if workers == 2 else (0,))
    finally:
        mp.set_sharing_strategy(before)


def test_manager() -> None:
    """A manager's proxy, which is of use to those who know the launcher's key."""
    with SPAWN.Manager() as manager:
        table, array = manager.dict(), SPAWN.Array("i", 1, lock=False)
        elastic_launch(alone(), jobs.managed)(table, array)
        assert dict(table) == {"0": 0, "1": 0} and array[0] == 7


def test_shared_memory_outlives_workers() -> None:
    block = shared_memory.SharedMemory(create=True, size=8)
    try:
        elastic_launch(alone(), jobs.named)(block)
        again = shared_memory.SharedMemory(block.name)
        again.close()
        assert bytes(block.buf[:2]) == b"\1\1"
    finally:
        block.close()
        block.unlink()


def test_descriptors(tmp_path: Path) -> None:
    """More than one message can hold, and those of the launcher are all closed again."""
    (tmp_path / "file").write_bytes(b"12345")
    with open(tmp_path / "file", "rb") as file:
        elastic_launch(alone(), jobs.arguments)()  # starts what stays
        gc.collect()  # what earlier launches have left open
        before = len(os.listdir("/proc/self/fd"))
        many = [Wrapped(file.fileno()) for _ in range(600)]
        assert elastic_launch(alone(), jobs.detach)(*many) == {0: 3000, 1: 3000}
        assert len(os.listdir("/proc/self/fd")) == before


class Wrapped:
    """A descriptor of the program."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __reduce__(self) -> Any:
        return jobs.Arrived, (reduction.DupFd(self.descriptor),)


def test_no_descriptors_left_for_a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that cannot accept a worker serves it later."""
    accept, refused = socket.socket.accept, list[OSError]()

    def refuse_first(listener: socket.socket) -> Any:
        if not refused:
            refused.append(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            raise refused[0]
        return accept(listener)

    monkeypatch.setattr(socket.socket, "accept", refuse_first)
    elastic_launch(alone(1), jobs.arguments)("a")
    assert refused


def test_no_threads_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launcher that cannot start a thread for a worker serves the workers one by one."""
    start = ArgumentServer._start

    def refuse_senders(target: Any, *args: object) -> threading.Thread:
        if args:
            raise RuntimeError("can't start new thread")
        return start(target)

    monkeypatch.setattr(ArgumentServer, "_start", staticmethod(refuse_senders))
    assert elastic_launch(alone(), jobs.size)(b"abc") == {0: 3, 1: 3}


def test_fork_context_is_refused() -> None:
    fork = multiprocessing.get_context("fork")
    for thing in (fork.Lock(), fork.Queue(), fork.Event(), fork.Value("i", 1)):
        with pytest.raises(
            rallypoint.InvalidError, match=r'fork context.*get_context\("spawn"\).*deviations'
        ):
            elastic_launch(alone(), jobs.arguments)(thing)


def test_no_longer_picklable() -> None:
    """Pickling fails when a worker of the second attempt asks: that is this worker's failure."""
    with pytest.raises(rallypoint.ChildFailedError, match="cannot pickle the arguments again"):
        elastic_launch(alone(1, restarts=1), jobs.fail_once)(Once())


class Once:
    """Can be pickled once."""

    def __init__(self) -> None:
        self.count = 0

    def __reduce__(self) -> Any:
        self.count += 1
        if self.count > 1:
            raise ValueError("only once")
        return int, ()


def test_large_arguments_from_a_deep_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder's name is longer than that of a socket may be."""
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    data = os.urandom(1 << 20) * 32
    assert elastic_launch(alone(), jobs.size)(data) == {0: len(data), 1: len(data)}
    assert not list(deep.iterdir())


def test_main_module(tmp_path: Path) -> None:
    """A program's own queue and function, as in torch's documentation."""
    script = tmp_path / "program.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, os
            from rallypoint import LaunchConfig, elastic_launch

            def trainer(queue, name):
                queue.put((int(os.environ["RANK"]), name))
                return "do train"

            if __name__ == "__main__":
                queue = multiprocessing.get_context("spawn").Queue()
                print(elastic_launch(LaunchConfig(1, 1, 2), trainer)(queue, "foobar"))
                print(sorted(queue.get() for _ in range(2)))
            """
        )
    )
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "{0: 'do train', 1: 'do train'}",
        "[(0, 'foobar'), (1, 'foobar')]",
    ]
