"""The handler, as torch's agent uses it: making one, rounds, and rounds that are over."""

from __future__ import annotations

import ast
import inspect
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist
from handler.harness import PATIENCE, Run, evict
from harness import free_port, until
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.elastic.rendezvous import api as torch_api
from torch.distributed.elastic.rendezvous import registry
from torch.distributed.elastic.utils import store as store_util

from rallypoint import Code, RallypointError
from rallypoint._torch.agent_store import stand_in
from rallypoint.handler import RallypointHandler, _keep_from_workers, create_handler


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
        assert os.environ["RALLYPOINT_MASTER_ADDR"] == bootstrap.master_addr
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
        until(lambda: all(h.num_nodes_waiting() > 0 for h in handlers[:2]))
        infos = [f.result(PATIENCE) for f in run.join(*handlers[:2]) + late]
        assert sorted(i.rank for i in infos) == [0, 1, 2]
        assert infos[2].rank == 2
        assert len({i.bootstrap_store_info.master_port for i in infos}) == 1
        assert [h.num_nodes_waiting() for h in handlers] == [0, 0, 0]

    def test_lost_member(self, run: Run) -> None:
        host, lost = run.handler(1, 2), run.handler(1, 2)
        run.round(host, lost)
        lost._member.close()
        until(lambda: host.num_nodes_waiting() > 0)
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


# The others soon continue without a node, and soon admit it again.
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
        until(lambda: late.num_nodes_waiting() > 0)
        [joining] = run.join(late)
        infos: list[Any] = []
        while not infos or infos[0].world_size < 3:
            until(lambda: all(h.num_nodes_waiting() > 0 for h in others))
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
        until(lambda: handlers[0].num_nodes_waiting() > 0)
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
        until(late.is_closed)
        with pytest.raises(dist.DistStoreError, match="the run ended successfully by") as caught:
            assign_ranks(info)
        assert caught.value.code is Code.ROUND_OVER  # type: ignore[attr-defined]
        late.shutdown()
        others[0].shutdown()
        assert ending.result(PATIENCE) is True


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
    for config, says in (
        ({}, "requires a token"),
        ({"token_file": other}, "does not know the token"),
    ):
        with pytest.raises(torch_api.RendezvousError, match=says) as caught:
            run.handler(2, 2, **config).next_rendezvous()
        assert isinstance(caught.value, RallypointError)
        assert caught.value.code == Code.AUTH
        assert "the-run" not in str(caught.value)
    with pytest.raises(ValueError, match="no such file"):
        run.handler(2, 2, token_file=tmp_path / "none")


@pytest.mark.parametrize("by", ["option", "variable"])
def test_token_that_is_not_there(
    by: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever nodes meet, the file of a token has to be there."""
    none = tmp_path / "none"
    config: dict[str, object] = {"rank": 0}
    if by == "option":
        config["token_file"] = none
    else:
        monkeypatch.setenv("RALLYPOINT_TOKEN_FILE", str(none))
    for endpoint in f"file://{tmp_path}", "etcd://127.0.0.1:1", "static://127.0.0.1:29500":
        given = run.parameters(2, 2, **config)
        given.endpoint = endpoint
        with pytest.raises(ValueError, match=rf"{none}: stat .*no such file"):
            create_handler(given)


def test_what_libraries_need_of_a_protected_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where MASTER_ADDR is a loopback address; what the user has set stays, also later."""
    names = "DCP_USE_PREFIX_STORE", "NEURON_RT_ROOT_COMM_ID"

    def after(advertised: str, *rounds: SimpleNamespace) -> list[str | None]:
        for outcome in rounds:
            outcome.advertised_addr = advertised
            RallypointHandler._set_defaults(handler, outcome)  # type: ignore[arg-type]
        return [os.environ.get(name) for name in names]

    for name in names:
        monkeypatch.setenv(name, "")  # so that it is as before in the end
        monkeypatch.delenv(name)
    handler = SimpleNamespace(_defaults={})
    outcome = SimpleNamespace(store_addr="127.1.2.3")
    assert after("127.1.2.3", outcome) == [None, None]
    assert after("fd00::1", outcome) == ["1", "[fd00::1]:62182"]
    assert after("192.0.2.1", outcome) == ["1", "192.0.2.1:62182"]
    monkeypatch.setenv("DCP_USE_PREFIX_STORE", "0")
    assert after("192.0.2.2", outcome) == ["0", "192.0.2.2:62182"]


def test_an_inner_torchrun_passes_nothing_of_the_outer_agent_on(tmp_path: Path) -> None:
    """What an agent makes for one worker is not for the workers of a torchrun that this one is."""
    show = (
        "import os\nours = ('RALLYPOINT_', 'TORCHELASTIC_TIMER')\n"
        "print({n: v for n, v in os.environ.items() if n.startswith(ours)}, flush=True)\n"
    )
    worker, launcher = tmp_path / "worker.py", tmp_path / "launcher.py"
    worker.write_text(show)
    inner = ["--rdzv-backend=rallypoint", f"--rdzv-endpoint=127.0.0.1:{free_port()}", str(worker)]
    argv = [sys.executable, "-m", "torch.distributed.run", *inner]
    launcher.write_text(show + f"os.execv({sys.executable!r}, {argv!r})\n")
    done = subprocess.run(
        [sys.executable, "-m", "rallypoint", "run", str(launcher)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        env={**os.environ, "TORCHELASTIC_ENABLE_FILE_TIMER": "1"},
    )
    assert done.returncode == 0, done.stderr
    outer, its = (ast.literal_eval(line) for line in done.stdout.splitlines())
    alone = {f"RALLYPOINT_{n}_FILE" for n in ("PROGRESS", "DIRECTIVE", "STACKS")}
    assert alone < set(outer) and not alone & set(its)
    assert "RALLYPOINT_GENERATION" not in its
    assert its["TORCHELASTIC_TIMER_FILE"] != outer["TORCHELASTIC_TIMER_FILE"]


def test_workers_do_not_learn_of_the_token() -> None:
    environment = {
        "RALLYPOINT_TOKEN_FILE": "/secret",
        "PET_RDZV_CONF": "is_host=1, token_file=/secret,target=2",
        "OTHER": "1",
    }
    _keep_from_workers(environment)
    assert environment == {"PET_RDZV_CONF": "is_host=1,target=2", "OTHER": "1"}
