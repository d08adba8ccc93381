"""What tests of whole jobs share: a port to meet at, and waiting for what comes."""

from __future__ import annotations

import contextlib
import random
import socket
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 100.0  # seconds; only for tests that hang


def free_port() -> int:
    """A port of the loopback interface that is free, and that the kernel gives to no other."""
    ranges = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()
    while True:
        port = random.randrange(10000, int(ranges[0]))
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            return port


def until(holds: Callable[[], object], timeout: float = PATIENCE, what: str = "") -> None:
    """Waits for what nobody tells Python of."""
    deadline = time.monotonic() + timeout
    while not holds():
        assert time.monotonic() < deadline, f"not within {timeout:.0f} s: {what or holds}"
        time.sleep(0.01)
