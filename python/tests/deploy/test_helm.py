"""The Helm chart of `rallypoint serve`: rendered by helm, of the schema, true to the command."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY, assert_serves
from harness import free_port

yaml = pytest.importorskip("yaml")
kubernetes_validate = pytest.importorskip("kubernetes_validate")

CHART = REPOSITORY / "packaging" / "helm" / "rallypoint"
HELM = os.environ.get("RALLYPOINT_TEST_HELM", "")

needs_helm = pytest.mark.skipif(
    not HELM, reason="RALLYPOINT_TEST_HELM names no helm; make test-helm builds one and does"
)


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, timeout=60)


def rendered(*values: str) -> dict[str, dict[str, Any]]:
    """What is installed as `cp`, by kind."""
    return {d["kind"]: d for d in all_rendered(*values)}


def all_rendered(*values: str) -> list[dict[str, Any]]:
    options = [part for value in values for part in ("--set", value)]
    done = helm("template", "cp", str(CHART), "--kube-version", "1.34.0", *options)
    assert done.returncode == 0, done.stderr
    return [d for d in yaml.safe_load_all(done.stdout) if d]


def test_version() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = (REPOSITORY / "VERSION").read_text().strip()
    assert chart["version"] == chart["appVersion"] == version


@needs_helm
def test_lint() -> None:
    done = helm("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


@needs_helm
@pytest.mark.parametrize(
    "values",
    [
        (),
        ("tokenSecret=", "image.tag=0.2", "service.type=LoadBalancer"),
        ("persistence.storageClass=fast", "nodeSelector.disk=ssd", "podAnnotations.a=b"),
        ("tolerations[0].key=gpu", "tolerations[0].operator=Exists", "extraArgs={--max-nodes,9}"),
    ],
)
def test_schema(values: tuple[str, ...]) -> None:
    documents = rendered(*values)
    assert set(documents) == {"Service", "StatefulSet"}
    for document in documents.values():
        for version in ("1.29", "1.34"):
            kubernetes_validate.validate(document, version, strict=True)
    assert documents["StatefulSet"]["spec"]["replicas"] == 1


@needs_helm
def test_service_monitor_finds_the_service() -> None:
    documents = rendered("serviceMonitor.enabled=true", "serviceMonitor.labels.release=prom")
    monitor, service = documents["ServiceMonitor"], documents["Service"]
    labels = service["metadata"]["labels"]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels.items()
    [endpoint] = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in service["spec"]["ports"]]
    assert endpoint["path"] == "/metrics" and monitor["metadata"]["labels"]["release"] == "prom"


@needs_helm
@pytest.mark.parametrize("replicas", ["1", "3"])
def test_network_policy_lets_named_pods_and_the_servers_in(replicas: str) -> None:
    settings = ("networkPolicy.enabled=true", f"replicas={replicas}")
    documents = rendered(*settings, "networkPolicy.from[0].podSelector.matchLabels.team=a")
    assert "NetworkPolicy" not in rendered(f"replicas={replicas}")
    policy, pods = documents["NetworkPolicy"], documents["StatefulSet"]["spec"]
    kubernetes_validate.validate(policy, "1.34", strict=True)
    labels = pods["template"]["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    [rule] = policy["spec"]["ingress"]
    [port] = rule["ports"]
    assert port["port"] in [p["name"] for p in pods["template"]["spec"]["containers"][0]["ports"]]
    servers, named = (peer["podSelector"]["matchLabels"] for peer in rule["from"])
    assert servers.items() <= labels.items() and named == {"team": "a"}
    assert policy["spec"]["policyTypes"] == ["Ingress"]


@needs_helm
def test_the_memory_limit_follows_from_what_is_kept() -> None:
    def limit(*values: str) -> tuple[str, str]:
        [container] = rendered(*values)["StatefulSet"]["spec"]["template"]["spec"]["containers"]
        [kept] = [a for a in container["args"] if a.startswith("--max-total-bytes=")]
        assert container["resources"]["requests"]["memory"] == "128Mi"
        return kept.partition("=")[2], container["resources"]["limits"]["memory"]

    assert limit() == ("536870912", "1536Mi")
    assert limit("maxTotalBytes=4294967296") == ("4294967296", "8704Mi")
    assert limit("resources.limits.memory=3Gi") == ("536870912", "3Gi")


@needs_helm
@pytest.mark.parametrize("value", ["replicas=2", "service.port=0", "tokenSecrett=x", "httpOpen=1"])
def test_wrong_values_are_refused(value: str) -> None:
    done = helm("template", "cp", str(CHART), "--kube-version", "1.34.0", "--set", value)
    assert done.returncode != 0 and "schema" in done.stderr


@needs_helm
@pytest.mark.parametrize("values", [(), ("tokenSecret=",), ("extraArgs={--max-nodes,9}",)])
def test_the_command_takes_its_arguments(
    values: tuple[str, ...], tmp_path: Path, token_file: Path
) -> None:
    pod = rendered(*values)["StatefulSet"]["spec"]["template"]["spec"]
    [container] = pod["containers"]
    here = {"--token-file=/etc/rallypoint/token": f"--token-file={token_file}"}
    arguments = [here.get(a, a) for a in container["args"] or []]
    assert ("--http-open" in arguments) == (values != ("tokenSecret=",))
    assert_serves("serve", "--listen", "127.0.0.1:0", "--data-dir", tmp_path / "data", *arguments)
    mounts = {m["mountPath"]: m["name"] for m in container["volumeMounts"]}
    assert mounts["/data"] == "data"


@needs_helm
@pytest.mark.parametrize("values", [("replicas=3",), ("replicas=5", "tokenSecret=")])
def test_peers(values: tuple[str, ...], tmp_path: Path, token_file: Path) -> None:
    documents = all_rendered(*values)
    for document in documents:
        for version in ("1.29", "1.34"):
            kubernetes_validate.validate(document, version, strict=True)
    kinds = sorted(d["kind"] for d in documents)
    assert kinds == ["PodDisruptionBudget", "Service", "Service", "StatefulSet"]
    by_name = {(d["kind"], d["metadata"]["name"]): d["spec"] for d in documents}
    pods = by_name["StatefulSet", "cp"]
    number = int(values[0].removeprefix("replicas="))
    assert pods["replicas"] == number and pods["podManagementPolicy"] == "Parallel"
    assert [c["metadata"]["name"] for c in pods["volumeClaimTemplates"]] == ["data"]
    headless = by_name["Service", pods["serviceName"]]
    assert headless["clusterIP"] == "None" and headless["publishNotReadyAddresses"]
    assert by_name["PodDisruptionBudget", "cp"]["maxUnavailable"] == 1

    spec = pods["template"]["spec"]
    labels = pods["template"]["metadata"]["labels"]
    [apart] = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["labelSelector"]["matchLabels"].items() <= labels.items()
    [container] = spec["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
    names = [f"cp-{i}.{pods['serviceName']}:29400" for i in range(number)]
    assert f"--peers={','.join(names)}" in container["args"]

    here = {"--token-file=/etc/rallypoint/token": f"--token-file={token_file}"}
    arguments = [here.get(a, a.replace("$(POD_NAME)", "cp-1")) for a in container["args"]]
    port = free_port()
    arguments = [a.replace(":29400", f":{port}") for a in arguments]
    entry = ["serve", "--listen", f"127.0.0.1:{port}", "--data-dir", tmp_path / "data"]
    assert_serves(*entry, *arguments)
