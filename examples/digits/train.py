"""Trains a small network to read handwritten digits, on as many nodes as there are.

Started by torchrun with any rendezvous backend, for example

    torchrun --rdzv-backend=rallypoint --rdzv-endpoint=host0:29400 --nnodes=2:3 \
        --max-restarts=3 train.py --folder=shared

When nodes come or go torchrun stops the workers and starts them again. This script then
continues from the checkpoint that rank 0 writes after each epoch, so a failure costs at
most an epoch. The global batch stays the same whatever the number of nodes, so the
result does not depend on when nodes came and went, but for rounding.

Everything is kept in --folder, which all nodes must see.
"""

from __future__ import annotations

import argparse
import io
import os
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from digits import load_digits, prepare_digits
from events import Events, process_start
from plain import MeanSGD, Replica
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rallypoint


def main() -> None:
    args = parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=300))
    rank, world_size = dist.get_rank(), dist.get_world_size()
    round = int(os.environ.get("RALLYPOINT_ROUND") or 0)
    events = Events(args.events, rank=rank, world_size=world_size, round=round, pid=os.getpid())
    events.emit("started", at=process_start())
    data = args.folder / "digits.npz"
    if rank == 0:
        args.folder.mkdir(parents=True, exist_ok=True)
        prepare_digits(data)
    dist.barrier()
    images, labels, test_images, test_labels = load_digits(data)

    torch.manual_seed(args.seed)
    model: DistributedDataParallel | Replica
    optimizer: torch.optim.SGD | MeanSGD
    if args.plain:
        model = Replica(network())
        optimizer = MeanSGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    else:
        model = DistributedDataParallel(network())
        optimizer = torch.optim.SGD(model.parameters(), lr=args.learning_rate, momentum=0.9)
    fence = rallypoint.fence(args.folder / "checkpoint.pt") if rank == 0 else None
    first_epoch = resume(fence, model, optimizer)
    events.emit("resumed", epoch=first_epoch)

    steps = len(labels) // args.batch_size
    for epoch in range(first_epoch, args.epochs):
        if args.gate and epoch == int(args.gate[0]):
            wait_for(Path(args.gate[1]))
        order = shuffled(len(labels), args.seed, epoch)
        for step in range(steps):
            batch = order[step * args.batch_size : (step + 1) * args.batch_size]
            mine = batch[rank::world_size]
            # DDP takes the mean over the ranks. Their shares may differ by one image, so
            # each adds up its own; together this is the gradient of the global batch.
            loss = nn.functional.cross_entropy(model(images[mine]), labels[mine], reduction="sum")
            optimizer.zero_grad()
            (loss * world_size / args.batch_size).backward()
            optimizer.step()
            events.emit("step", epoch=epoch, step=step, steps=steps)
            time.sleep(args.step_delay)
        if fence:
            state = {
                "epoch": epoch + 1,
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
            }
            with fence.replace() as new:  # refused if another job has written it since
                torch.save(state, new)
            events.emit("checkpoint", epoch=epoch + 1)
            print(f"epoch {epoch + 1} of {args.epochs} done by {world_size} workers", flush=True)

    accuracy = evaluate(model.module, test_images, test_labels)
    events.emit("finished", accuracy=accuracy)
    if rank == 0:
        print(f"test accuracy {accuracy:.4f}", flush=True)
    dist.destroy_process_group()


def parse_args() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, default=Path("digits"), help="data and checkpoint")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=64, help="of all workers together")
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plain", action="store_true", help="start sooner, see plain.py")
    parser.add_argument("--events", metavar="FILE", help="append events to FILE, see events.py")
    parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to idle each step")
    parser.add_argument(
        "--gate",
        nargs=2,
        metavar=("EPOCH", "FILE"),
        help="do not begin EPOCH (from 0) before FILE exists; for demonstrations and tests",
    )
    return parser.parse_args()


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def shuffled(count: int, seed: int, epoch: int) -> torch.Tensor:
    """Returns 0..count-1 in the order of this epoch, which is the same on all ranks."""
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed * 100_003 + epoch))


def resume(
    fence: rallypoint.Fence | None,
    model: DistributedDataParallel | Replica,
    optimizer: torch.optim.SGD | MeanSGD,
) -> int:
    """Loads what rank 0 finds in the checkpoint into all ranks; returns the epoch to do next.

    Only rank 0 reads the file, so that all ranks continue from the same epoch even if another
    job replaces it at this moment. Content that is not plain data is refused.
    """
    data = broadcast(Path(fence.path).read_bytes() if fence and fence.exists else b"")
    if not data:
        return 0
    state = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    model.module.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"])


def broadcast(data: bytes) -> bytes:
    """Returns rank 0's bytes on all ranks."""
    size = torch.tensor([len(data)])
    dist.broadcast(size, src=0)
    if dist.get_rank() == 0:
        buffer = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)
    else:
        buffer = torch.empty(max(int(size), 1), dtype=torch.uint8)
    dist.broadcast(buffer, src=0)
    return buffer.numpy().tobytes()[: int(size)]


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.05)


@torch.no_grad()
def evaluate(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Returns the share of images that the model reads rightly."""
    return float((model(images).argmax(dim=1) == labels).float().mean())


if __name__ == "__main__":
    main()
