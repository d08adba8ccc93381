"""Workers that form a smaller process group by themselves when one of them dies (decision 0130)."""

from __future__ import annotations

from pathlib import Path

from torchrun.harness import COMMAND, NewJob

# Restarts a function in this process when a collective fails: the ranks that are left find each
# other in the round's store. Rank 3 is killed at its fifth step.
WORKER = """
import os, signal, sys, time
from datetime import timedelta
import torch, torch.distributed as dist

rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)

def restarted(function):
    ranks, attempt = list(range(world)), 0
    while True:
        own = dist.PrefixStore(f"attempt{attempt}", store)
        dist.init_process_group("gloo", store=dist.PrefixStore("group", own),
            rank=ranks.index(rank), world_size=len(ranks), timeout=timedelta(minutes=2))
        try:
            return function(), len(ranks), attempt
        except RuntimeError:
            dist.destroy_process_group()
        own.set(f"alive{rank}", "")
        if rank == 0:  # who has not come when all others could have is dead
            until = time.monotonic() + 60
            def alive(): return [r for r in ranks if own.check([f"alive{r}"])]
            while time.monotonic() < until and len(alive()) < len(ranks) - 1:
                time.sleep(0.05)
            own.set("ranks", " ".join(map(str, alive())))
        ranks, attempt = [int(r) for r in own.get("ranks").decode().split()], attempt + 1

done = 0
def train():
    global done
    while done < 10:
        if rank == 3 and done == 5:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(torch.ones(1))
        done += 1
    return done

steps, left, attempt = restarted(train)
dist.destroy_process_group()  # or its threads may end the interpreter by SIGABRT
line = f"rank {rank}: {steps} steps, ends with {left} of {world} in attempt {attempt}\\n"
print(line, end="", flush=True)  # one write: the ranks share one output
"""


def test_the_others_go_on(new_job: NewJob, tmp_path: Path) -> None:
    worker = tmp_path / "train.py"
    worker.write_text(WORKER)
    job = new_job("2", max_restarts=0, worker=worker, nproc=2)
    names = ["n0", "n1"]
    for name in names:
        job.launch(name, [*COMMAND, "run", "--warm", "--on-failure=keep", *job.arguments()])
    assert job.await_end(*names) == [0, 0]
    logs = "".join(job.nodes[name].output() for name in names)
    for rank in range(3):
        assert f"rank {rank}: 10 steps, ends with 3 of 4 in attempt 1" in logs
    assert "worker of rank 3 " in logs
    assert "1 of 2 workers of this node continue without it (--on-failure keep)" in logs
