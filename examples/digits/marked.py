"""train.py, before which each worker plants texts that a capture of the network can look for.

Started by `demo.py --secure`. A key and a value go through the workers' store, as a script's
own would, and another text by gloo, as tensors do.
"""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
import train

LIMIT = timedelta(seconds=300)


def plant(key: str, value: str, by_gloo: str) -> None:
    """Sets a key with a value for each rank, reads those of all, and broadcasts a text."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.TCPStore(
        os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False, timeout=LIMIT
    )
    store.set(f"{key}-{rank}", value)
    for other in range(world_size):
        if store.get(f"{key}-{other}") != value.encode():
            raise ValueError(f"rank {other} has set another value")
    gloo = dist.ProcessGroupGloo(dist.PrefixStore("marked", store), rank, world_size, LIMIT)
    gloo.broadcast(torch.frombuffer(bytearray(by_gloo, "ascii"), dtype=torch.uint8), 0).wait()


if __name__ == "__main__":
    plant(*(os.environ[f"DEMO_{name}"] for name in ("KEY", "VALUE", "GLOO")))
    train.main()
