"""The worker of the tests on GPUs: trains a small model, with DDP over NCCL where there is a GPU.

It appends what it does to FOLDER/rankN, a line each with the machine's monotonic time.
"""

import argparse
import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--wait", choices=["item", "cuda", "none"], default="item")
    parser.add_argument("--report", action="store_true", help="call rallypoint.progress")
    parser.add_argument("--sleep", type=int, default=-1, help="this rank sleeps in its data step")
    parser.add_argument("--loop", type=int, default=-1, help="this rank's GPU never ends its work")
    parser.add_argument("--at", type=int, default=8, help="... of this step")
    parser.add_argument("--timeout", type=float, default=600, help="of collectives, in seconds")
    parser.add_argument("--pace", type=float, default=0, help="seconds that a data step takes")
    parser.add_argument("--on-device", action="store_true", help="the data is made on the GPU")
    parser.add_argument("--hold", type=float, default=0, help="GiB of GPU memory to hold")
    parser.add_argument("--backend", default="", help="instead of nccl, or of gloo without a GPU")
    return parser.parse_args()


def load(step: int, args: argparse.Namespace, device: torch.device) -> torch.Tensor:
    if step == args.at and int(os.environ["RANK"]) == args.sleep:
        time.sleep(1e6)
    time.sleep(args.pace)
    if args.on_device:
        return torch.ones(64, 256, device=device)
    return torch.ones(64, 256).to(device)


def main() -> None:
    args = parse()
    rank = int(os.environ["RANK"])
    log = open(os.path.join(args.folder, f"rank{rank}"), "a", buffering=1)  # noqa: SIM115

    def say(*words: object) -> None:
        print(f"{time.monotonic():.4f}", *words, file=log)

    say("start", os.getpid(), os.environ["TORCHELASTIC_RESTART_COUNT"], os.getppid())
    cuda = torch.cuda.is_available()
    if args.report:
        import rallypoint
    # NCCL refuses two ranks of a host on one GPU: so each is on a host of its own, for NCCL.
    os.environ.setdefault("NCCL_HOSTID", f"rank{rank}")
    local = int(os.environ["LOCAL_RANK"])
    device = (
        torch.device("cuda", local % torch.cuda.device_count()) if cuda else torch.device("cpu")
    )
    if cuda:
        torch.cuda.set_device(device)
        held = torch.zeros(int(args.hold * (1 << 30)), dtype=torch.uint8, device=device)
        torch.cuda.synchronize()
        say("cuda", held.numel())
    backend = args.backend or ("nccl" if cuda else "gloo")
    dist.init_process_group(
        backend,
        timeout=timedelta(seconds=args.timeout),
        device_id=device if backend == "nccl" else None,
    )
    say("group", dist.get_world_size(), dist.get_backend())
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 1))
    model = DistributedDataParallel(model.to(device), device_ids=[device.index] if cuda else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    saved, first = os.path.join(args.folder, "saved"), 0
    if os.path.exists(saved):
        state = torch.load(saved, map_location=device)
        model.load_state_dict(state["model"])
        first = state["step"] + 1
    for step in range(first, args.steps):
        batch = load(step, args, device)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if cuda and step == args.at and rank == args.loop:
            for _ in range(200):
                torch.cuda._sleep(10**10)  # some seconds each
        if args.wait == "item":
            loss.item()
        elif args.wait == "cuda" and cuda:
            torch.cuda.synchronize()
        if args.report:
            rallypoint.progress(step)
        say("step", step)
        if rank == 0 and args.wait != "none":
            torch.save({"model": model.state_dict(), "step": step}, saved + ".new")
            os.replace(saved + ".new", saved)
    if cuda:
        torch.cuda.synchronize()
    say("end", f"{loss.item():.6f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
