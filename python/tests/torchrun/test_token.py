"""Jobs with a token: workers find their store at a loopback address, and between machines
nothing of it is plain."""

from __future__ import annotations

import ctypes
import ipaddress
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from torchrun.harness import COMMAND, HERE, Job, NewJob
from torchrun.test_partitions import Network, network

__all__ = ["network"]

# The workers import much of torch, which takes long on a busy machine.
pytestmark = pytest.mark.timeout(400)

STORES = HERE / "workers" / "stores.py"
LIBRARIES = HERE / "workers" / "libraries.py"
MARKER = b"planted-marker-of-the-round-store"


@pytest.fixture
def token(tmp_path: Path) -> Path:
    path = tmp_path / "key-file"
    path.write_text(os.urandom(32).hex() + "\n")
    path.chmod(0o600)
    return path


class Capture:
    """All packets that a network namespace's device sends and gets, as far as captured."""

    def __init__(self, namespace: str, device: str) -> None:
        inside = os.open(f"/run/netns/{namespace}", os.O_RDONLY)
        try:
            threads: list[socket.socket] = []

            def make() -> None:  # in a thread of its own, which stays in the namespace
                assert ctypes.CDLL(None).setns(inside, 0x40000000) == 0  # CLONE_NEWNET
                threads.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))

            thread = threading.Thread(target=make)
            thread.start()
            thread.join()
        finally:
            os.close(inside)
        (self._socket,) = threads
        self._socket.bind((device, 0))
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        self._socket.settimeout(0.1)
        self._stopped = threading.Event()
        self.packets: list[bytes] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                self.packets.append(self._socket.recv(1 << 17))
            except TimeoutError:
                if self._stopped.is_set():  # and nothing is left to read
                    return

    def stop(self) -> None:
        self._stopped.set()
        self._reader.join()
        self._socket.close()

    def tcp(self, port: int) -> bytes:
        """What was sent from and to a TCP port."""
        return b"".join(p for p in self.packets if _ports(p) & {port})


def _ports(packet: bytes) -> set[int]:
    if len(packet) < 34 or packet[12:14] != b"\x08\x00" or packet[23] != 6:
        return set()
    at = 14 + 4 * (packet[14] & 15)
    return {int.from_bytes(packet[at : at + 2]), int.from_bytes(packet[at + 2 : at + 4])}


def await_steps(job: Job, *nodes: str) -> None:
    """Waits for a round of these nodes, whose steps may each take long on a busy machine."""
    for step in "used", "grouped":
        job.wait(
            lambda step=step: len(job.events(step)) == len(nodes) * job.nproc,  # type: ignore[misc]
            f"all workers: {step}",
        )
    job.await_round(*nodes)


def check(job: Job, *nodes: str, real: str) -> int:
    """What the workers of a round report; returns the port of their store."""
    await_steps(job, *nodes)
    reports = job.events("stores")
    assert len(reports) == len(nodes) * job.nproc
    for report in reports:
        assert report["gathered"] == list(range(len(reports)))
        address = ipaddress.ip_address(str(report["address"]))
        assert address in ipaddress.ip_network("127.0.0.0/8") and address.packed[1] != 0
        assert report["advertised"] == real
        assert report["secret"] == []
        assert report["sides"] == int(job.env.get("RALLYPOINT_TEST_SIDES", "0"))
        assert report["dcp"] == "1"
    job.finish(*nodes)
    return int(job.starts()[0].master.rpartition(":")[2])


def assert_not_told(pid: int, key: bytes) -> None:
    """No process of a node has the key among its arguments or in its environment."""
    agent = psutil.Process(pid)
    workers = agent.children(recursive=True)
    assert workers
    for process in [agent, *workers]:
        for what in "cmdline", "environ":
            told = Path("/proc", str(process.pid), what)
            assert not told.exists() or key not in told.read_bytes()


def start(job: Job, how: str, name: str, netns: str | None = None, **env: str) -> None:
    if how == "torchrun":
        job.start(name, netns=netns, env=env)
    else:
        argv = [*COMMAND, "run", *job.arguments()]
        job.launch(name, argv, netns=netns, env=env)


@pytest.mark.parametrize("how", [pytest.param("torchrun", marks=pytest.mark.long), "run"])
def test_on_one_machine(how: str, new_job: NewJob, token: Path) -> None:
    env = {"RALLYPOINT_TOKEN_FILE": str(token), "RALLYPOINT_TEST_DDP": "1"}
    job = new_job("2", worker=STORES, env=env)
    for name in "A", "B":
        start(job, how, name)
    check(job, "A", "B", real="127.0.0.1")


@pytest.fixture
def machines(network: Network) -> Iterator[tuple[Network, Capture]]:
    network.machine()
    network.machine()
    capture = Capture(network.namespaces[0], "eth0")
    yield network, capture
    capture.stop()


@pytest.mark.parametrize(
    ("backend", "how"),
    [
        ("hosted", "torchrun"),
        ("static", "run"),
        *(
            pytest.param(backend, how, marks=pytest.mark.long)
            for backend, how in (
                ("hosted", "run"),
                ("file", "torchrun"),
                ("file", "run"),
                ("static", "torchrun"),
            )
        ),
    ],
)
def test_nothing_plain(
    how: str,
    backend: str,
    new_job: NewJob,
    machines: tuple[Network, Capture],
    token: Path,
    tmp_path: Path,
) -> None:
    """Two machines: the store's packets between them hold no key and no value."""
    network, capture = machines
    here, there = network.namespaces
    real = "10.99.0.1"
    env = {
        "RALLYPOINT_TOKEN_FILE": str(token),
        "GLOO_SOCKET_IFNAME": "eth0",
        "RALLYPOINT_TEST_SIDES": "3",
    }
    options = {
        "hosted": {"host": real},
        "file": {"endpoint": f"file://{tmp_path}"},
        "static": {"endpoint": f"static://{real}:29500"},
    }[backend]
    job = new_job("2", worker=STORES, env=env, **options)
    start(job, how, "A", here, PET_NODE_RANK="0")
    start(job, how, "B", there, PET_NODE_RANK="1")
    key = token.read_text().strip().encode()
    await_steps(job, "A", "B")
    for node in job.nodes.values():
        assert_not_told(node.pid, key)
    port = check(job, "A", "B", real=real)
    capture.stop()
    sent = b"".join(capture.tcp(port + side) for side in range(4))
    assert len(sent) > 1 << 20, "the capture holds the large value"
    assert MARKER not in sent
    for secret in MARKER, key:
        assert secret not in b"".join(capture.packets)
    for node in job.nodes.values():
        assert not node.lines(key.decode())


@pytest.mark.long
@pytest.mark.parametrize("how", ["torchrun", "run"])
def test_rpc_and_checkpoints(how: str, new_job: NewJob, network: Network, token: Path) -> None:
    """Two machines: RPC finds its peers, and a process of its own writes checkpoints, by the
    round's store."""
    machines = [network.machine() for _ in range(2)]
    job = new_job(
        "2",
        worker=LIBRARIES,
        host=machines[0][1],
        env={
            "RALLYPOINT_TOKEN_FILE": str(token),
            "GLOO_SOCKET_IFNAME": "eth0",
            "TP_SOCKET_IFNAME": "eth0",
        },
    )
    for name, (namespace, _) in zip("AB", machines, strict=True):
        start(job, how, name, namespace)
    job.wait(lambda: len(job.events("asked")) == 2, "RPC to be done")
    job.wait(lambda: len(job.events("libraries")) == 2, "the checkpoint to be read")
    job.await_round("A", "B")
    rank_of = {w.node: w.rank for w in job.starts()}
    for report in job.events("libraries"):
        rank = rank_of[str(report["node"])]
        assert report["answers"] == [[to, 10 * rank + to] for to in range(2)]
        assert report["loaded"] in (None, 1.0 - rank)
    job.finish("A", "B")


@pytest.mark.long
def test_the_capture_finds_what_is_plain(
    new_job: NewJob, machines: tuple[Network, Capture], token: Path
) -> None:
    """The same with store_tls=0, which says so."""
    network, capture = machines
    env = {"RALLYPOINT_TOKEN_FILE": str(token), "GLOO_SOCKET_IFNAME": "eth0"}
    job = new_job("2", worker=STORES, env=env, host="10.99.0.1", conf={"store_tls": "0"})
    for name, where in zip("AB", network.namespaces, strict=True):
        job.start(name, netns=where)
    await_steps(job, "A", "B")
    job.finish("A", "B")
    capture.stop()
    assert MARKER in b"".join(capture.packets)
    for node in job.nodes.values():
        assert len(node.lines("store_tls=0, which leaves")) == 1


@pytest.mark.long
@pytest.mark.parametrize("how", ["torchrun", "run"])
def test_losses_between_machines(how: str, new_job: NewJob, network: Network, token: Path) -> None:
    """The agent that hosts the store's round is killed, then one that forwards to it hangs: the
    others regroup with stores of their own, and who comes back is let in."""
    machines = [network.machine() for _ in range(3)]
    job = new_job(
        "2:3",
        host=machines[0][1],
        conf={"lease_timeout": 3},
        env={"RALLYPOINT_TOKEN_FILE": str(token), "GLOO_SOCKET_IFNAME": "eth0"},
        max_restarts=3,
    )
    for name, (namespace, _), rank in zip("ABC", machines, (1, 0, 2), strict=True):
        start(job, how, name, namespace, PET_NODE_RANK=str(rank))
    first = job.await_round("A", "B", "C")
    assert first.of("B").rank == 0, "the store is on B's machine"

    job.nodes["B"].kill()
    second = job.await_round("A", "C", above=first.number)
    hanging = "C" if second.of("C").rank else "A"
    if hanging == "A":  # it hosts the control plane: its loss is another test's
        hanging = "C"
    job.nodes[hanging].freeze()
    start(job, how, "D", machines[1][0])
    third = job.await_round("A", "D", above=second.number)
    job.nodes[hanging].thaw()
    last = job.await_round("A", "C", "D", above=third.number)
    assert len({first.master, second.master, third.master, last.master}) == 4
    for node in job.nodes.values():
        assert not node.lines("Traceback|other_user|authentication failed")
    job.finish("A", "C", "D")
