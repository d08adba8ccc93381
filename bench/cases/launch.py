"""The launcher: `rallypoint run` beside torchrun, with the same arguments."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from processes import BenchError
from result import Row, Sample

NAME = "launch"

REPEAT = 7
REFERENCE_REPEAT = 3
LIMIT = 120.0

BINARY = (str(Path(__file__).parents[2] / "build" / "rallypoint"), "run")
ENTRY = (str(Path(sys.executable).with_name("rallypoint")), "run")
UV = Path(__file__).parents[2] / ".tools" / "uv" / "bin" / "uv"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")

# torchrun takes signals only a while after its workers have started, and leaves them
# behind if one comes before.
SETTLED = 1.0
IDLE_SECONDS = 10.0
CROWD = 256

# Says when it starts; the first attempt crashes at once.
_CRASHING = """
import os, time
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
os.write(1, f"{attempt} {time.monotonic()}\\n".encode())
os._exit(1) if attempt == "0" else None
"""


def measure(repeat: int | None, reference: bool) -> list[Row]:
    times = repeat or REPEAT
    few = min(times, REFERENCE_REPEAT)

    def of(take: Callable[[Sequence[str]], float], command: Sequence[str], n: int) -> Sample:
        return Sample([take(command) for _ in range(n)])

    def torchrun(take: Callable[[Sequence[str]], float], n: int = few) -> Sample | None:
        return of(take, TORCHRUN, n) if reference else None

    interpreter = Sample([_interpreter() for _ in range(times)])
    start, idle, recover, end = (
        torchrun(_start),
        torchrun(_resident, 1),
        torchrun(_recover),
        torchrun(_end),
    )
    crowd = torchrun(_crowd, 1)
    rows = [
        Row(NAME, "2 workers `true`, binary", of(_start, BINARY, times), target=0.03),
        Row(NAME, "2 workers `true`, Python entry point", of(_start, ENTRY, times), target=0.08),
        Row(NAME, "idle agent, 2 workers, binary", of(_resident, BINARY, few), "MB", target=25),
        Row(
            NAME,
            "idle agent, 2 workers, Python entry point",
            of(_resident, ENTRY, few),
            "MB",
            target=40,
        ),
        Row(
            NAME, "crash of a worker, until its successor's first line", of(_recover, BINARY, times)
        ),
        Row(NAME, "SIGTERM to the agent, until it is gone", of(_end, BINARY, times), target=0.1),
        Row(
            NAME,
            "CPU of an idle agent, 8 workers",
            of(_idle, BINARY, 1),
            "% of a core",
            target=0.05,
        ),
        Row(NAME, f"{CROWD} workers `true`, start and stop", of(_crowd, BINARY, few)),
    ]
    rows[4].floor = interpreter
    rows[4].target = 0.05 + (interpreter.median or 0)
    rows[4].target_why = "0.05 + an interpreter's start"
    for i, sample in (
        (0, start),
        (1, start),
        (2, idle),
        (3, idle),
        (4, recover),
        (5, end),
        (7, crowd),
    ):
        rows[i].reference = sample
    rows[6].reference = torchrun(_idle, 1)
    if UV.exists():
        rows.append(
            Row(NAME, "uvx of the wheel, from nothing to the first worker", of(_uvx, (), few))
        )
    if crowd and crowd.median:
        rows[7].target, rows[7].target_why = crowd.median / 2, "half of torchrun's"
    return rows


def _uvx(_: Sequence[str]) -> float:
    """Seconds until a worker writes, where uv has neither an environment nor a cache."""
    wheel = next((Path(__file__).parents[2] / "dist").glob("rallypoint-*.whl"))
    with tempfile.TemporaryDirectory() as cache:
        command = [UV, "--cache-dir", cache, "tool", "run", "--python", sys.executable]
        began = time.monotonic()
        said = _run(
            [*map(str, command), "--from", str(wheel), "rallypoint"],
            *("run", "--standalone", "--no-python", sys.executable, "-c"),
            "import time; print(time.monotonic())",
        )
        return float(said) - began


def _environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "LOGLEVEL": "ERROR"}


def _run(command: Sequence[str], *arguments: str) -> str:
    done = subprocess.run(
        [*command, *arguments], env=_environment(), capture_output=True, text=True, timeout=LIMIT
    )
    if done.returncode:
        raise BenchError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


def _timed(command: Sequence[str], *arguments: str) -> float:
    began = time.monotonic()
    _run(command, *arguments)
    return time.monotonic() - began


def _start(command: Sequence[str]) -> float:
    return _timed(command, "--standalone", "--nproc-per-node=2", "--no-python", "true")


def _crowd(command: Sequence[str]) -> float:
    return _timed(command, "--standalone", f"--nproc-per-node={CROWD}", "--no-python", "true")


def _interpreter() -> float:
    """Seconds from the start of an interpreter until its first line."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-u", "-c", "import os, time; print(time.monotonic())"],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(done.stdout) - began


def _recover(command: Sequence[str]) -> float:
    """Seconds from the last line of a crashing worker to the first of the next attempt."""
    out = _run(
        command,
        "--standalone",
        "--nproc-per-node=2",
        "--max-restarts=1",
        "--no-python",
        *(sys.executable, "-u", "-c", _CRASHING),
    )
    first: dict[str, float] = {}
    for line in out.splitlines():
        attempt, _, at = line.partition(" ")
        first[attempt] = min(first.get(attempt, float(at)), float(at))
    return first["1"] - first["0"]


@contextmanager
def _resting(command: Sequence[str], workers: int) -> Iterator[subprocess.Popen[bytes]]:
    """An agent whose workers sleep."""
    with subprocess.Popen(
        [
            *command,
            *("--standalone", f"--nproc-per-node={workers}", "--no-python"),
            *("sh", "-c", "echo up; exec sleep 1000"),
        ],
        env=_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as agent:
        try:
            assert agent.stdout
            for _ in range(workers):
                if not agent.stdout.readline():
                    raise BenchError(f"{' '.join(command)}: a worker did not start")
            time.sleep(SETTLED)
            yield agent
        finally:
            agent.terminate()
            agent.wait(LIMIT)


def _resident(command: Sequence[str]) -> float:
    with _resting(command, 2) as agent:
        text = Path(f"/proc/{agent.pid}/status").read_text()
        return (
            next(int(line.split()[1]) for line in text.splitlines() if line.startswith("VmRSS"))
            / 1024
        )


def _end(command: Sequence[str]) -> float:
    with _resting(command, 2) as agent:
        began = time.monotonic()
        agent.send_signal(signal.SIGTERM)
        agent.wait(LIMIT)
        return time.monotonic() - began


def _idle(command: Sequence[str]) -> float:
    """Percent of a core."""
    with _resting(command, 8) as agent:
        before, began = _cpu(agent.pid), time.monotonic()
        time.sleep(IDLE_SECONDS)
        return 100 * (_cpu(agent.pid) - before) / (time.monotonic() - began)


def _cpu(pid: int) -> float:
    """Seconds of CPU time of all threads."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9
