"""Workers that fail: restarts, and ends that every node hears of."""

from __future__ import annotations

from torchrun.harness import MACHINE, Job, NewJob


def test_a_worker_fails_and_all_restart(new_job: NewJob) -> None:
    """A restart is used up only where the worker failed. Ranks stay."""
    job = new_job("3", max_restarts=1)
    job.start("A", "B", "C")
    first = job.await_round("A", "B", "C")
    failed = first.workers[1]
    job.tell(failed, "fail 7")
    second = job.await_round("A", "B", "C", above=first.number)
    assert second.number == 2
    assert [w.restart for w in second.workers] == [0, 1, 0]
    assert [w.node for w in second.workers] == [w.node for w in first.workers]
    job.finish("A", "B", "C")


def test_workers_of_two_nodes_fail(new_job: NewJob) -> None:
    """At the same time, and once more; the third node has nothing to do with it."""
    job = new_job("3", max_restarts=2, nproc=2)
    job.start("A", "B", "C")
    last = job.await_round("A", "B", "C")
    for _ in range(2):
        for name in ("A", "B"):
            job.tell(last.of(name), "fail 7")
        last = job.await_round("A", "B", "C", above=last.number)
    assert {w.restart for w in last.workers if w.node == "C"} == {0}
    job.finish("A", "B", "C")


def test_a_worker_fails_for_good(new_job: NewJob) -> None:
    """All nodes end with an error soon, and say who failed and how."""
    job = new_job("3")
    job.start("A", "B", "C")
    first = job.await_round("A", "B", "C")
    failed = first.workers[2]
    job.tell(failed, "fail 7")
    assert job.await_end("A", "B", "C") == [1, 1, 1]
    for worker in first.workers[:2]:
        error = job.nodes[worker.node].lines("RendezvousClosedError")[-1]
        assert "failed" in error
        assert "rank 2" in error
        assert "exit code: 7" in error or "exit code 7" in error
        assert f"failed by {MACHINE}-" in error  # whose agent closed the run
    assert len(job.starts()) == 3


def test_who_comes_after_a_failure_is_told(new_job: NewJob) -> None:
    """A spare is not needed any more, and learns why; it does not take the job for done."""
    job = new_job("2")
    job.start("A", "B")
    first = job.await_round("A", "B")
    job.start("C")
    job.await_output("C", "spare")
    job.tell(first.workers[1], "fail 7")
    codes = job.await_end("A", "B", "C")
    assert codes == [1, 1, 1]
    assert "exit code 7" in job.nodes["C"].lines("RendezvousClosedError")[-1]


def finish_one_and_fail_the_other(job: Job) -> tuple[str, str]:
    """Returns who finished and who failed; the first waits at the exit meanwhile."""
    job.start("A", "B")
    first = job.await_round("A", "B")
    finished, failed = first.workers
    job.tell(finished, "finish")
    job.await_output(finished.node, "other agents to finish")
    job.tell(failed, "fail 7")
    codes = dict(zip("AB", job.await_end("A", "B")))
    assert codes == {finished.node: 0, failed.node: 1}
    assert len(job.starts()) == 2
    return finished.node, failed.node


def test_one_finishes_and_one_fails(new_job: NewJob) -> None:
    """Each ends with its own result, and no node waits the 300 s of the exit barrier."""
    finish_one_and_fail_the_other(new_job("2"))


def test_one_finishes_and_one_fails_with_restarts_left(new_job: NewJob) -> None:
    """The failed one cannot restart without the finished one: it ends, and says so."""
    job = new_job("2", max_restarts=3)
    _, failed = finish_one_and_fail_the_other(job)
    error = job.nodes[failed].lines("RendezvousClosedError")[-1]
    assert "finished" in error
    assert f"finished: {MACHINE}-" in error
