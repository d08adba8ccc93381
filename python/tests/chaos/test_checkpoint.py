"""Two jobs of one run that do not know of each other, and the checkpoint that both write.

Each node is a machine of its own: its network, its name, its boot id. The folder of the
checkpoint is shared. Whatever the two jobs believe, the checkpoint's history is one line.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torchrun.test_partitions import Network, network  # noqa: F401

WRITER = Path(__file__).with_name("writer.py")
RALLYPOINT = Path(sys.executable).with_name("rallypoint")
LEASE = 3.0
LIMIT = 60.0

# "round" shows that the tests can fail: with it both do, without the fence.
GUARD = os.environ.get("RALLYPOINT_TEST_GUARD", "fence")

Write = dict[str, str | int]


def forks(writes: list[Write]) -> list[tuple[Write, Write]]:
    """The pairs of writes that continue one checkpoint: the later one replaced what its writer
    had neither loaded nor written."""
    first: dict[str | int, Write] = {}
    return [
        (first[write["parent"]], write)
        for write in writes
        if first.setdefault(write["parent"], write) is not write
    ]


def test_forks() -> None:
    line: list[Write] = [{"id": "a", "parent": ""}, {"id": "b", "parent": "a"}]
    assert not forks(line)
    other: Write = {"id": "c", "parent": "a"}
    assert forks([*line, other]) == [(line[1], other)]


class Jobs:
    """Nodes of one run id, each on a machine of its own."""

    def __init__(self, joined: Network, folder: Path, machines: int, least: int = 1) -> None:
        self.network, self.folder, self.least = joined, folder, least
        self.machines = [joined.machine() for _ in range(machines)]
        self.history = folder / "history"
        self.history.touch()
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}
        self.servers: list[subprocess.Popen[bytes]] = []
        self.endpoint = f"{self.machines[0][1]}:29400"
        for number in range(machines):
            (folder / f"boot_id{number}").write_text(f"{uuid.uuid4()}\n")

    def start(self, name: str, machine: int) -> None:
        namespace, address = self.machines[machine]
        settings = {
            "lease_timeout": LEASE, "last_call_timeout": 1, "quiet_period": 0.5, "admit_delay": 0.5,
        }  # fmt: skip
        disguise = (
            f"mount --bind {self.folder}/boot_id{machine} /proc/sys/kernel/random/boot_id"
            f" && hostname machine{machine} && exec \"$@\""
        )  # fmt: skip
        command = [
            "ip", "netns", "exec", namespace, "unshare", "--uts", "sh", "-c", disguise, "sh",
            str(RALLYPOINT), "run", f"--nnodes={self.least}:{len(self.machines)}",
            "--max-restarts=1000",
            f"--rdzv-endpoint={self.endpoint}", "--rdzv-id=fenced",
            "--rdzv-conf=" + ",".join(f"{k}={v}" for k, v in settings.items()),
            f"--local-addr={address}", "--shutdown-timeout=2",
            str(WRITER), str(self.folder / "checkpoint"), str(self.history), GUARD,
        ]  # fmt: skip
        self.nodes[name] = self.spawn(command, name)

    def serve(self, machines: list[int]) -> None:
        """Starts a server on each of these machines, with an empty memory: one, or three peers."""
        addresses = [f"{self.machines[m][1]}:29400" for m in machines]
        self.endpoint = ",".join(addresses)
        peers = ["--peers", self.endpoint, "--election-timeout=1s"] if len(machines) > 1 else []
        for machine, address in zip(machines, addresses):
            command = ["ip", "netns", "exec", self.machines[machine][0], str(RALLYPOINT), "serve"]
            command += ["--listen", address, *peers]
            self.servers.append(self.spawn(command, f"serve{machine}"))

    def kill_servers(self) -> None:
        for server in self.servers:
            server.kill()
            server.wait()
        self.servers.clear()

    def spawn(self, command: list[str], name: str) -> subprocess.Popen[bytes]:
        env = {k: v for k, v in os.environ.items() if not k.startswith("RALLYPOINT_")}
        env |= {"NODE_NAME": name, "LOGLEVEL": "INFO"}
        with (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env
            )

    def kill(self, name: str) -> None:
        """Ends a node without a word, and its workers with it."""
        node = self.nodes.pop(name)
        node.kill()
        node.wait()

    def writes(self) -> list[Write]:
        lines = self.history.read_text().rpartition("\n")[0].splitlines()
        return [json.loads(line) for line in lines]

    def last(self) -> Write:
        return (self.writes() or [{"node": "", "world": 0}])[-1]

    def refusals(self) -> int:
        return sum(self.log(name).count("rallypoint.FencedError: ") for name in self.nodes)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        end = time.monotonic() + LIMIT
        while not condition():
            assert time.monotonic() < end, f"waited for {what}:\n{self.tail()}"
            time.sleep(0.05)

    def tail(self) -> str:
        logs = sorted(self.folder.glob("*.log"))
        return "\n".join(f"--- {log.name}\n" + log.read_text()[-3000:] for log in logs)

    def check(self) -> None:
        """Holds the history to one line, and tells who broke it."""
        writes = self.writes()
        broken = forks(writes)
        turns = sum(w["parent"] != before["id"] for before, w in zip(writes, writes[1:]))
        print(f"{len(writes)} writes, {turns} over another's, {self.refusals()} refused")
        assert not broken, f"{len(broken)} of {len(writes)} writes, the first: {broken[0]}"

    def end(self) -> None:
        self.kill_servers()
        for node in self.nodes.values():
            node.send_signal(signal.SIGTERM)
        for node in self.nodes.values():
            try:
                node.wait(20)
            except subprocess.TimeoutExpired:
                node.kill()
                node.wait()


@pytest.fixture
def jobs(network: Network, tmp_path: Path) -> Iterator[Jobs]:  # noqa: F811
    made = Jobs(network, tmp_path, 4)
    yield made
    made.end()


def test_the_endpoints_node_founds_alone(jobs: Jobs) -> None:
    """It is killed, and the others go on; it comes back on a machine that is cut off. Both jobs
    reach round 2, both have a rank 0, and neither replaces what it has not loaded or written."""
    for number, name in enumerate("ABCD"):
        jobs.start(name, number)
    jobs.wait(lambda: jobs.last()["world"] == 4, "the round of all")
    jobs.kill("A")
    jobs.wait(lambda: jobs.last()["world"] == 3, "the round of the others")
    jobs.network.cut(jobs.machines[0][0])
    jobs.start("E", 0)
    before = len(jobs.writes())
    if GUARD == "fence":
        jobs.wait(lambda: jobs.refusals() >= 5, "refused writes")
        told = [line for name in jobs.nodes for line in jobs.log(name).splitlines()]
        told = [line for line in told if "rallypoint.FencedError: " in line]
        for line in told:
            assert 'another process has written it: run "fenced", generation ' in line
            assert ", process " in line
            assert " on machine" in line
    jobs.wait(lambda: len(jobs.writes()) >= before + 200, "writes of both")
    jobs.check()


def needs_nft() -> None:
    if shutil.which("nft") is None:
        pytest.skip("nothing rejects packets: there is no command `nft`")


def both_write(jobs: Jobs, one: str, other: str) -> None:
    """Waits until the nodes of both jobs have tried to write, and for many writes."""
    before = len(jobs.writes())

    def has_tried(names: str) -> bool:
        refused = any("rallypoint.FencedError: " in jobs.log(name) for name in names)
        return refused or any(str(w["node"]) in names for w in jobs.writes()[before:])

    jobs.wait(lambda: has_tried(one) and has_tried(other), "both jobs to train")
    jobs.wait(lambda: len(jobs.writes()) >= before + 200, "writes")
    jobs.check()


@pytest.mark.long
def test_a_minority_founds_anew(network: Network, tmp_path: Path) -> None:  # noqa: F811
    """The endpoint's node is killed, and its machine comes back cut off together with another one:
    the two are enough for a job, and three others are in one already. In the end there is one."""
    needs_nft()
    jobs = Jobs(network, tmp_path, 5, least=2)
    try:
        for number, name in enumerate("ABCDE"):
            jobs.start(name, number)
        jobs.wait(lambda: jobs.last()["world"] == 5, "the round of all")
        jobs.kill("A")
        jobs.wait(lambda: jobs.last()["world"] == 4, "the round of the others")
        network.part([namespace for namespace, _ in jobs.machines[:2]])
        before = len(jobs.writes())
        jobs.start("F", 0)
        jobs.wait(lambda: " of 2, store at " in jobs.log("F"), "a round of the two")
        jobs.wait(lambda: len(jobs.writes()) >= before + 200, "writes of the three")
        network.join([namespace for namespace, _ in jobs.machines[:2]])
        jobs.wait(lambda: jobs.last()["world"] == 5, "a round of all")
        jobs.check()
    finally:
        jobs.end()


@pytest.mark.long
@pytest.mark.parametrize("servers", [1, 3])
def test_servers_forget_while_nodes_are_cut_off(
    network: Network,  # noqa: F811
    tmp_path: Path,
    servers: int,
) -> None:
    """All servers start again with an empty memory; two of three nodes do not reach them."""
    needs_nft()
    jobs = Jobs(network, tmp_path, 3 + servers)
    try:
        homes = list(range(3, 3 + servers))
        jobs.serve(homes)
        for number, name in enumerate("ABC"):
            jobs.start(name, number)
        jobs.wait(lambda: jobs.last()["world"] == 3, "the round of all")
        network.part([namespace for namespace, _ in jobs.machines[:2]])
        jobs.kill_servers()
        jobs.serve(homes)
        both_write(jobs, "AB", "C")
        network.join([namespace for namespace, _ in jobs.machines[:2]])
        jobs.wait(lambda: jobs.last()["world"] == 3, "a round of all")
        jobs.check()
    finally:
        jobs.end()


@pytest.mark.long
@pytest.mark.parametrize("machine", [0, 1, 3])
def test_a_machine_is_refused(jobs: Jobs, machine: int) -> None:
    """All that a machine sends by TCP is answered by a reset, for two leases."""
    needs_nft()
    for number, name in enumerate("ABCD"):
        jobs.start(name, number)
    jobs.wait(lambda: jobs.last()["world"] == 4, "the round of all")
    time.sleep(1)  # until the hosts-to-be know each other
    namespace, _ = jobs.machines[machine]
    jobs.network.reject(namespace)
    time.sleep(2 * LEASE)
    before = len(jobs.writes())
    jobs.wait(lambda: len(jobs.writes()) >= before + 50, "writes of the others")
    jobs.check()
    jobs.network.accept(namespace)
