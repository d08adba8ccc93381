"""A worker that uses its stores in the ways that scripts do, and reports like worker.py.

new_group and objects over gloo, a value of 1 MiB, a second client of the round's store, and, where
the environment asks for them, a store of rank 0's own at each of the ports MASTER_PORT+1 to +3, and
DDP, which takes as long to import as the rest of torch.
"""

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from worker import emit, emit_start, obey

MARKER = "planted-marker-of-the-round-store"
LIMIT = timedelta(seconds=40)

address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
secret = [name for name, value in os.environ.items() if "TOKEN" in name or "key" in value]

second = dist.TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=LIMIT)
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
second.set(f"{MARKER}-{rank}", MARKER)
for other in range(world):
    assert second.get(f"{MARKER}-{other}") == MARKER.encode()
second.set("large", b"x" * (1 << 20))
assert len(second.get("large")) == 1 << 20

emit("used")
kept = []  # rank 0's exist until it ends
for side in range(int(os.environ.get("RALLYPOINT_TEST_SIDES", "0"))):
    own = dist.TCPStore(
        address, port + 1 + side, is_master=rank == 0, wait_for_workers=False, timeout=LIMIT
    )
    own.add(MARKER, 1)
    while own.add(MARKER, 0) < world:
        pass
    kept.append(own)

dist.init_process_group("gloo")
emit("grouped")
if os.environ.get("RALLYPOINT_TEST_DDP"):
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1))
    for _ in range(3):
        model(torch.ones(2, 4)).sum().backward()
gathered: list[object] = [None] * world
dist.all_gather_object(gathered, rank)
dist.barrier(dist.new_group(list(range(world)), backend="gloo"))
emit(
    "stores",
    gathered=gathered,
    address=address,
    advertised=os.environ["RALLYPOINT_MASTER_ADDR"],
    secret=secret,
    sides=len(kept),
    dcp=os.environ.get("DCP_USE_PREFIX_STORE"),
)
emit_start()
code = obey()
dist.destroy_process_group()
sys.exit(code)
