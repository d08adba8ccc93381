"""Networks that break silently: each node in a network namespace of its own.

Needs the right to make network namespaces; skipped without.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from torchrun.harness import COMMAND, NewJob

_numbers = itertools.count()


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


def nft(namespace: str, rules: str) -> None:
    command = ["ip", "netns", "exec", namespace, "nft", rules]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise OSError(f"nft {rules}: {done.stderr.strip()}")


class Network:
    """Namespaces that a bridge joins. The bridge has a namespace of its own, too, so that
    nothing of the machine's network is touched."""

    def __init__(self) -> None:
        self._name = f"rptest{os.getpid()}-{next(_numbers)}"
        self._undo = contextlib.ExitStack()
        self._switch = self._namespace("switch")
        ip("-n", self._switch, "link", "add", "br0", "type", "bridge")
        ip("-n", self._switch, "link", "set", "br0", "up")
        self.namespaces: list[str] = []

    def machine(self) -> tuple[str, str]:
        """Adds a namespace; returns its name and its address."""
        number = len(self.namespaces) + 1
        namespace = self._namespace(str(number))
        port = f"port{number}"
        ip("link", "add", port, "netns", self._switch, "type", "veth",
           "peer", "name", "eth0", "netns", namespace)  # fmt: skip
        ip("-n", self._switch, "link", "set", port, "master", "br0", "up")
        self.namespaces.append(namespace)
        address = self._address(namespace)
        ip("-n", namespace, "address", "add", f"{address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", namespace, "link", "set", device, "up")
        return namespace, address

    def cut(self, namespace: str) -> None:
        """Takes a machine off the switch: packets vanish without a report."""
        ip("-n", self._switch, "link", "set", self._port(namespace), "nomaster")

    def mend(self, namespace: str) -> None:
        """Undoes cut()."""
        ip("-n", self._switch, "link", "set", self._port(namespace), "master", "br0")

    def part(self, namespaces: list[str]) -> None:
        """Drops what these machines and all others send each other."""
        others = [n for n in self.namespaces if n not in namespaces]
        addresses = ", ".join(self._address(n) for n in others)
        for namespace in namespaces:
            rules = "type filter hook {} priority 0\nip {} {{ {} }} drop\n"
            rules = "".join(
                f"chain {way} {{\n{rules.format(way, end, addresses)}}}\n"
                for way, end in (("input", "saddr"), ("output", "daddr"))
            )
            nft(namespace, f"table ip parts {{\n{rules}}}\n")

    def join(self, namespaces: list[str]) -> None:
        """Undoes part()."""
        for namespace in namespaces:
            nft(namespace, "delete table ip parts")

    def reject(self, namespace: str) -> None:
        """Answers each packet of TCP that a machine sends to another with a reset."""
        rules = "type filter hook output priority 0\n"
        rules += 'oifname "eth0" meta l4proto tcp reject with tcp reset\n'
        rules = f"table inet rejects {{\nchain out {{\n{rules}}}\n}}\n"
        nft(namespace, rules)

    def accept(self, namespace: str) -> None:
        """Undoes reject()."""
        nft(namespace, "delete table inet rejects")

    def _address(self, namespace: str) -> str:
        return f"10.99.0.{self.namespaces.index(namespace) + 1}"

    def _port(self, namespace: str) -> str:
        return f"port{self.namespaces.index(namespace) + 1}"

    def _namespace(self, suffix: str) -> str:
        name = f"{self._name}-{suffix}"
        ip("netns", "add", name)
        self._undo.callback(ip, "netns", "delete", name)
        return name

    def close(self) -> None:
        self._undo.close()


@pytest.fixture
def network() -> Iterator[Network]:
    if shutil.which("ip") is None:
        pytest.skip("no network namespaces: there is no command `ip`")
    try:
        network = Network()
    except OSError as e:
        pytest.skip(f"no network namespaces: {e}")
    yield network
    network.close()


def test_a_machine_is_cut_off_and_comes_back(new_job: NewJob, network: Network) -> None:
    """The others see the loss when its lease is over, and regroup; then it rejoins."""
    here, address = network.machine()
    far, far_address = network.machine()
    job = new_job("2:3", host=address, conf={"lease_timeout": 2})
    job.start("A", netns=here)
    job.await_output("A", "hosting the control plane")
    job.start("B", netns=here)
    job.start("C", netns=far, conf={"node_rank": 0})
    first = job.await_round("A", "B", "C")
    assert first.of("C").rank == 0
    assert first.master.startswith(f"{far_address}:")

    network.cut(far)
    second = job.await_round("A", "B", above=first.number)
    assert second.master.startswith(f"{address}:")
    network.mend(far)
    third = job.await_round("A", "B", "C", above=second.number)
    assert third.master.startswith((f"{address}:", f"{far_address}:"))
    assert not job.nodes["A"].lines("loopback")
    job.finish("A", "B", "C")


def test_others_elect_a_host(new_job: NewJob, network: Network) -> None:
    """The host's machine is cut off for good: a majority elects another host and continues."""
    machines = [network.machine() for _ in range(3)]
    job = new_job("2:3", host=machines[0][1], conf={"lease_timeout": 2})
    names = ["A", "B", "C"]
    for name, (namespace, _) in zip(names, machines):
        job.start(name, netns=namespace)
        if name == "A":
            job.await_output("A", "hosting the control plane")
    first = job.await_round(*names)
    command = ["ip", "netns", "exec", machines[0][0], *COMMAND, "status", "--json", job.endpoint]

    def voters() -> bool:
        said = json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
        return len(said["server"]["succession"]["voters"]) == 2

    job.wait(voters, "two voters beside the host")
    network.cut(machines[0][0])
    job.await_round("B", "C", above=first.number)
    job.finish("B", "C")
    assert any(job.nodes[name].lines("was elected and hosts now") for name in ("B", "C"))


def test_a_short_cut_is_not_noticed(new_job: NewJob, network: Network) -> None:
    """A network that is back before the lease is over costs nothing."""
    here, address = network.machine()
    far, _ = network.machine()
    job = new_job("2", host=address, conf={"lease_timeout": 30})
    job.start("A", netns=here)
    job.start("B", netns=far)
    first = job.await_round("A", "B")
    network.cut(far)
    for worker in first.workers:
        job.await_said(worker, "alone")
    network.mend(far)
    job.finish("A", "B")
    assert len(job.starts()) == 2
