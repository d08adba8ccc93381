"""Jobs on a GPU: NCCL over our store, hangs, forked workers, checks. All ranks share one GPU, each
on a host of its own for NCCL, which refuses two ranks of a host on one GPU."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from harness import free_port, until

from rallypoint import admin

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(200)]

TRAIN = Path(__file__).with_name("train.py")
RALLYPOINT = [sys.executable, "-m", "rallypoint"]
NCCL = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_P2P_DISABLE": "1",
    "NCCL_SHM_DISABLE": "1",
    "NCCL_IB_DISABLE": "1",
}
RUN = "gpu"


class Job:
    """A job of one node that trains, in a folder; its output is in a file there."""

    def __init__(self, folder: Path, launcher: list[str], *script: str, **env: str) -> None:
        self.folder, self.output = folder, folder / "output"
        command = [*launcher, str(TRAIN), str(folder), *script]
        with self.output.open("w") as file:
            self.process = subprocess.Popen(
                command, cwd=folder, env={**os.environ, **NCCL, **env}, stdout=file, stderr=file
            )

    def lines(self, rank: int, what: str) -> list[list[str]]:
        """What a worker has written about one thing: the words of each line."""
        path = self.folder / f"rank{rank}"
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        return [words for words in lines if words[1] == what]

    def has(self, text: str) -> bool:
        return text in self.output.read_text()

    def await_that(self, holds: object, what: str) -> None:
        assert callable(holds)
        until(lambda: holds() or self.process.poll() is not None, what=what)
        assert holds(), f"{what}: {self.output.read_text()}"


@contextlib.contextmanager
def job(folder: Path, launcher: list[str], *script: str, **env: str) -> Iterator[Job]:
    running = Job(folder, launcher, *script, **env)
    try:
        yield running
    finally:
        running.process.terminate()
        running.process.wait(60)


def run(ranks: int, *options: str, endpoint: str = "") -> list[str]:
    where = ["--standalone"]
    if endpoint:
        where = ["--nnodes=1", f"--rdzv-endpoint={endpoint}", f"--rdzv-id={RUN}"]
    return [*RALLYPOINT, "run", *where, f"--nproc-per-node={ranks}", *options]


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--rdzv-backend=rallypoint"]
TORCHRUN += ["--rdzv-endpoint=127.0.0.1:0", "--nnodes=1", "--nproc-per-node=2", "--max-restarts=1"]


@pytest.mark.parametrize("launcher", [run(2, "--max-restarts=1"), TORCHRUN])
def test_nccl_goes_on(tmp_path: Path, launcher: list[str]) -> None:
    """DDP over NCCL: a rank is killed, all restart and go on, to the same end."""
    with job(tmp_path, launcher, "--steps=30", "--pace=0.1") as training:
        training.await_that(lambda: len(training.lines(1, "step")) >= 5, "five steps")
        os.kill(int(training.lines(1, "start")[-1][2]), signal.SIGKILL)
        assert training.process.wait(100) == 0, training.output.read_text()
        assert [words[3:] for words in training.lines(1, "group")] == [["nccl"]] * 2
        steps = [int(words[2]) for words in training.lines(0, "step")]
        assert steps[-1] == 29
        assert steps.count(0) == 1  # it has begun once
        [end] = {training.lines(rank, "end")[-1][2] for rank in range(2)}
        assert float(end) < 1


@pytest.mark.parametrize(
    ("options", "script", "others"),
    [
        (["--auto-progress"], ["--wait=item"], "are at train.py:"),
        (["--warm"], ["--wait=cuda"], "wait in synchronize"),
        ([], ["--wait=none", "--on-device", "--report"], "wait in "),
    ],
)
def test_who_hangs(tmp_path: Path, options: list[str], script: list[str], others: str) -> None:
    """A rank sleeps in its data, and the others wait for their GPU, wherever that is."""
    place = f"127.0.0.1:{free_port()}"
    launcher = run(4, "--hang-timeout=5", *options, endpoint=place)
    script = [*script, "--sleep=2", "--at=20", "--pace=0.1", "--steps=1000000"]
    with job(tmp_path, launcher, *script) as training:
        training.await_that(lambda: training.has("no step for"), "the alarm")
        line = next(x for x in training.output.read_text().splitlines() if "no step for" in x)
        assert re.search(rf": rank 2 \(.*train\.py:\d+ load; 3 others {others}", line), line
        stacks = admin.stacks(place, RUN, timeout=timedelta(seconds=20))
        assert stacks.suspects == (2,)


def test_a_collective_times_out_first(tmp_path: Path) -> None:
    """NCCL's watchdog ends the rank that waits; the report names the one that it waited for."""
    launcher = run(2, "--warm", "--hang-timeout=300")
    quick = {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "200"}  # else it waits for a minute
    script = ["--sleep=1", "--at=20", "--pace=0.1", "--timeout=8", "--steps=1000000"]
    with job(tmp_path, launcher, *script, **quick) as training:
        assert training.process.wait(100) == 1
        said = training.output.read_text()
        assert "Watchdog caught collective operation timeout" in said
        assert re.search(r"the job stood still.*rank 1 \(.*\) is at train\.py:\d+ load", said), said


def opened(pid: int) -> list[str]:
    """The devices of GPUs that a process has open."""
    links = []
    for file in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            links.append(os.readlink(file))
    return [link for link in links if link.startswith("/dev/nvidia")]


def held(agent: int) -> list[int]:
    """The children of an agent that are its template or forks of it."""
    children = [
        int(child)
        for task in Path(f"/proc/{agent}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return [pid for pid in children if b"RALLYPOINT_TEMPLATE=" in environment(pid)]


def environment(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def test_warm_workers_use_the_gpu(tmp_path: Path) -> None:
    """The template has no GPU, its forks do; the memory of a killed one is free for the next."""
    import torch

    total = torch.cuda.get_device_properties(0).total_memory  # the tests' own context is small
    launcher = run(1, "--warm", "--max-restarts=2")
    hold = f"--hold={0.6 * total / 2**30:.1f}"
    with job(tmp_path, launcher, "--steps=1000000", "--pace=0.05", hold) as training:
        for attempt in range(3):
            training.await_that(lambda n=attempt: len(training.lines(0, "start")) > n, "a start")
            _, _, pid, _, parent = training.lines(0, "start")[-1]
            assert int(parent) == training.process.pid
            before = len(training.lines(0, "step"))
            training.await_that(lambda n=before: len(training.lines(0, "step")) > n, "a step")
            assert opened(int(pid))
            [template] = set(held(training.process.pid)) - {int(pid)}
            assert not opened(template)
            if attempt < 2:
                os.kill(int(pid), signal.SIGKILL)
        assert not training.has("start cold")


def test_an_import_that_asks_for_a_gpu_is_not_forked(tmp_path: Path) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "asks.py").write_text("import torch\ntorch.cuda.is_available()\n")
    (tmp_path / "train.py").write_text(
        "import asks, torch\nprint(torch.zeros(1, device='cuda').device)\n"
    )
    path = f"{package}:{os.environ.get('PYTHONPATH', '')}"
    done = subprocess.run(
        [*run(1, "--warm"), "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    assert done.stdout == "cuda:0\n"
    assert "workers start cold: the imports have opened /dev/nvidia" in done.stderr


def check(*checks: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RALLYPOINT, "check", *checks], capture_output=True, text=True)


def test_checks(gpus: int) -> None:
    assert check("gpu", f"gpu:{gpus}").returncode == 0
    done = check(f"gpu:{gpus + 1}")
    assert (done.returncode, '"gpu_missing"' in done.stdout) == (1, True), done.stdout
    assert check("xid").returncode in (0, 75)  # 75: /dev/kmsg may not be read


def test_workers_of_a_machine(tmp_path: Path, gpus: int) -> None:
    """--nproc-per-node=gpu and auto, and a worker that sees its GPU alone."""
    (tmp_path / "show.py").write_text(
        "import os, torch\nprint(os.environ['LOCAL_RANK'], torch.cuda.device_count())\n"
    )

    def workers(*options: str) -> list[str]:
        command = [*RALLYPOINT, "run", "--standalone", *options, "show.py"]
        return sorted(subprocess.check_output(command, cwd=tmp_path, text=True).splitlines())

    all_of_them = [f"{local} {gpus}" for local in range(gpus)]
    assert workers("--nproc-per-node=gpu") == all_of_them
    assert workers("--nproc-per-node=auto") == all_of_them
    assert workers(f"--nproc-per-node={gpus}", "--virtual-local-rank") == ["0 1"] * gpus


NOTEBOOK = """
import torch
from rallypoint import LaunchConfig, elastic_launch
torch.zeros(1, device="cuda")

def train():
    pass

elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0, start_method="fork"), train)()
"""


def test_a_notebook_that_has_used_a_gpu_is_not_forked() -> None:
    done = subprocess.run([sys.executable, "-"], input=NOTEBOOK, capture_output=True, text=True)
    assert "this process has used CUDA, which no forked process can use" in done.stderr


FORKED = """
import torch
from rallypoint import LaunchConfig, elastic_launch

def train():
    return str(torch.zeros(1, device="cuda").device)

print(elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0, start_method="fork"), train)())
"""


def test_a_function_of_a_notebook_uses_the_gpu() -> None:
    done = subprocess.run([sys.executable, "-"], input=FORKED, capture_output=True, text=True)
    assert done.stdout == "{0: 'cuda:0'}\n", done.stderr
