"""EtcdStore, EtcdServer and connect_etcd, against a real etcd."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

import rallypoint
from rallypoint import (
    Code,
    ConnectionFailedError,
    DeadlineError,
    EtcdServer,
    InvalidError,
    RallypointError,
    connect_etcd,
)
from rallypoint._native import library


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    return f"/test/{request.node.name}"


def test_store_without_torch(etcd: EtcdServer, prefix: str) -> None:
    with connect_etcd("etcd://" + etcd.get_endpoint(), prefix, 20) as store:
        store.set("k", "v")
        assert store.get("k") == b"v"
        assert store.add("n", 2) == 2
        assert store.compare_set("k", "v", "w") == b"w"
        assert store.delete_key("k")
        assert store.list_keys() == ["n"]
        with pytest.raises(DeadlineError):
            store.get("k", 0.05)
        with pytest.raises(RallypointError) as e:
            store.queue_push("q", "1")
        assert e.value.code.name == "UNSUPPORTED"
    with etcd.get_client() as store:
        assert store.check([])


def test_a_store_by_the_keywords_of_torch(etcd: EtcdServer) -> None:
    from rallypoint import EtcdStore

    with etcd.get_client() as client:
        store = EtcdStore(etcd_client=client, etcd_store_prefix="/by/keyword")
        store.set("k", "v")
        again = EtcdStore(etcd_client=client, etcd_store_prefix="/by/keyword", timeout=5.0)
        assert again.get("k") == b"v"
        for wrong in ({}, {"endpoint": "etcd://h", "etcd_client": client}):
            with pytest.raises(ValueError, match="one of endpoint and etcd_client"):
                EtcdStore(**wrong)
        with pytest.raises(ValueError, match="one of prefix and etcd_store_prefix"):
            EtcdStore(client, "/a", etcd_store_prefix="/b")
        again.close()
        store.close()


def test_an_etcd_beside_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the library looks for a program that is installed with the package."""
    given = []
    call = library.call

    def not_started(name: str, *args: Any) -> int:
        if name != "rp_etcd_server_start":
            return call(name, *args)
        given.append(args[0]._obj.beside)
        raise InvalidError("not started", Code.INVALID)

    monkeypatch.setattr(library, "call", not_started)
    with pytest.raises(InvalidError, match="not started"):
        EtcdServer().start()
    folder = Path(rallypoint.__file__).parent
    assert given == [os.fsencode(folder / "bin" / "etcd")]


def test_torch_store(etcd: EtcdServer, prefix: str) -> None:
    torch = pytest.importorskip("torch")
    from rallypoint import EtcdStore

    store = EtcdStore("etcd://" + etcd.get_endpoint(), prefix, timedelta(seconds=20), ttl=60)
    assert isinstance(store, torch.distributed.Store)
    store.set("k", "v")
    assert store.get("k") == b"v"
    assert store.add("n", 3) == 3
    assert store.check(["k", "n"]) and not store.check(["x"])
    store.wait(["k"], timedelta(seconds=1))
    assert store.compare_set("k", "v", "w") == b"w"
    store.append("k", "!")
    assert store.multi_get(["k", "n"]) == [b"w!", b"3"]
    store.multi_set(["a", "b"], ["1", "2"])
    assert store.num_keys() == 4
    assert store.delete_key("a") and not store.delete_key("a")
    store.set_timeout(timedelta(seconds=0.05))
    with pytest.raises(torch.distributed.DistStoreError):
        store.get("x")
    store.set_timeout(timedelta(seconds=20))  # a write to a disk may take longer than that
    inner = torch.distributed.PrefixStore("p", store)
    inner.set("k", "under")
    assert store.get("p/k") == b"under"
    store.close()


def test_process_group(etcd: EtcdServer, prefix: str) -> None:
    """Two processes make a gloo group over the store."""
    pytest.importorskip("torch")
    code = textwrap.dedent("""
        import os, sys
        import torch
        import torch.distributed as dist
        from rallypoint import EtcdStore

        child = os.fork()  # torch is imported once, and the library not yet loaded
        rank = int(child == 0)
        store = EtcdStore(sys.argv[1], sys.argv[2])
        dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
        x = torch.tensor([rank + 1])
        dist.all_reduce(x)
        assert x.item() == 3
        dist.barrier()
        dist.destroy_process_group()
        if child:
            assert os.waitpid(child, 0)[1] == 0
    """)
    args = [sys.executable, "-c", code, "etcd://" + etcd.get_endpoint(), prefix]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(args, env=env, timeout=100, check=True)


def test_refusals(etcd: EtcdServer) -> None:
    with pytest.raises(InvalidError, match="etcd://HOST"):
        connect_etcd("http://127.0.0.1:2379")
    with pytest.raises(InvalidError, match="no option"):
        connect_etcd("etcd://h", options={"colour": "red"})
    with pytest.raises(InvalidError, match="ca_cert"):
        connect_etcd("etcds://h", options={"ca_cert": "/no/such/file"})
    with pytest.raises((ConnectionFailedError, DeadlineError), match="etcd there"):
        connect_etcd("etcd://127.0.0.1:1", timeout=0.5)


def test_server_that_cannot_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "etcd"
    script.write_text("#!/bin/sh\necho out of luck >&2\nexit 3\n")
    script.chmod(0o755)
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", str(script))
    server = EtcdServer()
    with (tmp_path / "log").open("w") as log, pytest.raises(RallypointError, match="out of luck"):
        server.start(num_retries=1, stderr=log)
    assert (tmp_path / "log").read_text() == "out of luck\n" * 2
    with pytest.raises(RallypointError, match="not started"):
        server.get_port()
    server.close()
    monkeypatch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", str(script) + ".missing")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(InvalidError, match="etcd-server"):
        server.start()


def test_server_dies_with_its_process(etcd: EtcdServer) -> None:
    """Also if start() ran on a thread that is gone, and the process is killed."""
    code = textwrap.dedent("""
        import sys, threading, time
        from rallypoint import EtcdServer

        server = EtcdServer(sys.argv[1])
        thread = threading.Thread(target=server.start)
        thread.start()
        thread.join()
        time.sleep(0.2)  # a parent-death signal of the thread would have come by now
        server.get_client().close()
        print(server.get_port(), flush=True)
        time.sleep(1000)
    """)
    import tempfile

    with tempfile.TemporaryDirectory() as data:
        parent = subprocess.Popen([sys.executable, "-c", code, data], stdout=subprocess.PIPE)
        assert parent.stdout is not None
        assert int(parent.stdout.readline()) > 0
        (child,) = psutil.Process(parent.pid).children()
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        parent.stdout.close()
        psutil.wait_procs([child], timeout=20)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


def test_rendezvous_by_url(etcd: EtcdServer) -> None:
    """torch.distributed.rendezvous() of the older documents' URL: two processes meet, twice."""
    url = f"etcd://{etcd.get_endpoint()}/by-url?min_workers=2&max_workers=2"
    script = f"""
import sys
import torch.distributed as dist
import rallypoint.handler
meet = dist.rendezvous({url!r})
for _ in range(2):
    store, rank, size = next(meet)
    store.set("here" if rank == 0 else "there", "")
    store.wait(["here", "there"])
    print(rank, size, flush=True)
dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
dist.barrier()
dist.destroy_process_group()
"""
    nodes = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    said = [node.communicate(timeout=100)[0].splitlines() for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0]
    assert sorted(said) == [["0 2", "0 2"], ["1 2", "1 2"]]
