"""A worker that uses what opens connections of its own, and reports like worker.py.

torch's RPC, and an asynchronous checkpoint by a process of its own, which opens a second store
at rank 0 unless DCP_USE_PREFIX_STORE is set.
"""

import os
import sys
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed import rpc
from worker import FOLDER, emit, emit_start, obey

RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])
# Older ones do not know the variable.
CHECKPOINTS = tuple(int(part) for part in torch.__version__.split(".")[:2]) >= (2, 10)


def answer(number: int) -> tuple[int, int]:
    return RANK, number


def ask() -> list[tuple[int, int]]:
    """What each rank answers by RPC."""
    rpc.init_rpc(f"rank{RANK}", rank=RANK, world_size=WORLD)
    answers = [rpc.rpc_sync(f"rank{to}", answer, (10 * RANK + to,)) for to in range(WORLD)]
    rpc.shutdown()
    return answers


def save() -> float:
    """What the checkpoint of all ranks holds of the next rank."""
    from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

    dist.init_process_group("gloo", timeout=timedelta(seconds=120))
    folder = Path(FOLDER) / "checkpoint"
    saved = dcp.async_save(
        {f"weight{RANK}": torch.full((4,), float(RANK))},
        checkpoint_id=folder,
        async_checkpointer_type=AsyncCheckpointerType.PROCESS,
    )
    saved.result()
    dist.barrier()
    other = (RANK + 1) % WORLD
    state = {f"weight{other}": torch.empty(4)}
    dcp.load(state, checkpoint_id=folder)
    dist.barrier()
    return float(state[f"weight{other}"][0])


def main() -> int:
    answers = ask()
    emit("asked")
    emit("libraries", answers=answers, loaded=save() if CHECKPOINTS else None)
    emit_start()
    return obey()


if __name__ == "__main__":  # the process of the checkpoint imports this file
    sys.exit(main())
