"""The recipes for Kubeflow Trainer and JobSet: of the schema, and true to the command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY
from harness import free_port

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")
models = pytest.importorskip("kubeflow_trainer_api.models")

EXAMPLES = REPOSITORY / "examples"
COMMAND = REPOSITORY / "build" / "rallypoint"

KINDS = {
    "kubeflow/runtime.yaml": models.TrainerV1alpha1ClusterTrainingRuntime,
    "kubeflow/trainjob.yaml": models.TrainerV1alpha1TrainJob,
    "kubernetes/jobset.yaml": models.JobsetV1alpha2JobSet,
}

# What the models leave out or fill in; Kubernetes' own schema and the tests below hold it.
LEFT_OUT = {"protocol", "restartPolicyRules"}


def read(name: str) -> dict[str, Any]:
    return dict(yaml.safe_load((EXAMPLES / name).read_text()))


def without(node: Any, names: set[str]) -> Any:
    if isinstance(node, dict):
        return {key: without(value, names) for key, value in node.items() if key not in names}
    return [without(item, names) for item in node] if isinstance(node, list) else node


def same(kind: Any, document: dict[str, Any]) -> bool:
    """Whether the schema holds everything that the document says."""
    wanted = without(document, LEFT_OUT)
    return bool(without(kind.from_dict(document).to_dict(), LEFT_OUT) == wanted)


@pytest.mark.parametrize("name", KINDS)
def test_schema(name: str) -> None:
    document = read(name)
    assert same(KINDS[name], document)
    document["spec"]["suspended"] = True
    assert not same(KINDS[name], document)


def replicated(name: str) -> dict[str, Any]:
    spec = read(name)["spec"]
    [job] = spec.get("template", {"spec": spec})["spec"]["replicatedJobs"]
    return dict(job)


@pytest.mark.parametrize("name", ["kubeflow/runtime.yaml", "kubernetes/jobset.yaml"])
def test_the_job_in_it(name: str) -> None:
    job = replicated(name)["template"]
    document = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}, **job}
    document["metadata"] = {**job.get("metadata", {}), "name": "x"}
    kubernetes_validate.validate(document, "1.34", strict=True)


def container(name: str) -> dict[str, Any]:
    [container] = replicated(name)["template"]["spec"]["template"]["spec"]["containers"]
    return dict(container)


def trainer_environment(job: dict[str, Any], address: str, port: int, rank: int) -> dict[str, str]:
    """Exactly what Trainer's torch plug-in sets, for one of the job's pods."""
    trainer = job["spec"]["trainer"]
    return {
        "PET_NNODES": str(trainer["numNodes"]),
        "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": address,  # <job>-node-0-0.<job>
        "PET_MASTER_PORT": str(port),  # 29400
    }


def test_trainjob_needs_no_rendezvous_option(tmp_path: Path, token_file: Path) -> None:
    """The runtime's command in the environment of two pods: workers with all their ranks."""
    job = read("kubeflow/trainjob.yaml")
    assert job["spec"]["runtimeRef"]["name"] == read("kubeflow/runtime.yaml")["metadata"]["name"]
    job["spec"]["trainer"]["numProcPerNode"] = 2
    spec = container("kubeflow/runtime.yaml")
    script = tmp_path / "train.py"
    script.write_text(  # a line at once: workers share the output
        "import os\nenv = os.environ\n"
        "os.write(1, f\"{env['RANK']} {env['WORLD_SIZE']}\\n\".encode())\n"
    )
    here = {"rallypoint": str(COMMAND), "train.py": str(script)}
    here["--token-file=/etc/rallypoint/token"] = f"--token-file={token_file}"
    port = free_port()
    pods = []
    for rank in range(2):
        pods.append(
            subprocess.Popen(
                [here.get(a, a).replace("$(INDEX)", str(rank)) for a in spec["command"]],
                env={**os.environ, **trainer_environment(job, "127.0.0.1", port, rank)},
                stdout=subprocess.PIPE,
                text=True,
            )
        )
    said = [pod.communicate(timeout=60)[0].split() for pod in pods]
    assert [pod.returncode for pod in pods] == [0, 0]
    ranks = [sorted(output[::2]) for output in said]
    assert ranks == [["0", "1"], ["2", "3"]]  # PET_NODE_RANK is the node's rank
    assert {size for output in said for size in output[1::2]} == {"4"}


def test_jobset_names_its_host() -> None:
    document, job = read("kubernetes/jobset.yaml"), replicated("kubernetes/jobset.yaml")
    name = document["metadata"]["name"]
    assert (
        f"--rdzv-endpoint={name}-{job['name']}-0-0.{name}:29400"
        in (container("kubernetes/jobset.yaml")["command"])
    )


def test_jobset_knows_the_exit_codes(tmp_path: Path) -> None:
    """What is started again is what the command exits with, and not what it refuses."""
    spec = container("kubernetes/jobset.yaml")
    [rule] = spec["restartPolicyRules"]
    again = rule["exitCodes"]["values"]
    job = replicated("kubernetes/jobset.yaml")["template"]["spec"]
    final = job["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"]

    def code(*arguments: str) -> int:
        return subprocess.run([COMMAND, "run", *arguments], capture_output=True).returncode

    assert code("--no-python", "false") in again
    assert code("--no-such-option", "x") in final and not set(final) & set(again)
    assert code("--no-python", "true") == 0


@pytest.mark.parametrize("name", ["kubeflow/runtime.yaml", "kubernetes/jobset.yaml"])
def test_token_and_grace(name: str) -> None:
    pod = replicated(name)["template"]["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 30  # the default of --shutdown-timeout
    [mount] = container(name)["volumeMounts"]
    assert f"--token-file={mount['mountPath']}/token" in container(name)["command"]
    assert mount["name"] in [v["name"] for v in pod["volumes"] if "secret" in v]


@pytest.mark.parametrize("name", ["kubeflow/runtime.yaml", "kubernetes/jobset.yaml"])
def test_no_job_mounts_the_servers_token(name: str) -> None:
    """It would open all jobs of the server."""
    chart = yaml.safe_load((REPOSITORY / "packaging/helm/rallypoint/values.yaml").read_text())
    serve = list(yaml.safe_load_all((EXAMPLES / "kubernetes/serve.yaml").read_text()))[1]
    [server] = serve["spec"]["template"]["spec"]["volumes"]
    servers = {chart["tokenSecret"], server["secret"]["secretName"]}
    pod = replicated(name)["template"]["spec"]["template"]["spec"]
    assert not servers & {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}


def test_status_of_a_trainjob() -> None:
    """What an agent reports, as TestTrainJob has it, is what Trainer's client knows."""
    status = {
        "progressPercentage": 25,
        "estimatedRemainingSeconds": 375,
        "metrics": [{"name": "training_step", "value": "250"}],
        "lastUpdatedTime": "2026-11-29T05:00:00Z",
    }
    request = models.TrainerV1alpha1UpdateTrainJobStatusRequest.from_dict({"trainerStatus": status})
    assert request is not None
    read_back = request.to_dict()["trainerStatus"]
    assert read_back.pop("lastUpdatedTime").isoformat() == "2026-11-29T05:00:00+00:00"
    assert read_back == {k: v for k, v in status.items() if k != "lastUpdatedTime"}
    source = (REPOSITORY / "agent" / "telemetry" / "trainjob.go").read_text()
    assert all(f'json:"{name}' in source for name in (*status, "name", "value"))
