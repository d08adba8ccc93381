"""RallypointElasticAgent: torch's WorkerSpec run by our agent."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import launch_jobs as jobs
import pytest
from harness import free_port, until
from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.rendezvous import RendezvousClosedError, RendezvousParameters
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry

import rallypoint
from rallypoint.agent import RallypointElasticAgent
from rallypoint.handler import create_handler


def handler(endpoint: str, nodes: int = 1, backend: str = "rallypoint", **options: Any) -> Any:
    params = RendezvousParameters(backend, endpoint, "job", nodes, nodes, **options)
    return create_handler(params) if backend == "rallypoint" else registry.create_handler(params)


def spec(entrypoint: Any, *args: Any, workers: int = 2, **fields: Any) -> WorkerSpec:
    fields.setdefault("max_restarts", 0)
    if "rdzv_handler" not in fields:
        fields["rdzv_handler"] = handler("127.0.0.1:0")
    return WorkerSpec("trainer", workers, entrypoint=entrypoint, args=args, **fields)


def test_results() -> None:
    agent = RallypointElasticAgent(spec(jobs.add_rank, 10))
    assert agent.get_worker_group().state == WorkerState.INIT
    result = agent.run()
    assert not result.is_failed() and result.state == WorkerState.SUCCEEDED
    assert result.return_values == {0: 10, 1: 11} and result.failures == {}
    group = agent.get_worker_group()
    assert group.state == WorkerState.SUCCEEDED
    assert (group.group_rank, group.group_world_size, group.store) == (0, 1, None)
    assert [(w.global_rank, w.role_rank, w.world_size) for w in group.workers] == [
        (0, 0, 2),
        (1, 1, 2),
    ]


def test_before_the_run() -> None:
    agent = RallypointElasticAgent(spec(jobs.add_rank, 10, workers=3, max_restarts=7))
    group = agent.get_worker_group()
    assert group.state == WorkerState.INIT and agent._remaining_restarts == 7
    assert (group.group_rank, group.group_world_size, group.store) == (None, None, None)
    assert [(w.local_rank, w.global_rank, w.id) for w in group.workers] == [
        (i, -1, None) for i in range(3)
    ]


def test_master_of_the_spec() -> None:
    """Its address and port are what the workers get."""
    result = RallypointElasticAgent(
        spec(jobs.environment, master_addr="a$b.example", master_port=7)
    ).run()
    masters = {(e["MASTER_ADDR"], e["MASTER_PORT"]) for e in result.return_values.values()}
    assert masters == {("a$b.example", "7")}
    script = '[ "$MASTER_ADDR" = here ] && [ "$MASTER_PORT" -gt 7 ]'
    only = spec("sh", "-c", script, master_addr="here")
    assert RallypointElasticAgent(only).run().return_values == {0: None, 1: None}


def test_command(tmp_path: Any) -> None:
    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects=1)  # type: ignore[arg-type]
    agent = RallypointElasticAgent(spec("/bin/echo", "${local_rank}"), logs)
    assert agent.run().return_values == {0: None, 1: None}
    logs_written = sorted(p.read_text() for p in (tmp_path / "logs").rglob("stdout.log"))
    assert logs_written == ["0\n", "1\n"]


def test_failures() -> None:
    result = RallypointElasticAgent(spec(jobs.fail, 1)).run()
    assert result.is_failed() and result.return_values == {}
    assert result.failures[1].exitcode == 1
    assert "ValueError" in result.failures[1].message["message"]
    assert list(result.failures) == [1], "not the worker that the agent stopped"


@pytest.mark.parametrize("entrypoint", ["command", "function"])
def test_failures_are_those_of_torch(entrypoint: str) -> None:
    """Stopped workers are among those of a command alone."""
    one = (jobs.exit_or_wait, 3)
    if entrypoint == "command":
        one = ("sh", "-c", '[ "$RANK" = 0 ] && exit 3; sleep 1000')
    found = []
    for agent in (LocalElasticAgent, RallypointElasticAgent):
        backend = "c10d" if agent is LocalElasticAgent else "rallypoint"
        met = handler(f"127.0.0.1:{free_port()}", backend=backend)
        result = agent(spec(*one, rdzv_handler=met, monitor_interval=0.1), DefaultLogsSpecs()).run()
        found.append({rank: f.exitcode for rank, f in result.failures.items()})
    assert found[0] == found[1] and found[1][0] == 3


def test_restarts() -> None:
    agent = RallypointElasticAgent(spec(jobs.fail_until, 2, max_restarts=3))
    assert agent.run().return_values == {0: 2, 1: 2}
    assert agent._remaining_restarts == 1


def two(make: Any) -> list[Any]:
    """Runs two nodes, whose specs are made by make(rank), and returns what came."""

    def run(agent: RallypointElasticAgent) -> Any:
        try:
            return agent.run()
        except Exception as e:
            return e

    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(run, [RallypointElasticAgent(make(rank)) for rank in (0, 1)]))


@pytest.mark.parametrize("backend", ["rallypoint", "static"])
def test_two_nodes(backend: str) -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    key = "node_rank" if backend == "rallypoint" else "rank"
    first, second = two(
        lambda rank: spec(
            jobs.sum_of_ranks, rdzv_handler=handler(endpoint, 2, backend, **{key: rank})
        )
    )
    assert first.return_values == {0: 6, 1: 6} and second.return_values == {2: 6, 3: 6}


def test_failure_of_another_node() -> None:
    """The other node's failure is an error of the rendezvous, or names the culprit."""
    endpoint = f"127.0.0.1:{free_port()}"
    first, second = two(
        lambda rank: spec(
            jobs.fail, 1, workers=1, rdzv_handler=handler(endpoint, 2, node_rank=rank)
        )
    )
    assert second.is_failed() and second.failures[1].exitcode == 1
    assert isinstance(first, (rallypoint.ChildFailedError, RendezvousClosedError))
    assert "rank 1 has had enough" in str(first)


def test_handler_after_the_run() -> None:
    """The agent ends the member; what torch's launchers do with the handler then is fine."""
    used = handler("127.0.0.1:0")
    RallypointElasticAgent(spec(jobs.nothing, rdzv_handler=used)).run()
    assert used.num_nodes_waiting() == 0
    assert used.shutdown()


def test_errors_of_the_rendezvous() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousTimeoutError

    late = handler(f"127.0.0.1:{free_port()}", 2, join_timeout=0.2)
    agent = RallypointElasticAgent(spec(jobs.nothing, rdzv_handler=late))
    with pytest.raises(RendezvousTimeoutError):
        agent.run()
    assert agent.get_worker_group().state == WorkerState.INIT


def test_signal() -> None:
    agent = RallypointElasticAgent(spec("sleep", "1000"), shutdown_timeout=60)

    def terminate() -> None:
        until(lambda: agent.get_worker_group().state == WorkerState.HEALTHY)
        os.kill(os.getpid(), signal.SIGTERM)

    sender = threading.Thread(target=terminate)
    sender.start()
    with pytest.raises(SignalException) as caught:
        agent.run()
    sender.join()
    assert caught.value.sigval == signal.SIGTERM


def test_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ported: the explicit value wins over the variable, 0 is legal, negative is not."""
    variable = "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT"
    monkeypatch.delenv(variable, raising=False)
    assert RallypointElasticAgent(spec("true"))._job.exit_barrier_timeout == 300
    assert RallypointElasticAgent(spec("true"))._job.shutdown_timeout == 30
    monkeypatch.setenv(variable, "900")
    assert RallypointElasticAgent(spec("true"))._job.exit_barrier_timeout == 900
    agent = RallypointElasticAgent(spec("true"), exit_barrier_timeout=0, shutdown_timeout=0)
    assert (agent._job.exit_barrier_timeout, agent._job.shutdown_timeout) == (0, 0)
    for name in ("exit_barrier_timeout", "shutdown_timeout"):
        with pytest.raises(ValueError, match=f"{name} must be non-negative, got -1"):
            RallypointElasticAgent(spec("true"), **{name: -1})  # type: ignore[arg-type]


def test_foreign_handler() -> None:
    class Foreign:
        def get_backend(self) -> str:
            return "foreign"

    with pytest.raises(rallypoint.InvalidError, match="'foreign'"):
        RallypointElasticAgent(spec("true", rdzv_handler=Foreign()))
