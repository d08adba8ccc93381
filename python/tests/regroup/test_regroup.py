"""Workers that regroup in place, in lockstep: `rallypoint run --on-failure regroup`."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from harness import free_port, until

HERE = Path(__file__).parent
CONF = "last_call_timeout=0.3,admit_delay=0.1,lease_timeout=15"

Line = dict[str, Any]


class Job:
    """Nodes, each with two workers that say what they do in lines of JSON."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.endpoint = folder, f"127.0.0.1:{free_port()}"
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        node: str,
        *options: str,
        nodes: str = "1:3",
        policy: str = "regroup",
    ) -> None:
        self.run(
            node,
            *(f"--nnodes={nodes}", "--nproc-per-node=2", f"--rdzv-endpoint={self.endpoint}"),
            *("--rdzv-id=job", f"--rdzv-conf=node_id={node},{CONF}", "--max-restarts=5"),
            *(f"--on-failure={policy}", *options, str(HERE / "looper.py"), "0.02"),
        )

    def run(self, node: str, *arguments: str) -> None:
        self.nodes[node] = subprocess.Popen(
            [sys.executable, "-m", "rallypoint", "run", *arguments],
            cwd=self.folder,
            stdout=(self.folder / f"{node}.out").open("wb"),
            stderr=(self.folder / f"{node}.err").open("wb"),
        )

    def log(self, node: str) -> str:
        return (self.folder / f"{node}.err").read_text()

    def lines(self, what: str = "", **fields: object) -> list[Line]:
        """What the workers of all nodes have said so far, in the order of its time."""
        found = []
        for node in self.nodes:
            for line in (self.folder / f"{node}.out").read_bytes().splitlines(keepends=True):
                if line.endswith(b"}\n"):
                    said = json.loads(line) | {"at": node}
                    if what in ("", said["what"]) and fields.items() <= said.items():
                        found.append(said)
        return sorted(found, key=lambda said: said["time"])

    def until(self, what: str, count: int, **fields: object) -> list[Line]:
        """Waits until that was said so often."""
        until(
            lambda: len(self.lines(what, **fields)) >= count,
            what=f"{what} {fields}: {count} times",
        )
        return self.lines(what, **fields)

    def made(self) -> list[tuple[int, int, int]]:
        """Epoch, process and number of each step that a worker has completed."""
        try:
            whole = (self.folder / "steps.txt").read_text().split("\n")[:-1]
        except FileNotFoundError:
            return []
        return [(int(epoch), int(pid), int(step)) for epoch, pid, step in map(str.split, whole)]

    def last_step(self) -> int:
        return max((step for _, _, step in self.made()), default=-1)

    def until_step(self, step: int) -> None:
        until(lambda: self.last_step() >= step, what=f"step {step}")

    def pids(self, node: str | None = None, epoch: int = 1) -> dict[int, int]:
        """The process of each rank of an epoch, of one node or of all."""
        said = self.lines("begins", epoch=epoch) + self.lines("regroups", epoch=epoch)
        return {line["rank"]: line["pid"] for line in said if node in (None, line["at"])}

    def end(self, **codes: int) -> None:
        """Has the workers end some steps from now, and waits for the nodes."""
        (self.folder / "over").touch()
        for node, code in codes.items():
            process = self.nodes[node]
            assert process.wait(timeout=100) == code, self.log(node)

    def hosts(self) -> bool:
        host, port = self.endpoint.split(":")
        with socket.socket() as s:
            return s.connect_ex((host, int(port))) == 0

    def admin(self, *command: str) -> None:
        options = ["--rdzv-id=job", "--reason=a test", *command[1:]]
        done = subprocess.run(
            [sys.executable, "-m", "rallypoint", "admin", command[0], self.endpoint, *options],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        for node in self.nodes.values():
            node.kill()
            node.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    job = Job(tmp_path)
    yield job
    job.stop()


def two_nodes(job: Job, *options: str, **more: Any) -> dict[int, int]:
    """Starts nodes a, which hosts, and b; the pids of the four workers."""
    job.start("a", *options, **more)
    until(job.hosts, what="a hosts")
    job.start("b", *options, **more)
    job.until("agrees", 4, epoch=1, size=4)
    job.until_step(10)
    return job.pids()


def once_each(job: Job) -> None:
    """No step is missing, and none is repeated that a worker which goes on had completed."""
    assert {step for _, _, step in job.made()} == set(range(job.last_step() + 1))
    agreed = job.lines("agrees")
    assert len({(line["epoch"], line["step"]) for line in agreed}) == len(
        {line["epoch"] for line in agreed}
    )
    for line in agreed:
        for epoch, pid, step in job.made():
            if pid == line["pid"]:
                assert (epoch >= line["epoch"]) == (step > line["step"]), (line, epoch, step)


def others(job: Job, rank: int, epoch: int = 1) -> int:
    """A rank that is on another node."""
    nodes = {line["rank"]: line["at"] for line in job.lines("agrees", epoch=epoch)}
    return next(r for r in nodes if nodes[r] != nodes[rank])


def all_agree(job: Job, size: int, above: int) -> int:
    """Waits until all agree in a world of that size of a later epoch, which it returns."""
    found: list[int] = []

    def look() -> bool:
        epochs = [line["epoch"] for line in job.lines("agrees", size=size) if line["epoch"] > above]
        found[:] = [e for e in set(epochs) if epochs.count(e) == size]
        return bool(found)

    until(look, what=f"a world of {size} after epoch {above}")
    return max(found)


def test_losses_in_a_row(job: Job) -> None:
    """With a token, so that the store of each world is behind a forwarder of each node. A rank that
    is lost is replaced, one that asks for another world is not; a node comes, one is killed, and
    then the one that hosts."""
    token = job.folder / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    options = (f"--token-file={token}",)
    first = two_nodes(job, *options)
    os.kill(first[0], signal.SIGKILL)
    job.until("agrees", 4, epoch=2)
    second = job.pids(epoch=2)
    assert {r for r in first if first[r] == second[r]} == {1, 2, 3}
    (new,) = job.lines("begins", epoch=2)
    assert (new["rank"], new["env"], new["size"]) == (0, 0, 4)
    assert "restart 1 of 5" in job.log("a") + job.log("b")

    (job.folder / "ask.2").touch()
    job.until("agrees", 4, epoch=3, size=4)
    assert job.pids(epoch=3) == second
    assert "the worker of rank 2 asks for another world" in job.log("a")

    job.start("c", *options)
    job.until("agrees", 6, epoch=4, size=6)
    left = job.lines("leaves", epoch=3)
    assert len({line["step"] for line in left}) == 1
    assert {line["pid"] for line in left} == set(second.values()) < set(job.pids(epoch=4).values())

    job.nodes["b"].kill()
    job.until("agrees", 4, epoch=5, size=4)
    last = {*job.pids("a", 5).values(), *job.pids("c", 4).values()}
    assert set(job.pids(epoch=5).values()) == last
    job.nodes["a"].kill()
    all_agree(job, 2, above=5)
    job.end(c=0)
    assert {line["pid"] for line in job.lines("ends")} == set(job.pids("c", 4).values())
    assert "restart 2" not in "".join(map(job.log, "abc"))
    once_each(job)


def test_workers_die_at_once(job: Job) -> None:
    """Of both nodes; the one that is left has the state."""
    before = two_nodes(job)
    for rank in range(3):
        os.kill(before[rank], signal.SIGKILL)
    job.end(a=0, b=0)
    once_each(job)
    ends = {line["rank"]: line["pid"] for line in job.lines("ends")}
    assert {r for r in before if before[r] == ends[r]} == {3}


def test_the_host_dies_while_a_replacement_starts(job: Job) -> None:
    before = two_nodes(job)
    survivor, victim = sorted(job.pids("b"))
    os.kill(before[victim], signal.SIGKILL)
    running(job, set(before.values()))
    job.nodes["a"].kill()
    until(lambda: any(len(job.lines("agrees", epoch=e, size=2)) == 2 for e in range(2, 3000)))
    job.end(b=0)
    ends = {line["pid"] for line in job.lines("ends")}
    assert before[survivor] in ends and len(ends) == 2 and not ends & set(job.pids("a").values())
    once_each(job)


def test_segments(job: Job) -> None:
    """Nodes of a segment that has lost one wait with their memory until it is whole again."""
    domains = {"a": "x", "b": "x", "c": "y", "d": "y"}
    for node, domain in domains.items():
        job.start(node, "--segment=2", f"--topology={domain}", nodes="2:4")
        until(job.hosts, what="a hosts")
    until(lambda: any(len(job.lines("agrees", epoch=e, size=8)) == 8 for e in range(1, 5)))
    before = {node: {line["pid"] for line in job.lines("agrees", at=node)} for node in domains}
    job.until_step(10)
    job.nodes["d"].kill()
    job.until("agrees", 4, size=4)
    assert {line["at"] for line in job.lines("agrees", size=4)} == {"a", "b"}
    job.start("e", "--segment=2", "--topology=y", nodes="2:4")
    job.until("agrees", 16, size=8)
    job.end(a=0, b=0, c=0, e=0)
    once_each(job)
    ends = {line["pid"] for line in job.lines("ends")}
    assert before["a"] | before["b"] | before["c"] < ends and len(ends) == 8


def test_a_spare_takes_the_rank(job: Job) -> None:
    """Without one the survivors wait with their memory until somebody comes."""
    two_nodes(job, nodes="2")
    job.start("c", nodes="2")
    until(lambda: "spare" in job.log("c"), what="c is a spare")
    job.nodes["b"].kill()
    job.until("agrees", 4, epoch=2, size=4)
    assert set(job.pids("a").values()) < set(job.pids(epoch=2).values())
    assert {line["at"] for line in job.lines("agrees", epoch=2)} == {"a", "c"}
    job.nodes["c"].kill()
    until(lambda: "1 of 2 nodes here" in job.log("a"), what="a says what it waits for")
    job.start("d", nodes="2")
    job.until("agrees", 4, epoch=3, size=4)
    assert set(job.pids("a").values()) < set(job.pids(epoch=3).values())
    job.end(a=0, d=0)
    once_each(job)


def stopped(job: Job, rank: int, pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGSTOP)
    return lambda: None


def deaf(job: Job, rank: int, pid: int) -> Callable[[], None]:
    path = job.folder / f"deaf.{rank}"
    path.touch()
    job.until("is deaf", 1)
    return path.unlink


@pytest.mark.parametrize("silence", [stopped, deaf])
def test_a_survivor_does_not_call_back(
    job: Job, silence: Callable[[Job, int, int], Callable[[], None]]
) -> None:
    before = two_nodes(job, policy="regroup:1s")
    silent = others(job, 1)
    hear = silence(job, silent, before[silent])
    os.kill(before[1], signal.SIGKILL)
    until(lambda: "has not called regroup(): it is killed" in job.log("a") + job.log("b"))
    hear()
    job.end(a=0, b=0)
    once_each(job)
    ends = {line["rank"]: line["pid"] for line in job.lines("ends")}
    assert {r for r in before if before[r] == ends[r]} == set(before) - {1, silent}


def test_a_worker_that_cannot(job: Job) -> None:
    """Then all are started anew, as ever."""
    source = (HERE / "looper.py").read_text()
    script = job.folder / "script.py"
    script.write_text(
        source.replace(
            "rallypoint.can_regroup()", 'os.environ["RANK"] == "0" or rallypoint.can_regroup()'
        )
    )
    job.run(
        "a",
        *("--standalone", "--nproc-per-node=3", "--max-restarts=1", "--on-failure=regroup"),
        *(str(script), "0.02"),
    )
    job.until_step(10)
    before = job.pids()
    os.kill(before[2], signal.SIGKILL)
    job.until("begins", 3, epoch=2)
    assert not set(before.values()) & set(job.pids(epoch=2).values())
    job.end(a=0)


def test_a_replacement_dies_while_it_starts(job: Job) -> None:
    """It has not said yet that it can regroup; the others wait for the next one, until the budget
    is spent."""
    before = two_nodes(job, "--max-restarts=2")
    os.kill(before[1], signal.SIGKILL)
    until(lambda: "was replaced" in job.log("a") + job.log("b"))
    new = running(job, set(before.values()))
    os.kill(new, signal.SIGKILL)
    epoch = all_agree(job, 4, above=1)
    after = job.pids(epoch=epoch)
    assert {r for r in before if before[r] == after[r]} == {0, 2, 3}
    os.kill(after[1], signal.SIGKILL)
    job.end(a=1, b=1)
    assert "no restarts left" in job.log("a") + job.log("b")
    once_each(job)


def running(job: Job, known: set[int], variable: str = "RANK=") -> int:
    """A worker of the job that is none of the known ones, and has that in its environment."""
    found: list[int] = []

    def look() -> bool:
        for node in job.nodes.values():
            for file in Path(f"/proc/{node.pid}/task").glob("*/children"):
                for pid in map(int, file.read_text().split()):
                    try:
                        environment = b"\0" + Path(f"/proc/{pid}/environ").read_bytes()
                    except (FileNotFoundError, ProcessLookupError):
                        continue  # it was killed, and is waited for
                    if pid not in known and b"\0" + variable.encode() in environment:
                        found.append(pid)
        return bool(found)

    until(look, what="a new worker")
    return found[0]


def test_directives(job: Job) -> None:
    """Each comes at one step; the spares of a scale come back, a drained node ends, and a stop ends
    the others."""
    before = two_nodes(job)
    job.admin("save", "--within=60s")
    job.until("save", 4, epoch=1)
    job.admin("scale", "--target=1", "--within=60s")
    job.until("scale", 4)
    job.until("agrees", 2, size=2)
    left = {line["at"] for line in job.lines("agrees", size=2)}
    job.admin("scale", "--target=2", "--within=60s")
    job.until("agrees", 4, epoch=3, size=4)
    job.admin("save", "--within=60s")
    job.until("save", 8)
    assert set(job.pids(epoch=3).values()) == set(before.values()), left
    for kind, epoch in ("save", 1), ("scale", 1), ("save", 3):
        assert len({line["step"] for line in job.lines(kind, epoch=epoch)}) == 1

    job.admin("drain", "--node=b", "--within=60s")
    job.until("agrees", 2, epoch=4, size=2)
    assert set(job.pids(epoch=4).values()) == set(job.pids("a").values())
    assert job.nodes["b"].wait(timeout=100) == 0, job.log("b")
    job.admin("stop", "--within=60s")
    job.end(a=95)
    assert len(job.lines("stop")) == 2
    assert "WorldLostError" not in job.log("a")
    once_each(job)


def test_a_hang_is_named(job: Job) -> None:
    """With the place of the worker that hangs, here of one that was replaced."""
    before = two_nodes(job, "--hang-timeout=2")
    os.kill(before[3], signal.SIGKILL)
    job.until("agrees", 4, epoch=2)
    job.until_step(job.last_step() + 100)  # so that the agents have seen steps of this round
    silent = job.folder / "deaf.3"
    silent.touch()
    named = re.compile(r"no step for [0-9.]+ s: .*rank 3 \(\S+\) is at looper.py:\d+ main")
    until(lambda: named.search(job.log("a")), what="the hang is named")
    silent.unlink()
    job.end(a=0, b=0)
    once_each(job)


def test_one_of_two_hangs(job: Job) -> None:
    """Nothing shows which one does; the one that regroups keeps its process and the state."""
    job.start("a", "--hang-timeout=1", "--on-hang=restart", policy="regroup:1s")
    job.until_step(50)  # so that the agent has seen steps
    before = job.pids()
    hear = deaf(job, 1, before[1])
    until(lambda: "has not called regroup(): it is killed" in job.log("a"))
    hear()
    job.until("agrees", 2, epoch=3)
    job.end(a=0)
    once_each(job)
    ends = {line["rank"]: line["pid"] for line in job.lines("ends")}
    assert {r for r in before if before[r] == ends[r]} == {0}
    assert "1 was replaced, after 1 of 5 restarts" in job.log("a")


def test_without_an_agent(tmp_path: Path) -> None:
    """The same script tells its world from the environment, and cannot regroup."""
    script = """
import rallypoint as r
w = r.world()
print(w.epoch, w.rank, w.size, w.local_rank, w.store.host, w.store.port)
print(r.can_regroup(), r.changing())
try:
    r.regroup()
except r.RegroupUnsupportedError as e:
    print(isinstance(e, r.RallypointError), "--on-failure regroup" in str(e))
"""
    env = {"RANK": "2", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "7"}
    env["LOCAL_RANK"] = "0"
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "0 2 4 0 h 7\nFalse False\nTrue True\n", done.stderr


def test_a_group_survives_its_rank_0(tmp_path: Path) -> None:
    """The example for serving and RL: the others keep their slots."""
    options = ("--standalone", "--nproc-per-node=3", "--max-restarts=3", "--on-failure=regroup")
    job = Job(tmp_path)
    job.run("a", *options, str(REPOSITORY / "examples" / "regroup" / "group.py"), "200")
    try:
        said = (tmp_path / "a.out").read_text
        until(lambda: said().count("epoch 1 round 50 xxx\n") == 3, what="round 50 of all")
        os.kill(running(job, set(), "RANK=0"), signal.SIGKILL)
        job.end(a=0)
    finally:
        job.stop()
    out = said()
    for slot in range(3):
        assert f"slot {slot} epoch 1 round 50 xxx\n" in out
        assert f"slot {slot} epoch 2 round 200 xxx\n" in out
        assert f"slot {slot} ends: 200 rounds\n" in out


FUNCTION = """
import os, signal, time
import rallypoint

def work(steps):
    rallypoint.can_regroup()
    open("can_regroup." + os.environ["RANK"], "w").close()
    world, first = rallypoint.world(), os.getpid()
    for step in range(steps):
        if world.epoch == 1 and world.rank == 1 and step == 5:
            while not os.path.exists("can_regroup.0"):
                time.sleep(0.01)
            os.kill(os.getpid(), signal.SIGKILL)
        if rallypoint.changing():
            world = rallypoint.regroup()
        time.sleep(0.02)
        rallypoint.progress(step)
    return world.epoch, world.rank, os.environ["RALLYPOINT_ROUND"]
"""


def test_a_function(tmp_path: Path) -> None:
    """elastic_launch returns what survivors return, too."""
    (tmp_path / "job.py").write_text(FUNCTION)
    script = """
import rallypoint, job
if __name__ == "__main__":
    config = rallypoint.LaunchConfig(1, 1, 2, max_restarts=1, on_failure="regroup")
    print(rallypoint.elastic_launch(config, job.work)(60))
"""
    (tmp_path / "main.py").write_text(script)
    done = subprocess.run(
        [sys.executable, "main.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    expected = "{0: (2, 0, '1'), 1: (2, 1, '2')}"
    assert done.stdout.strip() == expected, done.stderr
