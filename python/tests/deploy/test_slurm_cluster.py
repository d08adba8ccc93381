"""The recipe for Slurm on a real cluster: Debian's slurmctld, and a slurmd for each of four nodes.

All run on this machine, in namespaces of processes and mounts that end with the test.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY
from harness import free_port, until

PATIENCE = 120.0
NODES = ("n1", "n2", "n3", "n4")
UNSHARE = ("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(os.getuid() != 0, reason="it needs namespaces"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("slurmctld", "slurmd", "munged"))),
        reason="Slurm is not installed (Debian: slurmctld, slurmd, slurm-client, munge)",
    ),
]

# Rank 0 counts steps, and saves on SIGTERM; a worker that is started again resumes.
TRAIN = """\
trap 'if [ $RANK = 0 ]; then cp step saved; echo rank 0 saved; fi; exit 0' TERM
step=0; if [ -e saved ]; then read step < saved; fi
echo "start ${SLURM_RESTART_COUNT:-0}: round $RALLYPOINT_ROUND, rank $RANK of $WORLD_SIZE"
while [ ! -e finish ]; do
    step=$((step + 1))
    if [ $RANK = 0 ]; then echo $step > step; fi
    sleep 0.2
done
"""

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
AuthType=auth/munge
AuthInfo=socket={at}/munge.socket
SlurmUser=root
StateSaveLocation={at}/state
SlurmdSpoolDir={at}/spool-%n
SlurmctldPidFile={at}/slurmctld.pid
SlurmdPidFile={at}/%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
ReturnToService=2
SlurmdTimeout=10
KillWait=5
SchedulerParameters=bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=low Nodes=n[1-4] Default=YES PriorityTier=1 GraceTime=10 State=UP
PartitionName=high Nodes=n[1-4] PriorityTier=10 PreemptMode=OFF State=UP
"""

START = """\
mount --bind {at}/hosts /etc/hosts
export SLURM_CONF={at}/slurm.conf
munged --foreground --force --key-file={at}/key --socket={at}/munge.socket \\
    --pid-file={at}/munged.pid --seed-file={at}/seed --log-file={at}/munged.log &
until [ -S {at}/munge.socket ]; do sleep 0.1; done
slurmctld -D -c > {at}/slurmctld.log 2>&1 &
for node in n1 n2 n3 n4; do slurmd -D -N $node > {at}/$node.log 2>&1 & done
wait
"""


class Cluster:
    """A slurmctld and four slurmd. What is run in it sees the same folders as the test."""

    def __init__(self, at: Path) -> None:
        self.at, host = at, socket.gethostname()
        (at / "hosts").write_text(f"127.0.0.1 localhost {host} {' '.join(NODES)}\n")
        (at / "key").write_bytes(os.urandom(1024))
        (at / "key").chmod(0o400)
        (at / "state").mkdir()
        conf = CONF.format(at=at, host=host, port=free_port())
        for node in NODES:
            (at / f"spool-{node}").mkdir()
            conf += f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 "
            conf += f"Port={free_port()} CPUs=1\n"
        (at / "slurm.conf").write_text(conf)
        self.outer = subprocess.Popen(
            [*UNSHARE, "sh", "-c", START.format(at=at)],
            stdout=(at / "start.log").open("w"),
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Cluster:
        self.idle()
        return self

    def idle(self) -> None:
        until(lambda: "4   idle" in self.ask("sinfo", check=False), PATIENCE, "four nodes idle")

    def __exit__(self, *_: object) -> None:
        self.outer.kill()
        self.outer.wait()

    def ask(self, *command: str, at: Path | None = None, check: bool = True) -> str:
        """Runs a command in the cluster and returns what it has said."""
        pid = self.outer.pid
        inner = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        if not inner:
            return ""
        enter = ["nsenter", "--target", inner[0], "--mount", "--pid", f"--wd={at or self.at}"]
        path = f"{REPOSITORY / 'build'}:{os.environ['PATH']}"
        env = {"PATH": path, "SLURM_CONF": f"{self.at}/slurm.conf"}
        run = subprocess.run([*enter, *command], env=env, capture_output=True, text=True)
        assert run.returncode == 0 or not check, run.stderr
        return run.stdout

    def field(self, job: str, name: str) -> str:
        """A field of a job as Slurm shows it."""
        found = re.search(rf"\b{name}=(\S+)", self.ask("scontrol", "show", "job", job))
        return found[1] if found else ""

    def begin(self, job: str) -> None:
        """Starts a job that was queued again after five seconds.

        Slurm waits two minutes on its own. In the second in which it was killed a slurmd refuses
        the job: "already killed, do not launch".
        """
        until(lambda: self.field(job, "JobState") == "PENDING", PATIENCE, "the job is queued again")
        self.ask("scontrol", "update", f"jobid={job}", "StartTime=now+5")

    def lose(self, node: str) -> None:
        """Kills all that runs on a node, as if it had lost its power."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                command = (process / "cmdline").read_bytes().split(b"\0")
                environ = (process / "environ").read_bytes().split(b"\0")
                inside = f"SLURM_CONF={self.at}/slurm.conf".encode() in environ
                status = (process / "status").read_text()
                parent = Path("/proc") / status.partition("PPid:\t")[2].split()[0]
                step = (parent / "comm").read_text() if parent.name != "0" else ""
            except OSError:
                continue  # it has ended
            if inside and command[:4] == [b"slurmd", b"-D", b"-N", node.encode()]:
                found.append(process.name)
            if f"SLURMD_NODENAME={node}".encode() in environ and inside:
                found.append(process.name)
                if step.startswith("slurmstepd"):
                    found.append(parent.name)
        assert len(found) >= 4, f"a slurmd, slurmstepd, an agent and a worker: {found}"
        for pid in found:
            with contextlib.suppress(ProcessLookupError):  # an agent's guard ends its workers
                os.kill(int(pid), signal.SIGKILL)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    at = tmp_path_factory.mktemp("slurm")
    with Cluster(at) as made:
        yield made


class Job:
    """A job of the recipe, without what a machine of one CPU lacks."""

    def __init__(self, cluster: Cluster, at: Path, *options: str) -> None:
        self.cluster, self.at = cluster, at
        recipe = (REPOSITORY / "examples" / "slurm" / "run.sbatch").read_text()
        recipe = re.sub(r"#SBATCH --gpus.*\n", "", recipe)
        recipe = recipe.replace("--cpus-per-task=64", "--cpus-per-task=1")
        (at / "run.sbatch").write_text(recipe)
        (at / "train.sh").write_text(TRAIN)
        said = cluster.ask(
            *("sbatch", "--partition=low", "--output=out", "run.sbatch"),
            *(*options, "--no-python", "sh", "train.sh"),
            at=at,
        )
        self.id = said.split()[-1]

    def output(self) -> str:
        out = self.at / "out"
        return out.read_text() if out.exists() else ""

    def starts(self, start: int, nodes: int) -> None:
        """Waits until all ranks of a round of so many nodes have said that they run."""
        line = rf"^start {start}: round (\d+), rank \d+ of {nodes}$"

        def run() -> bool:
            rounds = re.findall(line, self.output(), re.M)
            return any(rounds.count(number) == nodes for number in rounds)

        until(run, PATIENCE, f"a round of {nodes} nodes")

    def saved(self) -> int:
        return int((self.at / "saved").read_text())

    def finish(self) -> None:
        (self.at / "finish").touch()
        until(
            lambda: self.cluster.field(self.id, "JobState") == "COMPLETED", PATIENCE, "it is done"
        )
        assert self.cluster.field(self.id, "ExitCode") == "0:0"


def test_requeue(cluster: Cluster, tmp_path: Path) -> None:
    """An administrator queues the job again: it saves, and resumes in its next start."""
    job = Job(cluster, tmp_path)
    job.starts(0, 4)
    until(lambda: (tmp_path / "step").exists(), PATIENCE, "a step")
    cluster.ask("scontrol", "requeue", job.id)
    cluster.begin(job.id)
    job.starts(1, 4)
    assert job.saved() > 0
    job.finish()


def test_preemption(cluster: Cluster, tmp_path: Path) -> None:
    """A job of more weight takes the nodes: this one saves in its grace, and comes again."""
    job = Job(cluster, tmp_path)
    job.starts(0, 4)
    until(lambda: (tmp_path / "step").exists(), PATIENCE, "a step")
    other = cluster.ask(
        *("sbatch", "--partition=high", "--nodes=4", "--output=/dev/null"),
        *("--wrap", f"until [ -e {tmp_path}/enough ]; do sleep 0.1; done"),
    ).split()[-1]
    until(lambda: cluster.field(other, "JobState") == "RUNNING", PATIENCE, "the other job runs")
    assert job.saved() > 0
    until(lambda: cluster.field(job.id, "JobState") == "PENDING", PATIENCE, "it is queued again")
    (tmp_path / "enough").touch()
    cluster.begin(job.id)
    job.starts(1, 4)
    job.finish()


def test_node_failure(cluster: Cluster, tmp_path: Path) -> None:
    """A node is lost: three continue at once, and Slurm does not end the job when it sees that."""
    job = Job(cluster, tmp_path)
    job.starts(0, 4)
    cluster.lose("n3")
    job.starts(0, 3)
    until(lambda: "down" in cluster.ask("sinfo", "--nodes=n3"), PATIENCE, "Slurm knows it")
    assert cluster.field(job.id, "JobState") == "RUNNING"
    job.finish()
    cluster.ask("slurmd", "-N", "n3")
    cluster.idle()


def test_unfit_node(cluster: Cluster, tmp_path: Path) -> None:
    """A check finds a node unfit: the job runs without it, and Slurm drains it."""
    job = Job(cluster, tmp_path, "--slurm-drain", "--check", "[ $SLURMD_NODENAME != n2 ]")
    until(lambda: "dr" in cluster.ask("sinfo", "--nodes=n2", "--noheader"), PATIENCE, "the drain")
    assert "(rallypoint)" in cluster.ask("scontrol", "show", "node", "n2")
    job.starts(0, 3)
    (tmp_path / "finish").touch()
    cluster.ask("scontrol", "update", "NodeName=n2", "State=RESUME")
