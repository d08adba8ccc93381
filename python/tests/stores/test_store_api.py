"""Stores: torch's clients on our server, our client on torch's server, and TorchStore."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

import rallypoint
from rallypoint import (
    Code,
    FileStore,
    HashStore,
    PrefixStore,
    RallypointError,
    Store,
    StoreServer,
    connect_store,
)
from rallypoint._native.wait import wait as native_wait
from rallypoint._stores import request
from rallypoint._torch.store import TorchStore

SHORT = timedelta(milliseconds=50)
LONG = timedelta(seconds=20)

HAS_QUEUES = hasattr(dist.Store, "queue_push")
HAS_LIST_KEYS = hasattr(dist.Store, "list_keys")
HAS_BARRIER = hasattr(dist.Store, "barrier")
HAS_CLONE = hasattr(dist.Store, "clone")


def stock_client(server: StoreServer, **kwargs: object) -> dist.TCPStore:
    kwargs.setdefault("timeout", LONG)
    return dist.TCPStore("127.0.0.1", server.port, is_master=False, **kwargs)


def settle(store: dist.Store) -> None:
    """Returns when the store's writes are done: torch's client does not wait for them."""
    store.num_keys()


def one_hash(server: StoreServer, folder: Path) -> list[Store]:
    return [HashStore()] * 2


def two_prefixes(server: StoreServer, folder: Path) -> list[Store]:
    below = connect_store("127.0.0.1", server.port, 20)
    return [PrefixStore("a", PrefixStore("b", below)), PrefixStore("b/a", below)]


def two_files(server: StoreServer, folder: Path) -> list[Store]:
    return [FileStore(folder / "store", 2, 20) for _ in range(2)]


LOCAL = {
    "HashStore": one_hash,
    "PrefixStore of ours, our server": two_prefixes,
    "FileStore": two_files,
}


class TestEveryCall:
    """One set of calls, made by torch's client, by ours, and through ours as torch sees it.

    `clients` makes several stores that share their keys.
    """

    @pytest.fixture(
        params=[
            "stock client, our server",
            "TorchStore, our server",
            "TorchStore, torch's server (libuv)",
            "TorchStore, torch's server (legacy)",
            "PrefixStore of TorchStore, our server",
            "HashStore",
            "PrefixStore of ours, our server",
            "FileStore",
        ]
    )
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def clients(self, kind: str, server: StoreServer, tmp_path: Path) -> Iterator[list[dist.Store]]:
        if kind in LOCAL:
            stores = LOCAL[kind](server, tmp_path)
            yield [TorchStore(s, LONG) if isinstance(s, Store) else s for s in stores]
            for store in stores:
                if isinstance(store, Store):
                    store.close()
            return
        if kind.startswith("stock"):
            yield [stock_client(server) for _ in range(2)]
            return
        port = server.port
        if "torch's server" in kind:
            use_libuv = "libuv" in kind
            master = dist.TCPStore("127.0.0.1", 0, is_master=True, use_libuv=use_libuv)
            port = master.port
        stores = [connect_store("127.0.0.1", port, 20) for _ in range(2)]
        inner = wrapped = [TorchStore(s, LONG) for s in stores]
        if kind.startswith("PrefixStore"):
            inner, wrapped = wrapped, [dist.PrefixStore("prefix", s) for s in wrapped]
        yield wrapped
        del wrapped, inner
        for store in stores:
            store.close()

    def test_set_get(self, clients: list[dist.Store]) -> None:
        a, b = clients
        a.set("k", "v")
        assert b.get("k") == b"v"
        a.set("k", "é\0x")
        settle(a)
        assert b.get("k") == "é\0x".encode()
        a.set("", "")
        assert b.get("") == b""
        a.set("big", "x" * 300_000)
        assert len(b.get("big")) == 300_000

    def test_get_waits(self, clients: list[dist.Store]) -> None:
        a, b = clients
        with ThreadPoolExecutor() as pool:
            value = pool.submit(a.get, "later")
            time.sleep(0.02)
            b.set("later", "now")
            assert value.result(20) == b"now"

    def test_add(self, clients: list[dist.Store]) -> None:
        a, b = clients
        assert a.add("n", 5) == 5
        assert b.add("n", -7) == -2
        assert a.get("n") == b"-2"

    def test_compare_set(self, clients: list[dist.Store]) -> None:
        a, b = clients
        assert a.compare_set("k", "expected", "x") == b"expected"
        assert not a.check(["k"])
        assert a.compare_set("k", "", "1") == b"1"
        assert b.compare_set("k", "0", "2") == b"1"
        assert b.compare_set("k", "1", "2") == b"2"

    def test_check(self, clients: list[dist.Store]) -> None:
        a, b = clients
        assert not a.check(["x"])
        b.set("x", "1")
        settle(b)
        assert a.check(["x"]) and not a.check(["x", "y"]) and a.check([])

    def test_wait(self, clients: list[dist.Store]) -> None:
        a, b = clients
        b.set("x", "1")
        settle(b)
        a.wait(["x"])
        a.wait(["x"], SHORT)
        with pytest.raises(dist.DistStoreError, match=r"(?i)time"):
            a.wait(["x", "y"], SHORT)
        a.set("y", "1")  # the store still works
        a.wait(["x", "y"], LONG)

    def test_timeout(self, clients: list[dist.Store]) -> None:
        a, _ = clients
        a.set_timeout(timedelta(milliseconds=100))
        assert a.timeout == timedelta(milliseconds=100)
        with pytest.raises(dist.DistStoreError):
            a.get("never")

    def test_delete_key(self, clients: list[dist.Store]) -> None:
        a, b = clients
        a.set("k", "v")
        settle(a)
        assert b.delete_key("k") and not b.delete_key("k")

    def test_num_keys(self, clients: list[dist.Store]) -> None:
        a, b = clients
        before = b.num_keys()  # torch's server has a key of its own
        a.set("k", "v")
        a.add("n", 1)
        assert b.num_keys() == before + 2

    def test_append(self, clients: list[dist.Store]) -> None:
        a, b = clients
        a.append("k", "1")
        settle(a)
        b.append("k", "2")
        settle(b)
        assert a.get("k") == b"12"

    def test_multi(self, clients: list[dist.Store]) -> None:
        a, b = clients
        assert a.has_extended_api()
        a.multi_set(["x", "y"], ["1", ""])
        assert b.multi_get(["y", "x"]) == [b"", b"1"]
        assert b.multi_get([]) == []

    @pytest.mark.skipif(not HAS_QUEUES, reason="torch 2.8")
    def test_queues(self, clients: list[dist.Store], kind: str) -> None:
        if "legacy" in kind or "PrefixStore of Torch" in kind or kind == "FileStore":
            pytest.skip("there are no queues there")
        a, b = clients
        assert a.queue_len("q") == 0
        with pytest.raises(dist.QueueEmptyError):
            a.queue_pop("q", block=False)
        a.queue_push("q", "1")
        a.queue_push("q", "2")
        settle(a)
        assert b.queue_len("q") == 2
        assert b.queue_pop("q") == b"1"
        assert b.queue_pop("q", False) == b"2"
        b.set_timeout(SHORT)
        with pytest.raises(dist.DistStoreError):
            b.queue_pop("q")

    @pytest.mark.skipif(not HAS_LIST_KEYS, reason="torch 2.10")
    def test_list_keys(self, clients: list[dist.Store], kind: str) -> None:
        if "PrefixStore of Torch" in kind:
            pytest.skip("torch offers no list_keys there")
        a, b = clients
        a.set("x", "1")
        b.set("y", "1")
        settle(a)
        settle(b)
        own = {"efcount/"} if kind == "FileStore" else set()  # its counter of users
        assert set(a.list_keys()) == {"x", "y"} | own

    @pytest.mark.skipif(not HAS_BARRIER, reason="torch 2.12")
    def test_barrier(self, clients: list[dist.Store]) -> None:
        a, b = clients
        with ThreadPoolExecutor() as pool:
            waiting = pool.submit(a.barrier, "bar", 2, LONG)
            b.barrier("bar", 2, LONG)
            waiting.result(20)
        with pytest.raises(dist.DistStoreError):
            a.barrier("other", 2, SHORT)

    @pytest.mark.skipif(not HAS_CLONE, reason="torch 2.8")
    def test_clone(self, clients: list[dist.Store]) -> None:
        a, b = clients
        a.clone().set("k", "v")
        assert b.get("k") == b"v"


def test_wait_for_workers(server: StoreServer) -> None:
    """The constructor's own rendezvous: the master waits for all clients."""
    with ThreadPoolExecutor() as pool:
        others = [pool.submit(stock_client, server, world_size=3) for _ in range(3)]
        assert all(o.result(20) for o in others)


def test_small_timeouts_look_at_least_once(server: StoreServer) -> None:
    """torch's agent asks with 1 ms; existing keys must be found however far the server is."""
    with connect_store("127.0.0.1", server.port, 20) as store:
        wrapped = TorchStore(store)
        wrapped.set("k", "v")
        for _ in range(20):
            wrapped.wait(["k"], timedelta(milliseconds=1))
            wrapped.wait(["k"], timedelta(0))
        with pytest.raises(dist.DistStoreError):
            wrapped.wait(["missing"], timedelta(0))


@pytest.mark.parametrize("kind", ["stock", "ours"])
def test_sixteen_threads(server: StoreServer, kind: str) -> None:
    """One object used by 16 threads at once, waits among writes."""
    if kind == "stock":
        stores = [stock_client(server) for _ in range(16)]  # its calls hold each other up
    else:
        stores = [TorchStore(connect_store("127.0.0.1", server.port, 20), LONG)] * 16
    gate = threading.Barrier(16)

    def hammer(me: int) -> None:
        store = stores[me]
        gate.wait(20)
        for i in range(50):
            store.add("sum", 1)
            store.set(f"{i}/{me}", str(me))
            neighbour = (me + 1) % 16
            assert store.get(f"{i}/{neighbour}") == str(neighbour).encode()
            assert store.check([f"{i}/{me}"])

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(hammer, i) for i in range(16)]:
            done.result(60)
    assert stores[0].add("sum", 0) == 16 * 50


ALL_REDUCE = """
import os
import sys
import torch
import torch.distributed as dist
from datetime import timedelta

def reduce(rank):
    port = int(sys.argv[1])
    store = dist.TCPStore("127.0.0.1", port, 4, is_master=False, timeout=timedelta(seconds=60))
    dist.init_process_group("gloo", store=store, rank=rank, world_size=4)
    t = torch.full((1000,), float(rank + 1))
    dist.all_reduce(t)
    assert t.eq(10).all()
    objects = [None] * 4
    dist.all_gather_object(objects, rank)
    assert objects == [0, 1, 2, 3]
    dist.barrier()

children = []
for rank in range(4):  # torch is imported once, and has started nothing yet
    children.append(os.fork())
    if not children[-1]:
        reduce(rank)
        os._exit(0)  # destroy_process_group() of torch 2.4 hangs now and then, whatever the store
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def test_gloo(server: StoreServer, run_python) -> None:  # type: ignore[no-untyped-def]
    """Four ranks find each other through our server and reduce."""
    assert run_python(ALL_REDUCE, server.port) == "[0, 0, 0, 0]\n"


class TestErrors:
    def test_endless_timeout(self) -> None:
        """Infinity is no limit, as nothing else of that size is one."""
        with rallypoint.HashStore() as store:
            store.set("key", "value", timeout=float("inf"))
            assert store.get("key", timeout=1e300) == b"value"
            store.timeout = float("inf")
            assert store.get("key") == b"value"
            with pytest.raises(ValueError):
                store.get("key", timeout=float("nan"))

    def test_nobody_listens(self) -> None:
        with StoreServer("127.0.0.1") as gone:
            port = gone.port
        with pytest.raises(rallypoint.DeadlineError) as caught:
            connect_store("127.0.0.1", port, 0.3)
        assert f"127.0.0.1:{port}" in str(caught.value) and "refused" in str(caught.value)

    @staticmethod
    @contextmanager
    def waiting(store: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Future[bytes]]:
        """A get in another thread, which has been sent and is waited for."""
        waits = threading.Event()

        def wait(*args: Any) -> None:
            waits.set()
            native_wait(*args)

        with monkeypatch.context() as patch, ThreadPoolExecutor() as pool:
            patch.setattr(request, "wait", wait)
            result = pool.submit(store.get, "never")
            assert waits.wait(20)
            yield result

    def test_server_stops(self, server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
        with (
            connect_store("127.0.0.1", server.port, 20) as store,
            self.waiting(store, monkeypatch) as waiting,
        ):
            server.close()
            with pytest.raises(rallypoint.ConnectionFailedError, match=str(server.port)):
                waiting.result(20)

    def test_close_ends_waiting(self, server: StoreServer, monkeypatch: pytest.MonkeyPatch) -> None:
        store = connect_store("127.0.0.1", server.port, 20)
        with self.waiting(store, monkeypatch) as waiting:
            store.close()
            store.close()
            with pytest.raises(rallypoint.CanceledError):
                waiting.result(20)
        with pytest.raises(RallypointError) as caught:
            store.get("k")
        assert caught.value.code is Code.HANDLE

    def test_not_a_number(self, server: StoreServer) -> None:
        with connect_store("127.0.0.1", server.port, 20) as store:
            store.set("k", "text")
            with pytest.raises(RallypointError, match="number"):
                store.add("k", 1)
            store.set("k", "1")  # it connects again
            assert store.add("k", 1) == 2

    def test_too_large(self, server: StoreServer) -> None:
        with connect_store("127.0.0.1", server.port, 20) as store:
            for call in (
                lambda s: s.set("k" * 9000, "v"),
                lambda s: s.set("k", b"v" * (9 << 20)),
            ):
                with pytest.raises(RallypointError) as caught:
                    call(store)
                assert caught.value.code is Code.TOO_LARGE

    def test_different_lengths(self, server: StoreServer) -> None:
        with (
            connect_store("127.0.0.1", server.port, 20) as store,
            pytest.raises(rallypoint.InvalidError),
        ):
            store.multi_set(["a", "b"], ["1"])

    def test_port_in_use(self, server: StoreServer) -> None:
        with pytest.raises(rallypoint.ConnectionFailedError, match="in use"):
            StoreServer("127.0.0.1", server.port)

    @pytest.mark.parametrize(
        ("host", "port", "text"),
        [("", 1, "host"), ("127.0.0.1", 0, "port"), ("127.0.0.1", 70000, "port")],
    )
    def test_arguments(self, host: str, port: int, text: str) -> None:
        with pytest.raises(rallypoint.InvalidError, match=text):
            connect_store(host, port, 1)


def test_objects_are_released(server: StoreServer) -> None:
    """A store that is forgotten is closed."""
    import ctypes
    import gc

    from rallypoint._native import library

    def count() -> int:
        n = ctypes.c_int64()
        library.call("rp_handles_open", ctypes.byref(n))
        return n.value

    gc.collect()
    before = count()
    store: Store | None = connect_store("127.0.0.1", server.port, 20)
    assert count() == before + 1
    del store
    gc.collect()
    assert count() == before


def test_interrupt(run_python) -> None:  # type: ignore[no-untyped-def]
    """Ctrl-C ends a wait long before its timeout."""
    run_python(
        """
        import os, signal, threading
        import rallypoint
        server = rallypoint.StoreServer("127.0.0.1")
        store = rallypoint.connect_store("127.0.0.1", server.port, 600)
        for call in (
            lambda: store.get("never"),
            lambda: store.wait(["never"], None),
            lambda: rallypoint.connect_store("127.0.0.1", 1, 600),
        ):
            try:
                threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
                call()
            except KeyboardInterrupt:
                continue
            raise AssertionError
        """
    )


def test_file_shared_with_torch(tmp_path: Path) -> None:
    path = tmp_path / "store"
    stock = dist.FileStore(str(path), -1)
    with FileStore(path, -1, timeout=20) as ours:
        stock.set("a", "1")
        assert ours.get("a") == b"1"
        ours.add("n", 3)
        assert stock.add("n", 4) == 7
        with pytest.raises(RallypointError) as e:
            ours.queue_len("q")
        assert e.value.code == Code.UNSUPPORTED
        for call in (lambda: ours.queue_push("q", "v"), lambda: ours.queue_pop("q", block=False)):
            with pytest.raises(NotImplementedError, match="no queues"):
                call()
    assert path.exists()
    path.unlink()
    with pytest.raises(rallypoint.InvalidError, match="missing"):
        FileStore(tmp_path / "missing" / "store")


def test_prefix_keeps_the_store_below() -> None:
    view = PrefixStore("p", HashStore())
    view.set("k", "v")
    assert view.get("k") == b"v" and view.num_keys() == 1
    view.close()
    with pytest.raises(RallypointError) as e:
        view.get("k")
    assert e.value.code == Code.HANDLE
