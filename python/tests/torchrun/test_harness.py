"""What the scenarios stand on."""

from __future__ import annotations

import json
import socket

from torchrun.harness import Children


def test_pids_are_given_again() -> None:
    """A process that has the pid of one that has ended runs, and that one has its code."""
    ours, launcher = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, launcher:
        children = Children(ours)

        def says(**said: int) -> None:
            launcher.send(json.dumps(said).encode())
            assert children.receive() == said

        says(started=7)
        first = children.running(7)
        says(ended=7, code=0)
        says(started=7)
        second = children.running(7)
        assert (first.code, second.code) == (0, None)
        says(ended=7, code=-9)
        assert (first.code, second.code) == (0, -9)
