"""What the design guarantees, as torchrun's users see it, wherever the nodes meet.

The machine has the guarantees as property tests, and a member of each backend has those of
backend/guarantees_test.go; here real nodes are killed, frozen, stopped and started in one job.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from torchrun.harness import Job, NewJob, Round

# The jobs of the tests are on one machine: without a server that sees the nodes, they
# would announce the address of an interface.
LOOPBACK = {"advertise_addr": "127.0.0.1"}


def hosted(folder: Path) -> dict[str, Any]:
    return {}


def in_a_directory(folder: Path) -> dict[str, Any]:
    return {"endpoint": f"file://{folder}", "conf": LOOPBACK}


MEETINGS = {"hosted": hosted, "file": in_a_directory}


@pytest.fixture
def meet(request: pytest.FixtureRequest, new_job: NewJob, tmp_path: Path) -> Any:
    """Makes jobs whose nodes meet in one of the backends; in a directory unless asked."""
    shared = tmp_path / "shared"
    shared.mkdir()
    options = MEETINGS[getattr(request, "param", "file")](shared)

    def new(nnodes: str, **more: Any) -> Job:
        conf = {**options.get("conf", {}), **more.pop("conf", {})}
        return new_job(nnodes, **{**options, **more, "conf": conf})

    return new


@pytest.mark.parametrize("meet", MEETINGS, indirect=True)
def test_losses_in_a_row(meet: Any) -> None:
    """Guarantees 1 to 3, 6, 7 and 10. A node is lost in each way in which torchrun can be, and
    another one comes: rank 0 with the round's store is killed, and freezes for longer than its
    lease; an agent is killed, whose worker goes on; the host leaves, and is killed."""
    job = meet("2:3", nproc=2, conf={"lease_timeout": 2})
    for name, rank in {"A": 2, "B": 0, "C": 1}.items():
        job.start(name, conf={"node_rank": rank})
        if name == "A" and not job.endpoint.startswith("file:"):
            job.await_listening(name)  # so that it hosts
    last = job.await_round("A", "B", "C")
    assert last.number == 1
    assert {w.node: w.group_rank for w in last.workers} == {"A": 2, "B": 0, "C": 1}

    def regroup(*names: str) -> Round:
        nonlocal last
        after = job.await_round(*names, above=last.number)
        assert after.master != last.master
        assert {w.restart for w in after.workers} == {0}  # a loss is no failure
        last = after
        return after

    job.nodes["B"].kill()
    second = regroup("A", "C")
    assert second.number in (2, 1001)  # nobody votes in a job's first second
    job.start("D", conf={"node_rank": 0})
    whole = regroup("A", "C", "D")
    assert {w.node: w.group_rank for w in whole.workers} == {"A": 2, "D": 0, "C": 1}

    job.nodes["D"].freeze()
    regroup("A", "C")
    job.nodes["D"].thaw()
    again = regroup("A", "C", "D")
    assert again.of("D").rank == 0

    job.nodes["C"].kill_agent()
    regroup("A", "D")
    job.await_said(again.of("C"), "still here")
    job.start("E", conf={"node_rank": 1})
    regroup("A", "D", "E")

    job.nodes["A"].signal(signal.SIGTERM)
    regroup("D", "E")
    assert job.await_end("A") != [0]
    assert not job.nodes["E"].lines("lost the control plane")
    job.start("F")
    regroup("D", "E", "F")

    host = next((n for n in "DE" if job.nodes[n].lines("hosts now")), "D")
    job.nodes[host].kill()
    left = sorted({"D", "E", "F"} - {host})
    regroup(*left)
    job.finish(*left)


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
