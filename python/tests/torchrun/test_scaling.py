"""Jobs that grow and shrink."""

from __future__ import annotations

import signal

import pytest
from torchrun.harness import HERE, Job, NewJob, Round


@pytest.mark.long
def test_grow_shrink_grow(new_job: NewJob) -> None:
    """Two nodes, a third, one leaves on SIGTERM, another comes; the workers talk to each other over
    gloo in every round."""
    job = new_job(
        "2:3",
        conf={"target": 2},
        worker=HERE / "workers" / "allreduce.py",
        env={"GLOO_SOCKET_IFNAME": "lo"},
    )
    rounds = scale(job)
    assert {w.restart for w in job.starts()} == {0}
    for done in rounds:
        pids = {w.pid for w in done.workers}
        sums = [e["sum"] for e in job.events("sum") if e["pid"] in pids]
        assert sums == [len(done.workers)] * len(done.workers)


def scale(job: Job) -> list[Round]:
    """2 -> 3 -> 2 -> 3 nodes, then the end. Returns the rounds."""
    job.start("A")
    job.await_listening("A")
    job.start("B")
    rounds = [job.await_round("A", "B")]
    job.start("C")
    rounds.append(job.await_round("A", "B", "C", above=rounds[-1].number))
    job.nodes["B"].signal(signal.SIGTERM)
    rounds.append(job.await_round("A", "C", above=rounds[-1].number))
    (code,) = job.await_end("B")
    assert code != 0
    job.start("D")
    rounds.append(job.await_round("A", "C", "D", above=rounds[-1].number))
    assert [r.number for r in rounds] == [1, 2, 3, 4]
    for before, after in zip(rounds, rounds[1:]):
        assert after.of("A").rank == before.of("A").rank
    # The store is a new one in each round: nothing old is in it.
    assert len({r.master for r in rounds}) == 4
    job.finish("A", "C", "D")
    return rounds
