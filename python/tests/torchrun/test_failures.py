"""Workers that fail: restarts, and ends that every node hears of."""

from __future__ import annotations

from torchrun.harness import MACHINE, NewJob


def test_workers_fail_until_no_restart_is_left(new_job: NewJob) -> None:
    """One fails, then those of two nodes at one time: a restart is used up only where a worker
    failed, and ranks stay. In the end all nodes, and a spare, which does not take the job for done,
    say who failed and how."""
    job = new_job("3", max_restarts=2, nproc=2)
    job.start("A", "B", "C")
    last = job.await_round("A", "B", "C")
    order = [w.node for w in last.workers]
    nodes = order[::2]
    for failing, restarts in (nodes[1:2], [0, 1, 0]), (nodes[:2], [1, 2, 0]):
        for name in failing:
            job.tell(last.of(name), "fail 7")
        last = job.await_round("A", "B", "C", above=last.number)
        assert [w.restart for w in last.workers[::2]] == restarts
        assert [w.node for w in last.workers] == order
    assert last.number == 3

    job.start("D")
    job.await_output("D", "spare")
    failed = last.of(nodes[1])
    job.tell(failed, "fail 7")
    assert job.await_end("A", "B", "C", "D") == [1, 1, 1, 1]
    for name in nodes[0], nodes[2], "D":
        error = job.nodes[name].lines("RendezvousClosedError")[-1]
        assert "failed" in error
        assert f"rank {failed.rank}" in error
        assert "exit code: 7" in error or "exit code 7" in error
        assert f"failed by {MACHINE}-" in error  # whose agent closed the run
    assert not job.starts("D")


def test_one_finishes_and_one_fails(new_job: NewJob) -> None:
    """Each ends with its own result, and no node waits the 300 s of the exit barrier. The failed
    one has restarts left, and cannot restart without the finished one: it says so."""
    job = new_job("2", max_restarts=3)
    job.start("A", "B")
    first = job.await_round("A", "B")
    finished, failed = first.workers
    job.tell(finished, "finish")
    job.await_output(finished.node, "other agents to finish")
    job.tell(failed, "fail 7")
    codes = dict(zip("AB", job.await_end("A", "B")))
    assert codes == {finished.node: 0, failed.node: 1}
    assert len(job.starts()) == 2
    error = job.nodes[failed.node].lines("RendezvousClosedError")[-1]
    assert "finished" in error
    assert f"finished: {MACHINE}-" in error
