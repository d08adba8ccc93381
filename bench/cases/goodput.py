"""Goodput: how much of its time a job loses while one fault follows the other.

Lost is the time from the end of a process's last step to the beginning of its successor's first
one; in place, from one world to the next. A step begins STEP before it is logged: so long it takes
at least, without a fault and with every launcher, too. So what a fault destroys of a step is lost,
and a step that is made and kept is not, also if fewer workers make it. Steps that are trained again
count as training, since the interval of the checkpoints decides how many they are; the time-out of
a hang does not count. A fault that is due while the job does not train waits until it does.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
from processes import BenchError, free_port
from result import Row, Sample

from cases.launch import BINARY, TORCHRUN

NAME = "goodput"

# An hour with a fault every three minutes and a checkpoint every 30 s, played ten times faster.
SPEED = 10
EVERY = 180 / SPEED
SAVE = 30 / SPEED
HANG_TIMEOUT = 20 // SPEED  # --hang-timeout of ours
KEPT = "--on-failure=regroup"
COLLECTIVE_TIMEOUT = 100 // SPEED  # of the script's collectives: ends the hang under torchrun
REPLACED = 10 / SPEED  # after its end a node is started again
CYCLES = 4  # of the five faults: twenty in an hour

NVRX = (str(Path(__file__).parents[2] / ".venvs" / "nvrx" / "bin" / "ft_launcher"),)

NODES, SPARES, WORKERS = 2, 1, 2
STEP = 0.1
SETTLED = 3  # steps of an attempt before a fault, so that there is a time between steps
LIMIT = 300.0

_SCRIPT = """
import datetime
import os
import signal
import sys
import time

import torch
import torch.distributed as dist

try:
    import rallypoint
except ImportError:
    rallypoint = None

monitor = None
if "FT_RANK_MONITOR_IPC_SOCKET" in os.environ:  # of ft_launcher
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    monitor = RankMonitorClient()
    monitor.init_workload_monitoring()
step_time, save_every, patience = map(float, sys.argv[1:4])
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(1e6))
dist.init_process_group("gloo")
rank = dist.get_rank()
step = torch.zeros(1, dtype=torch.int64)
if rank == 0 and os.path.exists("checkpoint"):
    step[0] = int(open("checkpoint").read())
dist.broadcast(step, 0)
step = int(step)
os.write(log, f"worker {rank} {os.getpid()} {os.getppid()}\\n".encode())


def save():
    global saved
    if rank == 0:
        with open("checkpoint.new", "w") as file:
            file.write(str(step))
        os.replace("checkpoint.new", "checkpoint")
        saved = time.monotonic()


saved = time.monotonic()
while True:
    time.sleep(step_time)
    gradients = torch.ones(1 << 16)
    dist.all_reduce(gradients, async_op=True).wait(datetime.timedelta(seconds=patience))
    step += 1
    if monitor:
        monitor.send_heartbeat()
    if rank == 0:
        os.write(log, f"step {step} {os.getpid()} {time.monotonic()}\\n".encode())
    directive = rallypoint.progress(step) if rallypoint else None
    if directive or time.monotonic() - saved >= save_every:
        save()
    if directive:
        rallypoint.saved(step)
        while directive.kind != "save" and rallypoint.directive():
            time.sleep(0.01)
"""


# The same whose workers survive. What it logs as its process is that and its world.
_KEPT = """
import datetime
import os
import signal
import sys
import time

import rallypoint
import torch
import torch.distributed as dist
from rallypoint import survive

step_time, save_every, patience = map(float, sys.argv[1:4])
log = os.open("log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
signal.signal(signal.SIGUSR1, lambda *_: time.sleep(1e6))
survive.init_process_group("gloo", timeout=datetime.timedelta(seconds=patience))


def changed(rank, size):
    os.write(log, f"worker {rank} {os.getpid()} {os.getppid()}\\n".encode())


run = survive.Run(values={}, changed=changed)
if os.path.exists("checkpoint"):
    run.completed = int(open("checkpoint").read())
changed(rallypoint.world().rank, run.size)
saved = time.monotonic()
for step in run.steps(10**9):
    with run.attempt():
        time.sleep(step_time)
        dist.all_reduce(torch.ones(1 << 16))
        if run.rank == 0:
            place = f"{os.getpid()}.{rallypoint.world().epoch}.{run.size}"
            os.write(log, f"step {step} {place} {time.monotonic()}\\n".encode())
    if run.directive or time.monotonic() - saved >= save_every:
        saved = time.monotonic()
        if run.rank == 0:
            with open("checkpoint.new", "w") as file:
                file.write(str(run.completed))
            os.replace("checkpoint.new", "checkpoint")
        if run.directive:
            rallypoint.saved(run.completed)
"""


class _Job:
    """Nodes on this machine and a spare; a node that has ended is started again after a while."""

    def __init__(self, folder: str, command: Sequence[str], options: Sequence[str]) -> None:
        self.folder = Path(folder)
        self.ours = command[0] == BINARY[0]
        beside = Path(NVRX[0]).with_name("python")  # has what the script imports of it
        self._python = str(beside) if command[0] == NVRX[0] else sys.executable
        self.endpoint = f"127.0.0.1:{free_port()}"
        (self.folder / "train.py").write_text(_KEPT if KEPT in options else _SCRIPT)
        self._command = [
            *command,
            f"--nnodes={NODES}",
            f"--nproc-per-node={WORKERS}",
            "--max-restarts=1000",
            "--rdzv-backend=" + ("rallypoint" if self.ours else "c10d"),
            f"--rdzv-endpoint={self.endpoint}",
            "--rdzv-id=goodput",
            *options,
            "train.py",
            *map(str, (STEP, SAVE, COLLECTIVE_TIMEOUT)),
        ]
        self._output = (self.folder / "output").open("w")
        self.agents: list[psutil.Popen] = []
        self._ended: list[float] = []  # when nodes did that are not yet started again
        for _ in range(NODES + SPARES):
            self._start()

    def _start(self) -> None:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "PYTHON_EXEC": self._python,
            "TORCH_CPP_LOG_LEVEL": "FATAL",
        }
        self.agents.append(
            psutil.Popen(
                self._command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=self._output,
            )
        )

    def said(self) -> str:
        return (self.folder / "output").read_text()[-2000:]

    def replace_ended(self) -> None:
        now = time.monotonic()
        for agent in [agent for agent in self.agents if agent.poll() is not None]:
            self.agents.remove(agent)
            self._ended.append(now)
        while self._ended and now - self._ended[0] > REPLACED:
            self._ended.pop(0)
            self._start()

    def log(self) -> list[list[str]]:
        path = self.folder / "log"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split() for line in lines]

    def workers(self) -> dict[int, tuple[int, int]]:
        """Of each rank that has begun last: its process, and its agent's."""
        return {
            int(line[1]): (int(line[2]), int(line[3])) for line in self.log() if line[0] == "worker"
        }

    def host(self) -> int:
        """The agent's process that hosts the rendezvous."""
        if self.ours:
            server = self._server(self.endpoint)
            if server and server["succession"]["role"] != "hosting":
                server = self._server(server["succession"]["host"])
            if server:
                return int(server["pid"])
        port = int(self.endpoint.rpartition(":")[2])
        for agent in self.agents:
            for connection in agent.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port:
                    return int(agent.pid)
        return int(self.agents[0].pid)

    def _server(self, address: str) -> dict[str, Any]:
        """The status of the process at an address; empty if none answers."""
        command = [BINARY[0], "status", "--json", address]
        done = subprocess.run(command, capture_output=True, text=True)
        server: dict[str, Any] = {} if done.returncode else json.loads(done.stdout)["server"]
        return server

    def guest(self) -> int:
        """The process of an agent with workers that does not host."""
        host = self.host()
        return next(agent for _, agent in self.workers().values() if agent != host)

    def lose(self, agent: int) -> None:
        """Kills an agent and all that it has started, as when its machine goes."""
        process = psutil.Process(agent)
        for each in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()

    def close(self) -> None:
        for agent in self.agents:
            with contextlib.suppress(psutil.NoSuchProcess):
                self.lose(agent.pid)
            agent.wait(LIMIT)
        self._output.close()


# What befalls the job, in turn.
FAULTS: dict[str, Callable[[_Job], None]] = {
    "worker": lambda job: os.kill(job.workers()[1][0], signal.SIGKILL),
    "node": lambda job: job.lose(job.guest()),
    "host": lambda job: job.lose(job.host()),
    "hang": lambda job: os.kill(job.workers()[1][0], signal.SIGUSR1),
    "preemption": lambda job: os.kill(job.guest(), signal.SIGTERM),
}


class _Training:
    """What the log of rank 0 tells: when the job trained."""

    def __init__(self, log: list[list[str]]) -> None:
        steps = [(line[2], float(line[3])) for line in log if line[0] == "step"]
        self.begun = steps[0][1] if steps else 0.0
        self.last = steps[-1][1] if steps else 0.0
        self.seconds = 0.0  # of its steps
        self.process = steps[-1][0] if steps else ""
        self.in_a_row = 0  # steps of it
        self.gaps: list[tuple[float, float]] = []  # between two processes
        for (before, since), (pid, at) in zip(steps, steps[1:]):
            self.in_a_row = self.in_a_row + 1 if before == pid else 0
            begun = since if before == pid else at - STEP
            self.seconds += at - begun
            if before != pid:
                self.gaps.append((since, begun))

    def trains(self) -> bool:
        """Whether a fault would meet a job that trains."""
        return self.in_a_row >= SETTLED and time.monotonic() - self.last < SETTLED * STEP + 1


def _hour(command: Sequence[str], options: Sequence[str], timeout: float, cycles: int) -> Sample:
    """The share of its time in which a job makes no steps, hangs' time-outs left out."""
    due = [((i + 0.5) * EVERY, name) for i, name in enumerate(list(FAULTS) * cycles)]
    length = len(due) * EVERY
    struck: list[tuple[str, float]] = []
    met = ""  # the process of rank 0 that met the last fault
    with tempfile.TemporaryDirectory() as folder:
        job = _Job(folder, command, options)
        try:
            began = time.monotonic()
            while True:
                time.sleep(STEP)
                job.replace_ended()
                training = _Training(job.log())
                elapsed = time.monotonic() - (training.begun or began)
                if not training.begun and elapsed > LIMIT:
                    raise BenchError(
                        f"{' '.join(command)}: no step within {LIMIT:.0f} s: {job.said()}"
                    )
                if training.begun and elapsed > length:
                    break
                if due and elapsed > due[0][0] and training.trains() and training.process != met:
                    name, met = due.pop(0)[1], training.process
                    struck.append((name, time.monotonic()))
                    FAULTS[name](job)
            end = time.monotonic()
        finally:
            job.close()
    return _judge(training, struck, end, timeout)


def _judge(
    training: _Training, struck: list[tuple[str, float]], end: float, timeout: float
) -> Sample:
    gaps = [*training.gaps, (training.last, end)]
    lost = [
        (name, sum(b - a for a, b in gaps if at < b <= until))
        for (name, at), (_, until) in zip(struck, [*struck[1:], ("", end)])
    ]
    costs = {
        name: [seconds for each, seconds in lost if each == name] for name in dict.fromkeys(FAULTS)
    }
    hangs = timeout * len(costs["hang"])
    share = 100 - 100 * training.seconds / (end - training.begun - hangs)
    each = ", ".join(
        f"{name} {statistics.median(values):.2g} s of {len(values)}"
        for name, values in costs.items()
        if values
    )
    return Sample(
        [share],
        f"time without a step at the median of each fault, a hang with its {timeout} s: {each}",
    )


def measure(repeat: int | None, reference: bool) -> list[Row]:
    cycles = repeat or CYCLES
    drain = ("--on-signal=TERM:drain", "--drain-timeout=30")
    ours = (f"--hang-timeout={HANG_TIMEOUT}", "--on-hang=restart", *drain)
    minutes = len(FAULTS) * cycles * EVERY * SPEED / 60
    what = (
        f"{minutes:.0f} minutes with a fault every {EVERY * SPEED / 60:.0f}, {SPEED} times faster"
    )
    samples = {
        kind: _hour(BINARY, options, HANG_TIMEOUT, cycles)
        for kind, options in (
            ("in place", ("--warm", KEPT, *ours)),
            ("warm", ("--warm", *ours)),
            ("cold", ours),
        )
    }
    torchrun = _reference(TORCHRUN, (), COLLECTIVE_TIMEOUT, cycles) if reference else None
    rows = [
        Row(NAME, f"{what}: time lost, {kind}", sample, "%", reference=torchrun)
        for kind, sample in samples.items()
    ]
    if reference:
        name = f"{what}: time lost, warm, beside ft_launcher of nvidia-resiliency-ext"
        rows.append(Row(NAME, name, samples["warm"], "%", reference=_nvrx(cycles)))
    rows[0].target, rows[0].target_why = 1, "a goodput of 0.99 of what the hardware allows"
    rows[1].target, rows[1].target_why = 3, "a goodput of 0.97 of what the checkpoints allow"
    return rows


def _nvrx(cycles: int) -> Sample:
    """NVIDIA's launcher, to which the script sends heartbeats."""
    if not os.access(NVRX[0], os.X_OK):
        return Sample(note="not installed: see the output of make bench")
    heartbeats = (
        f"--ft-rank-heartbeat-timeout={HANG_TIMEOUT}",
        f"--ft-initial-rank-heartbeat-timeout={LIMIT}",
        f"--ft-workload-check-interval={STEP}",
        "--ft-enable-nic-monitor=false",
    )
    return _reference(NVRX, heartbeats, HANG_TIMEOUT, cycles)


def _reference(
    command: Sequence[str], options: Sequence[str], timeout: float, cycles: int
) -> Sample:
    try:
        return _hour(command, options, timeout, cycles)
    except BenchError:
        return Sample(note="it made no step")
