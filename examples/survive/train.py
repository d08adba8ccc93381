"""DDP on CPUs that goes on when a rank is killed.

    rallypoint run --standalone --nproc-per-node=3 --max-restarts=3 --warm \
        --on-failure regroup examples/survive/train.py --steps 400

Prints "rank R pid P step S" for each step, and "hash H" of all parameters and optimizer states at
the end.
"""

import argparse
import hashlib
import os

import torch
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

from rallypoint import survive

BATCH = 48  # samples of a step, whatever the number of ranks


def fingerprint(*states: dict) -> str:
    sha = hashlib.sha256()

    def add(value: object) -> None:
        if isinstance(value, torch.Tensor):
            sha.update(value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
        elif isinstance(value, dict):
            for key, item in value.items():
                sha.update(str(key).encode())
                add(item)
        elif isinstance(value, (list, tuple)):
            for item in value:
                add(item)
        else:
            sha.update(repr(value).encode())

    for state in states:
        add(state)
    return sha.hexdigest()


def say(line: str) -> None:
    print(line + "\n", end="", flush=True)  # one write: the ranks share one output


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    args = parser.parse_args()

    survive.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    run = survive.Run(model=model, optimizer=optimizer)
    for step in run.steps(args.steps):
        with run.attempt():
            data = torch.Generator().manual_seed(step)  # the same batch, whoever computes it
            x = torch.randn(BATCH, 20, generator=data)[run.rank :: run.size]
            optimizer.zero_grad()
            mse_loss(model(x), x.sum(1, keepdim=True).sin()).backward()
            optimizer.step()
            say(f"rank {run.rank} pid {os.getpid()} step {step}")
    say(f"hash {fingerprint(dict(net.named_parameters()), optimizer.state_dict())}")


if __name__ == "__main__":
    main()
