"""A node is lost: how long until num_nodes_waiting() tells all the others."""

from __future__ import annotations

import signal
import time

from backends import OURS, REFERENCE, Settings
from processes import Group, Link
from result import Row, Sample

NAME = "loss"

NODES = 3
POLL = 0.005
REPEAT = 5
NEVER = 20.0  # so long the reference is given; its own detection takes 15 s

GRACE = 1.0  # reconnect_grace, the default
LEASE = 2.0
ALLOWANCE = 0.1


def measure(repeat: int | None, reference: bool) -> list[Row]:
    times = repeat or REPEAT
    killed = Row(
        NAME,
        "SIGKILL of a node, until all others know",
        Sample([_seconds(OURS, signal.SIGKILL, {}) for _ in range(times)]),
        target=GRACE + ALLOWANCE,
        target_why=f"grace {GRACE:g} s + {ALLOWANCE:g}",
    )
    if reference:
        try:
            killed.reference = Sample([_seconds(REFERENCE, signal.SIGKILL, {})])
        except TimeoutError:
            killed.reference = Sample(note=f"never (within {NEVER:.0f} s)")
    silent = Row(
        NAME,
        f"node silent (SIGSTOP), lease_timeout={LEASE:g}",
        Sample([_seconds(OURS, signal.SIGSTOP, {"lease_timeout": LEASE}) for _ in range(times)]),
        target=LEASE + ALLOWANCE,
        target_why=f"lease + {ALLOWANCE:g}",
    )
    return [killed, silent]


def _seconds(backend: str, how: signal.Signals, options: dict[str, object]) -> float:
    """Seconds from the signal until the last of the other nodes knows."""
    settings = Settings(backend, 2, NODES, options)

    def node(link: Link) -> None:
        handler = settings.handler()
        link.ready()
        handler.next_rendezvous()
        link.send("joined")
        while handler.num_nodes_waiting() == 0:
            time.sleep(POLL)
        link.send(time.monotonic())
        link.hold()

    with Group(NODES, node) as group:
        group.open_gate()
        group.receive_all()
        host = group.listener(settings.port)
        others = [i for i in range(NODES) if i != (host + 1) % NODES]
        at = group.signal((host + 1) % NODES, how)
        return max(group.receive_all(others, NEVER)) - at
