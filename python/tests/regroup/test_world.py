"""rallypoint.world, changing and regroup by a record; here the test is the agent."""

from __future__ import annotations

import os
import signal
import struct
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from harness import until

import rallypoint

SLOT = struct.Struct("<Q7I28x64s320s")
OVER, TURN, LOST, CAN, WAITS, ENTERED, SLOTS, TEXT = 16, 24, 25, 32, 40, 48, 64, 1024


class Agent:
    """The record of a worker, and the worker: a script."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "world"
        head = struct.pack("<8sII", b"rp-world", 1, 2048)
        self.path.write_bytes(head + bytes(2048 - len(head)))
        self.fd = os.open(self.path, os.O_RDWR)
        self.turns = 0
        self.move(7, 5, 8, turn=0)
        self.steps = folder / "progress"
        self.steps.write_bytes(struct.pack("<8sIIq40x", b"rp-steps", 1, 64, -1))

    def word(self, offset: int) -> int:
        return int(struct.unpack("<Q", os.pread(self.fd, 8, offset))[0])

    def put(self, offset: int, value: int, size: int = 8) -> None:
        os.pwrite(self.fd, value.to_bytes(size, "little"), offset)

    def move(self, epoch: int, rank: int, size: int, turn: int = 1) -> None:
        slot = SLOT.pack(epoch, rank, size, 1, 2, 3, 4, 2940, b"G", b"10.0.0.7")
        self.turns += turn
        os.pwrite(self.fd, slot, SLOTS + (self.turns & 1) * SLOT.size)
        self.put(TURN, self.turns & 0xFF, 1)

    def start(self, script: str) -> subprocess.Popen[str]:
        env = {"RALLYPOINT_WORLD_FILE": self.path, "RALLYPOINT_PROGRESS_FILE": self.steps}
        return subprocess.Popen(
            [sys.executable, "-u", "-c", "import rallypoint as r\n" + textwrap.dedent(script)],
            env={**os.environ, **{name: str(path) for name, path in env.items()}},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, script: str) -> str:
        return self.start(script).communicate(timeout=60)[0].strip()


@pytest.fixture
def agent(tmp_path: Path) -> Agent:
    return Agent(tmp_path)


def test_a_world(agent: Agent) -> None:
    out = agent.run(
        """
        import sys
        w = r.world()
        print(w.epoch, w.rank, w.size, w.local_rank, w.local_size, w.node_rank)
        print(w.store, r.changing(), "ctypes" in sys.modules, "torch" in sys.modules)
        """
    )
    store = "WorldStore(host='10.0.0.7', port=2940, prefix='rallypoint/world/7')"
    assert out == f"7 5 8 1 2 3\n{store} False False False"
    assert (agent.word(CAN), agent.word(ENTERED), agent.word(WAITS)) == (0, 7, 0)


def test_the_next_world(agent: Agent) -> None:
    """A world that is over by the time that it is read is none to enter."""
    worker = agent.start("w = r.regroup(); print(w.epoch, w.rank, w.size, r.world() is w)")
    until(lambda: agent.word(WAITS) == 7)
    assert agent.word(CAN) == 1
    agent.put(OVER, 7)
    agent.put(OVER, 8)
    agent.move(8, 1, 2)
    agent.move(9, 4, 6)
    assert worker.communicate(timeout=60)[0] == "9 4 6 True\n"
    assert (agent.word(ENTERED), agent.word(WAITS)) == (9, 0)


def test_a_world_that_has_changed_before_it_is_asked_for(agent: Agent) -> None:
    agent.put(OVER, 7)
    assert agent.run("print(r.changing(), r.world().epoch, r.changing())") == "True 7 True"


def test_a_limit(agent: Agent) -> None:
    out = agent.run(
        """
        from datetime import timedelta
        for limit in 0, 0.05, timedelta(milliseconds=20), float("nan"):
            try:
                r.regroup(limit)
            except TimeoutError as e:
                print(type(e).__name__, e.retryable, e)
        """
    )
    assert out.splitlines() == [
        f"DeadlineError True no world came after that of epoch 7 within {limit} s"
        for limit in ("0", "0.05", "0.02", "nan")
    ]
    assert agent.word(WAITS) == 7


def test_no_other_world(agent: Agent) -> None:
    worker = agent.start("r.regroup()")
    until(lambda: agent.word(WAITS) == 7)
    os.pwrite(agent.fd, b"the run was closed by n\xc3\xb6de 2\0", TEXT)
    agent.put(LOST, 1, 1)
    out = worker.communicate(timeout=60)[0].splitlines()
    assert out[-1] == (
        "rallypoint.WorldLostError: there is no other world for this worker: "
        "the run was closed by nöde 2"
    )


def test_ctrl_c_and_threads(agent: Agent) -> None:
    """The wait holds neither signals nor other threads."""
    worker = agent.start(
        """
        import threading, time
        def count():
            for i in range(20):
                time.sleep(0.001)
            print("counted")
        thread = threading.Thread(target=count)
        thread.start()
        r.regroup()
        """
    )
    assert worker.stdout is not None and worker.stdout.readline() == "counted\n"
    until(lambda: agent.word(WAITS) == 7)
    worker.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in worker.communicate(timeout=60)[0]


def test_a_departure_at_a_step(agent: Agent) -> None:
    """It comes by the progress record, and is no directive for the script."""
    fd = os.open(agent.steps, os.O_RDWR)
    about = 3 << 24 | 255 << 8
    os.pwrite(fd, struct.pack("<Q", about | 2), 24)  # released
    os.pwrite(fd, struct.pack("<Q", 41), 48)  # at this step
    out = agent.run(
        """
        r.can_regroup()
        for step in 40, 41, 42:
            print(r.progress(step), r.directive(), r.saved(step), r.changing())
        """
    )
    assert out.splitlines() == ["None None False False"] + 2 * ["None None False True"]
    assert agent.word(OVER) == 7
    assert struct.unpack("<Q", os.pread(fd, 8, 32))[0] == about | 2  # taken
    os.close(fd)


@pytest.mark.parametrize("what", ["cut", "gone", "other", "newer", "folder"])
def test_a_record_that_is_none(agent: Agent, what: str) -> None:
    """It says so, and the script can go on without."""
    if what == "cut":
        os.truncate(agent.path, 100)
    elif what == "other":
        os.pwrite(agent.fd, b"rp-steps", 0)
    elif what == "newer":
        agent.put(8, 2, 4)
    else:
        agent.path.unlink()
        if what == "folder":
            agent.path.mkdir()
    out = agent.run(
        """
        for call in r.world, r.can_regroup, r.changing, r.regroup:
            try:
                call()
            except r.StateError as e:
                print(str(e).partition(": ")[0])
        """
    )
    assert out.splitlines() == 4 * [f"the world record {agent.path} cannot be used"]


def test_no_world() -> None:
    """Neither an agent nor the environment says one."""
    names = ("RANK", "WORLD_SIZE", "RALLYPOINT_WORLD_FILE")
    env = {name: value for name, value in os.environ.items() if name not in names}
    script = "import rallypoint as r\nprint(r.can_regroup(), r.changing())\nr.world()"
    done = subprocess.run(
        [sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "False False\n"
    assert "InvalidError: the environment says no world: KeyError('RANK')" in done.stderr


def test_torch_has_the_same_keys() -> None:
    pytest.importorskip("torch")
    with rallypoint.StoreServer("127.0.0.1") as server:
        store = rallypoint.WorldStore("127.0.0.1", server.port, "rallypoint/world/3")
        ours = store.client()
        torchs = rallypoint.World(3, 0, 1, 0, 1, 0, 0, store).torch_store(timeout=20)
        torchs.set("a", "1")
        ours.set("b", "2")
        assert (ours.get("a"), torchs.get("b")) == (b"1", b"2")
        assert ours.add("n", 2) == 2 and torchs.add("n", 3) == 5
        other = rallypoint.WorldStore("127.0.0.1", server.port, "rallypoint/world/4").client()
        assert not other.check(["a"])
