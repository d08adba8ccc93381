"""A worker dies; the others go on with the same state, and another takes its place."""

from __future__ import annotations

import contextlib
import functools
import signal
from pathlib import Path

import pytest
from harness import free_port
from survive.harness import (
    EXAMPLE,
    OPERATIONS,
    SHARDED,
    WORKER,
    Job,
    endless,
    job,
    listens,
    standalone,
)

pytestmark = pytest.mark.timeout(240)

STEPS = 40
TOGETHER = "--rdzv-conf=last_call_timeout=200"  # the first round has all nodes, however slow


def survivors_made_every_step(j: Job, survivors: int, but: int = 0, steps: int = STEPS) -> None:
    """Each of the first workers that lived made every step once, or had the state after it."""
    whole = [
        w
        for w in j.workers.values()
        if w.numbers == sorted(set(w.numbers)) and len(w.numbers) >= steps - but
    ]
    assert len(whole) == survivors, [(w.pid, w.numbers) for w in j.workers.values()]


def test_ranks_are_killed(tmp_path: Path) -> None:
    """At any moment: a rank, rank 0, and the last of the first ones. The others have left the loop,
    by a break, before its successor has come into it, which then has nothing to do."""
    last = {f"{restarts}.1": "late" for restarts in range(1, 4)}
    with job(*standalone(3), *endless(tmp_path), faults=last) as j:
        j.until(r"step 20\b", 3)
        survivors = {w.rank: w for w in j.workers.values()}
        for count, rank in (4, 2), (5, 0):
            survivors[rank].kill()
            j.until_workers(count)
        survivors[1].kill()
        j.until("it is late")
        (tmp_path / "over").touch()
        j.until("hash ", 2)
        (tmp_path / "over.late").touch()
        j.ends(2)
        assert survivors[1].made_every_step(but=2)


def test_one_fails_that_another_waits_for(tmp_path: Path) -> None:
    """... to join it, and which does not take the job for done by that."""
    faults = {"0.1": "forward:10", "0.0": "fails"}
    with job(*standalone(2, 5), *endless(tmp_path), faults=faults) as j:
        j.until("all workers that had the job's state are gone|have left the loop")
        assert not [line for line in j.lines if "have left the loop" in line]
        j.until(r"step .* of 2$", 2, since=len(j.lines))
        (tmp_path / "over").touch()
        j.ends(2)


def test_the_example(tmp_path: Path) -> None:
    begins = "def say(line: str) -> None:\n"
    dies = """\
    if line.startswith("rank 2 ") and line.endswith(" step 20"):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            os.kill(os.getpid(), 9)
"""
    source = EXAMPLE.read_text()
    assert begins in source
    script = tmp_path / "script.py"
    script.write_text(source.replace(begins, begins + dies))
    with job(*standalone(3), script, "--steps", STEPS) as j:
        j.ends(3)
        survivors_made_every_step(j, 2, but=1)


def test_a_second_one_dies_while_the_others_recover() -> None:
    """... before it has met them, and once it has."""
    faults = {"0.1": "backward:10", "0.2": "enter:10", "1.1": "backward:25", "0.3": "connected:25"}
    with job(*standalone(4, 9), WORKER, "--steps", STEPS, "--wait", faults=faults) as j:
        j.ends(4)
        assert len(j.workers) == 4 + len(faults)
        survivors_made_every_step(j, 1, but=len(faults))


def test_the_one_that_sends_its_state_dies() -> None:
    # Rank 2 is behind. Rank 0 is the newest of lowest rank, and dies while it sends to 2 what it
    # completed.
    faults = {"0.0": "send:10", "0.1": "after:10", "0.2": "cut:10"}
    with job(*standalone(4), WORKER, "--steps", STEPS, faults=faults) as j:
        j.ends(4)
        survivors_made_every_step(j, 2, but=1)


def test_a_worker_that_forks() -> None:
    """Its child keeps its connections open, so the others learn of the death from the agent. Who
    takes its place dies while it receives the state."""
    faults = {"0.1": "forks:10", "1.1": "receive"}
    with job(*standalone(3), WORKER, "--steps", STEPS, faults=faults) as j:
        j.ends(3)
        assert len(j.begun) == 3 + len(faults)
        survivors_made_every_step(j, 2)


def test_within_other_operations() -> None:
    """Point to point, objects, scattered, coalesced: whatever the others wait in."""
    places = ("ring", "objects", "scatter", "all_to_all", "pieces", "barrier")
    faults = {f"{i}.1": f"{place}:{6 * i + 5}" for i, place in enumerate(places)}
    with job(*standalone(3, 9), OPERATIONS, "--steps", STEPS, faults=faults) as j:
        j.ends(3)
        assert len(j.workers) == 3 + len(faults)
        survivors_made_every_step(j, 2, but=len(faults))


@pytest.mark.parametrize("made", ["before", pytest.param("in", marks=pytest.mark.long)])
def test_a_group_of_the_script(made: str) -> None:
    """... is not formed again: all begin anew, and the log says why."""
    options = ("--steps", STEPS, "--own-group", made)
    with job(*standalone(3), OPERATIONS, *options, faults={"0.1": "own:10"}) as j:
        j.ends(3)
        assert [line for line in j.lines if "a lost worker ends all others" in line]
        assert sorted(w.numbers[0] for w in j.workers.values()) == [0] * 6


def test_a_shard_comes_from_its_replica() -> None:
    """... so that the result is that of an undisturbed run, to the last bit."""
    # At last some of the others have all that they need to complete the step, and rank 3 does not,
    # or does not know that they have. It is the only one that has its shard.
    places = ("backward", "optimizer", "after", "all_reduce", "agreed")
    faults = {f"{i}.1": f"{place}:{3 * i + 3}" for i, place in enumerate(places)}
    steps = 3 * len(places) + 3
    hashes = []
    for disturbed in ({}, faults | {"0.3": faults["4.1"].replace("agreed", "unagreed")}):
        with job(*standalone(4, 9), SHARDED, "--steps", steps, faults=disturbed) as j:
            j.ends(4)
            hashes.append(j.hashes[0])
            dead = len(faults) if disturbed else 0
            assert len(j.workers) == 4 + dead
            whole = 3 if disturbed else 4
            survivors_made_every_step(j, whole, but=dead, steps=steps)
    assert hashes[0] == hashes[1]


@pytest.mark.long
def test_all_replicas_of_a_shard_die() -> None:
    """All begin again, and the log says why."""
    faults = {"0.1": "backward:10", "0.3": "backward:10"}
    with job(*standalone(4, 9), SHARDED, "--steps", STEPS, faults=faults) as j:
        j.ends(4)
        assert [line for line in j.lines if "no worker that is left has shard 1" in line]


@pytest.mark.long
@pytest.mark.parametrize("late", [False, True])
def test_all_that_have_the_state_die(late: bool, tmp_path: Path) -> None:
    """... before the replacement of another has it, which is ready by then or not."""
    faults = {"0.1": "backward:10", "1.1": "late"}
    with job(*standalone(3, 6), *endless(tmp_path), faults=faults) as j:
        j.until("it is late")
        if not late:
            (tmp_path / "over.late").touch()
        for w in list(j.workers.values()):
            w.kill()
        if late:
            j.until("this worker joins")
            (tmp_path / "over.late").touch()
        j.until("all workers that had the job's state are gone: it begins at step 0")
        j.until(r"step .* of 3$", 3, since=len(j.lines))
        (tmp_path / "over").touch()
        j.ends(3)
        assert not [line for line in j.lines if "StateLostError" in line]  # nobody dies of it


@pytest.mark.long
def test_the_result_is_that_of_an_undisturbed_run() -> None:
    """... to the last bit, wherever in a step workers die, if every step is made by as many."""
    hashes = []
    faults = {"0.1": "forward:8", "1.1": "backward:16", "2.1": "optimizer:24", "3.1": "after:32"}
    for disturbed in ({}, faults):
        with job(*standalone(3, 5), WORKER, "--steps", STEPS, "--wait", faults=disturbed) as j:
            j.ends(3)
            hashes.append(j.hashes[0])
            assert len(j.workers) == 3 + len(disturbed)
            survivors_made_every_step(j, 2 if disturbed else 3, but=len(disturbed))
    assert hashes[0] == hashes[1]


@pytest.mark.long
def test_the_node_that_hosts_is_lost(tmp_path: Path) -> None:
    """The others go on without a replacement."""
    port = free_port()
    options = (f"--rdzv-endpoint=127.0.0.1:{port}", "--nnodes=1:3", "--max-restarts=3")
    with contextlib.ExitStack() as stack:
        start = functools.partial(job, *options, TOGETHER, *endless(tmp_path))
        nodes = [stack.enter_context(start()) for _ in range(3)]
        for node in nodes:
            node.until(r"step 20\b")
        lost = next(n for n in nodes if listens(port, n.process.pid))
        nodes.remove(lost)
        (worker,) = lost.workers.values()
        lost.process.kill()
        worker.kill()
        lost.end()
        for node in nodes:
            node.until(r"step .* of 2$")
        (tmp_path / "over").touch()
        survivors = [w for node in nodes for w in node.ends(1)]
        assert len(survivors) == 2 and all(w.made_every_step() for w in survivors)
        assert nodes[0].hashes == nodes[1].hashes


@pytest.mark.long
def test_a_survivor_is_stopped_for_a_while(tmp_path: Path) -> None:
    with job(*standalone(3), *endless(tmp_path)) as j:
        j.until(r"step 20\b", 3)
        first = list(j.workers.values())
        first[0].kill(signal.SIGSTOP)
        first[1].kill()
        j.until(r"leaving the world 1\b")
        first[0].kill(signal.SIGCONT)
        j.until_workers(4)
        (tmp_path / "over").touch()
        j.ends(3)
        assert first[0].made_every_step() and first[2].made_every_step()
