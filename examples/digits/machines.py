"""Machines of the demonstration: network namespaces on one bridge, and what goes over it."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import os
import socket
import struct
import subprocess
import threading
from collections.abc import Collection, Mapping

CLONE_NEWNET = 0x40000000
SO_RCVBUFFORCE = 33
SOL_PACKET, PACKET_STATISTICS = 263, 6
PACKET_OUTGOING = 4
ETH_P_ALL, ETH_P_IP, IPPROTO_TCP = 3, 0x0800, 6
BUFFER = 64 << 20  # bytes that wait to be searched


class NoMachinesError(Exception):
    """This process may not make network namespaces. The text says why."""


@dataclasses.dataclass(frozen=True)
class Machine:
    """One network namespace with one device, eth0."""

    namespace: str
    address: str

    @property
    def prefix(self) -> list[str]:
        """The prefix of a command that runs there."""
        return ["ip", "netns", "exec", self.namespace]


class Machines:
    """Machines that a bridge joins. The bridge is in a namespace, too: nothing of this
    machine's own network is touched, and nothing outside can be reached from them."""

    def __init__(self, *names: str) -> None:
        self._prefix = f"rpdemo{os.getpid()}"
        self._undo = contextlib.ExitStack()
        self.by_name: dict[str, Machine] = {}
        with contextlib.ExitStack() as failed:
            failed.callback(self.close)
            self.switch = self._namespace("switch")
            _ip("-n", self.switch, "link", "add", "br0", "type", "bridge")
            _ip("-n", self.switch, "link", "set", "br0", "up")
            for number, name in enumerate(names, 1):
                self.by_name[name] = self._machine(name, number)
            failed.pop_all()

    def _machine(self, name: str, number: int) -> Machine:
        machine = Machine(self._namespace(name), f"10.98.0.{number}")
        port = f"port{number}"
        _ip("link", "add", port, "netns", self.switch, "type", "veth",
            "peer", "name", "eth0", "netns", machine.namespace)  # fmt: skip
        _ip("-n", self.switch, "link", "set", port, "master", "br0", "up")
        _ip("-n", machine.namespace, "address", "add", f"{machine.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            _ip("-n", machine.namespace, "link", "set", device, "up")
        return machine

    def _namespace(self, suffix: str) -> str:
        name = f"{self._prefix}-{suffix}"
        self._undo.callback(_delete, name)  # before: an interrupt may come when it is made
        _ip("netns", "add", name)
        return name

    def close(self) -> None:
        """Removes them. All processes there must have ended."""
        self._undo.close()


def _delete(namespace: str) -> None:
    with contextlib.suppress(NoMachinesError):  # it was not made
        _ip("netns", "delete", namespace)


def _ip(*arguments: str) -> None:
    try:
        done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise NoMachinesError("there is no command `ip`") from error
    if done.returncode != 0:
        reason = " ".join(done.stderr.split())
        raise NoMachinesError(f"`ip {' '.join(arguments)}`: {reason}")


@dataclasses.dataclass
class Seen:
    """What a capture has seen since it was last asked."""

    packets: int = 0
    bytes: int = 0
    lost: int = 0  # packets that the capture has missed
    found: dict[str, int] = dataclasses.field(default_factory=dict)  # how often each text was
    where: dict[str, str] = dataclasses.field(default_factory=dict)  # where it was first


class Capture:
    """Searches all that goes over the bridge of some machines for texts, as it goes.

    TCP is searched a connection and direction at a time, so that a text in two packets is
    found, too. What `strangers` send is counted and not searched: they may say what they know.
    """

    def __init__(
        self, machines: Machines, texts: Mapping[str, bytes], strangers: Collection[Machine]
    ) -> None:
        self._texts = dict(texts)
        self._strangers = {socket.inet_aton(stranger.address) for stranger in strangers}
        self._longest = max(map(len, self._texts.values()))
        self._tails: dict[bytes, bytes] = {}  # the last bytes of each direction
        self._socket = _packet_socket(machines.switch)
        self._socket.settimeout(0.1)
        self._mutex = threading.Lock()
        self._seen = self._nothing()
        self._read_all = threading.Event()  # nothing waited to be read, once more
        self._stopped = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def take(self) -> Seen:
        """Returns what was seen since the last call, of all that was sent before this one."""
        self._read_all.clear()
        while self._reader.is_alive() and not self._read_all.wait(1):
            pass
        statistics = self._socket.getsockopt(SOL_PACKET, PACKET_STATISTICS, 8)
        with self._mutex:
            seen, self._seen = self._seen, self._nothing()
            self._tails.clear()
        seen.lost = struct.unpack("II", statistics)[1]
        return seen

    def close(self) -> None:
        self._stopped.set()
        self._reader.join()
        self._socket.close()

    def _nothing(self) -> Seen:
        return Seen(found=dict.fromkeys(self._texts, 0))

    def _read(self) -> None:
        while not self._stopped.is_set():
            try:
                packet, source = self._socket.recvfrom(1 << 17)
            except TimeoutError:
                self._read_all.set()
                continue
            if source[2] != PACKET_OUTGOING:  # else it was seen when it came in
                self._search(packet)

    def _search(self, packet: bytes) -> None:
        flow, data = _tcp(packet)
        tail = self._tails.get(flow, b"") if flow else b""
        data = tail + data
        with self._mutex:
            self._seen.packets += 1
            self._seen.bytes += len(packet)
            if flow[:4] in self._strangers:
                return
            for name, text in self._texts.items():
                if (count := data.count(text)) and (new := count - tail.count(text)) > 0:
                    self._seen.found[name] += new
                    self._seen.where.setdefault(name, _place(flow))
            if flow:
                self._tails[flow] = data[max(len(data) - self._longest + 1, 0) :]


def _packet_socket(namespace: str) -> socket.socket:
    """A socket that gets what each device of a namespace gets and sends."""
    made: list[socket.socket] = []
    failed: list[OSError] = []

    def make() -> None:  # in a thread of its own, which stays in the namespace
        try:
            with open(f"/run/netns/{namespace}", "rb") as inside:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(inside.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")
            made.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)))
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=make)
    thread.start()
    thread.join()
    if failed:
        raise NoMachinesError(f"no capture of {namespace}: {failed[0]}")
    capture = made[0]
    try:
        capture.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, BUFFER)
    except PermissionError:  # root of a user namespace: as much as the system allows
        capture.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER)
    return capture


def _place(flow: bytes) -> str:
    """A direction in words."""
    if not flow:
        return "no TCP"
    return " to ".join(
        f"{socket.inet_ntoa(address)}:{int.from_bytes(port)}"
        for address, port in ((flow[:4], flow[8:10]), (flow[4:8], flow[10:]))
    )


def _tcp(packet: bytes) -> tuple[bytes, bytes]:
    """The direction of a TCP packet over IPv4 and its data; of others no direction, and all."""
    if len(packet) < 34 or int.from_bytes(packet[12:14]) != ETH_P_IP or packet[23] != IPPROTO_TCP:
        return b"", packet
    at = 14 + 4 * (packet[14] & 15)
    end = 14 + int.from_bytes(packet[16:18])
    if len(packet) < at + 20:
        return b"", packet
    if end <= at:  # larger than its field for that can say
        end = len(packet)
    return packet[26:34] + packet[at : at + 4], packet[at + 4 * (packet[at + 12] >> 4) : end]
