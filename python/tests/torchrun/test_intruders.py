"""Nodes that come to a healthy job in vain: none of its nodes may notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torchrun.harness import Job, NewJob, Round

# So long that it does not pass while the tests run: no node is ever let in.
NEVER = 600


@pytest.fixture(scope="module")
def healthy(new_module_job: NewJob) -> Iterator[Job]:
    """Two nodes of --nnodes=2:3 that run. In the end they must have run undisturbed."""
    job = new_module_job("2:3", conf={"target": 2, "admit_delay": NEVER})
    job.start("A", "B")
    first = job.await_round("A", "B")
    yield job
    assert_undisturbed(job, first)
    job.finish("A", "B")
    assert [w.restart for w in job.starts()] == [0, 0]
    assert len(job.starts()) == 2


def assert_undisturbed(job: Job, first: Round) -> None:
    """The workers are those of the first round, and they live."""
    assert set(job.starts()) == set(first.workers)
    for worker in first.workers:
        job.await_said(worker, f"after {', '.join(job.nodes)}")


def test_other_settings(healthy: Job) -> None:
    """Refused, and told what it and the run were given."""
    first = healthy.await_round("A", "B")
    healthy.start("other-nnodes", nnodes="2:4")
    (code,) = healthy.await_end("other-nnodes")
    assert code != 0
    error = healthy.nodes["other-nnodes"].lines(r"Error\b.*nnodes")[-1]
    assert "nnodes=2:4" in error
    assert "nnodes=2:3" in error
    assert_undisturbed(healthy, first)


def test_another_run(healthy: Job) -> None:
    """The port belongs to one run: another run id is refused, naming the run and its process."""
    first = healthy.await_round("A", "B")
    healthy.start("other-run", run_id="another")
    (code,) = healthy.await_end("other-run")
    assert code != 0
    error = healthy.nodes["other-run"].lines(r"Error\b.*another")[-1]
    assert '"job"' in error
    host = next(n for n in ("A", "B") if healthy.nodes[n].listens_on(healthy.port))
    assert f"pid {healthy.nodes[host].pid}" in error
    assert_undisturbed(healthy, first)


def test_late_and_impatient(healthy: Job) -> None:
    """A newcomer whose join_timeout passes before it is let in."""
    first = healthy.await_round("A", "B")
    healthy.start("impatient", conf={"join_timeout": 2})
    (code,) = healthy.await_end("impatient")
    assert code != 0
    error = healthy.nodes["impatient"].lines("RendezvousTimeoutError")[-1]
    assert "round 1 runs with 2 of 3 nodes" in error
    assert_undisturbed(healthy, first)


def test_interrupted_while_it_waits(healthy: Job) -> None:
    """Ctrl-C on a node that waits to be let in."""
    first = healthy.await_round("A", "B")
    healthy.start("interrupted")
    healthy.await_output("interrupted", "round 1 runs with 2 of 3 nodes")
    healthy.nodes["interrupted"].interrupt()
    (code,) = healthy.await_end("interrupted")
    assert code != 0
    assert_undisturbed(healthy, first)


def test_killed_while_it_waits(healthy: Job) -> None:
    first = healthy.await_round("A", "B")
    healthy.start("killed")
    healthy.await_output("killed", "round 1 runs with 2 of 3 nodes")
    healthy.nodes["killed"].kill()
    healthy.await_end("killed")
    assert_undisturbed(healthy, first)


def test_spares(new_job: NewJob) -> None:
    """Three nodes too many wait quietly: one is interrupted, one takes the place of a node that is
    killed, and the last one ends well with the job."""
    job = new_job("2")
    job.start("A", "B")
    first = job.await_round("A", "B")
    for name in ("C", "D", "E"):  # in this order
        job.start(name)
        job.await_output(
            name, r"this node runs nothing, since it is a spare: round 1 runs with 2 of 2"
        )
        job.await_output(name, r"round 1 runs with 2 of 2 nodes, .*no limit.*spare")
    job.nodes["C"].interrupt()
    (code,) = job.await_end("C")
    assert code != 0
    assert_undisturbed(job, first)
    job.nodes["B"].kill()
    second = job.await_round("A", "D", above=first.number)
    assert second.of("A").rank == first.of("A").rank  # the newcomer gets the hole
    job.finish("A", "D", "E")
    assert not job.starts("C") and not job.starts("E")
    assert job.nodes["E"].lines(
        "this node was not needed, and no worker ran on it: .*without needing"
    )
    assert not job.nodes["E"].lines("Traceback")
