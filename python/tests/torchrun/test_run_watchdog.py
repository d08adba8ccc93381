"""The watchdog of `rallypoint run` serves torch's own timer client (docs/spec/agent.md, A88)."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from torchrun.harness import COMMAND, FOREIGN, LIMIT

WORKER = """
import os, sys, time
import torch.distributed.elastic.timer as timer
assert os.path.exists(os.environ["TORCHELASTIC_TIMER_FILE"])
timer.configure(timer.FileTimerClient(os.environ["TORCHELASTIC_TIMER_FILE"]))
with timer.expires(after=3600, scope="in time"):
    pass
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and os.environ["RANK"] == "1":
    with timer.expires(after=0.1, scope="training step"):
        time.sleep(3600)
told = f"attempt {os.environ['TORCHELASTIC_RESTART_COUNT']} done\\n"
os.write(1, told.encode())  # one call: both write
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    time.sleep(3600)
"""


@pytest.mark.timeout(250)
def test_expired_timer_restarts_the_workers(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(WORKER)
    environment = {k: v for k, v in os.environ.items() if not FOREIGN.match(k)}
    done = subprocess.run(
        [*COMMAND, "run", "--warm", "--nproc-per-node=2", "--max-restarts=1", str(script)],
        env={**environment, "TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=4 * LIMIT,  # two rounds of workers import torch
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("attempt 1 done\n") == 2
    assert 'the timer "training step" of process ' in done.stderr
    left = {path.name for path in tmp_path.iterdir() if not path.name.startswith("torchinductor_")}
    assert left == {"train.py"}  # torch's compiler keeps its cache
