"""The demonstration (`make demo`)."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

if importlib.util.find_spec("sklearn") is None:  # which the demonstration imports
    pytest.skip("sklearn is not installed", allow_module_level=True)

DIGITS = Path(__file__).parents[3] / "examples" / "digits"

# In this order; other entries of the timeline do not matter here.
ORDER = [
    "started",
    "joined",
    "node lost",
    "regrouped",
    "training",
    "node started",
    "node joined",
    "grown",
    "training",
    "finished",
    "accuracy",
]


ETCD = os.environ.get("RALLYPOINT_TEST_ETCD", "")


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(DIGITS / "demo.py"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "TORCHELASTIC_ETCD_BINARY_PATH": ETCD},
    )


@pytest.mark.long
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("launcher", "endpoint"),
    [
        ("rallypoint run", "hosted"),
        ("torchrun", "hosted"),
        ("torchrun", "file"),
        pytest.param(
            "torchrun",
            "etcd",
            marks=pytest.mark.skipif(not ETCD, reason="RALLYPOINT_TEST_ETCD names no etcd"),
        ),
    ],
)
def test_a_node_is_lost_and_another_one_joins(launcher: str, endpoint: str) -> None:
    ddp = ["--ddp"] if endpoint == "file" else []
    done = demo("--json", "--timeout=200", "--launcher", launcher, "--endpoint", endpoint, *ddp)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["ok"], result["reason"]
    assert result["accuracy"] > 0.95

    timeline = result["timeline"]
    assert [entry["event"] for entry in timeline] == ORDER
    _, joined, lost, regrouped, by_two, _, _, grown, by_three, finished, _ = timeline
    assert sorted(joined["nodes"]) == ["A", "B", "C"]
    assert lost["node"] in joined["nodes"]
    assert sorted(regrouped["nodes"]) == sorted(set(joined["nodes"]) - {lost["node"]})
    assert sorted(grown["nodes"]) == sorted([*regrouped["nodes"], "D"])
    assert finished["nodes"] == grown["nodes"]
    assert joined["round"] < regrouped["round"] < grown["round"]
    assert (by_two["world_size"], by_three["world_size"]) == (2, 3)
    # Both rounds continued from a checkpoint and none from the beginning.
    assert 0 < by_two["epoch"] <= by_three["epoch"]


@pytest.mark.long
@pytest.mark.timeout(400)
@pytest.mark.parametrize("launcher", ["rallypoint run", "torchrun"])
def test_with_a_token_nothing_is_plain_and_intruders_are_refused(launcher: str) -> None:
    done = demo("--json", "--timeout=360", "--secure", "--launcher", launcher)
    if done.returncode == 2:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stderr
    timeline = json.loads(done.stdout)["timeline"]
    seen = {entry["event"]: entry for entry in timeline}
    refused = [entry for entry in timeline if entry["event"] == "refused"]
    assert [e["event"] for e in timeline if e["event"] in ORDER] == ORDER

    # Two strangers at the control port of each node and at the store, and another user of
    # each machine, unless there is none.
    others = [e for e in refused if "user 65534" in e["attempt"]]
    assert len(refused) - len(others) == 2 * 3 + 2
    for entry in refused:
        assert "authentication failed" in entry["line"] or "closed" in entry["line"]
    if "not tried" not in seen:
        assert sorted(e["node"] for e in others) == ["A", "B", "C"]

    counted = seen["counted"]
    assert counted["refused"]["authentication"] >= 2
    assert {"plain", "authentication"} <= set(counted["stores_refused"])

    found = seen["captured"]["found"]
    assert seen["captured"]["bytes"] > 1 << 20
    assert {name for name, count in found.items() if count} == {"gloo"}
    assert {"node id", "role", "store key", "store value", "token"} <= set(found)
    plain = {name for name, count in seen["without"]["found"].items() if count}
    assert plain == {"store key", "store value"}


@pytest.mark.long
@pytest.mark.parametrize("first", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_demo_leaves_nothing(first: signal.Signals) -> None:
    """Not even when it is interrupted again while it cleans up."""
    process = subprocess.Popen(
        [sys.executable, str(DIGITS / "demo.py"), "--secure"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout
    started = any(" started " in line for line in process.stdout)  # up to that line
    if not started and process.wait() == 2:
        assert process.stderr
        pytest.skip(process.stderr.read())
    agents = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(first)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    _, err = process.communicate()
    assert process.returncode == 1 and "demo failed: interrupted" in err, err
    assert agents and not [a for a in agents if a.is_running()]
    assert not list(Path("/run/netns").glob(f"rpdemo{process.pid}-*"))


def test_without_network_namespaces_the_demo_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    done = demo("--secure")
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "no command `ip`" in done.stderr and "unshare" in done.stderr


def test_the_secure_demo_has_its_own_endpoint() -> None:
    done = demo("--secure", "--endpoint", "file")
    assert done.returncode == 2
    assert "--secure is for --endpoint hosted" in done.stderr


def test_an_unknown_endpoint_is_refused() -> None:
    done = demo("--endpoint", "zookeeper")
    assert done.returncode == 2
    assert "--endpoint" in done.stderr and "etcd" in done.stderr


def test_without_an_etcd_the_demo_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ETCD", "/nowhere/etcd")
    monkeypatch.setenv("PATH", "/nowhere")
    done = demo("--endpoint", "etcd")
    assert done.returncode == 1
    assert (
        "demo failed: " in done.stderr and "etcd" in done.stderr and "Traceback" not in done.stderr
    )
