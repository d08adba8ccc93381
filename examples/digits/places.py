"""Where the demonstration's nodes meet: only the endpoint differs, and who can be spared."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path

from nodes import Node, Setting, free_port
from timeline import Timeline

from rallypoint import EtcdServer

RUN_ID = "digits"


class Place(abc.ABC):
    """A place that exists until close()."""

    endpoint: str
    script = Path(__file__).with_name("train.py")

    def setting(self, name: str) -> Setting:
        """Where and with what a node of this name is started."""
        return Setting()

    def joined(self, nodes: Sequence[Node], timeline: Timeline) -> None:  # noqa: B027
        """Called when the first nodes train, given by rank."""

    def finished(self, timeline: Timeline) -> None:  # noqa: B027
        """Called when the nodes have ended well."""

    @abc.abstractmethod
    def reached_by(self, node: Node) -> bool:
        """Whether the node's agent has come there."""

    def spare(self, nodes: Sequence[Node]) -> tuple[Node, str] | None:
        """The node to lose, by its rank, and why that one; None: not known yet.

        Without a host any will do: it is the one of rank 0, which holds the workers' store.
        """
        return nodes[0], "rank 0; no node hosts the endpoint"

    def close(self) -> None:  # noqa: B027
        """Ends what the place needs, after the nodes."""


class Hosted(Place):
    """A port on which one of the nodes hosts the control plane."""

    def __init__(self) -> None:
        self.port = free_port()
        self.endpoint = f"127.0.0.1:{self.port}"

    def reached_by(self, node: Node) -> bool:
        # One that finds no server there opens one, and yields to the job's when that probes it.
        return node.connected_to(self.port) or node.listens_on(self.port)

    def spare(self, nodes: Sequence[Node]) -> tuple[Node, str] | None:
        host = next((node for node in nodes if node.listens_on(self.port)), None)
        if host is None:
            return None
        return host, "it hosts the control plane"


class Directory(Place):
    """A directory that all nodes see."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "rendezvous"
        self._folder.mkdir()
        self.endpoint = self._folder.as_uri()

    def reached_by(self, node: Node) -> bool:
        return node.has_open_below(self._folder)


class Etcd(Place):
    """An etcd of this machine, which runs until close()."""

    def __init__(self) -> None:
        self._server = EtcdServer()
        self._server.start()
        self.endpoint = f"etcd://{self._server.get_endpoint()}"

    def reached_by(self, node: Node) -> bool:
        return node.connected_to(self._server.get_port())

    def close(self) -> None:
        self._server.stop()


HOSTED, FILE, ETCD = "hosted", "file", "etcd"
PLACES = (HOSTED, FILE, ETCD)


def open_place(name: str, folder: Path) -> Place:
    """Opens one of PLACES; folder is the demonstration's."""
    if name == FILE:
        return Directory(folder)
    return Etcd() if name == ETCD else Hosted()
