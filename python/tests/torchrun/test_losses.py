"""Nodes that are lost: the others regroup and finish."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torchrun.harness import COMMAND, HERE, Job, NewJob

# Ranks by which a test says who is rank 0; A hosts the endpoint since it starts first.
RANKS = {"A": 2, "B": 0, "C": 1}


def start_ranked(job: Job, **ranks: int) -> None:
    """Starts nodes with these ranks, the first of which hosts the endpoint."""
    first, *others = ranks
    job.start(first, conf={"node_rank": ranks[first]})
    job.await_listening(first)
    for name in others:
        job.start(name, conf={"node_rank": ranks[name]})


@pytest.mark.parametrize("lost", ["B", "C"], ids=["rank 0", "rank 1"])
def test_a_node_is_killed(new_job: NewJob, lost: str) -> None:
    """Rank 0 has the round's store, which is lost with it."""
    job = new_job("2:3")
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    assert {w.node: w.rank for w in first.workers} == RANKS
    job.nodes[lost].kill()
    survivors = sorted({"A", "B", "C"} - {lost})
    second = job.await_round(*survivors, above=first.number)
    assert second.number == 2
    assert {w.restart for w in second.workers} == {0}  # a loss is no failure
    assert second.master != first.master
    job.finish(*survivors)


def test_only_the_agent_is_killed(new_job: NewJob) -> None:
    """Its worker goes on as an orphan, which must not keep the others waiting."""
    job = new_job("2:3")
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    job.nodes["C"].kill_agent()
    job.await_round("A", "B", above=first.number)
    job.await_said(first.of("C"), "still here")
    job.finish("A", "B")


@pytest.mark.parametrize("lost", ["B", "C"], ids=["rank 0", "rank 1"])
def test_a_node_is_killed_before_ranks_are_assigned(new_job: NewJob, lost: str) -> None:
    """torch's agents wait for each other's keys after a round is complete."""
    job = new_job("2:3")
    job.start("A", conf={"node_rank": RANKS["A"]})
    job.await_listening("A")
    for name in ("B", "C"):
        hook = HERE / "hooks" / "die_before_ranks.py" if name == lost else None
        job.start(name, conf={"node_rank": RANKS[name]}, hook=hook)
    job.nodes[lost].may_end = True
    survivors = sorted({"A", "B", "C"} - {lost})
    job.await_round(*survivors, above=1)
    assert job.nodes[lost].code == -9
    assert not job.starts(lost)
    job.finish(*survivors)


def test_a_node_is_killed_while_others_wait_at_the_exit(new_job: NewJob) -> None:
    """Nobody waits the 300 s of torch's exit barrier; who finished ends well."""
    job = new_job("2:3")
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    for name in ("A", "B"):
        job.tell(first.of(name), "finish")
        job.await_output(name, "other agents to finish")
    job.nodes["C"].kill()
    assert job.await_end("A", "B") == [0, 0]
    assert len(job.starts()) == 3


def test_a_frozen_node_comes_back(new_job: NewJob) -> None:
    """Beyond its lease it is lost; when it goes on, it rejoins."""
    job = new_job("2:3", conf={"lease_timeout": 2})
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    job.nodes["C"].freeze()
    second = job.await_round("A", "B", above=first.number)
    job.nodes["C"].thaw()
    job.await_round("A", "B", "C", above=second.number)
    job.finish("A", "B", "C")


def test_the_frozen_node_is_rank_0(new_job: NewJob) -> None:
    """The node that comes back holds the store of a round that the others have left."""
    job = new_job("2:3", conf={"lease_timeout": 2})
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    job.nodes["B"].freeze()
    second = job.await_round("A", "C", above=first.number)
    job.nodes["B"].thaw()
    third = job.await_round("A", "B", "C", above=second.number)
    assert third.master != first.master
    job.finish("A", "B", "C")


def test_a_spare_fills_the_hole(new_job: NewJob) -> None:
    """Five nodes, four places: the fifth waits quietly until one of the four is killed."""
    job = new_job("2:4")
    job.start("A")
    job.await_listening("A")
    job.start("B", "C", "D")
    first = job.await_round("A", "B", "C", "D")
    job.start("E")
    job.await_output("E", r"round 1 runs with 4 of 4 nodes.*spare")
    for worker in first.workers:
        job.await_said(worker, "undisturbed")
    assert set(job.starts()) == set(first.workers)
    job.nodes["D"].kill()
    second = job.await_round("A", "B", "C", "E", above=first.number)
    # Who stays keeps its rank; the newcomer gets the hole.
    for name in ("A", "B", "C"):
        assert second.of(name).rank == first.of(name).rank
    assert second.of("E").rank == first.of("D").rank
    job.finish("A", "B", "C", "E")


def test_the_host_is_killed_and_started_again(new_job: NewJob) -> None:
    """The endpoint comes back on its port: the others return, and rounds go on above."""
    job = new_job("2:3", conf={"lease_timeout": 3})
    start_ranked(job, A=0, B=1, C=2)
    first = job.await_round("A", "B", "C")
    job.nodes["C"].kill()
    second = job.await_round("A", "B", above=first.number)
    job.start("D")
    third = job.await_round("A", "B", "D", above=second.number)
    job.nodes["A"].kill()
    job.await_end("A")
    for name in ("B", "D"):  # they run on without a control plane
        job.await_output(name, "lost the control plane")
        job.await_said(third.of(name), "without a control plane")
    job.start("E")
    job.await_round("B", "D", "E", above=third.number)
    job.finish("B", "D", "E")


@pytest.fixture
def served(new_job: NewJob) -> Iterator[Job]:
    """A job whose endpoint none of its nodes hosts: `rallypoint serve`."""
    job = new_job("1:3")
    job.launch("serve", [*COMMAND, "serve", f"--listen=127.0.0.1:{job.port}"])
    try:
        job.await_listening("serve")
    except AssertionError:
        if job.nodes["serve"].lines("not implemented|unknown command"):
            pytest.skip("this library has no `serve` yet")
        raise
    yield job


def test_any_node_is_killed_with_an_external_host(served: Job) -> None:
    """Whoever is killed, whatever it was: those that are left go on, down to one."""
    job = served
    job.start("A", "B", "C")
    before = job.await_round("A", "B", "C")
    left = ["A", "B", "C"]
    while len(left) > 1:
        job.nodes[before.workers[0].node].kill()
        left.remove(before.workers[0].node)
        before = job.await_round(*left, above=before.number)
    job.finish(*left)
