"""A job whose steps use operations of torch that DDP does not, and check what they give.

FAULTS as in worker.py, at "WHERE:STEP", where WHERE is the operation that the others then wait in.
--own-group makes a process group beside torch's default one, "before" the steps or "in" the first.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import torch
import torch.distributed as dist
from worker import die, example

from rallypoint import survive


def main() -> None:
    train = example()
    say = train.say
    say(f"begins as pid {os.getpid()}")
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--own-group", choices=["before", "in"])
    args = parser.parse_args()
    start = f"{os.environ['TORCHELASTIC_RESTART_COUNT']}.{os.environ['RANK']}"
    where, _, at = json.loads(os.environ["FAULTS"]).get(start, "").partition(":")

    survive.init_process_group("gloo")
    own = dist.new_group() if args.own_group == "before" else None
    values = {"sum": 0}
    run = survive.Run(values=values, wait_for_all=True)
    for step in run.steps(args.steps):
        with run.attempt():
            rank, size = run.rank, run.size

            def dies(place: str, step: int = step) -> None:
                if place == where and step == int(at):
                    die()

            if args.own_group == "in" and own is None:
                own = dist.new_group(list(range(size)))
            mine = torch.tensor([float(rank + step)])
            dies("ring")
            left, right = (rank - 1) % size, (rank + 1) % size
            theirs = torch.zeros(1)
            ring = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, theirs, left)]
            for work in dist.batch_isend_irecv(ring) if size > 1 else []:
                work.wait()
            assert size == 1 or theirs.item() == left + step
            dies("objects")
            said: list[object] = [None] * size
            dist.all_gather_object(said, {"rank": rank, "step": step})
            assert said == [{"rank": r, "step": step} for r in range(size)]
            first: list[object] = [f"of {step}" if rank == 0 else None]
            dist.broadcast_object_list(first, 0)
            assert first == [f"of {step}"]
            dies("scatter")
            part = torch.zeros(2)
            dist.reduce_scatter_tensor(part, torch.full((2 * size,), float(step)))
            assert part.tolist() == [step * size] * 2
            dies("all_to_all")
            parts = torch.zeros(size)
            dist.all_to_all_single(parts, torch.full((size,), float(rank)))
            assert parts.tolist() == [float(r) for r in range(size)]
            dies("pieces")
            pieces = [torch.full((3,), 1.0), torch.full((5,), 2.0)]
            with dist._coalescing_manager():
                for piece in pieces:
                    dist.all_reduce(piece)
            assert [p[0].item() for p in pieces] == [size, 2 * size]
            dies("own")
            if own is not None:
                dist.all_reduce(mine, group=own)
            dies("barrier")
            dist.monitored_barrier()
            values["sum"] += step
            say(f"rank {rank} pid {os.getpid()} step {step} of {size}")
    assert values["sum"] == sum(range(args.steps)), values
    say(f"hash {train.fingerprint(values)}")
    # The thread of gloo that has done this is still in Python when the interpreter ends.
    last = dist.all_reduce(torch.ones(1), async_op=True)
    assert last is not None
    last.get_future().add_done_callback(lambda _: time.sleep(0.3))
    last.wait()


if __name__ == "__main__":
    main()
