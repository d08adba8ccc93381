"""A training job with HSDP: two replicas of a model in two shards.

FAULTS as in worker.py, or "hang:STEP".
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from worker import die, example

from rallypoint import survive


def main() -> None:
    train = example()
    say = train.say
    say(f"begins as pid {os.getpid()}")
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--until", help="a file whose appearance ends the job")
    args = parser.parse_args()
    start = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.environ['RANK']}"
    where, _, at = json.loads(os.environ["FAULTS"]).get(start, "").partition(":")

    survive.init_process_group("gloo")
    mesh = survive.hsdp_mesh(2)
    say(f"pid {os.getpid()} has shard {mesh.get_local_rank('shard')}")
    torch.manual_seed(0)
    layers = [torch.nn.Linear(20, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64)]
    net = torch.nn.Sequential(*layers, torch.nn.Tanh(), torch.nn.Linear(64, 1))
    for layer in (net[0], net[2], net[4], net):
        fully_shard(layer, mesh=mesh)
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    run = survive.Run(net=net, optimizer=optimizer)
    now, over = -1, torch.zeros(1)

    def dies(place: str) -> None:
        if where == place and now == int(at):
            die()

    def in_backward(_module: object, _args: object, out: torch.Tensor) -> None:
        out.register_hook(lambda _: dies("backward"))

    net[2].register_forward_hook(in_backward)
    optimizer.register_step_pre_hook(lambda *_: dies("optimizer"))
    for step in run.steps(args.steps):
        with run.attempt():
            now = step
            time.sleep(args.pause)
            if where == "hang" and now == int(at):
                signal.pause()
            data = torch.Generator().manual_seed(step)
            x = torch.randn(48, 20, generator=data)[
                mesh.get_local_rank(0) * 2 + mesh.get_local_rank(1) :: 4
            ]
            over = torch.tensor([float(bool(args.until) and os.path.exists(args.until))])
            dist.all_reduce(over)
            optimizer.zero_grad()
            (net(x) - x.sum(1, keepdim=True).sin()).square().mean().backward()
            optimizer.step()
            say(f"rank {run.rank} pid {os.getpid()} step {step} of {run.size}")
            dies("after")
        if over:
            break
    states = [p.full_tensor() for p in net.parameters()]
    states += [s["exp_avg"].full_tensor() for s in optimizer.state_dict()["state"].values()]
    say(f"hash {train.fingerprint(dict(enumerate(states)))}")


if __name__ == "__main__":
    main()
