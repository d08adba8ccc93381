"""Thousands of nodes at one control plane: how long a round takes, and what it costs to hold them.

The server is a process of its own; all nodes are in another one (bench/swarm), each with
the client and the connection that a real node has. For directives an event loop answers on
their connections instead: the CPU time of a job's nodes is not that of the server's machine.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from processes import BenchError
from result import Row, Sample

NAME = "scale"

COUNTS = (100, 1000, 2000, 4000, 6000, 8000, 10000)
TARGETS = {1000: 0.1, 4000: 0.3, 10000: 1.0}
DIRECT = 10000
DIRECT_TARGET = 0.5
REPEAT = 5
RACKS = 10000
RACKS_PAIRS = 10
RACKS_TARGET = 1.1  # of a round without labels
HOLD = 10000
HOLD_SECONDS = 20.0
HOLD_PAIRS = 2
HOLD_TARGET = 0.05  # of a core
STEPS_TARGET = 0.01  # of a core, more than without

BUILD = Path(__file__).parents[2] / "build"


def measure(repeat: int | None) -> list[Row]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1] - 100
    rows = []
    for n in (n for n in COUNTS if n <= most):
        runs = _swarm("meet", n, repeat or REPEAT)
        answered = Sample([run["last_join_s"] for run in runs])
        rows.append(Row(NAME, f"{n} nodes: last join to last outcome", answered))
        rows[-1].target = TARGETS.get(n)
        together = Sample([run["connect_s"] + run["first_join_s"] for run in runs])
        rows.append(Row(NAME, f"{n} nodes: first connection to last outcome", together))
    directed = _swarm("direct", min(DIRECT, most), repeat or REPEAT)
    agreed = Sample([run["agreed_s"] for run in directed])
    rows.append(
        Row(NAME, f"{min(DIRECT, most)} nodes: directive to the last that knows its step", agreed)
    )
    rows[-1].target = DIRECT_TARGET
    return [*rows, _racks(min(RACKS, most), repeat), *_at_rest(min(HOLD, most))]


def _racks(n: int, repeat: int | None) -> Row:
    """What labels and segments cost a round: the quickest of each, in turns without and with."""
    seconds: dict[str, list[float]] = {"meet": [], "racks": []}
    for _ in range(repeat or RACKS_PAIRS):
        for how, values in seconds.items():
            values.append(_swarm(how, n, 1)[0]["first_join_s"])
    ratio = Sample([min(seconds["racks"]) / min(seconds["meet"])])
    name = f"{n} nodes in racks, segments of 8: a round, relative to one without"
    return Row(NAME, name, ratio, "x", target=RACKS_TARGET)


def _swarm(how: str, n: int, times: int) -> list[dict[str, float]]:
    with serving() as (_, address):
        done = swarm_of(how, address, str(n), str(times))
        out, err = done.communicate(timeout=600)
    if done.returncode:
        raise BenchError(f"swarm of {n}: {err}")
    return [json.loads(line) for line in out.splitlines()]


def _at_rest(n: int) -> Iterator[Row]:
    """What n members at rest cost the server, in turns without and with their workers' steps."""
    idle, stepping, memory = Sample(), Sample(), Sample()
    for _ in range(HOLD_PAIRS):
        for how, shares in (("hold", idle), ("train", stepping)):
            share, each = _hold(n, how)
            shares.values.append(share)
            if how == "hold":
                memory.values.append(each)
    name = f"{n} nodes at rest: the server's"
    yield Row(NAME, f"{name} share of a core", idle, "cores", target=HOLD_TARGET)
    yield Row(NAME, f"{name} memory a node", memory, "kB")
    more = Sample([b - a for a, b in zip(idle.values, stepping.values, strict=True)])
    steps = Row(NAME, f"{name} share of a core more with their workers' steps", more, "cores")
    steps.target = STEPS_TARGET
    yield steps


def _hold(n: int, how: str) -> tuple[float, float]:
    """The share of a core that n members cost the server, and kB of memory for each."""
    with serving() as (server, address):
        empty = server.memory_info().rss
        swarm = swarm_of(how, address, str(n), str(int(3 * HOLD_SECONDS)))
        try:
            assert swarm.stdout is not None
            if swarm.stdout.readline().strip() != "held":
                raise BenchError(f"swarm of {n}: {swarm.communicate()[1]}")
            time.sleep(HOLD_SECONDS / 2)  # what joining left to do is done
            before, began = cpu_of(server), time.monotonic()
            time.sleep(HOLD_SECONDS)
            share = (cpu_of(server) - before) / (time.monotonic() - began)
            each = (server.memory_info().rss - empty) / n / 1e3
        finally:
            swarm.kill()
            swarm.communicate()
    return share, each


def cpu_of(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def swarm_of(*args: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [str(BUILD / "swarm"), *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@contextmanager
def serving(*options: str, cores: set[int] | None = None) -> Iterator[tuple[psutil.Process, str]]:
    """A control plane, on certain cores only if they are given: its process and address."""
    env = {k: v for k, v in os.environ.items() if k != "RALLYPOINT_TOKEN_FILE"}
    process = subprocess.Popen(
        [
            str(BUILD / "rallypoint"),
            "serve",
            "--listen",
            "127.0.0.1:0",
            "--log-level",
            "error",
            *options,
        ],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
        preexec_fn=(lambda: os.sched_setaffinity(0, cores)) if cores else None,
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().split()[-1:]
        if not address:
            raise BenchError("rallypoint serve did not start")
        yield psutil.Process(process.pid), address[0]
    finally:
        process.terminate()
        process.communicate()
