"""A training job with HSDP: two replicas of a model in two shards.

FAULTS as in worker.py, or "hang:STEP"; or "all_reduce:STEP": between the last reduction of its
gradients within the replica and that with the others; "agreed:STEP": once all are known to have
theirs; or "unagreed:STEP": it is cut there, and does not know. SIGUSR1 is all_reduce in one of the
next steps.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from typing import Any

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
    reductions, of_a_step, agreements = 0, 0, 0  # of the present step, and all of one

    def due(place: str) -> bool:
        return where == place and at in ("", str(now))

    def dies(place: str) -> None:
        if due(place):
            die()

    def soon(*_: object) -> None:
        nonlocal where, at
        where, at = "all_reduce", ""

    all_reduce, replicas = dist.all_reduce, mesh.get_group("replicate")

    def reducing(tensor: torch.Tensor, *args: Any, group: Any = None, **kwargs: Any) -> Any:
        nonlocal reductions, agreements
        if group is replicas:
            reductions += 1
            if reductions == of_a_step:
                dies("all_reduce")
        work = all_reduce(tensor, *args, group=group, **kwargs)
        if group is None:
            agreements += 1
            if agreements == 2:  # the first one is the script's own
                dies("agreed")
                if due("unagreed"):
                    raise RuntimeError("gloo/test: Connection closed by peer")
        return work

    dist.all_reduce = reducing
    signal.signal(signal.SIGUSR1, soon)

    def in_backward(_module: object, _args: object, out: torch.Tensor) -> None:
        out.register_hook(lambda _: dies("backward"))

    net[2].register_forward_hook(in_backward)
    optimizer.register_step_pre_hook(lambda *_: dies("optimizer"))
    for step in run.steps(args.steps):
        with run.attempt():
            now, of_a_step, reductions, agreements = step, max(of_a_step, reductions), 0, 0
            time.sleep(args.pause)
            if due("hang"):
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
