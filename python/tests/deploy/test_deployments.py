"""The recipes for containers, Kubernetes and Slurm: well-formed, and true to the command."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, assert_serves, programs

# The environments of older torch versions have neither.
yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

EXAMPLES = REPOSITORY / "examples"

# What Kubernetes itself knows; the others are below.
MANIFESTS = [EXAMPLES / "kubernetes" / name for name in ("job.yaml", "serve.yaml", "drain.yaml")]


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda p: p.name)
def test_manifests_match_the_schema(path: Path) -> None:
    assert len(documents(path)) == 2
    for document in documents(path):
        for version in ("1.29", "1.34"):
            kubernetes_validate.validate(document, version, strict=True)


def test_a_wrong_manifest_is_refused() -> None:
    job = documents(EXAMPLES / "kubernetes" / "job.yaml")[1]
    job["spec"]["template"]["spec"]["subdomian"] = "train"
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.34", strict=True)


def test_job_names_its_host() -> None:
    service, job = documents(EXAMPLES / "kubernetes" / "job.yaml")
    pod = job["spec"]["template"]
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["clusterIP"] == "None"
    for key, value in service["spec"]["selector"].items():
        assert pod["metadata"]["labels"][key] == value
    command = pod["spec"]["containers"][0]["command"]
    host = f"{job['metadata']['name']}-0.{service['metadata']['name']}:29400"
    assert f"--rdzv-endpoint={host}" in command


def containerfile() -> list[tuple[str, str]]:
    text = (EXAMPLES / "container" / "Containerfile").read_text()
    text = re.sub(r"^#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    return [tuple(line.split(" ", 1)) for line in text.splitlines() if line.strip()]  # type: ignore[misc]


def entrypoint() -> list[str]:
    found = [arguments for name, arguments in containerfile() if name == "ENTRYPOINT"]
    return list(json.loads(found[-1]))


def test_containerfile() -> None:
    known = {"ARG", "FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT"}
    assert {name for name, _ in containerfile()} <= known
    go = (REPOSITORY / ".go-version").read_text().strip().rpartition(".")[0]
    image = rf"docker\.io/library/golang:{re.escape(go)}"
    name, base = containerfile()[0]
    assert name == "ARG" and re.fullmatch(rf"GO_IMAGE={image}(@sha256:[0-9a-f]{{64}})?", base)
    release = (REPOSITORY / "docs" / "releasing.md").read_text()
    assert re.search(rf"\.Digest\}}\}}' docker://{image}`.*`ARG GO_IMAGE`", release)
    for name, arguments in containerfile():
        if name == "COPY" and "--from" not in arguments:
            for source in arguments.split()[:-1]:
                assert (REPOSITORY / source).exists(), source
        if name == "RUN":
            done = subprocess.run(["sh", "-n", "-c", arguments], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


def test_unit_limits_what_a_defect_costs() -> None:
    """The unit's memory follows from the server's own limit, and no core has the token in it."""
    unit = (REPOSITORY / "packaging" / "rallypoint.service").read_text().splitlines()
    settings = dict(line.split("=", 1) for line in unit if "=" in line and line[0] != "#")
    done = subprocess.run(
        [REPOSITORY / "build" / "rallypoint", "serve", "--help"], capture_output=True, text=True
    )
    found = re.search(r"--max-total-bytes.*?\(default (\d+)\)", done.stdout, re.DOTALL)
    assert found, done.stdout
    assert settings["MemoryMax"] == f"{2 * int(found[1]) // 2**20 + 512}M"
    assert settings["LimitCORE"] == "0" and settings["UMask"] == "0077"


@pytest.mark.parametrize("more", [[], "kubernetes"], ids=["container", "kubernetes"])
def test_the_command_of_the_container(more: Any, tmp_path: Path, token_file: Path) -> None:
    """The recipe's own arguments serve, but for the address, the folder and the token."""
    arguments = entrypoint()[1:]
    if more:
        stateful = documents(EXAMPLES / "kubernetes" / "serve.yaml")[1]
        arguments += stateful["spec"]["template"]["spec"]["containers"][0]["args"]
    here = {"0.0.0.0:29400": "127.0.0.1:0", "/data/control": str(tmp_path / "data")}
    here["/etc/rallypoint/token"] = str(token_file)
    assert_serves(*(here.get(a, a) for a in arguments))


def test_sbatch(tmp_path: Path) -> None:
    """The script with a scontrol and an srun that only tell what they were asked."""
    script = EXAMPLES / "slurm" / "job.sbatch"
    assert subprocess.run(["bash", "-n", script]).returncode == 0
    scripts = {
        "scontrol": 'printf "n%d\\n" 3 4 5; [ "$*" = "show hostnames n[3-5]" ]',
        "srun": 'printf "%s\\n" "cpus=$SRUN_CPUS_PER_TASK" "$@"',
    }
    programs(tmp_path, scripts)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NODELIST": "n[3-5]",
        "SLURM_JOB_NUM_NODES": "3",
        "SLURM_CPUS_PER_TASK": "16",
        "SLURM_GPUS_ON_NODE": "8",
    }
    done = subprocess.run(
        ["bash", script, "train.py", "a b"], env=env, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stderr
    asked = done.stdout.splitlines()
    assert "--rdzv-endpoint=n3:30111" in asked and "--nnodes=2:3" in asked
    assert asked[0] == "cpus=16" and asked[-2:] == ["train.py", "a b"]
    assert subprocess.run(["bash", script], env=env, capture_output=True).returncode == 2


@pytest.mark.parametrize(
    ("code", "why"),
    [(0, ""), (1, ""), (143, "time limit"), (143, "preempted"), (143, "scancel")],
    ids=lambda x: str(x).replace(" ", "-"),
)
def test_sbatch_of_run(code: int, why: str, tmp_path: Path) -> None:
    """The script with a scontrol and an srun that start its tasks here, as Slurm would.

    It is queued again at its time limit and when it is preempted, not after a scancel.
    """
    script = EXAMPLES / "slurm" / "run.sbatch"
    nodes = {"n3": 0, "n4": 1}
    # ours alone
    address = f"127.{1 + os.getpid() % 100}.{os.getpid() // 100 % 250}.{code + len(why)}"
    preempted = "2026-11-28T09:00:00" if why == "preempted" else "None"
    scripts = {
        "scontrol": f"""if [ "$1" = show ]; then
    echo "   Deadline=N/A PreemptEligibleTime=2026-11-28T08:00:00 PreemptTime={preempted}"
else
    echo "$@" >> requeued
fi""",
        "scancel": 'echo "$@" >canceled; kill -TERM $(cat agent.0 agent.1)',
        "rallypoint": f'exec {REPOSITORY / "build" / "rallypoint"} "$@"',
        # What srun does with its own options, and its tasks' variables.
        "srun": f"""[ "$1 $2" = "--no-kill --kill-on-bad-exit=0" ] || exit 9
shift 2
echo $PPID >batch
pids=
for node in {" ".join(f"{name}:{rank}" for name, rank in nodes.items())}; do
    SLURM_STEP_ID=0 SLURM_STEP_NODELIST={address} SLURM_STEP_NUM_NODES=2 SLURM_LOCALID=0 \\
    SLURMD_NODENAME=${{node%:*}} SLURM_NODEID=${{node#*:}} "$@" &
    pids="$pids $!"
done
worst=0
for pid in $pids; do
    wait "$pid" || {{ one=$?; [ "$one" -le "$worst" ] || worst=$one; }}
done
exit "$worst\"""",
    }
    programs(tmp_path, scripts)
    # As Slurm does: near the time limit for the script alone, else for all.
    signals = {
        "": ":",
        "time limit": "kill -USR1 $(cat batch)",
        "preempted": "kill -TERM $(cat agent.0 agent.1)",
        "scancel": "kill -TERM $(cat agent.0 agent.1 batch)",
    }
    (tmp_path / "train.sh").write_text(
        # The agent has the token, its workers are not told where it is.
        'token=$(tr "\\0" "\\n" </proc/$PPID/environ | sed -n s/^RALLYPOINT_TOKEN_FILE=//p)\n'
        'echo "rank $RANK of $WORLD_SIZE: $*; token $(wc -c <"$token")${RALLYPOINT_TOKEN_FILE-}"\n'
        "echo $PPID >agent.$RANK.new; mv agent.$RANK.new agent.$RANK\n"
        f"if [ {code} != 143 ]; then exit {code}; fi\n"
        "if [ $RANK = 0 ]; then\n"
        "    until [ -e agent.1 ]; do sleep 0.05; done\n"
        f"    trap 'exit 1' TERM; {signals[why]}; while :; do sleep 0.1; done\n"
        "fi\nexec sleep 60\n"
    )
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": str(os.getpid() % 100000),
        "SLURM_JOB_NODELIST": "n[3-4]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_GPUS_ON_NODE": "1",
        "SLURM_SUBMIT_DIR": str(tmp_path),
    }
    done = subprocess.run(
        ["bash", script, "--max-restarts=0", "--no-python", "sh", "train.sh", "a b"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stderr
    lines = {line for line in done.stdout.splitlines() if line}
    both = {"rank 0 of 2: a b; token 45", "rank 1 of 2: a b; token 45"}
    assert lines == both if code == 0 else lines <= both  # a failure may end the other early
    assert not list(tmp_path.glob(".rallypoint-token*"))
    requeued = tmp_path / "requeued"
    again = why in ("time limit", "preempted")
    assert requeued.exists() == again
    assert not again or requeued.read_text() == f"requeue {env['SLURM_JOB_ID']}\n"
    assert (tmp_path / "canceled").exists() == (why == "time limit")
    assert subprocess.run(["bash", script], env=env, capture_output=True).returncode == 2


@pytest.mark.parametrize("code", [0, 1, 95])
def test_sbatch_that_is_stopped_in_order(code: int, tmp_path: Path) -> None:
    """The signal of --signal=B: continues to the step, and ends the wait for it only once."""
    script = EXAMPLES / "slurm" / "drain.sbatch"
    scripts = {
        "scontrol": 'echo "$@" >> requeued',
        "scancel": 'echo "$@" >> canceled',
        "srun": f"""[ "$SRUN_CPUS_PER_TASK" = 16 ] || exit 9
case "$*" in
*"--slurm --nnodes=2:2 "*"--on-signal=USR1:stop "*" train.py a b") ;;
*) exit 9 ;;
esac
kill -USR1 $PPID; until [ -e canceled ]; do sleep 0.05; done; exit {code}""",
    }
    programs(tmp_path, scripts)
    env = {
        **os.environ,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "16",
    }
    done = subprocess.run(
        ["bash", script, "train.py", "a", "b"],
        env=env,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (code, "")
    assert (tmp_path / "canceled").read_text() == "--signal=USR1 4711\n"
    requeued = (tmp_path / "requeued").read_text() if code == 95 else "requeue 4711\n"
    assert requeued == "requeue 4711\n"
    assert (tmp_path / "requeued").exists() == (code == 95)


@pytest.mark.parametrize(
    ("name", "curl"),
    [
        ("aws-spot.sh", "exit 0"),
        ("gcp-preemption.sh", "echo TRUE"),
        ("azure-events.sh", """echo '{"Events": [{"EventType": "Preempt"}]}'"""),
    ],
)
def test_cloud_notices(name: str, curl: str, tmp_path: Path) -> None:
    """Each script is ten lines at most, and drains when the cloud says so."""
    script = EXAMPLES / "cloud" / name
    assert len(script.read_text().splitlines()) <= 10
    for program, body in {"curl": curl, "sleep": "exit 0", "rallypoint": 'echo "$@"'}.items():
        (tmp_path / program).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / program).chmod(0o755)
    done = subprocess.run(
        ["sh", script, "host0:29400", "job7", "gpu17"],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("admin drain host0:29400 --rdzv-id job7 --node gpu17 --within ")
