"""Directives in whole jobs: `rallypoint run` and `rallypoint admin`, with workers in lockstep."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from harness import free_port

HERE = Path(__file__).parent
EXAMPLE = REPOSITORY / "examples" / "directives" / "train.py"


class Job:
    """Nodes whose workers write each step that they have done into losses.txt."""

    conf = "last_call_timeout=0.1,admit_delay=0.1,lease_timeout=15"

    def __init__(self, folder: Path, steps: int, workers: int, *command: str) -> None:
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.folder, self.steps, self.workers, self.command = folder, steps, workers, command
        self.nodes: list[subprocess.Popen[str]] = []

    def start(self, node: str, *options: str) -> subprocess.Popen[str]:
        conf = f"node_id={node},{self.conf}"
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "rallypoint", "run", "--nnodes=1:2"),
                *(
                    f"--nproc-per-node={self.workers}",
                    f"--rdzv-endpoint={self.endpoint}",
                    "--rdzv-id=job",
                    f"--rdzv-conf={conf}",
                ),
                *(*options, *self.command),
            ],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=(self.folder / f"{node}.err").open("w"),
            text=True,
        )
        self.nodes.append(process)
        return process

    def admin(self, *command: str) -> None:
        options = ["--rdzv-id=job", "--within=60s", "--reason=a test", *command[1:]]
        done = subprocess.run(
            [sys.executable, "-m", "rallypoint", "admin", command[0], self.endpoint, *options],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr

    def losses(self) -> list[tuple[int, float]]:
        try:
            lines = (self.folder / "losses.txt").read_text().splitlines()
        except FileNotFoundError:
            return []
        return [(int(step), float(loss)) for step, loss in map(str.split, lines)]

    def until(self, step: int) -> None:
        """Waits until a step is done."""
        while len(self.losses()) <= step:
            for node in self.nodes:
                assert node.poll() in (None, 0), (self.folder / "n0.err").read_text()
            time.sleep(0.02)  # a file tells of no event

    def end(self, *codes: int) -> dict[str, list[tuple[str, int]]]:
        """Waits for the nodes' ends; at which steps each directive came, by rank."""
        found: dict[str, list[tuple[str, int]]] = {}
        for node, code in zip(self.nodes, codes, strict=True):
            out, _ = node.communicate()
            assert node.returncode == code, (self.folder / "n0.err").read_text()
            for rank, name, step in re.findall(r"rank (\d+): \w+ (\w+) at step (\d+)", out):
                found.setdefault(name, []).append((rank, int(step)))
        return found

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()
            node.wait()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    """Four workers in lockstep, each step up to 30 ms."""
    job = lockstep(tmp_path, 240)  # no call of admin takes as long as they do
    yield job
    job.stop()


def lockstep(folder: Path, steps: int) -> Job:
    return Job(folder, steps, 2, str(HERE / "lockstep.py"), str(steps), "0.03")


def once_each(job: Job, steps: int | None = None) -> None:
    expected = list(range(job.steps if steps is None else steps))
    assert [step for step, _ in job.losses()] == expected, "a step is missing or repeated"


def same_step(directives: dict[str, list[tuple[str, int]]], ranks: int) -> None:
    for name, taken in directives.items():
        assert len(taken) == ranks, (name, taken)
        assert len({step for _, step in taken}) == 1, (name, taken)


def test_all_ranks_save_at_one_step_and_a_drained_node_costs_none(job: Job) -> None:
    job.start("n0")
    job.start("n1")
    for step in (5, 20, 35):
        job.until(step)
        job.admin("save")
    job.until(50)
    job.admin("drain", "--node=n1")
    directives = job.end(0, 0)
    assert len(directives) == 4
    same_step(directives, 4)
    once_each(job)
    assert "drained" in (job.folder / "n1.err").read_text()


def test_a_job_that_is_stopped_goes_on_where_it_was(job: Job) -> None:
    """All nodes get the signal; queued again, the job trains what is left."""
    options = ("--on-signal=TERM:stop", "--drain-timeout=60")
    job.start("n0", *options)
    job.start("n1", *options)
    job.until(30)
    for node in job.nodes:
        node.terminate()
    directives = job.end(95, 95)
    same_step(directives, 4)
    once_each(job, max(step for taken in directives.values() for _, step in taken) + 1)
    job.nodes.clear()
    job.start("n0")
    job.end(0)
    once_each(job)


def test_a_token_is_changed_while_directives_stand(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A save stands while all tokens are changed, and a drain is asked for by the new one;
    a node that has the new one alone takes the place of the drained one."""
    old, new = (f"{name} token, long enough to be one\n" for name in ("old", "new"))
    files = {name: tmp_path / f"{name}.token" for name in ("n0", "n1", "n2", "old", "new")}

    def write(name: str, text: str) -> None:
        beside = files[name].with_suffix(".beside")
        beside.write_text(text)
        beside.chmod(0o600)
        beside.replace(files[name])

    def status(name: str, *options: str) -> subprocess.CompletedProcess[str]:
        status = [sys.executable, "-m", "rallypoint", "status", job.endpoint, "--rdzv-id=job"]
        status += [f"--token-file={files[name]}", *options]
        return subprocess.run(status, capture_output=True, text=True)

    def asked_with(name: str) -> bool:
        return status(name).returncode == 0

    def until(condition: Callable[[], bool]) -> None:
        while not condition():
            assert all(node.poll() is None for node in job.nodes)
            time.sleep(0.05)  # nothing tells that a file was read again

    for name, text in {"n0": old, "n1": old, "n2": new, "old": old, "new": new}.items():
        write(name, text)
    monkeypatch.setenv("RALLYPOINT_TOKEN_FILE", str(files["old"]))
    gates = [tmp_path / f"gate.save.{node}" for node in range(2)]
    for gate in gates:
        gate.touch()
    job.start("n0", f"--token-file={files['n0']}")
    job.start("n1", f"--token-file={files['n1']}")
    job.until(3)
    job.admin("save")
    until(lambda: len(list(tmp_path.glob("saving.*"))) == 4)
    for text in new + old, new:
        write("n1", text)
        write("n0", text)
        until(lambda: asked_with("new"))
    until(lambda: not asked_with("old"))
    monkeypatch.setenv("RALLYPOINT_TOKEN_FILE", str(files["new"]))
    job.start("n2", f"--token-file={files['n2']}")

    def waits() -> bool:
        said = status("new", "--json")
        if said.returncode != 0:
            return False
        return any(node["node"] == "n2" for node in json.loads(said.stdout)["runs"][0]["waiting"])

    until(waits)  # connected is not enough: n0 would train alone until it has joined
    job.admin("drain", "--node=n1")
    for gate in gates:
        gate.unlink()
    directives = job.end(0, 0, 0)
    assert len(directives) == 2
    same_step(directives, 4)
    once_each(job)
    assert "drained" in (job.folder / "n1.err").read_text()
    # The next host may complete a round without n2, which has to find it first.
    assert re.search(r"round [23]: rank", (job.folder / "n2.err").read_text())


LAUNCH = """
import sys
import rallypoint

config = rallypoint.LaunchConfig(
    min_nodes=1, max_nodes=1, nproc_per_node=2, run_id="job", rdzv_endpoint=sys.argv[1],
    logs_specs=rallypoint.LogsSpecs(log_dir="logs"),
    on_signal="USR1:save, SIGTERM:stop", drain_timeout=60,
)
try:
    rallypoint.elastic_launch(config, [sys.executable, *sys.argv[2:]])()
except rallypoint.RequeueError as e:
    sys.exit(95 if "SIGTERM" in str(e) else 1)
"""


def test_a_launch_from_python_takes_signals_as_the_command_does(job: Job) -> None:
    command = [sys.executable, "-c", LAUNCH, job.endpoint, *job.command]
    with (job.folder / "n0.err").open("w") as err:
        node = subprocess.Popen(
            command, cwd=job.folder, stdout=subprocess.PIPE, stderr=err, text=True
        )
    job.nodes.append(node)
    job.until(10)
    node.send_signal(signal.SIGUSR1)
    job.until(25)
    node.terminate()
    directives = job.end(95)
    assert len(directives) == 2
    same_step(directives, 2)
    once_each(job, max(step for taken in directives.values() for _, step in taken) + 1)


def test_an_agent_that_is_stopped_holds_its_workers_until_it_goes_on(job: Job) -> None:
    """For three seconds, at some moment of the agreement; no step is lost, and S is the same."""
    job.start("n0")
    other = job.start("n1")
    job.until(10)
    job.admin("save")
    other.send_signal(signal.SIGSTOP)
    time.sleep(3)
    other.send_signal(signal.SIGCONT)
    job.until(60)
    job.admin("drain", "--node=n1")
    directives = job.end(0, 0)
    assert len(directives) == 2
    same_step(directives, 4)
    once_each(job)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_drains_at_random_moments(tmp_path: Path) -> None:
    for turn in range(20):
        folder = tmp_path / str(turn)
        folder.mkdir()
        job = lockstep(folder, 80)
        try:
            job.start("n0")
            job.start("n1")
            job.until(random.randint(0, 50))
            time.sleep(random.uniform(0, 0.03))
            job.admin("drain", "--node=n1")
            directives = job.end(0, 0)
            assert len(directives) == 1
            same_step(directives, 4)
            once_each(job)
        finally:
            job.stop()


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_loss_of_a_ddp_job_goes_on_without_a_drained_node(tmp_path: Path) -> None:
    """The demo: its curve is that of one process alone with all of the data."""
    torch = pytest.importorskip("torch")
    steps = 60
    job = Job(tmp_path, steps, 1, str(EXAMPLE), "state.pt", "losses.txt", str(steps))
    try:
        job.start("n0")
        job.start("n1")
        job.until(15)
        job.admin("drain", "--node=n1")
        directives = job.end(0, 0)
    finally:
        job.stop()
    assert len(directives) == 1
    same_step(directives, 2)
    once_each(job)

    torch.manual_seed(0)
    inputs = torch.randn(32, 8)
    targets = inputs @ torch.randn(8, 1)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, loss in job.losses():
        optimizer.zero_grad()
        alone = torch.nn.functional.mse_loss(model(inputs), targets)
        alone.backward()
        optimizer.step()
        assert loss == pytest.approx(alone.item(), abs=1e-4), step
