"""What is no hang. Where torch stands while it does what takes long: by these folders the agents
know that such a worker does not hang (agent/stacks/inquiry.go)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from harness import free_port, until

from rallypoint import InvalidError, admin

HELD = """
import os, sys, time
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

def held():
    while os.environ["RANK"] == "0" and not os.path.exists(sys.argv[1]):
        time.sleep(0.05)
"""
SAVES = """
class Slow(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        held()
        return super().write_data(plan, planner)

dist.init_process_group("gloo")
dcp.save({"weight": torch.ones(4)}, storage_writer=Slow("checkpoint"))
"""
COMPILES = """
def backend(graph, inputs):
    held()
    return graph

torch.compile(torch.sin, backend=backend)(torch.ones(4))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="an older Python is not asked")
@pytest.mark.parametrize(
    ("script", "ranks", "folder"),
    [(SAVES, 2, "/torch/distributed/checkpoint/"), (COMPILES, 1, "/torch/_dynamo/")],
)
def test_what_takes_long(tmp_path: Path, script: str, ranks: int, folder: str) -> None:
    """A slow writer of a checkpoint, another rank that waits for it, and a compiler."""
    (tmp_path / "train.py").write_text(HELD + script)
    place = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "rallypoint", "run", "--warm", f"--nproc-per-node={ranks}"]
    command += ["--nnodes=1", f"--rdzv-endpoint={place}", "--rdzv-id=slow"]
    job = subprocess.Popen([*command, "train.py", tmp_path / "go"], cwd=tmp_path)
    try:

        def in_torch() -> bool:
            try:
                got = admin.stacks(place, "slow", timeout=timedelta(seconds=10))
            except (InvalidError, ConnectionError):
                return False  # it has not begun
            stood = [[f.file for t in g.threads for f in t.frames] for g in got.groups]
            inside = [any(folder in file for file in files) for files in stood]
            return got.ranks == ranks and len(inside) > 0 and all(inside)

        until(in_torch, 200)
        (tmp_path / "go").touch()
        assert job.wait(200) == 0
    finally:
        job.terminate()
        job.wait()


STEPS = """
import os, sys, time
import rallypoint

steps = open("rank" + os.environ["RANK"], "w", buffering=1)
print(os.getpid(), file=steps)
for step in range(10**9):
    rallypoint.progress(step)
    print("stepped", file=steps)
    time.sleep(0.05)
"""
TIMEOUT = 4.0  # seconds


def test_a_stopped_job_does_not_hang(tmp_path: Path) -> None:
    """While its agent and workers are stopped for longer than the time-out nothing hangs; while its
    workers alone are, it does, and the sentence says so until they go on."""
    (tmp_path / "train.py").write_text(STEPS)
    command = [sys.executable, "-m", "rallypoint", "run", "--standalone", "--nproc-per-node=2"]
    errors, ranks = tmp_path / "errors", [tmp_path / f"rank{rank}" for rank in range(2)]
    with errors.open("w") as file:
        job = subprocess.Popen(
            [*command, f"--hang-timeout={TIMEOUT:.0f}", "train.py"], cwd=tmp_path, stderr=file
        )

    def steps(least: int) -> None:
        until(lambda: all(r.exists() and r.read_text().count("stepped") > least for r in ranks))

    def send(number: signal.Signals, *pids: int) -> None:
        for pid in pids:
            os.kill(pid, number)

    workers: list[int] = []
    try:
        steps(100)
        workers += [int(r.read_text().split()[0]) for r in ranks]
        send(signal.SIGSTOP, job.pid, *workers)
        time.sleep(2 * TIMEOUT)  # which is what this is about
        before = max(r.read_text().count("stepped") for r in ranks)
        send(signal.SIGCONT, job.pid, *workers)
        steps(before + 100)
        assert "no step for" not in errors.read_text()
        send(signal.SIGSTOP, *workers)
        until(lambda: " stopped" in errors.read_text())
        send(signal.SIGCONT, *workers)
        until(lambda: "the job makes steps again" in errors.read_text())
    finally:
        send(signal.SIGCONT, job.pid, *workers)
        job.terminate()
        job.wait()


HANGS = """
import os, time
import rallypoint

def load():
    time.sleep(1e6)

def wait():
    time.sleep(1e6)

for step in range(50):
    rallypoint.progress(step)
    time.sleep(0.1)
load() if os.environ["RANK"] == "3" else wait()
"""


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.version_info < (3, 11), reason="an older Python is not asked")
def test_one_of_eight_ranks_is_named(tmp_path: Path) -> None:
    """By the limits that follow the steps, on both nodes, in the status and in the stacks."""
    (tmp_path / "train.py").write_text(HANGS)
    place = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "rallypoint", "run", "--nnodes=2", "--nproc-per-node=4"]
    command += [f"--rdzv-endpoint={place}", "--rdzv-id=eight", "train.py"]
    errors = [tmp_path / "a", tmp_path / "b"]
    nodes = []
    for path in errors:
        with path.open("w") as file:
            nodes.append(subprocess.Popen(command, cwd=tmp_path, stderr=file))
    try:
        want = "rank 3 (", ") is at train.py:6 load; 7 others are at train.py:9 wait"
        until(lambda: all("no step for" in path.read_text() for path in errors), 300)
        for path in errors:
            line = next(x for x in path.read_text().splitlines() if "no step for" in x)
            assert all(part in line for part in want), line
        text = line.partition("] ")[2]
        until(lambda: admin.status(place, "eight").stalled == text)
        assert admin.stacks(place, "eight").suspects == (3,)
        asked = [*command[:3], "logs", place, "--culprit"]
        told = subprocess.run(asked, capture_output=True, text=True, check=False).stderr
        assert "(no step for" in told and told.endswith("name one of these ranks by --rank\n"), told
    finally:
        for node in nodes:
            node.terminate()
        for node in nodes:
            node.wait()
