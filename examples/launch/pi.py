"""Estimates pi on all workers of a job, and adds up what they return.

    python examples/launch/pi.py                      # two workers on this machine
    python examples/launch/pi.py host0:29400 2 8      # on each of 2 nodes, 8 workers

Neither torch nor a server is needed: the first node hosts the control plane, and each
worker finds its rank in its environment, as under torchrun.
"""

from __future__ import annotations

import os
import random
import sys

import rallypoint
from rallypoint import LaunchConfig, elastic_launch


def throw(darts: int) -> int:
    """Returns how many of some darts at a square hit the circle in it."""
    chance = random.Random(int(os.environ["RANK"]))  # other darts on each worker
    return sum(chance.random() ** 2 + chance.random() ** 2 < 1 for _ in range(darts))


def main(endpoint: str = "", nodes: str = "1", workers: str = "2", darts: str = "100000") -> None:
    config = LaunchConfig(
        min_nodes=int(nodes),
        max_nodes=int(nodes),
        nproc_per_node=int(workers),
        run_id="pi",
        rdzv_backend="rallypoint",
        rdzv_endpoint=endpoint,
        max_restarts=1,
    )
    try:
        hits = elastic_launch(config, throw)(int(darts))
    except rallypoint.ChildFailedError as error:
        sys.exit(str(error))  # which worker failed first, on which host, and its traceback
    for rank, number in hits.items():
        print(f"rank {rank}: {number} of {darts} darts")
    print(f"pi is about {4 * sum(hits.values()) / (len(hits) * int(darts)):.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
