"""What the design guarantees, as torchrun's users see it, wherever the nodes meet.

The machine and its drivers have the same guarantees as property tests; here real nodes
are killed, frozen and started in real jobs, over each backend. test_losses.py and others
continue from here for the hosted control plane.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from torchrun.harness import Job, NewJob

# The jobs of the tests are on one machine: without a server that sees the nodes, they
# would announce the address of an interface.
LOOPBACK = {"advertise_addr": "127.0.0.1"}


def in_a_directory(folder: Path) -> dict[str, Any]:
    return {"endpoint": f"file://{folder}", "conf": LOOPBACK}


MEETINGS = {"file": in_a_directory}


@pytest.fixture(params=MEETINGS)
def meet(request: pytest.FixtureRequest, new_job: NewJob, tmp_path: Path) -> Any:
    """Makes jobs whose nodes meet in one of the backends."""
    shared = tmp_path / "shared"
    shared.mkdir()
    options = MEETINGS[request.param](shared)

    def new(nnodes: str, **more: Any) -> Job:
        conf = {**options.get("conf", {}), **more.pop("conf", {})}
        return new_job(nnodes, **{**options, **more, "conf": conf})

    return new


def test_ranks_and_master_are_one_for_all(meet: Any) -> None:
    """Guarantees 1 to 3; and 10: the ranks that were asked for."""
    job = meet("3", nproc=2)
    for name, rank in {"A": 2, "B": 0, "C": 1}.items():
        job.start(name, conf={"node_rank": rank})
    first = job.await_round("A", "B", "C")
    assert first.number == 1
    assert {w.node: w.group_rank for w in first.workers} == {"A": 2, "B": 0, "C": 1}
    job.finish("A", "B", "C")


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_any_node_is_killed(meet: Any, rank: int) -> None:
    """Guarantees 6 and 7, whichever node it is: rank 0 has the round's store."""
    job = meet("2:3")
    job.start("A", "B", "C")
    first = job.await_round("A", "B", "C")
    lost = first.workers[rank].node
    job.nodes[lost].kill()
    left = sorted({"A", "B", "C"} - {lost})
    second = job.await_round(*left, above=first.number)
    # In a job's first second nobody votes, and a host that nobody elected leaves a gap.
    assert second.number in (2, 1001)
    assert second.master != first.master
    assert {w.restart for w in second.workers} == {0}
    job.start("D")
    third = job.await_round(*left, "D", above=second.number)
    for name in left:  # guarantee 10: a node that stays keeps its rank
        assert third.of(name).rank == second.of(name).rank
    job.finish(*left, "D")


def test_a_frozen_node_comes_back(meet: Any) -> None:
    """Its lease ends; when it continues, it learns that and rejoins."""
    job = meet("2:3", conf={"lease_timeout": 2})
    job.start("A", "B", "C")
    first = job.await_round("A", "B", "C")
    job.nodes["B"].freeze()
    second = job.await_round("A", "C", above=first.number)
    job.nodes["B"].thaw()
    third = job.await_round("A", "B", "C", above=second.number)
    assert len({first.master, second.master, third.master}) == 3
    job.finish("A", "B", "C")


def test_a_spare_fills_the_hole(meet: Any) -> None:
    """Guarantee 4: a node that does not fit in waits and disturbs no other."""
    job = meet("2:2")
    job.start("A", "B")
    first = job.await_round("A", "B")
    job.start("C")
    job.await_output("C", r"round 1 runs with 2 of 2 nodes.*spare")
    for worker in first.workers:
        job.await_said(worker, "undisturbed")
    job.nodes["B"].kill()
    second = job.await_round("A", "C", above=first.number)
    assert second.of("C").rank == first.of("B").rank
    job.finish("A", "C")


def test_who_finished_waits_for_nobody_that_is_dead(meet: Any) -> None:
    """Guarantee 8: the exit barrier returns when every live member has finished."""
    job = meet("2:3")
    job.start("A", "B", "C")
    first = job.await_round("A", "B", "C")
    for name in ("A", "B"):
        job.tell(first.of(name), "finish")
        job.await_output(name, "other agents to finish")
    job.nodes["C"].kill()
    assert job.await_end("A", "B") == [0, 0]
    assert len(job.starts()) == 3


def test_a_failure_ends_all(meet: Any) -> None:
    """Guarantee 9: a failed member closes the run, and says why."""
    job = meet("2")
    job.start("A", "B")
    first = job.await_round("A", "B")
    job.tell(first.of("A"), "fail 7")
    codes = job.await_end("A", "B")
    assert all(codes)
    assert job.nodes["B"].lines("exit code 7|exitcode: 7|failed")


def test_a_failed_worker_is_restarted_everywhere(meet: Any) -> None:
    job = meet("2", max_restarts=1)
    job.start("A", "B")
    first = job.await_round("A", "B")
    job.tell(first.of("A"), "fail 7")
    second = job.await_round("A", "B", above=first.number)
    assert second.number == 2
    job.finish("A", "B")


def test_the_same_job_again(meet: Any, tmp_path: Path) -> None:
    """A job whose nodes were all killed continues with the next round's number. Nothing is left
    of one that ended."""
    job = meet("2", conf={"closed_for": 0})  # else the last node leaves a note of the end
    job.start("A", "B")
    job.await_round("A", "B")
    job.nodes["A"].kill()
    job.nodes["B"].kill()
    job.await_end("A", "B")
    job.start("C", "D")
    job.wait(lambda: len(job.starts()) == 4, "the second run's workers")
    assert {(w.round, w.world_size) for w in job.starts("C") + job.starts("D")} == {(2, 2)}
    job.tell_all("finish")
    assert job.await_end("C", "D") == [0, 0]
    assert not list((tmp_path / "shared").iterdir())


def test_a_missing_node_is_named(meet: Any) -> None:
    """Guarantee 11: who is here, who is missing, how long it was tried, where."""
    job = meet("2", conf={"join_timeout": 2, "node_rank": 1})
    job.start("A")
    assert job.await_end("A") == [1]
    said = "\n".join(job.nodes["A"].lines("timed out"))
    assert re.search(r"\d[\d.]* s of 2 s", said)
    for what in ("1 of 2 nodes here", "missing: node ranks 0", job.endpoint):
        assert what in said
