"""The handler, as torch's agent uses it: several nodes as threads or processes."""

from __future__ import annotations

import inspect
import json
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters, registry
from torch.distributed.elastic.rendezvous import api as torch_api
from torch.distributed.elastic.utils import store as store_util

import rallypoint
from rallypoint import Code, RallypointError
from rallypoint._torch.agent_store import stand_in
from rallypoint.handler import RallypointHandler, create_handler

PATIENCE = 60.0

# Short for tests; the first round waits for no node in vain.
FAST: dict[str, object] = {"last_call_timeout": 0.2, "lease_timeout": 2, "join_timeout": 100}


def free_port() -> int:
    """A port that is free, from outside the range of outgoing connections."""
    low = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(min(20000, low - 5000), low)
        with socket.socket() as s:
            try:
                s.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


def await_true(what: Callable[[], object], timeout: float = PATIENCE) -> None:
    deadline = time.monotonic() + timeout
    while not what():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.005)


class Run:
    """Handlers of one run, each of which may be used in a thread of its own."""

    def __init__(self) -> None:
        self.run_id = "the-run"
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.pool = ThreadPoolExecutor(16)
        self.handlers: list[RallypointHandler] = []

    def parameters(self, min_nodes: int, max_nodes: int, **config: object) -> RendezvousParameters:
        return RendezvousParameters(
            "rallypoint",
            self.endpoint,
            self.run_id,
            min_nodes,
            max_nodes,
            None,
            **{**FAST, **config},
        )

    def handler(
        self, min_nodes: int = 2, max_nodes: int = 2, **config: object
    ) -> RallypointHandler:
        made = create_handler(self.parameters(min_nodes, max_nodes, **config))
        self.handlers.append(made)
        return made

    def join(self, *handlers: RallypointHandler) -> list[Future[Any]]:
        return [self.pool.submit(h.next_rendezvous) for h in handlers]

    def round(self, *handlers: RallypointHandler) -> list[Any]:
        """One round of all these handlers; their infos. The first of all rounds is hosted
        by the first of its handlers."""
        futures = self.join(handlers[0])
        await_true(lambda: futures[0].done() or _listens(self.endpoint))
        futures += self.join(*handlers[1:])
        return [f.result(PATIENCE) for f in futures]

    def end(self) -> None:
        for handler in self.handlers:
            handler._member.close()
        self.pool.shutdown()


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run()
    yield made
    made.end()


def fail_with(handler: RallypointHandler, error: BaseException) -> bool:
    """shutdown() as torch's launcher calls it: while the error is on its way."""
    try:
        try:
            raise error
        finally:
            result = handler.shutdown()
    except type(error):
        return result
    raise AssertionError


def child_failed() -> ChildFailedError:
    failure = ProcessFailure(local_rank=1, pid=4711, exitcode=3, error_file="")
    return ChildFailedError("train.py", {5: failure})


def evict(run: Run, node: str) -> None:
    """Drops a node from the run, as a person would."""
    command = [Path(sys.executable).with_name("rallypoint"), "admin", "evict", run.endpoint]
    of = ["--rdzv-id", run.run_id, "--node", node, "--reason", "of the test"]
    subprocess.run([*command, *of], check=True, timeout=PATIENCE)


class TestCreating:
    @pytest.mark.skipif(not hasattr(registry, "_register_out_of_tree_handlers"), reason="torch 2.5")
    def test_through_torch(self, run: Run) -> None:
        handler = registry.get_rendezvous_handler(run.parameters(1, 1))
        assert isinstance(handler, torch_api.RendezvousHandler)
        assert handler.get_backend() == "rallypoint"
        assert handler.get_run_id() == "the-run"
        assert handler.use_agent_store is True
        assert handler.shutdown() is True  # nothing was begun

    @pytest.mark.parametrize(
        ("config", "text"),
        [
            ({"join_timeout": "soon"}, r'join_timeout="soon".*seconds'),
            ({"lease_timeout": -1}, "lease_timeout"),
            ({"is_host": "perhaps"}, "is_host"),
            ({"node_unit": 2}, "multiples of node_unit"),
            ({"store_type": "file"}, "store_type.*tcp"),
        ],
    )
    def test_wrong_options(self, run: Run, config: dict[str, object], text: str) -> None:
        with pytest.raises(ValueError, match=text) as caught:
            run.handler(1, 3, **config)
        assert caught.value.code is Code.INVALID  # type: ignore[attr-defined]

    def test_wrong_endpoint(self, run: Run) -> None:
        run.endpoint = "host:123456"
        with pytest.raises(ValueError, match="host:123456"):
            run.handler()

    def test_empty_run_id(self, run: Run) -> None:
        run.run_id = ""
        with pytest.raises(ValueError, match="run id"):
            run.handler()

    def test_what_torchrun_adds_is_ignored(
        self, run: Run, caplog: pytest.LogCaptureFixture
    ) -> None:
        run.handler(timeout=900, rank=3, read_timeout=None)
        assert not caplog.records

    def test_unknown_option_is_a_warning(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        run.handler(join_timeot=3)
        [record] = caplog.records
        assert (record.name, record.levelno) == ("rallypoint", logging.WARNING)
        assert "join_timeot" in record.getMessage() and "join_timeout" in record.getMessage()


class TestRounds:
    def test_two_nodes(self, run: Run) -> None:
        infos = run.round(run.handler(), run.handler())
        assert sorted(i.rank for i in infos) == [0, 1]
        assert {i.world_size for i in infos} == {2}
        bootstrap = infos[0].bootstrap_store_info
        assert isinstance(bootstrap, torch_api.RendezvousStoreInfo)
        assert bootstrap == infos[1].bootstrap_store_info
        assert os.environ["RALLYPOINT_ROUND"] == "1"
        # Workers find the round's store there.
        worker = dist.TCPStore(
            bootstrap.master_addr,
            bootstrap.master_port,
            is_master=False,
            timeout=timedelta(seconds=10),
        )
        assert worker.add("k", 1) == 1

    def test_the_agents_store(self, run: Run) -> None:
        """What torch's agents do with the store that they share."""
        infos = run.round(run.handler(), run.handler())
        stores = [i.store for i in infos]
        assert isinstance(stores[0], dist.Store)
        a, b = (dist.PrefixStore("x", s) for s in stores)
        a.set("k", "v")
        assert b.get("k") == b"v"
        gathered = [
            run.pool.submit(store_util.synchronize, s, str(i).encode(), i, 2, "key", 20)
            for i, s in enumerate(stores)
        ]
        assert [g.result(PATIENCE) for g in gathered] == [[b"0", b"1"]] * 2
        barriers = [
            run.pool.submit(store_util.barrier, s, 2, key_prefix="exit", barrier_timeout=20)
            for s in stores
        ]
        for b in barriers:
            b.result(PATIENCE)
        assert stores[0].timeout == timedelta(seconds=300)

    @pytest.mark.skipif(
        "rank" not in inspect.signature(store_util.barrier).parameters, reason="torch 2.5"
    )
    def test_barrier_of_torch_names_who_is_missing(self, run: Run) -> None:
        """Its tracing finds the missing, and who came learns of it (R114)."""
        stores = [i.store for i in run.round(run.handler(), run.handler())]

        def wait(rank: int) -> str:
            with pytest.raises(dist.DistStoreError) as caught:
                store_util.barrier(
                    stores[rank],
                    4,
                    key_prefix="all",
                    barrier_timeout=1.5,
                    rank=rank,
                    rank_tracing_decoder=lambda rank: f"host{rank}",
                    trace_timeout=0.7,
                )
            return str(caught.value)

        first, second = run.pool.map(wait, (0, 1))
        named = first.partition("missing_ranks=[")[2].partition("]")[0]
        assert sorted(named.split(", ")) == ["host2", "host3"], first
        assert "check rank 0 (host0)" in second

    def test_timeout_of_the_agents_store(self, run: Run) -> None:
        [info] = run.round(run.handler(1, 1))
        with (
            store_util.store_timeout(info.store, 0.1),
            pytest.raises(dist.DistStoreError, match=r"never.*timeout"),
        ):
            info.store.get("never")

    def test_regroup(self, run: Run) -> None:
        handlers = [run.handler(), run.handler()]
        first = run.round(*handlers)
        first[0].store.set("k", "old")
        second = run.round(*handlers)
        assert [i.rank for i in second] == [i.rank for i in first]
        assert os.environ["RALLYPOINT_ROUND"] == "2"
        assert not second[0].store.check(["k"]), "each round has keys of its own"
        with pytest.raises(dist.DistStoreError) as caught:
            first[0].store.get("k")
        assert caught.value.code is Code.ROUND_OVER  # type: ignore[attr-defined]

    def test_newcomer(self, run: Run) -> None:
        """A late node is announced, and in the next round."""
        handlers = [run.handler(2, 3, admit_delay=0.05) for _ in range(3)]
        # A fresh host takes the nodes of an old run for one lease.
        infos = run.round(*handlers[:2])
        assert {i.world_size for i in infos} == {2}
        assert [h.num_nodes_waiting() for h in handlers[:2]] == [0, 0]
        late = run.join(handlers[2])
        await_true(lambda: all(h.num_nodes_waiting() > 0 for h in handlers[:2]))
        infos = [f.result(PATIENCE) for f in run.join(*handlers[:2]) + late]
        assert sorted(i.rank for i in infos) == [0, 1, 2]
        assert infos[2].rank == 2
        assert len({i.bootstrap_store_info.master_port for i in infos}) == 1
        assert [h.num_nodes_waiting() for h in handlers] == [0, 0, 0]

    def test_lost_member(self, run: Run) -> None:
        host, lost = run.handler(1, 2), run.handler(1, 2)
        run.round(host, lost)
        lost._member.close()
        await_true(lambda: host.num_nodes_waiting() > 0)
        assert "connection closed" in host._member.reason()  # after the grace, not the lease
        [info] = run.round(host)
        assert (info.rank, info.world_size) == (0, 1)


def assign_ranks(info: Any, workers: int = 2) -> list[tuple[int, int, int, int]]:
    """What torch's agent does with its store after next_rendezvous()."""
    spec = SimpleNamespace(role="trainer", local_world_size=workers)
    assigned = SimpleElasticAgent._assign_worker_ranks(
        None, info.store, info.rank, info.world_size, spec
    )
    return [(w.global_rank, w.world_size, w.role_rank, w.role_world_size) for w in assigned]


# The others soon go on without a node, and soon admit it again.
SHORT: dict[str, object] = {"regroup_timeout": 0.2, "admit_delay": 0.05}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("torchelastic/role_info/0", {"role": "r", "rank": 0, "local_world_size": 4}),
        ("torchelastic/role_info/2", {"role": "r", "rank": 2, "local_world_size": 4}),
        ("torchelastic/assigned_ranks/2", [8, 12, 8, 12]),
        ("torchelastic/role_info/3", None),
        ("torchelastic/role_info/-1", None),
        ("torchelastic/assigned_ranks/x", None),
        ("torchelastic/role_infos", None),
        ("prefix/torchelastic/role_info/0", None),
    ],
)
def test_stand_in(key: str, value: object) -> None:
    own = b'{"role": "r", "rank": 1, "local_world_size": 4}'
    got = stand_in(key, own, 3)
    assert (json.loads(got) if got is not None else None) == value
    for unreadable in (None, b"", b"\xff", b"[]", b"7", b"{}", b'{"local_world_size": "x"}'):
        assert stand_in(key, unreadable, 3) is None


class TestRoundOver:
    """A node whose round is over before its agent has assigned ranks."""

    def leave_behind(self, run: Run, late_rank: int) -> tuple[Any, Any, list[Any]]:
        """A round of three, and the next without the node of this rank: its handler, its
        info of the first round, and the handlers of the others, their host first."""
        handlers = [run.handler(2, 3, node_rank=rank, **SHORT) for rank in range(3)]
        first = run.round(*handlers)
        late, others = handlers[late_rank], [h for h in handlers if h is not handlers[late_rank]]
        for future in run.join(*others):
            assert future.result(PATIENCE).world_size == 2
        return late, first[late_rank], others

    def regroup(self, run: Run, late: Any, others: list[Any]) -> None:
        """Has the nodes do what their agents do as soon as nodes are waiting."""
        await_true(lambda: late.num_nodes_waiting() > 0)
        [joining] = run.join(late)
        infos: list[Any] = []
        while not infos or infos[0].world_size < 3:
            await_true(lambda: all(h.num_nodes_waiting() > 0 for h in others))
            infos = [f.result(PATIENCE) for f in run.join(*others)]
        infos.append(joining.result(PATIENCE))
        ranks = run.pool.map(assign_ranks, infos)
        assert sorted(r for node in ranks for r, *_ in node) == list(range(6))

    @pytest.mark.parametrize("rank", [1, 2])
    def test_ranks(self, run: Run, rank: int, caplog: pytest.LogCaptureFixture) -> None:
        late, info, others = self.leave_behind(run, rank)
        first = 2 * rank
        assert assign_ranks(info) == [(first, 6, first, 6), (first + 1, 6, first + 1, 6)]
        lines = [
            r.getMessage() for r in caplog.records if "is over for this node" in r.getMessage()
        ]
        assert len(lines) == 1 and "round 1 is over for this node: its workers get" in lines[0]
        self.regroup(run, late, others)

    def test_ranks_of_rank_0(self, run: Run) -> None:
        handlers = [run.handler(2, 3, node_rank=rank, **SHORT) for rank in (1, 0, 2)]
        first = run.round(*handlers)
        late, others = handlers[1], [handlers[0], handlers[2]]
        assert first[1].rank == 0
        for future in run.join(*others):
            future.result(PATIENCE)
        assert assign_ranks(first[1]) == [(0, 6, 0, 6), (1, 6, 1, 6)]
        self.regroup(run, late, others)

    def test_while_it_waits(self, run: Run) -> None:
        """The others regroup while the agent waits for the ranks that rank 0 never assigns."""
        handlers = [run.handler(2, 3, node_rank=rank, **SHORT) for rank in range(3)]
        infos = run.round(*handlers)
        waiting = run.pool.submit(assign_ranks, infos[2])
        infos[0].store.wait(["torchelastic/role_info/2"])
        assert not waiting.done()
        for future in run.join(*handlers[:2]):
            future.result(PATIENCE)
        assert waiting.result(PATIENCE)[0] == (4, 6, 4, 6)
        self.regroup(run, handlers[2], handlers[:2])

    def test_dropped(self, run: Run) -> None:
        """It was lost, and the others have not regrouped yet."""
        handlers = [
            run.handler(2, 3, node_id=f"n{rank}", node_rank=rank, **SHORT) for rank in range(3)
        ]
        infos = run.round(*handlers)
        evict(run, "n2")
        await_true(lambda: handlers[0].num_nodes_waiting() > 0)
        assert [rank for rank, *_ in assign_ranks(infos[2])] == [4, 5]
        assert infos[2].store.clone().get("torchelastic/role_info/0").startswith(b"{"), (
            "clones know it too"
        )
        self.regroup(run, handlers[2], handlers[:2])

    def test_exit_barrier(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        """An agent whose workers have succeeded waits for no other node, and ends well."""
        late, info, others = self.leave_behind(run, 2)
        store_util.barrier(info.store, 3, key_prefix="torchelastic/agent/terminal_state")
        lines = [
            r.getMessage() for r in caplog.records if "is over for this node" in r.getMessage()
        ]
        assert len(lines) == 1 and "its workers have succeeded" in lines[0]
        assert late.shutdown() is True
        assert not others[0].is_closed(), "it is no member of the last round"

    def test_other_keys_raise(self, run: Run) -> None:
        late, info, _ = self.leave_behind(run, 2)
        plain = late._member.keys(1)
        calls: list[Callable[[], object]] = [
            lambda: info.store.get("k"),
            lambda: info.store.set("k", "v"),
            lambda: info.store.add("k", 1),
            lambda: info.store.wait(["k"]),
            lambda: info.store.multi_get(["torchelastic/agent/terminal_state/last_member", "k"]),
            lambda: info.store.multi_set(["k"], ["v"]),
            lambda: info.store.get("torchelastic/assigned_ranks/2"),  # own role info is unknown
            lambda: plain.set("torchelastic/role_info/2", "{}"),
            lambda: plain.get("torchelastic/role_info/2"),
        ]
        for call in calls[:7]:
            with pytest.raises(dist.DistStoreError) as of_torch:
                call()
            assert of_torch.value.code is Code.ROUND_OVER  # type: ignore[attr-defined]
        for call in calls[7:]:
            with pytest.raises(RallypointError) as ours:
                call()
            assert ours.value.code is Code.ROUND_OVER

    def test_not_if_the_run_has_ended(self, run: Run) -> None:
        """Nothing would make it regroup: its workers would run alone for ever."""
        late, info, others = self.leave_behind(run, 2)
        ending = run.pool.submit(others[1].shutdown)
        await_true(late.is_closed)
        with pytest.raises(dist.DistStoreError, match="the run ended successfully by") as caught:
            assign_ranks(info)
        assert caught.value.code is Code.ROUND_OVER  # type: ignore[attr-defined]
        late.shutdown()
        others[0].shutdown()
        assert ending.result(PATIENCE) is True


class TestEnding:
    def test_success(self, run: Run) -> None:
        handlers = [run.handler(), run.handler()]
        run.round(*handlers)
        ended = [run.pool.submit(h.shutdown) for h in handlers]
        assert [e.result(PATIENCE) for e in ended] == [True, True]
        for handler in handlers:
            assert handler.num_nodes_waiting() == 0
            assert handler.shutdown() is True, "again"
        with pytest.raises(torch_api.RendezvousClosedError):
            handlers[0].next_rendezvous()

    def test_worker_failure_stops_all(self, run: Run) -> None:
        handlers = [run.handler(1, 2), run.handler(1, 2)]
        run.round(*handlers)
        failing = run.pool.submit(fail_with, handlers[1], child_failed())
        other = handlers[0]
        await_true(lambda: other.num_nodes_waiting() > 0)
        assert other.is_closed()
        with pytest.raises(torch_api.RendezvousClosedError) as caught:
            other.next_rendezvous()
        assert "worker with rank 5 (pid 4711) of train.py failed: exit code 3" in str(caught.value)
        assert isinstance(caught.value, rallypoint.ClosedError)
        other.shutdown()
        assert failing.result(PATIENCE) is True

    def test_other_errors_leave(self, run: Run) -> None:
        """An agent that breaks leaves the run to the others."""
        handlers = [run.handler(1, 2), run.handler(1, 2)]
        run.round(*handlers)
        leaving = run.pool.submit(fail_with, handlers[1], KeyError("broken"))
        await_true(lambda: handlers[0].num_nodes_waiting() > 0)
        assert not handlers[0].is_closed()
        assert "broken" in handlers[0]._member.reason()
        [info] = run.round(handlers[0])
        assert info.world_size == 1
        handlers[0].shutdown()
        assert leaving.result(PATIENCE) is True

    def test_shutdown_before_a_round_leaves(self, run: Run) -> None:
        waiting = run.handler(2, 2)
        [joining] = run.join(waiting)
        short = run.handler(2, 2)
        assert short.shutdown() is True
        other = run.handler(2, 2)
        [info] = run.round(other)
        assert joining.result(PATIENCE).world_size == info.world_size == 2

    def test_error_that_was_there_before(self, run: Run) -> None:
        """Launching from within an except block is no failure."""
        try:
            raise KeyError("an attempt before")
        except KeyError:
            handler = run.handler(1, 1)
            run.round(handler)
            ending = handler._ending(sys.exc_info()[1])
        assert ending == (rallypoint.Ending.SUCCESS, "")

    def test_set_closed(self, run: Run) -> None:
        """Ends admission and leaves the round alone."""
        handlers = [run.handler(1, 2), run.handler(1, 2)]
        run.round(*handlers)
        handlers[0].set_closed()
        handlers[0].set_closed()
        await_true(handlers[1].is_closed)
        assert handlers[0].is_closed()
        assert [h.num_nodes_waiting() for h in handlers] == [0, 0]
        late = run.handler(1, 2)
        with pytest.raises(torch_api.RendezvousClosedError) as caught:
            late.next_rendezvous()
        assert "the-run" in str(caught.value) and "closed" in str(caught.value)

    def test_late_for_a_run_that_succeeded(self, run: Run) -> None:
        handlers = [run.handler(1, 2), run.handler(1, 2)]
        run.round(*handlers)
        ending = run.pool.submit(handlers[1].shutdown)
        await_true(handlers[0].is_closed)
        late = run.handler(1, 2)
        with pytest.raises(torch_api.RendezvousError) as caught:
            late.next_rendezvous()
        assert "success" in str(caught.value)
        late.shutdown()
        handlers[0].shutdown()
        assert ending.result(PATIENCE)


class TestSpares:
    """A node that the run does not need, until it has ended well."""

    def spare(self, run: Run) -> BaseException | None:
        members = [run.handler(1, 2) for _ in range(2)]
        run.round(*members)
        spare = run.handler(1, 2)
        [waiting] = run.join(spare)
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert [m.num_nodes_waiting() for m in members] == [0, 0]
            assert not waiting.done()
        ending = [run.pool.submit(m.shutdown) for m in members]
        error = waiting.exception(PATIENCE)
        spare.shutdown()
        assert [e.result(PATIENCE) for e in ending] == [True, True]
        return error

    def test_graceful_exit(self, run: Run, caplog: pytest.LogCaptureFixture) -> None:
        error = self.spare(run)
        assert isinstance(error, torch_api.RendezvousGracefulExitError)
        assert isinstance(error, rallypoint.GracefulExitError)
        assert str(error) in [r.getMessage() for r in caplog.records]

    def test_under_torchrun(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        """There it ends the process, with success."""
        code = "def main(call):\n    return call()\n"
        torchrun: dict[str, Any] = {"__spec__": SimpleNamespace(name="torch.distributed.run")}
        exec(code, torchrun)
        plain = RallypointHandler.next_rendezvous
        monkeypatch.setattr(
            RallypointHandler,
            "next_rendezvous",
            lambda self: torchrun["main"](lambda: plain(self)),
        )
        error = self.spare(run)
        assert isinstance(error, SystemExit) and error.code == 0


class TestTimeouts:
    def test_text(self, run: Run) -> None:
        """Who is here, who is missing, how long, where, and what to do (guarantee 11)."""
        handler = run.handler(3, 4, join_timeout=1.4)
        begin = time.monotonic()
        with pytest.raises(torch_api.RendezvousTimeoutError) as caught:
            handler.next_rendezvous()
        assert time.monotonic() - begin >= 1.4
        text = str(caught.value)
        assert isinstance(caught.value, rallypoint.DeadlineError)
        assert caught.value.code is Code.TIMEOUT  # type: ignore[attr-defined]
        for part in ("the-run", run.endpoint, "1 of 4", "3", f"pid {os.getpid()}", "1.4 s"):
            assert part in text, f"{part!r} is not in {text!r}"

    def test_nobody_hosts(self, run: Run) -> None:
        handler = run.handler(1, 1, is_host=0, join_timeout=0.4)
        with pytest.raises(torch_api.RendezvousError) as caught:
            handler.next_rendezvous()
        assert isinstance(
            caught.value, (torch_api.RendezvousConnectionError, torch_api.RendezvousTimeoutError)
        )
        assert run.endpoint in str(caught.value)

    def test_it_may_try_again(self, run: Run) -> None:
        handler = run.handler(2, 2, join_timeout=0.2)
        with pytest.raises(torch_api.RendezvousTimeoutError):
            handler.next_rendezvous()
        other = run.handler(2, 2)
        [waiting] = run.join(other)
        assert run.round(handler)[0].world_size == 2
        assert waiting.result(PATIENCE).world_size == 2

    def test_settings_that_differ(self, run: Run) -> None:
        waiting = run.handler(2, 2)
        joining = run.join(waiting)
        await_true(lambda: _listens(run.endpoint))
        with pytest.raises(torch_api.RendezvousError, match="3") as caught:
            run.handler(2, 3).next_rendezvous()
        assert caught.value.code is Code.MISMATCH  # type: ignore[attr-defined]
        waiting._member.cancel()
        assert isinstance(joining[0].exception(PATIENCE), RallypointError)

    def test_port_of_another_run(self, run: Run) -> None:
        run.round(run.handler(1, 1))
        run.run_id = "another-run"
        with pytest.raises(torch_api.RendezvousError, match="the-run") as caught:
            run.handler(1, 1).next_rendezvous()
        assert caught.value.code is Code.TENANT  # type: ignore[attr-defined]


def _listens(endpoint: str) -> bool:
    host, port = endpoint.split(":")
    with socket.socket() as s:
        return s.connect_ex((host, int(port))) == 0


class TestOtherThreads:
    def test_cancel(self, run: Run) -> None:
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        await_true(lambda: _listens(run.endpoint))
        handler._member.cancel()
        error = joining.exception(PATIENCE)  # which is less than join_timeout
        assert isinstance(error, torch_api.RendezvousError)
        assert error.code is Code.CANCELED  # type: ignore[attr-defined]

    def test_shutdown_ends_a_join(self, run: Run) -> None:
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        await_true(lambda: _listens(run.endpoint))
        assert handler.shutdown() is True
        assert isinstance(joining.exception(PATIENCE), torch_api.RendezvousError)

    def test_num_nodes_waiting_meanwhile(self, run: Run) -> None:
        """It never waits for the join of another thread."""
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        begin = time.monotonic()
        for _ in range(100):
            handler.num_nodes_waiting()
            handler.is_closed()
        assert time.monotonic() - begin < PATIENCE
        handler.shutdown()
        joining.exception(PATIENCE)

    def test_python_runs_on_meanwhile(self, run: Run) -> None:
        """The interpreter lock is not held by a join that waits."""
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        ticks = 0
        deadline = time.monotonic() + 0.3
        while time.monotonic() < deadline:
            time.sleep(0.001)
            ticks += 1
        assert ticks > 50
        handler.shutdown()
        joining.exception(PATIENCE)


NODE = """
import os, signal, sys, time
from torch.distributed.elastic.rendezvous import RendezvousParameters
from rallypoint.handler import create_handler

def make(**config):
    settings = dict(last_call_timeout=0.2, lease_timeout=2, join_timeout=100)
    return create_handler(RendezvousParameters(
        "rallypoint", sys.argv[1], "the-run", int(sys.argv[2]), 2, None, **{**settings, **config}))

"""


class Process:
    """A node in an interpreter of its own, whose lines can be awaited."""

    def __init__(self, run: Run, min_nodes: int, code: str) -> None:
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-u",
                "-c",
                NODE + textwrap.dedent(code),
                run.endpoint,
                str(min_nodes),
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def await_line(self, line: str) -> float:
        """Waits until it prints the line; the time when it did."""
        assert self.process.stdout is not None
        for got in self.process.stdout:
            if got.strip() == line:
                return time.monotonic()
        raise AssertionError(f"it ended without {line!r}: {self.process.communicate()[1]}")

    def end(self) -> tuple[int, str]:
        """Waits for its end: the exit code and what it wrote to stderr."""
        _, err = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, err

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


class TestProcesses:
    def test_interrupt(self, run: Run) -> None:
        """Ctrl-C is answered within 0.1 s; the node withdraws and may join again."""
        code = """
            import threading
            handler = make()
            def interrupt():
                global sent
                time.sleep(0.5)
                sent = time.monotonic()
                os.kill(os.getpid(), signal.SIGINT)
            for i in range(2):
                threading.Thread(target=interrupt).start()
                try:
                    handler.next_rendezvous()
                except KeyboardInterrupt:
                    took = time.monotonic() - sent
                    assert took < 0.1, took
                    print("interrupted")
            info = handler.next_rendezvous()
            print(info.world_size)
            handler.shutdown()
            """
        with Process(run, 2, code) as node:
            node.await_line("interrupted")
            node.await_line("interrupted")
            other = run.handler(2, 2)
            [info] = run.round(other)
            assert info.world_size == 2
            node.await_line("2")
            assert other.shutdown()
            assert node.end()[0] == 0

    def test_exit_without_shutdown(self, run: Run) -> None:
        """As after a signal: the others learn it at once, not after the grace."""
        code = """
            handler = make()
            handler.next_rendezvous()
            print("in")
            """
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        with Process(run, 2, code) as node:
            node.await_line("in")
            joining.result(PATIENCE)
            await_true(lambda: handler.num_nodes_waiting() > 0)
            assert "left: its process exited" in handler._member.reason()
            assert not handler.is_closed()
            assert node.end()[0] == 0

    def test_killed(self, run: Run) -> None:
        code = """
            handler = make()
            handler.next_rendezvous()
            print("in")
            time.sleep(100)
            """
        handler = run.handler(2, 2)
        [joining] = run.join(handler)
        with Process(run, 2, code) as node:
            node.await_line("in")
            joining.result(PATIENCE)
            node.process.kill()
            await_true(lambda: handler.num_nodes_waiting() > 0)
            assert "connection closed" in handler._member.reason()  # after the grace
            handler.shutdown()

    def test_stopped_by_sigterm(self, run: Run) -> None:
        """torch's agent turns SIGTERM into an exception; next_rendezvous lets it out."""
        code = """
            class Stop(BaseException): pass
            def stop(number, frame):
                raise Stop
            signal.signal(signal.SIGTERM, stop)
            print("ready")
            try:
                make().next_rendezvous()
            except Stop:
                print("stopped")
            """
        with Process(run, 2, code) as node:
            node.await_line("ready")
            await_true(lambda: _listens(run.endpoint))
            node.process.send_signal(signal.SIGTERM)
            node.await_line("stopped")
            assert node.end()[0] == 0

    def test_fork(self, run: Run) -> None:
        """A forked child's handler raises; the parent's goes on."""
        code = """
            handler = make()
            handler.next_rendezvous()
            pid = os.fork()
            if pid == 0:
                signal.alarm(10)
                import rallypoint
                for call in (handler.num_nodes_waiting, handler.next_rendezvous):
                    try:
                        call()
                    except rallypoint.ForkedError:
                        pass
                    except rallypoint.RallypointError as e:
                        assert e.code == rallypoint.Code.FORKED
                    else:
                        raise AssertionError
                sys.exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
            assert handler.num_nodes_waiting() == 0
            assert handler.shutdown() is True
            """
        with Process(run, 1, code) as node:
            code, err = node.end()
            assert code == 0, err


def test_threads_are_gone_after_close(run: Run) -> None:
    """No thread of the library is busy for a member that was closed."""
    handler = run.handler(1, 1)
    run.round(handler)
    handler.shutdown()
    handler._member.close()

    def cpu() -> float:
        t = os.times()
        return t.user + t.system

    begin = cpu()
    threading.Event().wait(0.5)
    assert cpu() - begin < 0.1


def test_token(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes with the token meet, whether the option or the environment names its file;
    a node without it is refused."""
    good, other = tmp_path / "good", tmp_path / "other"
    for path in good, other:
        path.write_text(f"a secret that is kept in the file {path.name}\n")
        path.chmod(0o600)
    first = run.handler(2, 2, token_file=good)
    monkeypatch.setenv("RALLYPOINT_TOKEN_FILE", str(good))
    second = run.handler(2, 2)
    monkeypatch.setenv("RALLYPOINT_TOKEN_FILE", "")
    infos = run.round(first, second)
    assert sorted(i.rank for i in infos) == [0, 1]
    for config, says in (({}, "wants a token"), ({"token_file": other}, "does not know the token")):
        with pytest.raises(torch_api.RendezvousError, match=says) as caught:
            run.handler(2, 2, **config).next_rendezvous()
        assert isinstance(caught.value, RallypointError)
        assert caught.value.code == Code.AUTH
        assert "the-run" not in str(caught.value)
    with pytest.raises(ValueError, match="no such file"):
        run.handler(2, 2, token_file=tmp_path / "none")


@pytest.mark.parametrize("by", ["option", "variable"])
def test_token_that_protects_nothing(
    by: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where no control plane asks for it a token is an error, even one that is not there."""
    none = tmp_path / "none"
    config: dict[str, object] = {"rank": 0}
    if by == "option":
        config["token_file"] = none
    else:
        monkeypatch.setenv("RALLYPOINT_TOKEN_FILE", str(none))
    for endpoint in f"file://{tmp_path}", "etcd://127.0.0.1:1", "static://127.0.0.1:29500":
        given = run.parameters(2, 2, **config)
        given.endpoint = endpoint
        with pytest.raises(ValueError, match=f"{none} would protect nothing"):
            create_handler(given)


class TestStatic:
    """A fixed set of nodes (docs/spec/rendezvous.md 4.7), without stale keys."""

    def handlers(
        self, run: Run, backend: str = "rallypoint-static", **config: object
    ) -> list[RallypointHandler]:
        made = []
        for rank in ("0", "1"):  # as torchrun's --rdzv-conf has it
            given = run.parameters(2, 2, rank=rank, timeout=30, **config)
            given.backend = backend
            if backend == "rallypoint":
                given.endpoint = "static://" + run.endpoint
            made.append(create_handler(given))
        run.handlers += made
        return made

    @pytest.mark.parametrize("backend", ["rallypoint", "rallypoint-static"])
    def test_rounds(self, run: Run, backend: str) -> None:
        handlers = self.handlers(run, backend)
        for _ in range(2):
            infos = [f.result(PATIENCE) for f in run.join(*handlers)]
            assert [(i.rank, i.world_size) for i in infos] == [(0, 2), (1, 2)]
            for info in infos:
                bootstrap = info.bootstrap_store_info
                assert f"{bootstrap.master_addr}:{bootstrap.master_port}" == run.endpoint
            assert not infos[1].store.check(["key"]), "a key of an earlier round"
            infos[0].store.set("key", "value")
            assert infos[1].store.get("key") == b"value"
        assert handlers[0].get_backend() == backend and handlers[0].use_agent_store
        assert handlers[0].num_nodes_waiting() == 0 and not handlers[0].is_closed()
        ended = [run.pool.submit(h.shutdown) for h in handlers]
        assert [f.result(PATIENCE) for f in ended] == [True, True]

    def test_a_node_that_starts_over(self, run: Run) -> None:
        """The others hear of it; with torch's they never do."""
        first, second = self.handlers(run)
        for future in run.join(first, second):
            future.result(PATIENCE)
        again = run.pool.submit(first.next_rendezvous)
        await_true(lambda: second.num_nodes_waiting() > 0)
        second.next_rendezvous()
        assert again.result(PATIENCE).rank == 0

    def test_missing_rank(self, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        given = run.parameters(2, 2)
        given.backend = "rallypoint-static"
        with pytest.raises(ValueError, match="node_rank"):
            create_handler(given)
        monkeypatch.setenv("PET_NODE_RANK", "1")
        run.handlers.append(create_handler(given))

    def test_wrong_endpoints(self, run: Run) -> None:
        for endpoint in ("", "host", "file:///dir:x"):
            given = run.parameters(1, 1)
            given.backend, given.endpoint = "rallypoint-static", endpoint
            with pytest.raises(ValueError, match="endpoint"):
                create_handler(given)
