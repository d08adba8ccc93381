"""What stands for an object of the library: its repr, and that it is neither copied nor pickled
but where it can be opened again."""

from __future__ import annotations

import copy
import os
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import rallypoint
from rallypoint._native import library

COPIES = [copy.copy, copy.deepcopy]


def refuses(thing: Any, *, pickled: bool) -> None:
    for duplicate in COPIES:
        with pytest.raises(TypeError, match=r"cannot be copied: .*open another one"):
            duplicate(thing)
    if pickled:
        with pytest.raises(TypeError, match=r"cannot be pickled: .*Make one in the process"):
            pickle.dumps(thing)


def test_handles_refuse() -> None:
    with rallypoint.StoreServer("127.0.0.1") as server:
        refuses(server, pickled=True)
        with rallypoint.connect_store("127.0.0.1", server.port) as store:
            refuses(store, pickled=False)
    with rallypoint.HashStore() as memory:
        refuses(memory, pickled=True)
        with rallypoint.PrefixStore("p", memory) as prefixed:
            refuses(prefixed, pickled=True)
    with rallypoint.Member("run", "127.0.0.1:0") as member:
        member.next()
        refuses(member, pickled=True)
        with member.keys(member.next().round) as keys:
            refuses(keys, pickled=True)
    refuses(rallypoint.EtcdServer(), pickled=True)


def test_stores_pickle_by_address(server: rallypoint.StoreServer, tmp_path: Path) -> None:
    """In another process: an id of the library there is that of another store."""
    with (
        rallypoint.connect_store("127.0.0.1", server.port, timedelta(seconds=30)) as store,
        rallypoint.PrefixStore("p", store) as prefixed,
        rallypoint.FileStore(tmp_path / "file", -1) as file,
    ):
        stores = [store, prefixed, file]
        for number, s in enumerate(stores):
            s.set("key", f"{number}")
        program = (
            "import pickle, sys, rallypoint\n"
            "other = rallypoint.HashStore()\n"
            "other.set('key', 'wrong')\n"
            "stores = pickle.load(sys.stdin.buffer)\n"
            "print([s.get('key', 5) for s in stores], stores[0].timeout, *map(repr, stores))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program], input=pickle.dumps(stores), capture_output=True
        )
        assert done.returncode == 0, done.stderr.decode()
        expected = f"[b'0', b'1', b'2'] 0:00:30 {store!r} {prefixed!r} {file!r}\n"
        assert done.stdout.decode() == expected


def test_repr(server: rallypoint.StoreServer, tmp_path: Path) -> None:
    here = f"127.0.0.1:{server.port}"
    assert repr(server) == f"<rallypoint.StoreServer on {here}>"
    store = rallypoint.connect_store("127.0.0.1", server.port)
    prefixed = rallypoint.PrefixStore("p", store)
    assert repr(prefixed) == f"<rallypoint.PrefixStore 'p' of <rallypoint.Store at {here}>>"
    prefixed.close()
    store.close()
    assert repr(store) == f"<rallypoint.Store at {here}, closed>"
    with rallypoint.FileStore(tmp_path / "f", -1) as file:
        assert repr(file) == f"<rallypoint.FileStore of the file {str(tmp_path / 'f')!r}>"
    with rallypoint.HashStore() as memory:
        assert repr(memory) == "<rallypoint.HashStore in the memory of this process>"
    member = rallypoint.Member("job", "etcd://me:secret@host")
    assert repr(member) == "<rallypoint.Member of the run 'job' at etcd://host>"
    member.close()
    assert repr(member).endswith("host, closed>")
    assert repr(rallypoint.EtcdServer()) == "<rallypoint.EtcdServer that does not run>"


@pytest.mark.parametrize(
    ("endpoint", "shown"),
    [
        ("host:1", "host:1"),
        ("etcd://host", "etcd://host"),
        ("etcd://me:p@ss/word@host:1", "etcd://host:1"),
        ("me:secret@host", "host"),
        ("file:///a@b", "file:///a@b"),
    ],
)
def test_without_password(endpoint: str, shown: str) -> None:
    assert library.without_password(endpoint) == shown


def test_stores_of_torch(server: rallypoint.StoreServer) -> None:
    from rallypoint._torch.store import TorchStore

    with rallypoint.connect_store("127.0.0.1", server.port) as store:
        torchs = TorchStore(store, timedelta(seconds=7))
        refuses(torchs, pickled=False)
        assert repr(torchs) == f"<rallypoint.TorchStore over {store!r}>"
        torchs.set("key", "value")
        again = pickle.loads(pickle.dumps(torchs))
        assert again.get("key") == b"value" and again.timeout == timedelta(seconds=7)
        again._store.close()


def test_handlers_of_torch() -> None:
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from rallypoint.handler import create_handler

    handler = create_handler(RendezvousParameters("rallypoint", "127.0.0.1:0", "job", 1, 1))
    assert repr(handler) == (
        "<rallypoint.RallypointHandler of <rallypoint.Member of the run 'job' at 127.0.0.1:0>>"
    )
    refuses(handler, pickled=True)
    info = handler.next_rendezvous()
    refuses(info.store, pickled=True)
    handler.shutdown()
    handler._member.close()


def test_copy_of_what_holds_a_store(server: rallypoint.StoreServer) -> None:
    """A deep copy of a configuration does not open connections."""
    with (
        rallypoint.connect_store("127.0.0.1", server.port) as store,
        pytest.raises(TypeError, match="cannot be copied"),
    ):
        copy.deepcopy({"store": store})


def test_file_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with rallypoint.FileStore("file", -1) as store:
        store.set("key", "value")
        data = pickle.dumps(store)
    monkeypatch.chdir(os.sep)
    with pickle.loads(data) as again:
        assert again.get("key", 1) == b"value"
