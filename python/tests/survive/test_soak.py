"""Workers die at random moments, again and again."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import time
from pathlib import Path

import pytest
from survive.harness import SHARDED, WORKER, Job, endless, job, standalone

KILLS = int(os.environ.get("SURVIVE_KILLS", 200))


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def shards(j: Job) -> dict[str, list[int]]:
    """The workers that live and have made a step, by the shard that they have."""
    of = dict(re.findall(r"pid (\d+) has shard (\d)", "\n".join(j.lines)))
    by_shard: dict[str, list[int]] = {}
    for pid in filter(lives, list(j.workers)):
        by_shard.setdefault(of.get(str(pid), ""), []).append(pid)
    return by_shard


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize(("script", "size"), [(WORKER, 3), (SHARDED, 4)], ids=["DDP", "HSDP"])
def test_two_hundred_kills(tmp_path: Path, script: Path, size: int) -> None:
    """The job ends with one state, and no step is lost: somebody made each of them.

    Those that start, connect or receive die, too, and with HSDP some between the reductions of a
    step's gradients. One lives that has the state, or each shard.
    """
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    over = tmp_path / "over"
    kills, doomed = 0, set()
    kinds = (signal.SIGKILL, signal.SIGUSR1) if script is SHARDED else (signal.SIGKILL,)
    with job(*standalone(size, KILLS), *endless(tmp_path, script), "--pause", 0.002) as j:
        while kills < KILLS:
            j.until(f"step .* of {size}$", size, since=len(j.lines))
            lasting = [[p for p in pids if p not in doomed] for pids in shards(j).values()]
            if not all(lasting):
                continue
            keepers = [chance.choice(pids) for pids in lasting]
            for _ in range(min(chance.choice((1, 1, 2, 6)), KILLS - kills)):
                time.sleep(chance.choice((0, chance.uniform(0, 0.3))))
                others = [pid for pid in list(j.begun) if pid not in keepers and lives(pid)]
                for pid in chance.sample(others, min(1, len(others))):
                    os.kill(pid, chance.choice(kinds))
                    doomed.add(pid)
                    kills += 1
        j.until(f"step .* of {size}$", size, since=len(j.lines))
        over.touch()
        workers = j.ends(size)
        assert "Connect timeout" not in "\n".join(j.lines)  # of gloo, whose waits are ended before
        steps = {step for w in workers for step in w.numbers}
        assert steps == set(range(max(steps) + 1))
        for w in workers:
            assert w.numbers == sorted(set(w.numbers)), w.pid
