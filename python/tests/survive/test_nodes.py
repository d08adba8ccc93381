"""Nodes come and go, with a worker each; the others go on with the same state."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from harness import free_port, until
from survive.harness import SHARDED, Job, endless, job, listens, standalone

pytestmark = [pytest.mark.long, pytest.mark.timeout(260)]

Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a node of a job. The first one hosts, and waits for no others."""
    port = free_port()
    token = tmp_path / "token"
    token.write_text("0123456789abcdef0123456789abcdef\n")
    token.chmod(0o600)
    with ExitStack() as stack:

        def starts(
            nodes: str,
            conf: str = "last_call_timeout=200",
            script: tuple[object, ...] = endless(tmp_path),
            faults: dict[str, str] | None = None,
        ) -> Job:
            at = (f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job", f"--rdzv-conf={conf}")
            options = (f"--nnodes={nodes}", "--max-restarts=3", f"--token-file={token}")
            node = stack.enter_context(job(*at, *options, *script, faults=faults))
            until(lambda: listens(port), what="a node hosts")
            return node

        yield starts


def lose(node: Job) -> None:
    node.process.kill()
    for worker in node.workers.values():
        worker.kill()
    node.end()


def test_a_spare_and_then_nobody(start: Start, tmp_path: Path) -> None:
    """A spare takes a lost node's place; without one the survivor waits with its memory."""
    first, second = start("2"), start("2")
    first.until(r"step 20 of 2$")
    spare = start("2")
    spare.until("spare")
    lose(second)
    spare.until(r"step .* of 2$")
    lose(spare)
    first.until("1 of 2 nodes here")
    last = start("2")
    last.until(r"step .* of 2$")
    (tmp_path / "over").touch()
    (survivor,) = first.ends(1)
    last.ends(1)
    assert first.hashes == last.hashes
    assert survivor.made_every_step(but=2)


def test_a_silent_node(start: Start, tmp_path: Path) -> None:
    """One that says nothing for a lease is lost; when it wakes it has the others' state."""
    conf = "last_call_timeout=200,lease_timeout=5"
    nodes = [start("1:3", conf) for _ in range(3)]
    for node in nodes:
        node.until(r"step 20 of 3$")
    silent = nodes[2]
    (its,) = silent.workers.values()
    silent.process.send_signal(signal.SIGSTOP)
    its.kill(signal.SIGSTOP)
    for node in nodes[:2]:
        node.until(r"step .* of 2$")
    silent.process.send_signal(signal.SIGCONT)
    its.kill(signal.SIGCONT)
    nodes[0].until(r"step .* of 3$", since=len(nodes[0].lines))
    (tmp_path / "over").touch()
    survivors = [w for node in nodes[:2] for w in node.ends(1)]
    silent.ends(1)
    assert len(survivors) == 2 and all(w.made_every_step(but=2) for w in survivors)
    assert len({h for node in nodes for h in node.hashes}) == 1


def test_a_node_is_drained(start: Start, tmp_path: Path) -> None:
    """It leaves after a step of all, and the others begin none that they could not complete."""
    script = ("--on-signal=TERM:drain", *endless(tmp_path), "--pause", 0.2)
    nodes = [start("1:3", script=script) for _ in range(3)]
    for node in nodes:
        node.until(r"step 5 of 3$")
    nodes[2].process.terminate()
    for node in nodes[:2]:
        node.until(r"step .* of 2$")
    (tmp_path / "over").touch()
    for node in nodes[:2]:
        node.ends(1)
        (left,) = [line for line in node.lines if "leaving the world" in line]
        assert "others left it, or join" in left


def test_a_node_with_a_replica_is_lost(start: Start) -> None:
    """A spare's workers get their shards from the other replica; nothing else changes."""
    script = ("--nproc-per-node=2", SHARDED, "--steps", 40)
    hangs = {"0.2": "hang:20"}
    nodes = [start("2", script=script, faults=hangs) for _ in range(2)]
    spare = start("2", script=script)
    spare.until("spare")
    for node in nodes:
        node.until(r"step 19\b", 2)
    (lost,) = [node for node in nodes if any(w.rank == 2 for w in node.workers.values())]
    nodes.remove(lost)
    lose(lost)
    survivors = nodes[0].ends(2)
    spare.ends(2)
    assert len(survivors) == 2 and all(w.made_every_step(but=1) for w in survivors)
    with job(*standalone(4), SHARDED, "--steps", 40) as undisturbed:
        undisturbed.ends(4)
    assert {*nodes[0].hashes, *spare.hashes} == set(undisturbed.hashes)
