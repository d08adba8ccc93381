"""Losses that are hard for torch's agent, or for good; test_guarantees.py has the others."""

from __future__ import annotations

from pathlib import Path

import pytest
from torchrun.harness import HERE, MACHINE, Job, NewJob

# Ranks by which a test says who is rank 0; A hosts the endpoint since it starts first.
RANKS = {"A": 2, "B": 0, "C": 1}


def start_ranked(job: Job, **ranks: int) -> None:
    """Starts nodes with these ranks, the first of which hosts the endpoint."""
    first, *others = ranks
    job.start(first, conf={"node_rank": ranks[first]})
    job.await_listening(first)
    for name in others:
        job.start(name, conf={"node_rank": ranks[name]})


# A worker that fails when the worker of the other node has gone.
FAILS_WITH_ITS_PEER = """
import os, pathlib, sys, time
folder = pathlib.Path(os.environ["RALLYPOINT_TEST_FOLDER"])
node = os.environ["RALLYPOINT_TEST_NODE"]
(folder / f"{node}.pid").write_text(f"{os.getpid()}\\n")
peer = folder / {"A": "B.pid", "B": "A.pid"}[node]
while not (peer.exists() and peer.read_text().endswith("\\n")):
    time.sleep(0.01)
command = pathlib.Path("/proc", peer.read_text().strip(), "cmdline")
try:
    while command.read_bytes():  # a zombie has none
        time.sleep(0.01)
except OSError:
    pass
sys.exit(3)
"""


def test_without_restarts_torchrun_ends_with_its_peer(new_job: NewJob, tmp_path: Path) -> None:
    """README: torchrun counts a worker that fails because another node died."""
    worker = tmp_path / "train.py"
    worker.write_text(FAILS_WITH_ITS_PEER)
    job = new_job("1:2", worker=worker, conf={"last_call_timeout": 60})
    job.start("A", "B")
    job.wait(lambda: all((job.folder / f"{name}.pid").exists() for name in "AB"), "both workers")
    job.nodes["B"].kill()
    assert job.await_end("A") == [1]
    assert "exitcode  : 3" in job.nodes["A"].output()


@pytest.mark.parametrize("lost", ["B", "A"], ids=["rank 0", "host and rank 2"])
def test_a_node_is_killed_before_ranks_are_assigned(new_job: NewJob, lost: str) -> None:
    """torch's agents wait for each other's keys after a round is complete."""
    job = new_job("2:3")
    for name in ("A", "B", "C"):
        hook = HERE / "hooks" / "die_before_ranks.py" if name == lost else None
        job.start(name, conf={"node_rank": RANKS[name]}, hook=hook)
        if name == "A":
            job.await_listening(name)
    job.nodes[lost].may_end = True
    survivors = sorted({"A", "B", "C"} - {lost})
    job.await_round(*survivors, above=1)
    assert job.nodes[lost].code == -9
    assert not job.starts(lost)
    job.finish(*survivors)


@pytest.mark.parametrize(
    ("late", "call"),
    [
        pytest.param("B", "multi_get", id="rank 0, told of itself"),
        pytest.param("C", "set", id="rank 1, at first"),
        pytest.param("B", "set", id="rank 0, at first", marks=pytest.mark.long),
        pytest.param("B", "multi_set", id="rank 0, knows all", marks=pytest.mark.long),
        pytest.param("C", "get", id="rank 1, told of itself", marks=pytest.mark.long),
    ],
)
def test_a_node_is_stopped_before_ranks_are_assigned(new_job: NewJob, late: str, call: str) -> None:
    """Its round is over when it continues; it reaches the next one and loses no restart."""
    job = new_job("2:3", conf={"lease_timeout": 2})
    job.start("A", conf={"node_rank": RANKS["A"]})
    job.await_listening("A")
    for name in ("B", "C"):
        hook = HERE / "hooks" / "stop_before_ranks.py" if name == late else None
        env = {"RALLYPOINT_TEST_STOP_AT": call} if name == late else None
        job.start(name, conf={"node_rank": RANKS[name]}, hook=hook, env=env)
    job.await_output(late, f"stops before {call}")
    second = job.await_round(*sorted({"A", "B", "C"} - {late}), above=1)  # it was lost
    assert not job.starts(late)
    job.nodes[late].thaw()
    third = job.await_round("A", "B", "C", above=second.number)
    assert third.of(late).restart == 0
    assert len(job.nodes[late].lines("round 1 is over for this node.*makeshift ranks")) == 1
    job.finish("A", "B", "C")


def test_a_replacement_is_waited_for(new_job: NewJob) -> None:
    """Fewer than the minimum are left: they say who is missing, and continue when one comes."""
    job = new_job("3")
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    assert {w.node: w.rank for w in first.workers} == RANKS
    job.nodes["C"].kill()
    for name in ("A", "B"):
        line = job.await_output(name, "2 of 3 nodes here")
        assert f"lost from round 1: {MACHINE}-" in line.partition("missing: ")[2]
    job.start("D")
    second = job.await_round("A", "B", "D", above=first.number)
    assert second.of("D").rank == RANKS["C"]
    job.finish("A", "B", "D")


def test_no_replacement_comes(new_job: NewJob) -> None:
    """The others give up after join_timeout and say whom they waited for."""
    job = new_job("2", conf={"join_timeout": 2})
    start_ranked(job, A=0, B=1)
    job.await_round("A", "B")
    job.nodes["B"].kill()
    assert job.await_end("A") == [1]
    error = job.nodes["A"].lines("RendezvousTimeoutError")[-1]
    assert "after round 1" in error
    assert f"lost from round 1: {MACHINE}-" in error
