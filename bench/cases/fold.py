"""`rallypoint run --fold-logs`: eight workers that write 10 000 lines a second each."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import BenchError
from result import Row, Sample

NAME = "fold"

REPEAT = 5
LIMIT = 120.0
WORKERS = 8
RATE = 10_000
SECONDS = 3

BINARY = str(Path(__file__).parents[2] / "build" / "rallypoint")

# Writes its lines at a rate and says in a file how long it took. The ranks differ
# in digits alone, or, if the second argument is "apart", in a letter.
_TALKING = """
import os, sys, time
folder, apart = sys.argv[1], sys.argv[2] == "apart"
seconds, rate = int(sys.argv[3]), int(sys.argv[4])
rank = int(os.environ["RANK"])
mark = "abcdefgh"[rank] if apart else rank
began = time.monotonic()
for i in range(seconds * rate):
    loss, samples = i * 0.37, i + 17 + rank
    sys.stdout.write(f"rank {mark} step {i} loss {loss:.4f}, {samples} samples per second, etc.\\n")
    if i % 100 == 99:
        ahead = began + (i + 1) / rate - time.monotonic()
        if ahead > 0:
            time.sleep(ahead)
with open(f"{folder}/{rank}", "w") as file:
    file.write(str(time.monotonic() - began))
"""


def measure(repeat: int | None, reference: bool) -> list[Row]:
    plain, alike, apart, cpu = Sample(), Sample(), Sample(), Sample()
    for _ in range(repeat or REPEAT):  # by turns, so that other load on the machine meets all alike
        plain.values.append(_talk("alike")[0])
        took, busy = _talk("alike", "--fold-logs")
        alike.values.append(took)
        cpu.values.append(busy)
        apart.values.append(_talk("apart", "--fold-logs")[0])
    lines = f"{SECONDS * RATE} lines of each of {WORKERS} workers at {RATE} a second"
    rows = [
        Row(NAME, f"{lines}, alike", alike, floor=plain),
        Row(NAME, f"{lines}, all different", apart, floor=plain),
        Row(NAME, "CPU of the agent that folds the former", cpu, "% of a core"),
    ]
    for row in rows[:2]:
        row.target = (plain.median or 0) / 0.9
        row.target_why = (
            "nine tenths of the lines a second that come through without --fold-logs, the floor"
        )
    return rows


def _talk(how: str, *options: str) -> tuple[float, float]:
    """Seconds that the slowest worker took, and the agent's CPU in percent of a core."""
    with tempfile.TemporaryDirectory() as folder:
        command = [BINARY, "run", "--standalone", f"--nproc-per-node={WORKERS}", *options]
        command += ["--no-python", sys.executable, "-u", "-c", _TALKING]
        command += [folder, how, str(SECONDS), str(RATE)]
        env = {**os.environ, "OMP_NUM_THREADS": "1", "LOGLEVEL": "ERROR"}
        with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as agent:
            assert agent.stdout
            first = os.read(agent.stdout.fileno(), 1 << 20)
            began, busy = time.monotonic(), 0.0
            while os.read(agent.stdout.fileno(), 1 << 20):
                busy = _cpu(agent.pid) or busy
            spent = time.monotonic() - began
            if agent.wait(LIMIT) or not first:
                raise BenchError(f"{' '.join(command[:5])}: exit code {agent.returncode}")
        took = [float(path.read_text()) for path in Path(folder).iterdir()]
        if len(took) != WORKERS:
            raise BenchError(f"{len(took)} of {WORKERS} workers wrote all their lines")
        return max(took), 100 * busy / spent


def _cpu(pid: int) -> float:
    """Seconds of CPU time of all threads, 0 if the process is gone."""
    total = 0
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            total += int((task / "schedstat").read_text().split()[0])
    except OSError:
        pass
    return total / 1e9
