"""A worker dies; the others go on, and end with one state."""

from __future__ import annotations

import pytest
from survive.harness import EXAMPLE, WORKER, Job, job

SIZE = 3


def started(j: Job, faults: dict[int, str], size: int = SIZE) -> None:
    for i in range(size):
        j.start(FAULT=faults.get(i, ""))


def test_the_example_without_a_loss() -> None:
    with job(SIZE, EXAMPLE, "--steps", "20") as j:
        started(j, {})
        j.survivors_end()
        for worker in j.workers:
            assert [step for _, step in worker.steps] == list(range(20))


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_is_killed(rank: int) -> None:
    with job(SIZE, EXAMPLE, "--steps", "200") as j:
        started(j, {})
        for worker in j.workers:
            worker.until(r"step 20\b")
        (victim,) = [w for w in j.workers if w.rank == rank]
        victim.kill()
        j.survivors_end(victim)
        for worker in j.workers:
            if worker is not victim:
                missed = set(range(200)) - {step for _, step in worker.steps}
                assert len(missed) <= 1, worker.text()  # it was behind, and had the state


@pytest.mark.parametrize("where", ["forward", "backward", "optimizer", "after"])
def test_a_worker_dies_within_a_step(where: str) -> None:
    with job(SIZE, WORKER, "--steps", "40") as j:
        started(j, {1: f"{where}:10"})
        j.workers[1].end()
        j.survivors_end(j.workers[1])


def test_two_die_at_once() -> None:
    with job(SIZE, WORKER, "--steps", "40") as j:
        started(j, {0: "backward:10", 2: "backward:10"})
        j.survivors_end(j.workers[0], j.workers[2])


def test_one_after_the_other() -> None:
    with job(SIZE, WORKER, "--steps", "40") as j:
        started(j, {0: "backward:10", 2: "optimizer:11"})
        j.survivors_end(j.workers[0], j.workers[2])


def test_one_that_is_behind_has_the_state_of_another() -> None:
    with job(SIZE, WORKER, "--steps", "40") as j:
        started(j, {1: "cut:10"})
        j.survivors_end()
        steps = [step for _, step in j.workers[1].steps]
        assert steps == [s for s in range(40) if s != 10]


@pytest.mark.parametrize("where", ["enter", "connected"])
def test_a_second_one_dies_while_the_others_recover(where: str) -> None:
    with job(4, WORKER, "--steps", "40") as j:
        started(j, {1: "backward:10", 2: f"{where}:9"}, 4)
        j.survivors_end(j.workers[1], j.workers[2])


def test_the_one_that_sends_its_state_dies() -> None:
    with job(4, WORKER, "--steps", "40") as j:
        started(j, {i: "cut:10" if i == 3 else "send:9" for i in range(4)}, 4)
        sources = [w for w in j.workers[:3] if w.end() != 0]
        assert sources
        j.survivors_end(*sources)
