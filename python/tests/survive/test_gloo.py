"""Connections of gloo, and the process group over it, when workers are gone."""

from __future__ import annotations

import atexit
import os
import queue
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from harness import PATIENCE, until

from rallypoint import DeadlineError, StoreServer, survive
from rallypoint._survive import gloo_sockets, process_group
from rallypoint._survive.group import Group
from rallypoint._survive.moving_store import MovingStore
from rallypoint._survive.process_group import ProcessGroup


def test_only_connections_of_gloo_are_ended() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as gloo,
        socket.create_server(("127.0.0.1", 0)) as s,
    ):
        assert {gloo.getsockname(), s.getsockname()} <= gloo_sockets.listening()
        pairs = []
        for server in (gloo, s):
            client = socket.create_connection(server.getsockname())
            pairs.append((client, server.accept()[0]))
        gloo_sockets.shut(gloo_sockets.connections({gloo.getsockname()}, set()))
        assert [pairs[0][i].recv(1) for i in (0, 1)] == [b"", b""]
        pairs[1][0].send(b"x")
        assert pairs[1][1].recv(1) == b"x"
        gloo_sockets.shut(gloo_sockets.connections(set(), {s.getsockname()}))
        assert [pairs[1][i].recv(1) for i in (0, 1)] == [b"", b""]
        for pair in pairs:
            for end in pair:
                end.close()


def test_other_sockets_block_as_before() -> None:
    with socket.create_server(("127.0.0.1", 0)) as s:
        socket.setdefaulttimeout(30)
        try:
            assert s.getsockname() in gloo_sockets.listening() and os.get_blocking(s.fileno())
        finally:
            socket.setdefaulttimeout(None)


@pytest.mark.parametrize("accepted", [True, False])
def test_a_connection_that_is_taken_has_no_event(accepted: bool) -> None:
    """... though it has ended, and another process, which this one has forked, has it, too."""
    with socket.create_server(("127.0.0.1", 0)) as gloo, select.epoll() as epoll:
        client = socket.create_connection(gloo.getsockname())
        ours, theirs = (gloo.accept()[0], client) if accepted else (client, gloo.accept()[0])
        own, peers = ({gloo.getsockname()}, set()) if accepted else (set(), {gloo.getsockname()})
        between = gloo_sockets.connections(own, peers)
        epoll.register(ours, select.EPOLLIN)
        with ours.dup():  # which is to the kernel as if by a fork
            theirs.send(b"what nobody reads")
            theirs.close()
            gloo_sockets.shut(between)
            assert epoll.poll(PATIENCE)
            gloo_sockets.take(between)
            assert not epoll.poll(0)
        ours.close()


def test_what_has_the_descriptor_of_a_connection_is_not_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as gloo, select.epoll() as epoll:
        client = socket.create_connection(gloo.getsockname())
        ours, _ = gloo.accept()
        between = gloo_sockets.connections({gloo.getsockname()}, set())
        mine, other = socket.socketpair()
        os.dup2(mine.fileno(), ours.fileno())
        epoll.register(ours, select.EPOLLIN)
        gloo_sockets.shut(between)
        gloo_sockets.take(between)
        other.send(b"x")
        assert ours.recv(1) == b"x"
        for s in (client, ours, mine, other):
            s.close()


@pytest.fixture
def group() -> Iterator[ProcessGroup]:
    """The default process group, of this process alone."""
    yield process_group.initialise(dist.HashStore(), None)
    dist.destroy_process_group()


def test_a_worker_that_waits_for_a_connection_is_woken(group: ProcessGroup) -> None:
    """The peer is gone after it has published its address. gloo alone waits for 25 s."""
    store = MovingStore(lambda: False)
    errors: queue.Queue[BaseException] = queue.Queue()

    def connect() -> None:
        try:
            group.connect(dist.PrefixStore("7", store), 0, 2, timedelta(seconds=5))
            dist.all_reduce(torch.ones(1))  # if the connection ends only now
        except RuntimeError as e:
            errors.put(e)

    thread = threading.Thread(target=connect)
    thread.start()

    def published() -> list[str]:
        return [k for k in store.list_keys() if k.startswith("7/") and k.endswith("/0")]

    until(lambda: len(store.last) > 100 and published(), what="gloo has published its address")
    assert isinstance(store.last, bytes)
    (host,) = struct.unpack_from("<Q", store.last)
    (port,) = struct.unpack_from(">H", store.last, 18 + host)
    own = {at for at in gloo_sockets.listening() if at[1] == port}
    # Of two, gloo has the one with the lower port listen.
    peer = store.last[: 18 + host] + b"\xff\xff" + store.last[20 + host :]
    (name,) = published()
    store.set(name.removesuffix("0") + "1", peer)
    while thread.is_alive():
        gloo_sockets.end_waits(own, peer, 2)
        thread.join(0.1)
    assert survive._is_cut(errors.get())


def test_a_collective_that_gloo_forgets_ends(group: ProcessGroup) -> None:
    """... when its world is left, and the next world has none of it."""
    store = dist.HashStore()
    before = gloo_sockets.listening()
    other: Any = ProcessGroup(dist.PrefixStore("other", store), timedelta(seconds=60))
    peers = gloo_sockets.listening() - before
    thread = threading.Thread(target=other.connect, args=(store, 1, 2, timedelta(seconds=60)))
    thread.start()
    group.connect(store, 0, 2, timedelta(seconds=60))
    thread.join(PATIENCE)
    assert (dist.get_rank(), dist.get_world_size()) == (0, 2)
    work = dist.all_reduce(torch.ones(1), async_op=True)  # for which the other one never comes
    assert work is not None and not work.is_completed()
    with pytest.raises(RuntimeError, match="timed out"):
        work.wait(timedelta(seconds=0.01))

    def wait() -> None:
        with pytest.raises(RuntimeError, match="gloo: the workers"):
            work.wait()

    waits = threading.Thread(target=wait)
    waits.start()
    assert group.leave()
    waits.join(PATIENCE)
    for late in (work.wait, work.get_future().wait, lambda: dist.all_reduce(torch.ones(1))):
        with pytest.raises(RuntimeError, match="gloo: the workers") as caught:
            late()
        assert survive._is_cut(caught.value)
    gloo_sockets.take(gloo_sockets.connections(before, peers))  # which the other one sees
    with pytest.raises(RuntimeError) as caught:
        other.allreduce([torch.ones(1)]).wait()
    assert survive._is_cut(caught.value)
    group.connect(dist.HashStore(), 0, 1, timedelta(seconds=60))
    dist.all_reduce(torch.ones(1))
    assert not group.leave()
    group.free()


@pytest.fixture
def first_of_two(monkeypatch: pytest.MonkeyPatch, server: StoreServer) -> Iterator[None]:
    """The test is a world's first worker, and makes a Group in it."""
    world = {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": server.port}
    for name, value in world.items():
        monkeypatch.setenv(name, str(value))
    ends: list[Callable[[], None]] = []
    monkeypatch.setattr(atexit, "register", ends.append)
    yield
    dist.destroy_process_group()
    ends.pop()()


@pytest.mark.usefixtures("first_of_two")
def test_the_first_workers_wait_for_each_other_as_long_as_it_is_said() -> None:
    with pytest.raises(DeadlineError, match="member/0"):
        Group(timedelta(seconds=0.2))


def test_a_compiled_model(group: ProcessGroup) -> None:
    """torch.compile would look into what the group does for it, and fail."""
    net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))
    model = torch.compile(torch.nn.parallel.DistributedDataParallel(net), backend="eager")
    for _ in range(2):
        model(torch.ones(4, 2)).sum().backward()
    assert group.size() == 1


def test_it_is_not_split(group: ProcessGroup) -> None:
    """torch would split what has no connections."""
    with pytest.raises(RuntimeError, match="change, so that it is not split"):
        dist.split_group(split_ranks=[[0]])


@pytest.mark.usefixtures("first_of_two")
def test_the_first_workers_connect_as_long_as_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """... also those of a mesh: one of them may come late to it. Later ones meet again."""
    connect, limits = ProcessGroup.connect, []

    def connecting(self: Any, store: Any, rank: int, size: int, timeout: timedelta) -> None:
        if size == 1:
            return connect(self, store, rank, size, timeout)
        limits.append(timeout.total_seconds())
        self.place(rank, range(size))

    said = {"rank": 1, "place": None, "listeners": []}
    monkeypatch.setattr(ProcessGroup, "connect", connecting)
    monkeypatch.setattr(Group, "_exchange", lambda *_: [said | {"rank": 0}, said])
    group = Group(timedelta(seconds=77))
    group.make_mesh(1)
    assert limits == [77, 77]
    group.leave()
    group.mesh = None
    group.connect([said | {"rank": 0}, said])
    assert limits == [77, 77, 5]
