"""Nodes of stock torchrun and of `rallypoint run` in one job stop at once (decision 0045)."""

from __future__ import annotations

from pathlib import Path

from torchrun.harness import COMMAND, NewJob

# A worker writes what happens to it as files NODE.LOCAL_RANK.ROUND.WHAT. On ours, local
# rank 1 fails when the test says so, and local rank 0 ends by SIGTERM only then.
WORKER = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(os.environ["RALLYPOINT_TEST_FOLDER"])
node, local = os.environ["RALLYPOINT_TEST_NODE"], os.environ["LOCAL_RANK"]
attempt = os.environ["RALLYPOINT_ROUND"]

def say(what):
    (folder / f"{node}.{local}.{attempt}.{what}").touch()

def await_file(name):
    while not (folder / name).exists():
        time.sleep(0.01)

def end(*_):
    say("term")
    if node == "ours":
        await_file("release")
    sys.exit(3)

signal.signal(signal.SIGTERM, end)
say("up")
if attempt != "1":
    sys.exit(0)
if node == "ours" and local == "1":
    await_file("fail")
    os._exit(7)
await_file("never")
"""


def test_a_failure_stops_stock_agents_and_ours_at_once(new_job: NewJob, tmp_path: Path) -> None:
    worker = tmp_path / "train.py"
    worker.write_text(WORKER)
    job = new_job(nproc=2, max_restarts=1, worker=worker)
    job.start("stock")
    job.launch("ours", [*COMMAND, "run", *job.arguments()])

    def there(*names: str) -> None:
        job.wait(lambda: all((job.folder / name).exists() for name in names), f"{names}")

    there("stock.0.1.up", "stock.1.1.up", "ours.0.1.up", "ours.1.1.up")
    (job.folder / "fail").touch()
    # The workers of both nodes have got SIGTERM, and one of the failing node has not ended.
    there("stock.0.1.term", "stock.1.1.term", "ours.0.1.term")
    assert not (job.folder / "ours.0.2.up").exists()
    (job.folder / "release").touch()
    there("stock.0.2.up", "stock.1.2.up", "ours.0.2.up", "ours.1.2.up")
    assert job.await_end("stock", "ours") == [0, 0]


def test_a_failure_without_restarts_ends_both(new_job: NewJob, tmp_path: Path) -> None:
    worker = tmp_path / "train.py"
    worker.write_text(WORKER)
    # Ours waits until it knows that the stock node is not lost, and not for its lease.
    job = new_job(nproc=2, worker=worker, conf={"lease_timeout": 600})
    job.max_restarts = 1  # stock torchrun would end by itself without
    job.start("stock")
    job.max_restarts = 0
    job.launch("ours", [*COMMAND, "run", *job.arguments()])

    def there(*names: str) -> None:
        job.wait(lambda: all((job.folder / name).exists() for name in names), f"{names}")

    there("stock.0.1.up", "stock.1.1.up", "ours.0.1.up", "ours.1.1.up")
    (job.folder / "fail").touch()
    there("stock.0.1.term", "stock.1.1.term", "ours.0.1.term")
    (job.folder / "release").touch()
    assert job.await_end("stock", "ours") == [1, 1]
    assert "exited with code 7" in job.nodes["stock"].output()
