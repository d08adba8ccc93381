"""Jobs whose endpoint is none of their nodes: `rallypoint serve`."""

from __future__ import annotations

import random
import signal
from collections.abc import Callable

import pytest
from torchrun.harness import COMMAND, Job, NewJob, Node, Round

NewServed = Callable[..., Job]


@pytest.fixture
def new_served(new_job: NewJob) -> NewServed:
    """Makes jobs with a server of their own; it is the node "serve"."""

    def new(nnodes: str, **options: object) -> Job:
        job = new_job(nnodes, **options)
        serve(job)
        return job

    return new


def serve(job: Job, name: str = "serve") -> Node:
    """Starts a server at the job's endpoint."""
    node = job.launch(name, [*COMMAND, "serve", f"--listen=127.0.0.1:{job.port}"])
    job.await_listening(name)
    return node


def test_the_server_is_restarted(new_served: NewServed) -> None:
    """The job runs on meanwhile and is not even regrouped. It can be afterwards: when a node is
    killed, when the last one gets SIGTERM, as from schedulers, which leaves the run open, and after
    a failure for good rounds continue above."""
    job = new_served("1:2", conf={"lease_timeout": 3})
    job.start("A", "B")
    first = job.await_round("A", "B")
    job.nodes["serve"].kill()
    for worker in first.workers:
        job.await_output(worker.node, "lost the control plane")
    serve(job, "serve again")
    for worker in first.workers:
        job.await_output(worker.node, "reached the control plane")
        job.await_said(worker, "undisturbed")
    assert set(job.starts()) == set(first.workers)

    lost, left = (worker.node for worker in first.workers)
    job.nodes[lost].kill()
    second = job.await_round(left, above=first.number)
    job.nodes[left].signal(signal.SIGTERM)
    assert job.await_end(left) != [0]
    job.start("C", "D")
    third = job.await_round("C", "D", above=second.number)

    job.tell(third.workers[0], "fail 7")
    assert job.await_end("C", "D") == [1, 1]
    job.start("E", "F")
    job.await_round("E", "F", above=third.number)
    job.finish("E", "F")


class Storm:
    """Random misfortunes for a job of two to four nodes; each leaves the job able to run."""

    def __init__(self, job: Job, seed: int) -> None:
        self.job = job
        self.dice = random.Random(seed)
        self.present: list[str] = []
        self.round: Round | None = None
        self.servers = 0

    def settle(self) -> None:
        """Waits until the latest round is one of exactly the nodes that are present."""
        number = self.round.number if self.round else 0
        self.round = self.job.await_round(*self.present, above=number - 1)

    def start(self) -> None:
        """A new node, if there is a place."""
        if len(self.present) < 4:
            name = f"node{len(self.job.nodes)}"
            self.present.append(name)
            self.job.start(name)

    def lose(self) -> Node:
        """A node that is about to be lost, replaced if too few would be left."""
        name = self.dice.choice(self.present)
        self.present.remove(name)
        if len(self.present) < 2:
            self.start()
        return self.job.nodes[name]

    def kill(self) -> None:
        self.lose().kill()

    def kill_agent(self) -> None:
        self.lose().kill_agent()

    def stop(self) -> None:
        self.lose().signal(signal.SIGTERM)

    def kill_and_start(self) -> None:
        self.lose().kill()
        self.start()

    def kill_two(self) -> None:
        for node in [self.lose(), self.lose()]:
            node.kill()

    def freeze(self) -> None:
        """Shorter or longer than the lease."""
        name = self.dice.choice(self.present)
        self.job.nodes[name].freeze()
        self.job.pass_time(self.dice.choice([0.5, 1, 4]))
        self.job.nodes[name].thaw()

    def fail(self) -> None:
        """A worker fails, and all restart."""
        assert self.round
        number = self.round.number
        self.job.tell(self.dice.choice(self.round.workers), "fail 7")
        self.round = self.job.await_round(*self.present, above=number)

    def restart_server(self) -> None:
        self.job.nodes["serve" if not self.servers else f"serve{self.servers}"].kill()
        self.servers += 1
        serve(self.job, f"serve{self.servers}")


@pytest.mark.long
@pytest.mark.parametrize("seed", range(4))
def test_nodes_come_and_go(new_served: NewServed, seed: int) -> None:
    """Whatever happens in whatever order, the nodes that are present are soon in one round."""
    job = new_served("2:4", conf={"lease_timeout": 3, "target": 2}, max_restarts=100)
    storm = Storm(job, seed)
    storm.start()
    storm.start()
    storm.settle()
    misfortunes = [
        storm.start, storm.start, storm.kill, storm.kill_agent, storm.stop, storm.kill_and_start,
        storm.kill_two, storm.freeze, storm.fail, storm.restart_server,
    ]  # fmt: skip
    for _ in range(15):
        storm.dice.choice(misfortunes)()
        storm.settle()
    job.finish(*storm.present)
