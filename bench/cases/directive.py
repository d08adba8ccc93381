"""How fast the nodes of a job act together: stop after a failure, and learn of a directive."""

from __future__ import annotations

import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from processes import ROOT, BenchError, free_port, output_of
from result import Row, Sample

from cases.scale import serving, swarm_of

NAME = "directive"

REPEAT = 5
LIMIT = 60.0

BINARY = str(ROOT / "build" / "rallypoint")
WORKERS, PAUSE = 8, 0.05
CROWD, CROWD_TARGET = 1000, 0.2

# Rank 0's fails when the file exists.
_FAILING = """
trap 'exit 0' TERM
: >up.$RANK
while [ ! -e go ] || [ $RANK != 0 ]; do sleep 0.02; done
date +%s.%N >crash
exit 1
"""

_STEPPING = """
import os, sys, time
from rallypoint import progress, saved
step = 0
while not os.path.exists("end"):
    step += 1
    time.sleep(float(sys.argv[1]))
    directive = progress(step)
    if directive:
        with open(f"got.{directive.id}." + os.environ["RANK"], "w") as file:
            file.write(str(step))
        saved(step)
    elif os.environ["RANK"] == "0":
        with open("step.new", "w") as file:
            file.write(str(step))
        os.replace("step.new", "step")
"""


def measure(repeat: int | None) -> list[Row]:
    times = repeat or REPEAT
    rows = [
        Row(
            NAME,
            f"failure on one node -> last worker signalled, {agents} agents",
            Sample([_failure(agents) for _ in range(times)]),
            target=target,
        )
        for agents, target in ((2, 0.05), (32, 0.2))
    ]
    rows.append(
        Row(
            NAME,
            f"failure on one node -> last told, {CROWD} agents in one process",
            _crowd(times),
            target=CROWD_TARGET,
        )
    )
    rows.append(
        Row(
            NAME,
            f"directive -> every rank has it, {WORKERS} workers stepping every 50 ms",
            _steps(times),
            "steps",
            target=3,
        )
    )
    return rows


def _until(found: object, what: str) -> None:
    end = time.monotonic() + LIMIT
    while not found():  # type: ignore[operator]
        if time.monotonic() > end:
            raise BenchError(f"waited {LIMIT:.0f} s for {what}")
        time.sleep(0.005)


def _agent(folder: Path, name: str, *arguments: str) -> subprocess.Popen[bytes]:
    with (folder / f"{name}.err").open("wb") as log:
        return subprocess.Popen(
            [BINARY, "run", *arguments], cwd=folder, stdout=log, stderr=log, env=_environment()
        )


def _environment() -> dict[str, str]:
    env = {"TZ": "UTC", "PYTHON_EXEC": sys.executable, "OMP_NUM_THREADS": "1"}
    return {**os.environ, **env, "LOGLEVEL": "DEBUG"}  # which has each signal to a worker


def _failure(agents: int) -> float:
    """Seconds from the failure until the last agent has signalled its worker."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        options = (f"--nnodes={agents}", f"--rdzv-endpoint=127.0.0.1:{free_port()}")
        processes = [
            _agent(folder, f"n{i}", *options, "--no-python", "sh", "-c", _FAILING)
            for i in range(agents)
        ]
        try:
            _until(lambda: len(list(folder.glob("up.*"))) == agents, "the workers")
            (folder / "go").touch()
            for process in processes:
                process.wait(LIMIT)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        began = float((folder / "crash").read_text())
        day = datetime.datetime.fromtimestamp(began, datetime.timezone.utc)
        signalled = []
        for log in folder.glob("n*.err"):
            for text in re.findall(r" (\d\d:\d\d:\d\d\.\d+) .*Sending process", log.read_text()):
                at = datetime.datetime.strptime(text, "%H:%M:%S.%f").time()
                moment = datetime.datetime.combine(day.date(), at, datetime.timezone.utc)
                signalled.append(moment.timestamp())
        if len(signalled) != agents - 1:
            raise BenchError(f"{len(signalled)} of {agents - 1} workers were signalled")
        return max(signalled) - began


def _crowd(times: int) -> Sample:
    """Seconds from a node's word that its workers have failed until the last node has it."""
    with serving() as (_, address):
        swarm = swarm_of("stop", address, str(CROWD), str(times))
        out, err = swarm.communicate(timeout=LIMIT)
    if swarm.returncode:
        raise BenchError(f"swarm of {CROWD}: {err}")
    return Sample([json.loads(line)["stopped_s"] for line in out.splitlines()])


def _written(folder: Path) -> list[Path]:
    """What workers have said of a directive."""
    return [path for path in folder.glob("got.*.*") if path.stat().st_size]


def _standing(endpoint: str) -> list[object]:
    """The directives of the one job at an endpoint."""
    status = json.loads(output_of(BINARY, "status", endpoint, "--json"))
    directives: list[object] = status["runs"][0]["directives"]
    return directives


def _steps(times: int) -> Sample:
    """Steps between the moment at which a save is asked for and that at which all have it."""
    sample = Sample()
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        (folder / "train.py").write_text(_STEPPING)
        endpoint = f"127.0.0.1:{free_port()}"
        job = _agent(
            *(folder, "n0", f"--nproc-per-node={WORKERS}", f"--rdzv-endpoint={endpoint}"),
            *("--rdzv-backend=rallypoint", "--rdzv-id=job", "train.py", str(PAUSE)),
        )
        try:
            for turn in range(1, times + 1):
                _until(lambda: (folder / "step").exists(), "a step")
                before = int((folder / "step").read_text())
                given = ("--rdzv-id=job", "--within=60s", "--reason=bench")
                subprocess.run(
                    [BINARY, "admin", "save", endpoint, *given],
                    check=True,
                    capture_output=True,
                )
                wanted = turn * WORKERS
                _until(lambda n=wanted: len(_written(folder)) == n, "the workers")
                newest = max(_written(folder), key=lambda p: p.stat().st_mtime)
                sample.values.append(int(newest.read_text()) - before)
                # A save that stands takes the next one for the same.
                _until(lambda: not _standing(endpoint), "the end of the save")
            (folder / "end").touch()
            job.wait(LIMIT)
        finally:
            job.kill()
            job.wait()
    return sample
