"""Members that meet in a backend of the user's own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from harness import until

import rallypoint
from rallypoint._rendezvous.backend import _tables


class Value(rallypoint.RendezvousBackend):
    """A value in memory; tokens are objects that only know themselves."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.state: bytes | None = None
        self.token: object = None
        self.error: BaseException | None = None
        self.asked = 0

    @property
    def name(self) -> str:
        return "memory"

    def get_state(self) -> Any:
        with self.lock:
            self.asked += 1
            if self.error is not None:
                raise self.error
            return None if self.state is None else (self.state, self.token)

    def set_state(self, state: bytes, token: Any = None) -> Any:
        with self.lock:
            if self.error is not None:
                raise self.error
            stored = token is self.token
            if stored:
                self.state, self.token = state, object()
            return None if self.state is None else (self.state, self.token, stored)


def open_member(backend: Any, nodes: int, **options: object) -> rallypoint.Member:
    conf = {"join_timeout": 30, "advertise_addr": "127.0.0.1", **options}
    return rallypoint.Member("job", "", nodes, nodes, options=conf, backend=backend)


def join_all(members: list[rallypoint.Member]) -> list[rallypoint.Outcome]:
    with ThreadPoolExecutor(len(members)) as pool:
        outcomes = list(pool.map(lambda m: m.next(), members))
    assert sorted(o.rank for o in outcomes) == list(range(len(members)))
    assert len({(o.round, o.store_addr, o.store_port) for o in outcomes}) == 1
    return outcomes


def stores() -> dict[str, Any]:
    import torch.distributed as dist

    def tcp(folder: Path) -> Any:
        return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    return {
        "HashStore": lambda folder: dist.HashStore(),
        "FileStore": lambda folder: dist.FileStore(str(folder / "store"), -1),
        "TCPStore": tcp,
        "PrefixStore": lambda folder: dist.PrefixStore("prefix", dist.HashStore()),
    }


@pytest.fixture(params=["Value", "HashStore", "FileStore", "TCPStore", "PrefixStore", "c10d"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    pytest.importorskip("torch")
    if request.param == "Value":
        return Value()
    if request.param == "c10d":  # the reference's own
        from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import (
            C10dRendezvousBackend,
        )

        return C10dRendezvousBackend(stores()["TCPStore"](tmp_path), "job")
    return rallypoint.StoreBackend(stores()[request.param](tmp_path))


def test_nodes_meet(backend: Any) -> None:
    members = [open_member(backend, 3) for _ in range(3)]
    outcomes = join_all(members)
    assert outcomes[0].round == 1
    for i in range(6):
        assert members[i % 3].keys(1).add("sum", 2) == 2 * i + 2
    members[1].close()
    until(lambda: members[0].nodes_waiting() > 0)
    for member in members:
        member.close()
    # Given back, at the latest when what was called for nothing has returned.
    until(lambda: not _tables)


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ConnectionRefusedError("no route"), rallypoint.ConnectionFailedError),
        (ValueError("a mistake"), rallypoint.InvalidError),
    ],
)
def test_errors(error: BaseException, raised: type[BaseException]) -> None:
    value = Value()
    value.error = error
    with open_member(value, 1, read_timeout=0.2) as member:
        with pytest.raises(raised, match=f"backend memory: get_state: .*{error}"):
            member.next()
        value.error = None


@pytest.fixture
def handlers() -> Iterator[list[Any]]:
    made: list[Any] = []
    yield made
    for handler in made:
        handler._member.close()


@pytest.mark.parametrize("of_torch", [False, True])
def test_a_backend_that_has_given_up(of_torch: bool) -> None:
    """What it raises before it was reached once is raised at once, as by torch's handler;
    afterwards it is repeated."""
    error: Any = rallypoint.ConnectionFailedError("the place is away", rallypoint.Code.CONNECTION)
    if of_torch:
        api = pytest.importorskip("torch.distributed.elastic.rendezvous.api")
        error = api.RendezvousConnectionError("the place is away")
    value = Value()
    value.error = error
    with open_member(value, 1, read_timeout=5, close_timeout=0.2) as member:
        for asked in (1, 2):
            with pytest.raises(rallypoint.ConnectionFailedError, match="the place is away"):
                member.next()
            assert value.asked == asked
        value.error = None
        assert member.next().round == 1
        value.error = error
        assert member.keys(1).add("sum", 1) == 1  # the leader needs no backend for that
        with pytest.raises(rallypoint.DeadlineError):
            member.set_closed("enough")
        value.error = None
        while not member.is_closed():
            time.sleep(0.01)


def test_connection_error_of_from_backend(handlers: list[Any]) -> None:
    api = pytest.importorskip("torch.distributed.elastic.rendezvous.api")
    value = Value()
    value.error = api.RendezvousConnectionError("the place is away")
    make = rallypoint.DynamicRendezvousHandler.from_backend
    handlers.append(make("job", None, value, 1, 1, read_timeout=5))
    with pytest.raises(api.RendezvousConnectionError, match="the place is away"):
        handlers[0].next_rendezvous()
    assert value.asked == 1


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


class Unmade(rallypoint.RallypointError):
    def __init__(self) -> None:
        pass


@pytest.mark.parametrize(
    ("answer", "raised", "text"),
    [
        (Mute(), rallypoint.ConnectionFailedError, "get_state: Mute: .its text cannot be had"),
        (Unmade(), rallypoint.RallypointError, "get_state: Unmade"),
        ((5, None), rallypoint.InvalidError, "a state is bytes, not int"),
        (("text", None), rallypoint.InvalidError, "a state is bytes, not str"),
        ((bytes(65 << 20), None), rallypoint.RallypointError, "64 MB"),
        ((b"state",), rallypoint.InvalidError, "IndexError"),
    ],
)
def test_answers_that_are_none(
    answer: Any, raised: type[BaseException], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a backend does, the library gets an error that says so."""

    def get_state(self: Any) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    lost: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", lost.append)
    monkeypatch.setattr(Value, "get_state", get_state)
    timeout = 0.2 if raised is rallypoint.ConnectionFailedError else 20
    member = open_member(Value(), 1, read_timeout=timeout)
    with member, pytest.raises(raised, match=text):
        member.next()
    assert not lost


def test_a_state_of_something_else() -> None:
    value = Value()
    value.state, value.token = b"\x80\x04 a pickle", object()
    with open_member(value, 1) as member, pytest.raises(rallypoint.StateError, match="else"):
        member.next()


@pytest.mark.parametrize("by", ["option", "variable"])
def test_a_token_that_is_not_there(by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a token, which the round stores ask for, has to be there."""
    options = {"token_file": "/none"} if by == "option" else {}
    if by == "variable":
        monkeypatch.setenv("RALLYPOINT_TOKEN_FILE", "/none")
    with pytest.raises(ValueError, match=r"/none: stat .*no such file"):
        open_member(Value(), 1, **options)


def test_a_hanging_backend_holds_nobody_up() -> None:
    value = Value()
    with open_member(value, 1) as member:
        member.next()
        with value.lock:  # every call waits from here on
            member.close()
            assert _tables, "a backend was given back that is being called"
    until(lambda: not _tables)


def test_from_backend(handlers: list[Any]) -> None:
    pytest.importorskip("torch")
    from torch.distributed.elastic.rendezvous.dynamic_rendezvous import RendezvousTimeout

    value = Value()
    for _ in range(2):
        handlers.append(
            rallypoint.DynamicRendezvousHandler.from_backend(
                "job",
                None,
                value,
                2,
                2,
                "127.0.0.1",
                RendezvousTimeout(join=timedelta(seconds=30)),
                keep_alive_interval=1,
            )
        )
    with ThreadPoolExecutor(2) as pool:
        infos = list(pool.map(lambda h: h.next_rendezvous(), handlers))
    assert sorted(i.rank for i in infos) == [0, 1]
    assert {i.world_size for i in infos} == {2}
    assert {i.bootstrap_store_info.master_addr for i in infos} == {"127.0.0.1"}
    infos[0].store.set("key", "value")
    assert infos[1].store.get("key") == b"value"
    assert handlers[0].get_backend() == "memory"
    assert handlers[0].get_run_id() == "job"


def test_from_backend_refuses(handlers: list[Any]) -> None:
    pytest.importorskip("torch")
    make = rallypoint.DynamicRendezvousHandler.from_backend
    with pytest.raises(ValueError, match="run id"):
        make("", None, Value(), 1, 1)
    with pytest.raises(ValueError, match="no RendezvousBackend"):
        make("job", None, object(), 1, 1)
    with pytest.raises(ValueError, match="max"):
        make("job", None, Value(), 2, 1)
    assert not _tables


def test_store_backend_keeps_the_contract(tmp_path: Path) -> None:
    """R80: nothing is lost to an old token, and nothing written by a wrong one."""
    pytest.importorskip("torch")
    for make in stores().values():
        b = rallypoint.StoreBackend(make(tmp_path), "key")
        assert b.get_state() is None
        assert b.set_state(b"x", "bm90") is None
        first = b.set_state(b"one\0\xff", None)
        assert first is not None
        assert first[0] == b"one\0\xff" and first[2]
        assert b.get_state() == first[:2]
        assert b.set_state(b"two", None) == (*first[:2], False)
        assert b.set_state(b"two", object()) == (*first[:2], False)
        second = b.set_state(b"two", first[1])
        assert second is not None and second[0] == b"two" and second[2]
        assert b.set_state(b"three", first[1]) == (*second[:2], False)
        assert b.get_state() == second[:2]


@pytest.mark.parametrize("content", ["non_base64", "abc", "\u00fc", "bm90IG91cnM="])
def test_a_store_with_something_else(content: str) -> None:
    """A key that is not ours ends a join with its content in the error, and is left as it is."""
    pytest.importorskip("torch")
    store = stores()["HashStore"](Path())
    store.set("key", content)
    backend = rallypoint.StoreBackend(store, "key")
    with open_member(backend, 1) as member, pytest.raises(rallypoint.StateError, match="else"):
        member.next()
    assert store.get("key") == content.encode()


def test_a_state_error_is_torch_s() -> None:
    api = pytest.importorskip("torch.distributed.elastic.rendezvous.api")
    store = stores()["HashStore"](Path())
    store.set("key", "not base64")
    with pytest.raises(api.RendezvousStateError, match="else") as e:
        rallypoint.StoreBackend(store, "key").get_state()
    assert isinstance(e.value, rallypoint.StateError)


class Gone:
    """A store whose server has ended."""

    def get(self, key: str) -> bytes:
        raise RuntimeError("Broken pipe")

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        raise RuntimeError("Broken pipe")


def test_a_store_that_is_gone() -> None:
    """As of torch's C10dRendezvousBackend (and of ours, by inheritance)."""
    api = pytest.importorskip("torch.distributed.elastic.rendezvous.api")

    backend = rallypoint.StoreBackend(Gone(), "key")
    for call in (backend.get_state, lambda: backend.set_state(b"x")):
        with pytest.raises(api.RendezvousConnectionError, match="'key' does not answer"):
            call()
        with pytest.raises(rallypoint.ConnectionFailedError):
            call()
