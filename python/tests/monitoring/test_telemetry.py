"""torch's metrics and events of the rendezvous, beside what stock torch makes of the same job."""

from __future__ import annotations

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.elastic.agent.server.api as torch_api
from harness import free_port, until
from torch.distributed.elastic import events, metrics
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.events import handlers
from torch.distributed.elastic.metrics import api as metrics_api
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous import (
    RendezvousError,
    RendezvousParameters,
    RendezvousTimeoutError,
)
from torch.distributed.elastic.rendezvous import registry as discovery
from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as registry
from torch.distributed.launcher import api as launcher

import rallypoint
from rallypoint._rendezvous.member import Ending
from rallypoint._torch.telemetry import host_name
from rallypoint.agent import RallypointElasticAgent
from rallypoint.handler import create_handler

needs_discovery = pytest.mark.skipif(
    not hasattr(discovery, "_register_out_of_tree_handlers"), reason="torch 2.5"
)

# A worker ends when its gate exists, which the test makes once it was seen alive.
GATED = "while [ ! -e $0/$TORCHELASTIC_RESTART_COUNT ]; do sleep 0.02; done; "


class Metrics(metrics.MetricHandler):
    """Keeps metrics, and opens the gate of workers that were found healthy."""

    def __init__(self, gates: Path) -> None:
        self.gates = gates
        self.starts = 0
        self.seen: list[tuple[str, int]] = []

    def emit(self, metric_data: Any) -> None:
        assert metric_data.group_name == "torchelastic" and metric_data.timestamp > 1e9
        name, value = metric_data.name, metric_data.value
        assert isinstance(value, int)
        self.starts += name == "LocalElasticAgent._start_workers.success"
        if name.endswith(".healthy"):
            (self.gates / str(self.starts - 1)).touch()
        self.seen.append((name, 0 if name.endswith(".duration.ms") else value))

    def sequence(self) -> list[tuple[str, int]]:
        """What was seen, equal looks at the workers once."""
        sequence: list[tuple[str, int]] = []
        for item in self.seen:
            sequence.append(item)
            if sequence[-4:] == sequence[-8:-4]:
                del sequence[-4:]
        return sequence


@pytest.fixture
def sink(tmp_path: Path) -> Iterator[Metrics]:
    handler = Metrics(tmp_path)
    before = metrics_api._default_metrics_handler
    metrics.configure(handler)
    yield handler
    metrics.configure(before)


def launch(module: Any, gates: Path, script: str, max_restarts: int) -> None:
    """The job under torch's launcher, or ours."""
    stock = module is launcher
    config = module.LaunchConfig(
        1,
        1,
        1,
        run_id="job",
        role="trainer",
        max_restarts=max_restarts,
        monitor_interval=0.05,
        rdzv_backend="c10d" if stock else "rallypoint",
        rdzv_endpoint=f"127.0.0.1:{free_port()}",
        **({"logs_specs": DefaultLogsSpecs(), "local_addr": "127.0.0.1"} if stock else {}),
    )
    try:
        module.elastic_launch(config, "sh")("-c", GATED + script, str(gates))
    except ChildFailedError:
        assert "exit 1" in script


RESTARTED = "[ $TORCHELASTIC_RESTART_COUNT = 1 ]"


@pytest.mark.parametrize(
    ("script", "max_restarts"), [("true", 2), (RESTARTED, 3), ("exit 1", 1), ("exit 1", 0)]
)
def test_metrics_of_launch(tmp_path: Path, sink: Metrics, script: str, max_restarts: int) -> None:
    """The same names and values in the same order as from torch's launcher."""
    sequences = []
    for module in (launcher, rallypoint):
        sink.gates = tmp_path / module.__name__
        sink.gates.mkdir()
        sink.seen, sink.starts = [], 0
        launch(module, sink.gates, script, max_restarts)
        sequences.append(sink.sequence())
    assert sequences[0] == sequences[1]
    assert ("workers.trainer.healthy", 1) in sequences[0] and len(sequences[0]) > 20


def test_metrics_of_agent(tmp_path: Path, sink: Metrics) -> None:
    """The same for an agent made from a WorkerSpec."""
    sequences = []
    for stock in (True, False):
        sink.gates = tmp_path / str(stock)
        sink.gates.mkdir()
        sink.seen, sink.starts = [], 0
        params = RendezvousParameters(
            "c10d" if stock else "rallypoint",
            f"127.0.0.1:{free_port()}",
            "job",
            1,
            1,
            local_addr="127.0.0.1",
        )
        handler = registry.create_handler(params) if stock else create_handler(params)
        spec = WorkerSpec(
            "trainer",
            1,
            handler,
            entrypoint="sh",
            args=("-c", GATED + RESTARTED, str(sink.gates)),
            max_restarts=2,
            monitor_interval=0.05,
        )
        agent: Any = LocalElasticAgent if stock else RallypointElasticAgent
        assert not agent(spec, DefaultLogsSpecs()).run().is_failed()
        handler.shutdown()
        sequences.append(sink.sequence())
    assert sequences[0] == sequences[1]


def test_handler_of_metrics_that_fails(sink: Metrics, caplog: pytest.LogCaptureFixture) -> None:
    """Neither the workers nor the launch notice, and it is said once."""

    class Fails(metrics.MetricHandler):
        def emit(self, metric_data: Any) -> None:
            raise ValueError(metric_data.name)

    metrics.configure(Fails())
    rallypoint.elastic_launch(rallypoint.LaunchConfig(1, 1, 1), ["true"])()
    assert caplog.text.count("the handler of metrics failed") == 1


def test_metrics_are_configured(
    sink: Metrics, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What LaunchConfig says is torch's to know."""
    told: list[Any] = []
    monkeypatch.setattr(metrics, "initialize_metrics", lambda config: told.append(config.params))
    config = rallypoint.LaunchConfig(1, 1, 1, metrics_cfg={"a": "b"})
    rallypoint.elastic_launch(config, ["true"])()
    assert told == [{"a": "b"}]


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.events: list[dict[str, Any]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.events.append(json.loads(record.getMessage()))

    def steps(self) -> list[str]:
        return [f"{e['name'].partition(':')[2]} {e['node_state']}" for e in self.events]


@pytest.fixture
def records(monkeypatch: pytest.MonkeyPatch) -> Iterator[Records]:
    """A user's handler of events of the rendezvous."""
    handler = Records()
    monkeypatch.setitem(handlers._log_handlers, "dynamic_rendezvous", handler)
    monkeypatch.delitem(events._events_loggers, "dynamic_rendezvous", raising=False)
    yield handler
    logging.getLogger("torchelastic-events-dynamic_rendezvous").handlers.clear()


ROUND = [
    "next_rendezvous RUNNING",
    "mark_rendezvous_complete SUCCEEDED",
    "next_rendezvous RUNNING",
]


def check_layout(seen: list[dict[str, Any]]) -> None:
    """Fields and their types are those of torch's own events, the messages alike."""
    for event in seen:
        assert str(events.RdzvEvent.deserialize(json.dumps(event))) == json.dumps(event)
        assert event["run_id"] == "job" and event["hostname"] == host_name()
        assert isinstance(event["local_id"], int) and event["pid"] > 0
    joined = seen[3]
    assert joined["rank"] == 0 and re.fullmatch(r"[\w.-]+:\d+", joined["master_endpoint"])
    node = f"{joined['hostname']}_{joined['pid']}_{joined['local_id']}"
    # torch's own words: dynamic_rendezvous.py, next_rendezvous
    assert seen[1]["message"] == (
        f"The node '{node}' attempts to join the next round of the rendezvous 'job'."
    )
    assert joined["message"] == (
        f"The node '{node}' has joined round 1 of the rendezvous 'job' as rank 0 in a world of "
        "size 1."
    )
    assert seen[-1]["message"] == f"The node '{node}' has closed the rendezvous 'job'."


def test_rdzv_events_of_launch(records: Records) -> None:
    """Those of our agent go to torch's handler, and to a listener."""
    heard: list[dict[str, Any]] = []
    config = rallypoint.LaunchConfig(1, 1, 1, run_id="job")
    rallypoint.elastic_launch(config, ["true"], on_rdzv_event=heard.append)()
    assert records.steps() == ["create_handler INIT", *ROUND, "shutdown SUCCEEDED"]
    assert heard == records.events
    check_layout(heard)


@needs_discovery
def test_rdzv_events_under_torch(records: Records, tmp_path: Path) -> None:
    """Those of the handler, which torch's launcher uses; a restart is another round."""
    (tmp_path / "0").touch()
    (tmp_path / "1").touch()
    config = launcher.LaunchConfig(
        1,
        1,
        1,
        logs_specs=DefaultLogsSpecs(),
        run_id="job",
        max_restarts=1,
        monitor_interval=0.05,
        rdzv_backend="rallypoint",
        rdzv_endpoint=f"127.0.0.1:{free_port()}",
    )
    launcher.elastic_launch(config, "sh")("-c", GATED + RESTARTED, str(tmp_path))
    assert records.steps() == ["create_handler INIT", *ROUND, *ROUND, "shutdown SUCCEEDED"]
    check_layout(records.events)


@needs_discovery
def test_rdzv_events_under_torchrun(tmp_path: Path) -> None:
    """torchrun itself, in whose process a handler is put as docs/metrics.md says."""
    (tmp_path / "sitecustomize.py").write_text(
        "import logging\n"
        "from torch.distributed.elastic.events import handlers\n"
        "handler = logging.FileHandler('events.log', delay=True)\n"
        "handlers._log_handlers['dynamic_rendezvous'] = handler\n"
    )
    rdzv = ["--rdzv-backend=rallypoint", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    done = subprocess.run(
        [*torchrun, *rdzv, "--rdzv-id=job", "--no-python", "true"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stderr
    seen = [json.loads(line) for line in (tmp_path / "events.log").read_text().splitlines()]
    check_layout(seen)
    assert len(seen) == 5 and len({event["pid"] for event in seen}) == 1


def test_rdzv_events_are_the_same(records: Records) -> None:
    """The handler in Python and the agent in Go tell of a round in the same words."""
    told = []
    for make in (False, True):
        records.events = []
        endpoint = f"127.0.0.1:{free_port()}"
        if make:
            handler = create_handler(RendezvousParameters("rallypoint", endpoint, "job", 1, 1))
            handler.next_rendezvous()
            handler.shutdown()
        else:
            config = rallypoint.LaunchConfig(
                1, 1, 1, run_id="job", rdzv_backend="rallypoint", rdzv_endpoint=endpoint
            )
            rallypoint.elastic_launch(config, ["true"])()
        same = ("name", "node_state", "rank", "error_trace", "hostname", "pid", "run_id")
        told.append(
            [
                {k: e[k] for k in same}
                | {"message": re.sub(r"_\d+_\d+'", "'", e["message"]), "keys": list(e)}
                for e in records.events
            ]
        )
    assert told[0] == told[1]


def test_rdzv_events_of_regroup(records: Records) -> None:
    """A node that is gone is reported once, however often torch's agent asks, and why."""

    endpoint = f"127.0.0.1:{free_port()}"
    host, other = (
        create_handler(
            RendezvousParameters(
                "rallypoint", endpoint, "job", 1, 2, is_host=rank == 0, node_rank=rank
            )
        )
        for rank in range(2)
    )
    with ThreadPoolExecutor() as pool:
        joins = [pool.submit(node.next_rendezvous) for node in (host, other)]
        assert [join.result().world_size for join in joins] == [2, 2]
    records.events = []
    other._member.shutdown(Ending.LEAVE, "gone home")
    until(host.num_nodes_waiting)
    assert host.num_nodes_waiting() and host.next_rendezvous().world_size == 1
    host.set_closed()
    host.shutdown()
    assert records.steps() == [
        "num_nodes_waiting RUNNING",
        *ROUND,
        "set_closed SUCCEEDED",
        "shutdown SUCCEEDED",
    ]
    assert "gone home" in records.events[0]["message"]


def test_rdzv_events_of_errors(records: Records) -> None:
    """An error with its class and traceback."""
    endpoint = f"127.0.0.1:{free_port()}"
    params = RendezvousParameters("rallypoint", endpoint, "job", 2, 2, join_timeout=1)
    handler = create_handler(params)
    with pytest.raises(RendezvousTimeoutError):
        handler.next_rendezvous()
    handler.shutdown()
    assert records.steps()[2:] == ["next_rendezvous FAILED", "shutdown SUCCEEDED"]
    failed = records.events[2]
    assert failed["message"].startswith("RendezvousTimeoutError: ")
    assert "RendezvousTimeoutError" in failed["error_trace"]
    assert "has left the rendezvous" in records.events[3]["message"]
    with pytest.raises(ValueError):
        create_handler(RendezvousParameters("rallypoint", endpoint, "job", 1, 1, join_timeout="x"))
    assert records.steps()[4:] == ["create_handler FAILED"]


def test_rdzv_events_of_closing_that_fails(
    records: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no control plane that could be told."""
    endpoint = f"127.0.0.1:{free_port()}"
    handler = create_handler(
        RendezvousParameters("rallypoint", endpoint, "job", 1, 1, is_host=0, close_timeout=1)
    )
    with pytest.raises(RendezvousError):
        handler.set_closed()
    assert records.steps() == ["create_handler INIT", "set_closed FAILED"]

    def shutdown(*_: object) -> None:
        raise rallypoint.ConnectionFailedError("no server answers", rallypoint.Code.CONNECTION)

    with monkeypatch.context() as patch:
        patch.setattr(handler._member, "shutdown", shutdown)
        assert handler.shutdown() is False
    assert records.steps()[2:] == ["shutdown FAILED"]
    assert records.events[2]["message"].endswith("error of type RendezvousConnectionError.")
    assert "no server answers" in records.events[2]["error_trace"]
    handler._member.shutdown()


def test_handler_of_rdzv_events_that_fails(
    records: Records, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What a user's handler raises does not end the rendezvous; it is said once."""

    def emit(record: logging.LogRecord) -> None:
        raise ValueError("full")

    monkeypatch.setattr(records, "emit", emit)
    endpoint = f"127.0.0.1:{free_port()}"
    handler = create_handler(RendezvousParameters("rallypoint", endpoint, "job", 1, 1))
    assert handler.next_rendezvous().rank == 0
    assert handler.shutdown()
    assert caplog.text.count("the handler of events of the rendezvous failed") == 1


def test_nothing_is_recorded_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in torch: the handlers drop all, and so nothing is made."""
    from rallypoint._torch import telemetry

    def record(event: Any) -> None:
        raise AssertionError(event)

    monkeypatch.setattr(events, "record_rdzv_event", record)
    assert telemetry.rdzv_events() is None and telemetry.metrics({}) is None
    telemetry.RdzvRecorder("job")("step", "INIT", "%(nothing)s")


def test_all_metrics_of_torch_are_known() -> None:
    """torch profiles no other functions than those that our agent has metrics for."""
    import inspect

    profiled = set()
    for cls in (torch_api.SimpleElasticAgent, LocalElasticAgent):
        source = inspect.getsource(cls)
        names = re.findall(r"@prof\n(?:\s*#.*\n)*\s+def (\w+)", source)
        profiled |= {f"{cls.__name__}.{name}" for name in names}
    assert profiled == {
        "SimpleElasticAgent.run",
        "SimpleElasticAgent._rendezvous",
        "SimpleElasticAgent._assign_worker_ranks",
        "SimpleElasticAgent._initialize_workers",
        "SimpleElasticAgent._restart_workers",
        "LocalElasticAgent._start_workers",
        "LocalElasticAgent._stop_workers",
        "LocalElasticAgent._monitor_workers",
    }
