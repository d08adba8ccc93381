"""Workers die at random moments, again and again."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from pathlib import Path

import pytest
from survive.harness import endless, job, standalone

KILLS = int(os.environ.get("SURVIVE_KILLS", 200))
SIZE = 3


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


@pytest.mark.long
@pytest.mark.timeout(3600)
def test_two_hundred_kills(tmp_path: Path) -> None:
    """The job ends with one state, and no step is lost: somebody made each of them.

    Those that start, connect or receive die, too. One lives that has the state.
    """
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    chance = random.Random(seed)
    over = tmp_path / "over"
    kills = 0
    with job(*standalone(SIZE, KILLS), *endless(tmp_path), "--pause", 0.002) as j:
        while kills < KILLS:
            j.until(f"step .* of {SIZE}$", SIZE, since=len(j.lines))
            keeper = chance.choice([pid for pid in list(j.workers) if lives(pid)])
            for _ in range(min(chance.choice((1, 1, 2, 6)), KILLS - kills)):
                time.sleep(chance.choice((0, chance.uniform(0, 0.3))))
                others = [pid for pid in list(j.begun) if pid != keeper and lives(pid)]
                for pid in chance.sample(others, min(1, len(others))):
                    os.kill(pid, signal.SIGKILL)
                    kills += 1
        j.until(f"step .* of {SIZE}$", SIZE, since=len(j.lines))
        over.touch()
        workers = j.ends(SIZE)
        assert "Connect timeout" not in "\n".join(j.lines)  # of gloo, whose waits are ended before
        steps = {step for w in workers for step in w.numbers}
        assert steps == set(range(max(steps) + 1))
        for w in workers:
            assert w.numbers == sorted(set(w.numbers)), w.pid
