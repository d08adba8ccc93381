"""A node that only waited for one that hangs does not leave (decision 0121)."""

from __future__ import annotations

from pathlib import Path

from torchrun.harness import COMMAND, NewJob

# Rank 2 hangs after five steps. The other ranks give up on it after longer than a standstill
# takes; in the next round all are well.
WORKER = """
import os, sys, time
import rallypoint
if os.environ["TORCHELASTIC_RESTART_COUNT"] != "0":
    sys.exit(0)
for step in range(5):
    rallypoint.progress(step)
    time.sleep(0.05)
time.sleep(100 if os.environ["RANK"] == "2" else 5)
sys.exit("timed out")
"""


def test_the_victims_of_a_hang_stay(new_job: NewJob, tmp_path: Path) -> None:
    worker = tmp_path / "train.py"
    worker.write_text(WORKER)
    job = new_job("2:3", max_restarts=1, worker=worker)
    names = ["n0", "n1", "n2"]
    for name in names:
        job.launch(name, [*COMMAND, "run", "--on-failure=leave:1", *job.arguments()])
    assert job.await_end(*names) == [0, 0, 0]
    logs = "".join(job.nodes[name].output() for name in names)
    assert "the failure does not count for --on-failure leave" in logs


def test_a_node_that_its_check_refuses_has_no_round(new_job: NewJob, tmp_path: Path) -> None:
    worker = tmp_path / "train.py"
    worker.write_text(WORKER)
    # n2 has ended long before the others, which wait for it no longer than this.
    job = new_job("2:3", max_restarts=1, worker=worker, conf={"last_call_timeout": 5})
    for name in ("n0", "n1", "n2"):
        check = ["--check=exit 1"] if name == "n2" else []
        job.launch(name, [*COMMAND, "run", "--on-failure=leave:1", *check, *job.arguments()])
    assert job.await_end("n0", "n1", "n2") == [0, 0, 94]
    log = job.nodes["n2"].output()
    assert "is not fit to run workers" in log
    assert "round 1: rank" not in log
