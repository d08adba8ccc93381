"""What torch's documents say of handlers, stores and agents, tried with ours."""

from __future__ import annotations

import contextlib
import pickle
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import launch_jobs as jobs
import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server import ElasticAgent
from torch.distributed.elastic.agent.server.api import WorkerSpec, WorkerState
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout

import rallypoint
from rallypoint import LaunchConfig, elastic_launch
from rallypoint._torch.store import TorchStore
from rallypoint.agent import RallypointElasticAgent
from rallypoint.handler import create_handler


def handler(endpoint: str = "127.0.0.1:0", **config: Any) -> Any:
    return create_handler(RendezvousParameters("rallypoint", endpoint, "job", 1, 1, **config))


def test_python_m(run_python: Any) -> None:
    for arguments, expected in ((["--version"], "0."), (["run", "--help"], "--nnodes")):
        done = subprocess.run(
            [sys.executable, "-m", "rallypoint", *arguments], capture_output=True, text=True
        )
        assert done.returncode == 0 and expected in done.stdout, done.stderr


def test_python_m_run(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import os, sys; print(os.environ['RANK'], sys.executable)")
    command = [sys.executable, "-m", "rallypoint", "run", "--standalone", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == f"0 {sys.executable}\n", done.stderr


def test_triple() -> None:
    made = handler()
    try:
        info = made.next_rendezvous()
        store, rank, world_size = info
        assert (rank, world_size) == (info.rank, info.world_size) == (0, 1)
        assert store is info.store and info[0] is store and len(info) == 3
        assert info.bootstrap_store_info.master_port > 0
        assert isinstance(store, dist.Store)
    finally:
        made.shutdown()
        made._member.close()


def test_missing_key(server: rallypoint.StoreServer) -> None:
    """LookupError, as torch's EtcdStore; and a time-out, which names the key."""
    with rallypoint.connect_store("127.0.0.1", server.port) as store:
        calls = [
            lambda: store.get("absent", 0.05),
            lambda: store.wait(["absent"], timedelta(seconds=0.05)),
            lambda: store.wait(["absent"], override_timeout=timedelta(seconds=0.05)),
            lambda: store.multi_get(["absent"], 0.05),
        ]
        for call in calls:
            with pytest.raises(LookupError, match="absent") as caught:
                call()
            assert isinstance(caught.value, (KeyError,))
            assert isinstance(caught.value, TimeoutError)
            assert isinstance(caught.value, rallypoint.DeadlineError)
        with pytest.raises(rallypoint.DeadlineError) as other:
            store.barrier("b", 2, 0.05)
        assert not isinstance(other.value, LookupError)
        wrapped = TorchStore(store)
        wrapped.set_timeout(timedelta(milliseconds=50))
        for torchs in (
            lambda: wrapped.get("absent"),
            lambda: wrapped.wait(["absent"], override_timeout=timedelta(seconds=0.05)),
        ):
            with pytest.raises(LookupError) as caught:
                torchs()
            assert isinstance(caught.value, dist.DistStoreError)
            assert isinstance(caught.value, TimeoutError)


def test_timedelta(server: rallypoint.StoreServer, tmp_path: Path) -> None:
    """Where torch takes one, and where it takes seconds both."""
    half = timedelta(milliseconds=500)
    with rallypoint.connect_store("127.0.0.1", server.port, half) as store:
        assert store.timeout == half
        store.set_timeout(timedelta(milliseconds=20))
        with pytest.raises(KeyError):
            store.get("absent")
        store.set_timeout(0.02)
        with pytest.raises(KeyError):
            store.get("absent")
        with pytest.raises(ValueError, match="NaN"):
            store.set_timeout(float("nan"))
        assert store.timeout == 0.02
        wrapped = TorchStore(store)
        wrapped.set_timeout(0.02)
        assert wrapped.timeout == timedelta(seconds=0.02)
    with rallypoint.FileStore(tmp_path / "f", -1, half) as file:
        file.set("key", "v", half)
    options = {"join_timeout": timedelta(seconds=7)}
    rallypoint.Member("job", "127.0.0.1:0", options=options).close()
    with pytest.raises(rallypoint.InvalidError, match="join_timeout"):
        rallypoint.Member("job", "127.0.0.1:0", options={"join_timeout": timedelta(0)})


class Value(rallypoint.RendezvousBackend):
    """A value that can be compared and set, in memory."""

    name = "memory"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state: bytes | None = None
        self.token = 0

    def get_state(self) -> Any:
        with self.lock:
            return None if self.state is None else (self.state, self.token)

    def set_state(self, state: bytes, token: Any | None = None) -> Any:
        with self.lock:
            stored = token == (None if self.state is None else self.token)
            if stored:
                self.state, self.token = state, self.token + 1
            return self.state, self.token, stored


@pytest.mark.parametrize("ours", [False, True])
def test_store_of_from_backend(ours: bool, server: rallypoint.StoreServer) -> None:
    """next_rendezvous() returns the store that was given, as torch's handler does."""
    value, made, held = Value(), [], []
    for _ in range(2):
        store: Any = rallypoint.connect_store("127.0.0.1", server.port)
        held.append(store)
        if not ours:
            store = dist.TCPStore("127.0.0.1", server.port, wait_for_workers=False)
        new = rallypoint.DynamicRendezvousHandler.from_backend(
            "job", store, value, 2, 2, "127.0.0.1"
        )
        made.append(new)
    try:
        with ThreadPoolExecutor(2) as pool:
            infos = list(pool.map(lambda h: h.next_rendezvous(), made))
        infos[0].store.set("agents", "met")
        assert infos[1].store.get("agents") == b"met"
        keys = [k for k in held[0].list_keys() if k.endswith("/agents")]
        assert keys == ["torch.rendezvous.job.1/agents"]
    finally:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda h: h.shutdown(), made))
        for h in made:
            h._member.close()
        for store in held:
            store.close()


def test_from_backend_ignores_a_heartbeat() -> None:
    make = rallypoint.DynamicRendezvousHandler.from_backend
    timeout = RendezvousTimeout(heartbeat=timedelta(seconds=9))
    with pytest.warns(UserWarning, match=r"heartbeat.*no effect.*deviations"):
        make("job", None, Value(), 1, 1, timeout=timeout)._member.close()


def test_from_backend_refuses() -> None:
    make = rallypoint.DynamicRendezvousHandler.from_backend
    with pytest.raises(rallypoint.InvalidError, match=r"not a torch\.distributed\.Store"):
        make("job", object(), Value(), 1, 1)
    make("job", None, Value(), 1, 1, timeout=RendezvousTimeout())._member.close()


def test_store_type_file(tmp_path: Path) -> None:
    made = handler(str(tmp_path), store_type="file")
    assert made.next_rendezvous().world_size == 1
    assert list(tmp_path.iterdir())  # where the node has met
    made.shutdown()
    made._member.close()
    config = LaunchConfig(
        1, 1, 1, rdzv_endpoint=str(tmp_path), rdzv_configs={"store_type": "file"}, max_restarts=0
    )
    assert elastic_launch(config, jobs.add_rank)(5) == {0: 5}
    for path in (tmp_path / "absent", Path(__file__)):
        if path.exists():
            path = Path(shutil.copy(path, tmp_path))
        file = handler(str(path), store_type="file")
        assert file.next_rendezvous().world_size == 1
        file.shutdown()
        file._member.close()
        assert (tmp_path / f"{path.name}.rallypoint").is_dir()
    script = tmp_path / "true.py"
    script.write_text("")
    command = ["run", "--rdzv-backend=c10d", f"--rdzv-endpoint={tmp_path}", "--rdzv-conf"]
    done = subprocess.run(
        [sys.executable, "-m", "rallypoint", *command, "store_type=file", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises(rallypoint.InvalidError, match="file:///DIRECTORY"):
        handler("127.0.0.1:0", store_type="file")
    with pytest.raises(rallypoint.InvalidError, match="file:///DIRECTORY"):
        rallypoint.Member("job", "127.0.0.1:0", options={"store_type": "file"})


def test_is_an_elastic_agent() -> None:
    spec = WorkerSpec("w", 1, handler(), entrypoint=jobs.nothing)
    agent = RallypointElasticAgent(spec)
    assert isinstance(agent, ElasticAgent) and issubclass(RallypointElasticAgent, ElasticAgent)
    assert not hasattr(agent, "_start_workers"), "docs/deviations.md: torch's is to be extended"
    spec.rdzv_handler._member.close()  # type: ignore[attr-defined]


def test_worker_group_during_a_run(tmp_path: Path) -> None:
    """The group is HEALTHY with pids and ranks, and so again after a restart."""
    script = (
        f"cd {tmp_path}; n=$TORCHELASTIC_RESTART_COUNT; echo $$ > pid.$n.$RANK.new; "
        "mv pid.$n.$RANK.new pid.$n.$RANK; until [ -e go.$n ]; do sleep 0.02; done; "
        '[ "$n" = 1 ] || [ "$RANK" = 1 ] || exit 3; [ "$n" = 1 ] || exec sleep 1000'
    )
    made = handler()
    spec = WorkerSpec(
        "w", 2, made, entrypoint="sh", args=("-c", script.replace("$", "$$")), max_restarts=1
    )
    agent = RallypointElasticAgent(spec)
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as stack:
        result = pool.submit(agent.run)
        stack.callback((tmp_path / "go.0").touch)
        stack.callback((tmp_path / "go.1").touch)
        for attempt in range(2):
            files = [tmp_path / f"pid.{attempt}.{rank}" for rank in range(2)]
            while not all(file.exists() for file in files):
                time.sleep(0.01)
            pids = {rank: int(file.read_text()) for rank, file in enumerate(files)}
            deadline = time.monotonic() + 60
            group = agent.get_worker_group()
            while {w.local_rank: w.id for w in group.workers} != pids or (
                group.state != WorkerState.HEALTHY
            ):
                assert time.monotonic() < deadline, (group.state, group.workers)
                time.sleep(0.01)
            assert [w.global_rank for w in group.workers] == [0, 1]
            assert [w.world_size for w in group.workers] == [2, 2]
            assert (group.group_rank, group.group_world_size) == (0, 1)
            assert agent._remaining_restarts == 1 - attempt
            (tmp_path / f"go.{attempt}").touch()
        assert not result.result(60).is_failed()
    assert group.state == WorkerState.SUCCEEDED
    made._member.close()


class Foreign(RendezvousHandler):
    """A handler of another package."""

    def get_backend(self) -> str:
        return "theirs"

    def get_run_id(self) -> str:
        return "job"

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def next_rendezvous(self) -> Any:
        raise NotImplementedError

    def shutdown(self) -> bool:
        return True


def test_foreign_handlers_name_the_way() -> None:
    spec = WorkerSpec("w", 1, Foreign(), entrypoint=jobs.nothing)
    with pytest.raises(rallypoint.InvalidError, match=r"LocalElasticAgent.*deviations"):
        RallypointElasticAgent(spec)
    config = LaunchConfig(1, 1, 1, rdzv_backend="theirs", rdzv_endpoint="host:1")
    with pytest.raises(rallypoint.InvalidError, match=r"torch's own elastic_launch.*deviations"):
        elastic_launch(config, jobs.nothing)()
    command = [sys.executable, "-m", "rallypoint", "run", "--rdzv-backend=theirs"]
    done = subprocess.run(
        [*command, "--rdzv-endpoint=h", "x.py"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert "torchrun --rdzv-backend=theirs" in done.stderr and "deviations.md" in done.stderr


def test_default_backend() -> None:
    assert LaunchConfig(1, 1, 1).rdzv_backend == "rallypoint"


@pytest.mark.parametrize("host", ["127.0.0.1:29400", "[::1]", "[::1]:29400", "host:1"])
def test_host_with_a_port(host: str) -> None:
    with pytest.raises(rallypoint.InvalidError, match="two arguments"):
        rallypoint.connect_store(host, 5)


def test_kinds_of_errors(server: rallypoint.StoreServer) -> None:
    with pytest.raises(ConnectionError) as taken:
        rallypoint.StoreServer("127.0.0.1", server.port)
    address = f"127.0.0.1:{server.port}"
    assert str(taken.value) == f"tcpstore: listen on {address}: address already in use"
    with pytest.raises(TimeoutError) as late:
        rallypoint.connect_store("127.0.0.1", 1, 0.05)
    assert "connection refused" in str(late.value) and "dial" not in str(late.value)
    assert str(late.value).count("127.0.0.1:1") == 1
    options = {"is_host": 0, "join_timeout": 2}
    with rallypoint.Member("job", "127.0.0.1:1", options=options) as member:
        with pytest.raises(ConnectionError) as away:
            member.next()
        assert "connection refused" in str(away.value) and "dial" not in str(away.value)
        member.shutdown(rallypoint.Ending.LEAVE)


def test_errors_of_torch_s_kinds() -> None:
    """torch's classes and Python's at once; the layouts of the classes allow it."""
    from rallypoint import Code, _errors
    from rallypoint._torch.errors import rendezvous_error, store_error

    for code, kind in ((Code.TIMEOUT, TimeoutError), (Code.CONNECTION, ConnectionError)):
        error = _errors.make_error(code, "why", True)
        for made in (error, store_error(error), rendezvous_error(error)):
            assert isinstance(made, kind) and isinstance(made, OSError)
            again = pickle.loads(pickle.dumps(made))
            assert (type(again), str(again), again.code, again.retryable) == (
                type(made),
                "why",
                code,
                True,
            )
            assert made.args == ("why",) and made.errno is None  # type: ignore[attr-defined]
    missing = store_error(rallypoint.MissingKeyError("why", Code.TIMEOUT, True))
    assert isinstance(missing, (KeyError,)) and isinstance(missing, dist.DistStoreError)
    assert str(missing) == "why" and str(pickle.loads(pickle.dumps(missing))) == "why"


def test_etcd_store_of_a_client(etcd: rallypoint.EtcdServer) -> None:
    """EtcdStore(client, prefix), as torch's: with ours, and what python-etcd's looks like."""
    from rallypoint import EtcdStore

    class Client:
        host, port, protocol = etcd.get_host(), etcd.get_port(), "http"

    client = etcd.get_client()
    first = EtcdStore(client, "/promises")
    second = EtcdStore(Client(), "/promises", timeout=timedelta(seconds=20))
    first.set("key", "value")
    assert second.get("key") == b"value" and second.timeout == timedelta(seconds=20)
    third = pickle.loads(pickle.dumps(second))
    assert third.get("key") == b"value" and third.timeout == second.timeout
    assert etcd.get_endpoint() in repr(first) and "/promises" in repr(first)
    again = pickle.loads(pickle.dumps(client))
    assert not again.check(["key"])
    with pytest.raises(rallypoint.InvalidError, match="not an etcd client"):
        EtcdStore(object(), "/promises")
    for store in (first, second, third, client, again):
        store.close()


def test_first_names_of_errors() -> None:
    """Programs that were written by torch's first documents catch our errors."""
    from rallypoint import Code, RallypointError, handler
    from rallypoint._torch.errors import rendezvous_error

    closed = rendezvous_error(RallypointError("closed", Code.CLOSED))
    late = rendezvous_error(RallypointError("late", Code.TIMEOUT))
    wrong = rendezvous_error(RallypointError("wrong", Code.INVALID))
    assert isinstance(closed, handler.RendezvousClosedException)
    assert isinstance(late, handler.RendezvousTimeoutException)
    assert not isinstance(closed, handler.RendezvousTimeoutException)
    assert isinstance(wrong, handler.RendezvousNonRetryableError)
