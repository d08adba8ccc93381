"""Where workers are: the stacks of many ranks, and a hang that is named."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from processes import BenchError, free_port
from result import Row, Sample

NAME = "stacks"

REPEAT = 5
HANGS = 3
LIMIT = 120.0
AGENTS, WORKERS = 8, 8
HANG_TIMEOUT = 5
STEPS = 50

BINARY = str(Path(__file__).parents[2] / "build" / "rallypoint")

# One rank waits for its data, all others for it.
_WAITING = """
import os, time
import rallypoint
def data_wait():
    os.write(1, b"up\\n")
    time.sleep(1e6)
def all_reduce():
    os.write(1, b"up\\n")
    time.sleep(1e6)
data_wait() if os.environ["RANK"] == "3" else all_reduce()
"""

# The same after some steps of 0.1 s; rank 3 says when its last one is over.
_HANGING = f"""
import os, time
import rallypoint
for step in range({STEPS}):
    rallypoint.progress(step)
    time.sleep(0.1)
def data_wait():
    os.write(1, f"hangs {{time.monotonic()}}\\n".encode())
    time.sleep(1e6)
def all_reduce():
    time.sleep(1e6)
data_wait() if os.environ["RANK"] == "3" else all_reduce()
"""


def measure(repeat: int | None) -> list[Row]:
    ranks = AGENTS * WORKERS
    folded = Row(NAME, f"stacks of {ranks} ranks on {AGENTS} agents, folded", _asked(repeat))
    folded.target = 1.0
    named = Sample([_hang() for _ in range(repeat or HANGS)])
    hang = Row(NAME, f"hang of 8 ranks until both nodes name it, timeout {HANG_TIMEOUT} s", named)
    hang.target, hang.target_why = HANG_TIMEOUT + 2.0, "the timeout and 2 s"
    return [folded, hang]


@contextmanager
def _job(
    script: str, agents: int, workers: int, *options: str
) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """A job, and where its nodes meet."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "train.py")
        path.write_text(script)
        place = f"127.0.0.1:{free_port()}"
        command = [BINARY, "run", f"--rdzv-endpoint={place}", f"--nnodes={agents}"]
        command += [f"--nproc-per-node={workers}", *options, str(path)]
        nodes = [
            subprocess.Popen(
                command,
                env={**os.environ, "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            for _ in range(agents)
        ]
        try:
            yield place, nodes
        finally:
            for node in nodes:
                node.kill()
                node.wait()
                for stream in (node.stdout, node.stderr):
                    assert stream
                    stream.close()


def _lines(nodes: list[subprocess.Popen[bytes]]) -> Iterator[tuple[int, str, float]]:
    """What nodes and their workers write: who, a line, and when it came."""
    until = time.monotonic() + LIMIT
    with selectors.DefaultSelector() as selector:
        for i, node in enumerate(nodes):
            for stream in (node.stdout, node.stderr):
                assert stream
                selector.register(stream.fileno(), selectors.EVENT_READ, (i, bytearray()))
        while (left := until - time.monotonic()) > 0:
            for key, _ in selector.select(left):
                i, text = key.data
                if not (more := os.read(key.fd, 1 << 16)):
                    raise BenchError(f"node {i} has ended: {bytes(text)!r}")
                text += more
                while b"\n" in text:
                    line, _, rest = bytes(text).partition(b"\n")
                    text[:] = rest
                    yield i, line.decode("utf-8", "replace"), time.monotonic()
    raise BenchError(f"nothing has come within {LIMIT} s")


def _asked(repeat: int | None) -> Sample:
    """How long `rallypoint stacks` takes, from its start to its end."""
    took = Sample()
    with _job(_WAITING, AGENTS, WORKERS) as (place, nodes):
        up = 0
        for _, line, _ in _lines(nodes):
            up += line == "up"
            if up == AGENTS * WORKERS:
                break
        time.sleep(3)  # the agents have connected by then, and the workers wait
        for _ in range(repeat or REPEAT):
            began = time.monotonic()
            done = subprocess.run(
                [BINARY, "stacks", place, "--json"], capture_output=True, timeout=LIMIT
            )
            took.values.append(time.monotonic() - began)
            told = json.loads(done.stdout) if done.returncode == 0 else {}
            if told.get("suspects") != [3] or told["ranks"] != AGENTS * WORKERS:
                raise BenchError(f"rallypoint stacks: {told} {done.stderr!r}")
            time.sleep(0.5)
    return took


def _hang() -> float:
    """From the last step until the second node has said which rank hangs."""
    with _job(_HANGING, 2, 4, f"--hang-timeout={HANG_TIMEOUT}") as (_, nodes):
        hangs, named = 0.0, set()
        for node, line, at in _lines(nodes):
            if line.startswith("hangs "):
                hangs = float(line.split()[1])
            elif "no step for" in line:
                if ": rank 3 " not in line or " data_wait; " not in line:
                    raise BenchError(f"another verdict: {line}")
                named.add(node)
            if len(named) == 2:
                return at - hangs
    raise BenchError("the nodes have said nothing")
