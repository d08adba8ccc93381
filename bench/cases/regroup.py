"""Shrinking from 3 nodes to 2 and growing from 2 to 3, without the workers' start-up.

Each process does what torch's agent does: it asks num_nodes_waiting() every 0.1 s and
calls next_rendezvous() again when there is a reason to.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from backends import OURS, REFERENCE, Settings
from processes import BenchError, Group, Link
from result import Row, Sample

NAME = "regroup"

MONITOR_INTERVAL = 0.1  # torchrun's default
REPEAT = 5
REFERENCE_REPEAT = 2

# With torch 2.15's default the old rank 0 does not announce its store to the new round.
UNSHARED = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"

GRACE = 1.0  # reconnect_grace, the default
ADMIT_DELAY = 1.0  # the default
ALLOWANCE = 0.5


def measure(repeat: int | None, reference: bool) -> list[Row]:
    times = repeat or REPEAT
    shrink = Row(
        NAME,
        "shrink 3 -> 2 after a SIGKILL",
        Sample([_shrink(OURS) for _ in range(times)]),
        target=GRACE + ALLOWANCE,
        target_why=f"grace {GRACE:g} s + {ALLOWANCE:g}",
    )
    grow = Row(
        NAME,
        "grow 2 -> 3",
        Sample([_grow(OURS) for _ in range(times)]),
        target=ADMIT_DELAY + ALLOWANCE,
        target_why=f"admit_delay {ADMIT_DELAY:g} s + {ALLOWANCE:g}",
    )
    if reference:
        # No handler learns of a lost node, so the agents would wait for ever; under
        # torchrun it is the workers' own failure that ends it.
        shrink.reference = Sample(note="never by itself")
        grow.reference = Sample(
            [_grow(REFERENCE, {UNSHARED: "1"}) for _ in range(REFERENCE_REPEAT)],
            note=f"with {UNSHARED}=1, without which the newcomer finds no MASTER_ADDR",
        )
    return [shrink, grow]


def _agent(settings: Settings, environment: Mapping[str, str] | None = None) -> Any:
    def node(link: Link) -> None:
        os.environ.update(environment or {})
        handler = settings.handler()
        link.ready()
        began = time.monotonic()
        while True:
            info = handler.next_rendezvous()
            link.send((info.world_size, began, time.monotonic()))
            while handler.num_nodes_waiting() == 0:
                time.sleep(MONITOR_INTERVAL)

    return node


def _shrink(backend: str) -> float:
    """Seconds from the signal until the last survivor is in the round of two."""
    settings = Settings(backend, 2, 3)
    with Group(3, _agent(settings)) as group:
        group.open_gate()
        _expect(3, group.receive_all())
        lost = (group.listener(settings.port) + 1) % 3
        at = group.signal(lost, signal.SIGKILL)
        outcomes = group.receive_all(i for i in range(3) if i != lost)
        _expect(2, outcomes)
        return max(o[2] for o in outcomes) - at


def _grow(backend: str, environment: Mapping[str, str] | None = None) -> float:
    """Seconds from the newcomer's next_rendezvous until all are in the round of three."""
    # Both let the two begin at once: the reference knows the first, ours the second option.
    settings = Settings(backend, 2, 3, {"last_call_timeout": 1, "target": 2})
    agent = _agent(settings, environment)
    with Group(2, agent) as group, Group(1, agent) as newcomer:
        group.open_gate()
        _expect(2, group.receive_all())
        newcomer.open_gate()
        outcomes = [*newcomer.receive_all(), *group.receive_all()]
        _expect(3, outcomes)
        return max(o[2] for o in outcomes) - outcomes[0][1]


def _expect(world_size: int, outcomes: list[Any]) -> None:
    if {o[0] for o in outcomes} != {world_size}:
        raise BenchError(f"world sizes {[o[0] for o in outcomes]}, expected {world_size}")
