"""A DDP job on CPUs that saves when it is asked to, at the same step on all ranks.

    rallypoint run --nnodes=1:2 --nproc-per-node=2 --rdzv-endpoint=host0:29400 --rdzv-id=job7 \\
        --on-signal=TERM:drain train.py state.pt losses.txt 1000

    rallypoint admin save  host0:29400 --rdzv-id job7 --within 60s --reason "before the update"
    rallypoint admin drain host0:29400 --rdzv-id job7 --node NODE --within 60s --reason "its disk"

Every step is trained once and is in the losses once, whichever nodes come and go.
"""

import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rallypoint


def main(state_file: str, losses_file: str, steps: int) -> None:
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    inputs = torch.randn(32, 8)
    targets = inputs @ torch.randn(8, 1)
    model = DistributedDataParallel(torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    first = 0
    fence = rallypoint.fence(state_file) if rank == 0 else None
    if os.path.exists(state_file):
        state = torch.load(state_file)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["step"] + 1

    for step in range(first, steps):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(inputs[rank::world]), targets[rank::world])
        loss.backward()
        optimizer.step()
        dist.all_reduce(loss)
        if rank == 0:
            with open(losses_file, "a") as file:
                file.write(f"{step} {loss.item() / world:.6f}\n")
        time.sleep(0.02)  # a larger model would need it

        directive = rallypoint.progress(step)
        if directive is None:
            continue
        line = f"rank {rank}: {directive.kind} {directive.id} at step {step}\n"
        print(line, end="", flush=True)  # one write: the ranks share one output
        if fence:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            with fence.replace() as new:
                torch.save({**state, "step": step}, new)
        rallypoint.saved(step)
        while directive.kind != "save" and rallypoint.directive():
            time.sleep(0.05)  # until the agent ends this worker, or the directive is canceled
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
