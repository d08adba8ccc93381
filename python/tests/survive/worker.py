"""A training job whose workers die where a test wants.

FAULTS says by "RESTARTS.RANK" of a worker's start where it dies: "WHERE:STEP", or "receive"; or
"late": its first step waits for a file; or "fails": it fails while another one waits to join it.
It has what makes a state hard: several DDP buckets, buffers, dropout, Adam, a scheduler and values.
Prints what examples/survive/train.py prints, and its own words for what else happens.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import rallypoint
from rallypoint import survive
from rallypoint._survive import state
from rallypoint._survive.group import Group

BATCH = 48


def example() -> Any:
    path = Path(__file__).resolve().parents[3] / "examples" / "survive" / "train.py"
    spec = importlib.util.spec_from_file_location("train", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(100)  # pragma: no cover


def dies_in_recovery(where: str) -> None:
    """Has this worker die in its next change of worlds."""
    meet, connect, send, receive = Group.meet, Group.connect, state.send, state.receive

    def meeting(self: Any, mine: Any) -> Any:
        if where == "enter":
            die()
        return meet(self, mine)

    def connecting(self: Any, members: Any) -> None:
        connect(self, members)
        if where == "connected":
            die()

    def after_some(broadcast: Any) -> Any:
        count = 0

        def counted(tensor: torch.Tensor) -> None:
            nonlocal count
            count += 1
            if count == 5:
                die()
            broadcast(tensor)

        return counted

    Group.meet, Group.connect = meeting, connecting  # type: ignore[method-assign]
    if where == "send":
        state.send = lambda what, broadcast: send(what, after_some(broadcast))
    if where == "receive":
        state.receive = lambda broadcast, *rest: receive(after_some(broadcast), *rest)


def main() -> None:
    train = example()
    say = train.say
    say(f"begins as pid {os.getpid()}")
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--wait", action="store_true", help="for all workers before a step")
    parser.add_argument("--until", help="a file whose appearance ends the job")
    args = parser.parse_args()
    faults = json.loads(os.environ["FAULTS"])
    start = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.environ['RANK']}"
    where, _, at = faults.get(start, "").partition(":")
    fault = int(at) if at else -1
    if where == "receive":
        dies_in_recovery(where)

    survive.init_process_group("gloo")
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(20, 64),
        torch.nn.BatchNorm1d(64),
        torch.nn.Tanh(),
        torch.nn.Dropout(0.1),
        torch.nn.Linear(64, 64),
        torch.nn.Linear(64, 1),
    )
    model = DistributedDataParallel(
        net,
        bucket_cap_mb=0.01,
        find_unused_parameters=args.wait,  # which keeps the buckets as they are
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10, 0.9)
    values: dict[str, Any] = {"seen": 0, "last": torch.zeros(3)}

    def changed(rank: int, size: int) -> None:
        say(f"changed to rank {rank} of {size}")

    run = survive.Run(
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        values=values,
        changed=changed,
        wait_for_all=args.wait,
    )
    middle = net[4].weight
    now, over = -1, torch.zeros(1)

    def in_backward(_: torch.Tensor) -> None:
        if now == fault and where == "backward":
            die()

    middle.register_hook(in_backward)
    optimizer.register_step_pre_hook(
        lambda *_: die() if now == fault and where == "optimizer" else None
    )
    if where == "late":
        say("it is late")
        while not os.path.exists(f"{args.until}.late"):
            time.sleep(0.01)
    for step in run.steps(args.steps):
        with run.attempt():
            now = step
            time.sleep(args.pause)
            data = torch.Generator().manual_seed(step)
            x = torch.randn(BATCH, 20, generator=data)[run.rank :: run.size]
            torch.manual_seed(step * 100 + run.rank)
            if step == fault and where in ("forward", "forks", "enter", "connected", "send"):
                fault = -1
                if where == "forks" and os.fork() == 0:  # and this has all connections, too
                    os.setsid()
                    time.sleep(1000)
                if where not in ("forward", "forks"):
                    dies_in_recovery(where)
                else:
                    die()
            if where == "fails" and run.size == 1:
                run._group.store.wait(["ready/0"])
                raise ValueError("it fails")
            optimizer.zero_grad()
            loss = (model(x) - x.sum(1, keepdim=True).sin()).square().mean()
            over = torch.tensor([float(bool(args.until) and os.path.exists(args.until))])
            dist.all_reduce(over)
            loss.backward()
            if step == fault and where == "cut":
                fault = -1
                say("cut after backward")
                raise RuntimeError("gloo/test: Connection closed by peer")
            optimizer.step()
            scheduler.step()
            values["seen"] += BATCH
            values["last"] = torch.tensor([float(step), 0.0, 1.0])
            say(f"rank {run.rank} pid {os.getpid()} step {step} of {run.size}")
            if step == fault and where == "after":
                die()
        if run.directive:
            rallypoint.saved(run.completed)
        if over:
            break
    assert values["seen"] == BATCH * run.completed, values
    assert values["last"][0] == run.completed - 1, values
    states = dict(net.named_parameters()), optimizer.state_dict(), scheduler.state_dict()
    say(f"hash {train.fingerprint(*states)}")


if __name__ == "__main__":
    main()
