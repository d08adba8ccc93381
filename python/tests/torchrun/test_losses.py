"""Nodes that are lost: the others regroup and finish."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from torchrun.harness import HERE, MACHINE, Job, NewJob, Round

# Ranks by which a test says who is rank 0; A hosts the endpoint since it starts first.
RANKS = {"A": 2, "B": 0, "C": 1}


def start_ranked(job: Job, **ranks: int) -> None:
    """Starts nodes with these ranks, the first of which hosts the endpoint."""
    first, *others = ranks
    job.start(first, conf={"node_rank": ranks[first]})
    job.await_listening(first)
    for name in others:
        job.start(name, conf={"node_rank": ranks[name]})


@pytest.mark.parametrize("lost", ["B", "C", "A"], ids=["rank 0", "rank 1", "host"])
def test_a_node_is_killed(new_job: NewJob, lost: str) -> None:
    """Rank 0 has the round's store, which is lost with it."""
    job = new_job("2:3")
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    assert {w.node: w.rank for w in first.workers} == RANKS
    job.nodes[lost].kill()
    survivors = sorted({"A", "B", "C"} - {lost})
    second = job.await_round(*survivors, above=first.number)
    assert second.number in (2, 1001)  # nobody votes in a job's first second
    assert {w.restart for w in second.workers} == {0}  # a loss is no failure
    assert second.master != first.master
    job.finish(*survivors)


@pytest.mark.parametrize("lost", ["C", "A"], ids=["rank 1", "host"])
def test_only_the_agent_is_killed(new_job: NewJob, lost: str) -> None:
    """Its worker continues as an orphan, which must not keep the others waiting."""
    job = new_job("2:3")
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    job.nodes[lost].kill_agent()
    survivors = sorted({"A", "B", "C"} - {lost})
    job.await_round(*survivors, above=first.number)
    job.await_said(first.of(lost), "still here")
    job.finish(*survivors)


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


@pytest.mark.parametrize("lost", ["B", "C", "A"], ids=["rank 0", "rank 1", "host"])
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


def test_a_node_is_killed_while_others_wait_at_the_exit(new_job: NewJob) -> None:
    """No node waits the 300 s of torch's exit barrier; those that finished end well."""
    job = new_job("2:3")
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    for name in ("A", "B"):
        job.tell(first.of(name), "finish")
        job.await_output(name, "other agents to finish")
    job.nodes["C"].kill()
    assert job.await_end("A", "B") == [0, 0]
    assert len(job.starts()) == 3


@pytest.mark.parametrize(
    "frozen", ["B", pytest.param("C", marks=pytest.mark.long)], ids=["rank 0", "rank 1"]
)
def test_a_frozen_node_comes_back(new_job: NewJob, frozen: str) -> None:
    """Beyond its lease it is lost; when it continues, it rejoins.

    Rank 0 then still holds the store of a round that the others have left.
    """
    job = new_job("2:3", conf={"lease_timeout": 2})
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    job.nodes[frozen].freeze()
    second = job.await_round(*sorted({"A", "B", "C"} - {frozen}), above=first.number)
    job.nodes[frozen].thaw()
    third = job.await_round("A", "B", "C", above=second.number)
    assert len({first.master, second.master, third.master}) == 3
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
    """The others continue under another host; the one that comes to the endpoint joins them."""
    job = new_job("2:3", conf={"lease_timeout": 3})
    start_ranked(job, A=0, B=1, C=2)
    first = job.await_round("A", "B", "C")
    job.nodes["C"].kill()
    second = job.await_round("A", "B", above=first.number)
    job.start("D")
    third = job.await_round("A", "B", "D", above=second.number)
    kill_host(job, third, "A")
    fourth = job.await_round("B", "D", above=third.number)
    job.start("E")
    job.await_round("B", "D", "E", above=fourth.number)
    job.finish("B", "D", "E")
    for name in ("B", "D"):
        assert len(job.nodes[name].lines("reached the control plane")) == 1


def test_the_host_comes_back_and_another_node_does_not(new_job: NewJob) -> None:
    """The host and another node die: the last one hosts, and continues with the one that comes."""
    job = new_job("2:3", conf={"lease_timeout": 3})
    start_ranked(job, A=0, B=1, C=2)
    first = job.await_round("A", "B", "C")
    kill_host(job, first, "A")
    job.nodes["C"].kill()
    job.await_end("C")
    job.start("E")
    job.await_round("B", "E", above=first.number)
    job.finish("B", "E")


def test_the_host_is_terminated(new_job: NewJob) -> None:
    """It hands the control plane on before it goes: the others never miss one."""
    job = new_job("2:3")
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    job.nodes["A"].signal(signal.SIGTERM)
    second = job.await_round("B", "C", above=first.number)
    job.await_end("A")
    assert {w.restart for w in second.workers} == {0}
    job.finish("B", "C")
    for name in ("B", "C"):
        assert not job.nodes[name].lines("lost the control plane")


def kill_host(job: Job, last: Round, name: str) -> None:
    """Kills the node that hosts the endpoint; the others notice."""
    job.nodes[name].kill()
    job.await_end(name)
    for worker in last.workers:
        if worker.node != name:
            job.await_output(worker.node, "lost the control plane")
            assert len(job.nodes[worker.node].lines("lost the control plane")) == 1


def test_a_frozen_host_costs_nothing(new_job: NewJob) -> None:
    """While it hung it could hear of no other node, so none is lost. Where nodes vote, the others
    elect another host, and lose this one for its silence.
    """
    job = new_job("2:3", conf={"lease_timeout": 2, "quorum": 0})
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    job.nodes["A"].freeze()
    job.pass_time(3)
    job.nodes["A"].thaw()
    job.await_output("A", "this process was stopped")
    job.pass_time(1)
    for worker in first.workers:
        job.await_said(worker, "after the freeze")
    job.finish("A", "B", "C")
    assert set(job.starts()) == set(first.workers)


def test_a_replacement_is_waited_for(new_job: NewJob) -> None:
    """Fewer than the minimum are left: they say who is missing, and continue when one comes."""
    job = new_job("3")
    start_ranked(job, **RANKS)
    first = job.await_round("A", "B", "C")
    lost = job.nodes["C"]
    lost.kill()
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
    lost = job.nodes["B"]
    lost.kill()
    assert job.await_end("A") == [1]
    error = job.nodes["A"].lines("RendezvousTimeoutError")[-1]
    assert "after round 1" in error
    assert f"lost from round 1: {MACHINE}-" in error
