"""Workers that import torch: forked from a template, started cold, and torchrun's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
from processes import BenchError
from result import Row, Sample

NAME = "warm"

REPEAT = 3
WORKERS = 8
LIMIT = 300.0

BINARY = (str(Path(__file__).parents[2] / "build" / "rallypoint"), "run")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")

# Says when a worker is through its first collective; in the first attempt rank 1 then says when
# it kills itself.
_SCRIPT = """
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"through {attempt} {time.monotonic()}\\n".encode())
if attempt == "0":
    dist.barrier()
    if dist.get_rank() == 1:
        os.write(1, f"killed {attempt} {time.monotonic()}\\n".encode())
        os.kill(os.getpid(), 9)
    time.sleep(1000)
dist.barrier()
dist.destroy_process_group()
"""

# Says when its worker is through its first collective, and rests until there is a file "finish".
_REST = """
import os
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
os.write(1, b"through\\n")
while not os.path.exists("finish"):
    time.sleep(0.05)
dist.barrier()
dist.destroy_process_group()
"""


def measure(repeat: int | None, reference: bool) -> list[Row]:
    times = repeat or REPEAT
    imports = Sample([_import() for _ in range(times)])
    jobs: dict[str, list[tuple[float, float]]] = {"warm": [], "cold": [], "torchrun": []}
    for i in range(times):  # in turn, so that each meets the same machine
        jobs["warm"].append(_job([*BINARY, "--warm"]))
        jobs["cold"].append(_job(BINARY))
        if reference and i == 0:
            jobs["torchrun"] = _reference()
    rows = []
    for column, what in enumerate(("first start", "worker killed")):
        name = f"{what}, until the first collective of {WORKERS} workers"
        for kind in ("warm", "cold"):
            rows.append(Row(NAME, f"{name}, {kind}", Sample([j[column] for j in jobs[kind]])))
            rows[-1].floor = imports
            if reference:
                times_of = [j[column] for j in jobs["torchrun"]]
                rows[-1].reference = Sample(times_of, "" if times_of else "its restart failed")
    rows[0].target = 1.3 * (imports.median or 0)
    rows[0].target_why = "1.3 times one import"
    rows[2].target, rows[2].floor = 0.5, None
    warm, cold = _memory([*BINARY, "--warm"]), _memory(BINARY)
    name = f"memory of {WORKERS} workers at rest"
    rows += [
        Row(NAME, f"{name}, warm, with their template", Sample([warm]), "MB", target=cold / 3),
        Row(NAME, f"{name}, cold", Sample([cold]), "MB"),
    ]
    rows[-2].target_why = "a third of that of cold ones"
    return rows


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "LOGLEVEL": "ERROR",
        "PYTHON_EXEC": sys.executable,
    }


def _import() -> float:
    began = time.monotonic()
    code = "import torch, torch.distributed"
    subprocess.run([sys.executable, "-c", code], check=True, env=_environment(), timeout=LIMIT)
    return time.monotonic() - began


def _job(command: Sequence[str]) -> tuple[float, float]:
    """From the start, and from a worker's death, until all are through their first collective."""
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder, "train.py")
        script.write_text(_SCRIPT)
        options = ["--standalone", f"--nproc-per-node={WORKERS}", "--max-restarts=1"]
        began = time.monotonic()
        done = subprocess.run(
            [*command, *options, str(script)],
            env=_environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
        )
    through: dict[str, list[float]] = {"0": [], "1": []}
    killed = 0.0
    for line in done.stdout.splitlines():
        what, attempt, at = line.split()
        if what == "killed":
            killed = float(at)
        else:
            through[attempt].append(float(at))
    if [len(through[a]) for a in "01"] != [WORKERS, WORKERS] or not killed:
        raise BenchError(f"{' '.join(command)}: {done.stdout} {done.stderr[-2000:]}")
    return max(through["0"]) - began, max(through["1"]) - killed


def _memory(command: Sequence[str]) -> float:
    """The memory of all that an agent has started, in MB; shared memory counts once."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "train.py").write_text(_REST)
        agent = subprocess.Popen(
            [*command, "--standalone", f"--nproc-per-node={WORKERS}", "train.py"],
            cwd=folder,
            env=_environment(),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert agent.stdout
        said = [agent.stdout.readline() for _ in range(WORKERS)]
        if said != ["through\n"] * WORKERS:
            agent.terminate()
            raise BenchError(f"{' '.join(command)}: {said}")
        started = psutil.Process(agent.pid).children(recursive=True)
        memory = sum(p.memory_full_info().pss for p in started) / 1e6
        Path(folder, "finish").touch()
        if agent.wait(LIMIT):
            raise BenchError(f"{' '.join(command)}: exit code {agent.returncode}")
    return memory


def _reference() -> list[tuple[float, float]]:
    try:
        return [_job(TORCHRUN)]
    except BenchError:
        return []
