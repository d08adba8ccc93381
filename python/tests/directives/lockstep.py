"""Workers for test_directed_jobs.py: they train in lockstep, without torch.

Arguments: the number of steps, and the seconds that each takes. While there is a file
gate.report.NODE or gate.save.NODE, the workers of that node wait before they report a step, or
that they have saved. A file hold has a step that none goes beyond while it is there.
"""

import contextlib
import os
import random
import sys
import time
from pathlib import Path

import rallypoint


def gate(name: str) -> None:
    while os.path.exists(f"gate.{name}.{os.environ['GROUP_RANK']}"):
        time.sleep(0.01)


def hold(step: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        while step > int(Path("hold").read_text()):
            time.sleep(0.01)


def main(steps: int, pause: float) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = rallypoint.connect_store(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    state = Path("state.txt")
    first = int(state.read_text()) + 1 if state.exists() else 0
    for step in range(first, steps):
        hold(step)
        store.barrier(f"step {step}", world)
        if rank == 0:
            with open("losses.txt", "a") as file:
                file.write(f"{step} 0\n")
        time.sleep(pause * random.random())
        gate("report")
        directive = rallypoint.progress(step)
        if directive is None:
            continue
        line = f"rank {rank}: {directive.kind} {directive.id} at step {step} {time.time()}\n"
        print(line, end="", flush=True)  # one write: the ranks share one output
        if rank == 0:
            state.write_text(str(step))
        Path(f"saving.{rank}").write_text(str(os.getpid()))
        gate("save")
        rallypoint.saved(step)
        while directive.kind != "save" and rallypoint.directive():
            time.sleep(0.01)


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
