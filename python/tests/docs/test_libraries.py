"""docs/libraries: the program of each page, run as the page says, where its library is."""

from __future__ import annotations

import ast
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from conftest import REPOSITORY
from harness import free_port, until
from torchrun.test_partitions import Network, network

import rallypoint

__all__ = ["network"]

PAGES = sorted((REPOSITORY / "docs" / "libraries").glob("*.md"))
BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = [sys.executable, "-m", "rallypoint"]


def block(page: str, kind: str, number: int = 0) -> str:
    text = (REPOSITORY / "docs" / "libraries" / f"{page}.md").read_text()
    return [match[2] for match in BLOCK.finditer(text) if match[1] == kind][number]


@pytest.mark.parametrize("page", [page.stem for page in PAGES])
def test_page(page: str) -> None:
    """Its program is Python, it says which version was tried, and a job of several nodes has a
    token."""
    ast.parse(block(page, "python"))
    text = (REPOSITORY / "docs" / "libraries" / f"{page}.md").read_text()
    assert re.search(r"\bTried with .*\d+\.\d+\.\d+", text)
    assert "token" in text


#: The pages whose first program prints its rank, and what it imports.
MODULES = {
    "accelerate": "accelerate",
    "deepspeed": "deepspeed",
    "jax": "jax",
    "lightning": "lightning",
    "megatron-core": "megatron",
    "transformers": "transformers",
}


def needs(page: str) -> None:
    if find_spec(MODULES[page]) is None:
        pytest.skip(f"{page} is not installed: make test-libraries")


def run(command: list[str], folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "LOGLEVEL": "ERROR", "CUDA_VISIBLE_DEVICES": "", **more}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=900)


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize("page", MODULES)
def test_two_workers(page: str, warm: bool, tmp_path: Path) -> None:
    needs(page)
    (tmp_path / "train.py").write_text(block(page, "python"))
    command = block(page, "sh").splitlines()[0].split()
    assert command[:2] == ["rallypoint", "run"]
    command = [*COMMAND, "run", *["--warm", "--preload-timeout=600"] * warm, *command[2:]]
    # Megatron-Core warns of each package that it misses, DeepSpeed that it finds no GPU, and an
    # import that prints is not forked.
    quiet = {"PYTHONWARNINGS": "ignore::UserWarning", "DS_ACCELERATOR": "cpu"}
    done = run(command, tmp_path, LOGLEVEL="INFO", **quiet)
    assert done.returncode == 0, done.stderr
    assert ("workers are forked from a template" in done.stderr) == warm, done.stderr
    for rank in range(2):
        assert f"rank {rank} of 2" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("page", MODULES)
def test_two_nodes_with_a_token(page: str, tmp_path: Path) -> None:
    """The same program on two nodes: the second node's worker reaches the encrypted round store
    through its own agent."""
    needs(page)
    (tmp_path / "train.py").write_text(block(page, "python"))
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    command = [*COMMAND, "run", "--nnodes=2", "--nproc-per-node=1", f"--token-file={token}"]
    command += [f"--rdzv-endpoint=127.0.0.1:{free_port()}", "train.py"]
    env = {**os.environ, "LOGLEVEL": "ERROR", "CUDA_VISIBLE_DEVICES": ""}
    nodes = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        shutil.copy(tmp_path / "train.py", folder)
        nodes.append(
            subprocess.Popen(
                command,
                cwd=folder,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    said = "".join(node.communicate(timeout=900)[0] for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], said
    for rank in range(2):
        assert f"rank {rank} of 2" in said


# Prints the process, and has rank 1 of the first round die within its second step.
LOSES = """
import os, signal
from torch.optim.optimizer import register_optimizer_step_post_hook

steps = []


def lose(*_):
    steps.append(0)
    if len(steps) == 2 and os.environ["RANK"] == "1" and os.environ["RALLYPOINT_ROUND"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


register_optimizer_step_post_hook(lose)
os.write(1, f"process {os.getpid()}\\n".encode())
"""


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    ("page", "number", "processes"),
    [
        ("accelerate", 2, 3),
        ("lightning", 2, 3),
        ("lightning", 0, 4),
        ("transformers", 0, 4),
    ],
)
def test_lose_a_rank(page: str, number: int, processes: int, tmp_path: Path) -> None:
    """With --on-failure regroup the page's own loop goes on in the process that is left; the loop
    of a Trainer begins again in new ones."""
    needs(page)
    (tmp_path / "train.py").write_text(LOSES + block(page, "python", number))
    command = [*COMMAND, "run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = run([*command, "--on-failure=regroup", "train.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(set(re.findall(r"process (\d+)", done.stdout))) == processes, done.stdout
    for rank in range(2):
        assert f"rank {rank} of 2" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_jax_loses_a_process(tmp_path: Path) -> None:
    """The others end when the agent tells them to, and all begin again; Slurm's variables, which
    count tasks, change nothing."""
    needs("jax")
    lost = """
    if step == 5 and os.environ["RALLYPOINT_ROUND"] == "1" and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)
"""
    program = "import os, signal\n" + block("jax", "python")
    program = program.replace(
        "range(3)", 'range(10**9 if os.environ["RALLYPOINT_ROUND"] == "1" else 3)'
    )
    at = program.index("    rallypoint.progress(step)\n")
    (tmp_path / "train.py").write_text(program[:at] + lost.lstrip("\n") + program[at:])
    slurm = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "host0", "SLURM_NTASKS": "1"}
    command = [*COMMAND, "run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = run(
        [*command, "train.py"],
        tmp_path,
        LOGLEVEL="INFO",
        SLURM_PROCID="0",
        SLURM_LOCALID="0",
        **slurm,
    )
    assert done.returncode == 0, done.stderr
    assert "after 1 of 1 restarts" in done.stderr, done.stderr
    assert "have not ended within" not in done.stderr, done.stderr
    for rank in range(2):
        assert f"rank {rank} of 2" in done.stdout


# Meets the others at JAX's coordinator, without JAX's collectives.
MEETS = """
import jax
import rallypoint.integrations.jax
from jax._src.distributed import global_state

jax.distributed.initialize()
global_state.client.wait_at_barrier("here", 300_000)
print(f"process {global_state.process_id} at {global_state.coordinator_address}")
"""


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_jax_between_machines_with_a_token(network: Network, tmp_path: Path) -> None:
    """The coordinator is at a loopback address, from where agents forward to its node by TLS."""
    needs("jax")
    (tmp_path / "train.py").write_text(MEETS)
    token = tmp_path / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    machines = [network.machine() for _ in range(2)]
    command = [*COMMAND, "run", "--nnodes=2", f"--token-file={token}"]
    command += [f"--rdzv-endpoint={machines[0][1]}:29400", "train.py"]
    nodes = [
        subprocess.Popen(
            ["ip", "netns", "exec", namespace, *command],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for namespace, _ in machines
    ]
    said = "".join(node.communicate(timeout=900)[0] for node in nodes)
    assert [node.returncode for node in nodes] == [0, 0], said
    places = set(re.findall(r"process [01] at (127\.\S+:\d+)", said))
    assert len(places) == 1, said


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_vllm(tmp_path: Path) -> None:
    """Rank 0 of the group is killed: the others keep their processes, and the newcomer goes on at
    their version."""
    site = REPOSITORY / ".venvs" / "vllm"
    if not (site / "vllm").exists() or find_spec("torch") is None:
        pytest.skip("vllm is not installed: make test-libraries")
    begins = "import os, signal\nos.write(1, f'process {os.getpid()}\\n'.encode())\n"
    lost = """
        if version == 100 and group.rank == 0 and os.environ["RALLYPOINT_ROUND"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
"""
    program = block("vllm", "python").replace(">= 500", ">= 500 and group.world_size == 3")
    at = program.index("        changing = rallypoint.changing()")
    (tmp_path / "engine.py").write_text(begins + program[:at] + lost.lstrip("\n") + program[at:])
    command = [*COMMAND, *block("vllm", "sh").splitlines()[0].split()[1:]]
    done = run(command, tmp_path, PYTHONPATH=str(site))
    assert done.returncode == 0, done.stderr
    assert len(set(re.findall(r"process (\d+)", done.stdout))) == 4, done.stdout
    versions = re.findall(r"rank (\d) of 3, version (\d+)", done.stdout)
    assert sorted(rank for rank, _ in versions) == ["0", "1", "2"], done.stdout
    assert len({version for _, version in versions}) == 1 and int(versions[0][1]) >= 500


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_torchtitan(tmp_path: Path) -> None:
    """examples/torchtitan: a worker is killed, and all resume from the last checkpoint."""
    if find_spec("torchtitan") is None:
        pytest.skip("torchtitan is not installed: make test-libraries")
    example = REPOSITORY / "examples" / "torchtitan"
    command = [*COMMAND, "run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command += [str(example / "train.py"), f"--job.config_file={example / 'tiny.toml'}"]
    env = {**os.environ, "LOGLEVEL": "WARNING", "CUDA_VISIBLE_DEVICES": ""}
    steps: dict[int, list[int]] = {}  # of each process of rank 1
    log: list[str] = []
    with subprocess.Popen(
        command, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as job:
        assert job.stdout is not None
        for line in job.stdout:
            log.append(line)
            if said := re.search(r"rank 1 pid (\d+) step (\d+)", line):
                pid, step = map(int, said.groups())
                steps.setdefault(pid, []).append(step)
                if step == 7 and len(steps) == 1:
                    os.kill(pid, signal.SIGKILL)
    assert job.returncode == 0, "".join(log)
    first, second = steps.values()
    assert first[0] == 1 and second == list(range(6, 21))


# Writes down for each file that torch saves whether the worker has announced that it is busy.
WATCH = """
import atexit
import os
import torch
from rallypoint._launch import busy

announced, save = [], torch.save


def watched(*arguments, **more):
    announced.append(bool(busy._until))
    return save(*arguments, **more)


torch.save = watched
left = lambda: f"announced {set(announced)} left {len(busy._until)}\\n".encode()
atexit.register(lambda: os.write(1, left()))  # one call: both ranks write
"""


def awaited(endpoint: str, job: subprocess.Popen[str], text: str) -> dict[str, object]:
    """The status of the job once it holds a text."""
    while job.poll() is None:
        told = subprocess.run(
            [*COMMAND, "status", endpoint, "--json"], capture_output=True, text=True, timeout=60
        )
        if text in told.stdout:
            return dict(json.loads(told.stdout)["runs"][0])
    raise AssertionError(f"its status has not said {text!r}: {job.communicate()[0]}")


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("asked", ["save", "stop"])
@pytest.mark.parametrize("page", ["accelerate", "lightning", "transformers"])
def test_steps_and_directives(page: str, asked: str, tmp_path: Path) -> None:
    """The page's second program reports its steps, saves when it is asked to, is busy
    meanwhile, and resumes from what it saved; after a stop it trains no further."""
    needs(page)
    (tmp_path / "train.py").write_text(WATCH + block(page, "python", 1))
    endpoint = f"127.0.0.1:{free_port()}"
    command = [*COMMAND, "run", "--nnodes=1", "--nproc-per-node=2", f"--rdzv-endpoint={endpoint}"]
    env = {**os.environ, "LOGLEVEL": "ERROR", "CUDA_VISIBLE_DEVICES": ""}
    with subprocess.Popen(
        [*command, "train.py"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        awaited(endpoint, job, '"seconds_per_step"')
        subprocess.run([*COMMAND, "admin", asked, endpoint], check=True, timeout=60)
        if asked == "save":
            status = awaited(endpoint, job, "is over, all have saved")
            assert status["progress"]["step"] > 0  # type: ignore[index]
        said = job.communicate(timeout=900)[0]
    assert job.returncode == (0 if asked == "save" else 95), said
    assert said.count("step 2000 after None") == (2 if asked == "save" else 0), said
    if asked == "save":
        assert said.count("announced {True} left 0") >= 1, said
        assert "announced {False" not in said and "False}" not in said, said
    again = run([*command, "train.py"], tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("step 2000 after") == 2
    assert "after None" not in again.stdout


FENCED = {"accelerate": "out", "lightning": "out/checkpoints", "transformers": "out"}


@pytest.mark.long
@pytest.mark.timeout(1000)
@pytest.mark.parametrize("page", FENCED)
def test_another_job_has_written(page: str, tmp_path: Path) -> None:
    """Another job writes into the folder: the page's second program is refused when it saves, in
    both workers, and has changed nothing there."""
    needs(page)
    (tmp_path / "train.py").write_text(block(page, "python", 1))
    endpoint = f"127.0.0.1:{free_port()}"
    command = [*COMMAND, "run", "--nnodes=1", "--nproc-per-node=2", f"--rdzv-endpoint={endpoint}"]
    env = {**os.environ, "LOGLEVEL": "ERROR", "CUDA_VISIBLE_DEVICES": ""}
    out = tmp_path / FENCED[page]

    def content() -> list[tuple[Path, int]]:
        return sorted((path, path.stat().st_mtime_ns) for path in out.rglob("*") if path.is_file())

    with subprocess.Popen(
        [*command, "train.py"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as job:
        awaited(endpoint, job, '"seconds_per_step"')
        with rallypoint.fence(out, into=True).claim():
            before = content()
        subprocess.run([*COMMAND, "admin", "save", endpoint], timeout=60)
        said = job.communicate(timeout=900)[0]
    assert job.returncode == 1, said
    assert re.search(r"FencedError: .*another process has written it: process \d+ on", said), said
    assert content() == before


# What the page uses of ray, each task in a process of its own.
STAND_IN = """
import multiprocessing

processes = multiprocessing.get_context("fork")


def init():
    pass


def remote(**_):
    def wrap(task):
        def start(*arguments):
            process = processes.Process(target=task, args=arguments)
            process.start()
            return process

        task.remote = start
        return task

    return wrap


def get(tasks):
    for task in tasks:
        task.join()
        assert task.exitcode == 0
"""


# How long Ray waits for its own parts: a busy machine needs more than the 15 s and 60 s.
PATIENT_RAY = {"RAY_agent_register_timeout_ms": "300000", "RAY_raylet_start_wait_time_s": "300"}


@pytest.mark.parametrize(
    "real", [False, pytest.param(True, marks=[pytest.mark.long, pytest.mark.timeout(1000)])]
)
def test_ray(real: bool, tmp_path: Path) -> None:
    """Two tasks on this machine are the nodes of a job on `rallypoint serve`."""
    if real and find_spec("ray") is None:
        pytest.skip("ray is not installed: make test-libraries")
    if not real:
        (tmp_path / "ray.py").write_text(STAND_IN)
    token, port = tmp_path / "token", free_port()
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    program = block("ray", "python").replace("head:29400", f"127.0.0.1:{port}")
    program = program.replace("/shared/token", str(token))
    (tmp_path / "job.py").write_text(program)
    script = f"import os; open('{tmp_path}/rank' + os.environ['RANK'], 'w').close()"
    (tmp_path / "train.py").write_text(script)
    serve = [*COMMAND, "serve", f"--listen={port}", f"--token-file={token}"]
    with subprocess.Popen(serve, stdout=subprocess.PIPE) as server:
        try:
            assert server.stdout and server.stdout.readline()
            path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
            done = run([sys.executable, "job.py"], tmp_path, PATH=path, **PATIENT_RAY)
        finally:
            server.terminate()
    assert done.returncode == 0, done.stderr
    assert sorted(file.name for file in tmp_path.glob("rank?")) == ["rank0", "rank1"]


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_torchft(tmp_path: Path) -> None:
    """Two replica groups, each a job of its own, that meet at torchft's lighthouse."""
    lighthouse = shutil.which("torchft_lighthouse", path=str(Path(sys.executable).parent))
    if lighthouse is None:
        pytest.skip("torchft is not installed: make test-libraries")
    (tmp_path / "train.py").write_text(block("torchft", "python"))
    port = free_port()
    lights = [lighthouse, "--min_replicas=2", f"--bind=0.0.0.0:{port}", "--join_timeout_ms=10000"]
    with subprocess.Popen(lights, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        env = {**os.environ, "LOGLEVEL": "ERROR", "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}"}
        try:
            groups = [
                subprocess.Popen(
                    [*COMMAND, "run", f"--rdzv-id={group}", "--local-addr=127.0.0.1", "train.py"],
                    cwd=tmp_path,
                    env=env,
                    stdout=subprocess.PIPE,
                    text=True,
                )
                for group in ("group-a", "group-b")
            ]
            said = [group.communicate(timeout=900)[0] for group in groups]
        finally:
            server.terminate()
    assert [group.returncode for group in groups] == [0, 0]
    for name, text in zip(("group-a", "group-b"), said):
        assert f"{name}: step 3 with 2 groups" in text


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_a_replica_group_is_killed(tmp_path: Path) -> None:
    """examples/torchft: the worker of one group is killed. The other group trains on in the
    process that it has, and the first one joins it again."""
    if find_spec("torchft") is None:
        pytest.skip("torchft is not installed: make test-libraries")
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "LOGLEVEL": "WARNING",
        "STEPS": "1000000000",
        "SERVE_PORT": str(free_port()),
        "LIGHTHOUSE_PORT": str(free_port()),
    }
    with subprocess.Popen(
        [REPOSITORY / "examples" / "torchft" / "groups.sh"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as job:
        assert job.stdout is not None
        lines = job.stdout
        seen: set[tuple[str, int]] = set()

        def step(group: str, groups: int) -> int:
            """Waits for a step that a group makes with so many, and returns its worker's pid."""
            said = re.compile(r"group-(.): step \d+ with (\d) groups, pid (\d+)")
            for line in lines:
                if match := said.match(line):
                    seen.add((match[1], int(match[3])))
                    if (match[1], int(match[2])) == (group, groups):
                        return int(match[3])
            raise AssertionError("the groups have ended")

        try:
            lost = step("b", 2)
            os.kill(lost, signal.SIGKILL)
            kept = step("a", 1)
            assert step("b", 2) != lost
            assert step("a", 2) == kept
        finally:
            job.terminate()
    assert len([pid for group, pid in seen if group == "a"]) == 1

    def is_left(port: str) -> bool:
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", int(port))) == 0

    until(lambda: not any(is_left(env[name]) for name in ("SERVE_PORT", "LIGHTHOUSE_PORT")))
