"""LaunchConfig: fields, defaults, and what is refused."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import launch_jobs as jobs
import pytest
from harness import free_port
from launch.harness import PYTHON, alone, in_folder

import rallypoint
from rallypoint import ChildFailedError, LaunchConfig, LogsSpecs, elastic_launch

# Configuration


def test_fields_and_defaults_are_those_of_torch() -> None:
    """A33, but for the default backend; what torch does not have comes last."""
    from torch.distributed.launcher.api import LaunchConfig as OfTorch

    ours = {f.name: f.default for f in dataclasses.fields(LaunchConfig)}
    theirs = {f.name: f.default for f in dataclasses.fields(OfTorch)}
    for name in theirs.keys() & ours.keys():
        other = ("rdzv_configs", "metrics_cfg", "rdzv_backend")
        assert ours[name] == theirs[name] or name in other, name
    assert theirs.keys() <= ours.keys()


def test_configuration_of_torch() -> None:
    from torch.distributed.launcher.api import LaunchConfig as OfTorch

    config = OfTorch(1, 1, 2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", max_restarts=0)
    assert elastic_launch(config, jobs.add_rank)(1) == {0: 1, 1: 2}


def test_rendezvous_timeout() -> None:
    """A34."""
    assert LaunchConfig(1, 1, 1).rdzv_configs == {"timeout": 900}
    assert LaunchConfig(1, 1, 1, rdzv_configs={"timeout": 5}).rdzv_configs == {"timeout": 5}
    assert LaunchConfig(1, 1, 1, rdzv_timeout=7).rdzv_configs == {"timeout": 7}


@pytest.mark.parametrize(
    ("field", "variable", "default"),
    [
        ("shutdown_timeout", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", 30),
        ("exit_barrier_timeout", "TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", 300),
    ],
)
def test_timeouts(monkeypatch: pytest.MonkeyPatch, field: str, variable: str, default: int) -> None:
    monkeypatch.delenv(variable, raising=False)
    assert getattr(LaunchConfig(1, 1, 1), field) == default
    assert getattr(LaunchConfig(1, 1, 1, **{field: 120}), field) == 120  # type: ignore[arg-type]
    assert getattr(LaunchConfig(1, 1, 1, **{field: 0}), field) == 0  # type: ignore[arg-type]
    monkeypatch.setenv(variable, "600")
    assert getattr(LaunchConfig(1, 1, 1), field) == 600
    assert getattr(LaunchConfig(1, 1, 1, **{field: 120}), field) == 120  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=f"{field} must be non-negative, got -1"):
        LaunchConfig(1, 1, 1, **{field: -1})  # type: ignore[arg-type]


def test_no_grace(tmp_path: Path) -> None:
    """With a shutdown_timeout of 0 workers are killed at once."""
    os.mkfifo(tmp_path / "ready")
    script = """
        trap '' TERM
        [ $RANK = 1 ] && read -r line < ready && exit 3
        echo > ready
        while :; do sleep 100; done
    """
    with pytest.raises(ChildFailedError) as caught, in_folder(tmp_path):
        elastic_launch(alone(2, shutdown_timeout=0), "sh")("-c", script)
    assert caught.value.failures[0].exitcode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"nproc_per_node": 0}, "workers"),
        ({"max_restarts": -1}, "restarts"),
        ({"max_nodes": 2}, "rdzv_endpoint is missing"),
        ({"rdzv_configs": {"token_file": "/none"}}, "/none would protect nothing"),
        ({"rdzv_endpoint": "h:1", "rdzv_backend": "zookeeper"}, "unknown backend"),
        ({"rdzv_backend": "static"}, "endpoint"),
        ({"rdzv_backend": "static", "rdzv_endpoint": "h"}, "port"),
        ({"rdzv_backend": "static", "rdzv_endpoint": "h:1", "max_nodes": 2}, "fixed number"),
        ({"event_log_handler": "zzz"}, "zzz"),
        ({"start_method": "zzz"}, "zzz"),
        ({"numa_options": "node"}, "No accelerator"),
        ({"monitor_interval": -1}, "monitor_interval"),
        ({"logs_specs": LogsSpecs(redirects="9")}, "redirects"),
        ({"logs_specs": LogsSpecs(tee={7: 1})}, "local rank 7"),
        ({"role": "a\0b"}, "NUL"),
        ({"on_failure": "stay"}, r'"stay" must be restart, regroup\[:TIME\], keep, or leave'),
        ({"on_failure": "leave"}, "one that leaves a standalone job"),
        ({"on_failure": "keep"}, "the nodes of a standalone job do not notice"),
        (
            {"on_failure": "keep", "rdzv_endpoint": "127.0.0.1:1", "max_nodes": 2},
            "keep takes a fixed number of nodes, such as 2, not 1:2",
        ),
        ({"checks": ["true"], "check_every": 1}, "check_every_ms: no other node can take"),
    ],
)
def test_wrong_configurations(fields: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1, "run_id": "job"}
    with pytest.raises(rallypoint.InvalidError, match=says):
        elastic_launch(LaunchConfig(**{**given, **fields}), ["true"])()


def test_a_check_keeps_a_node_out(tmp_path: Path) -> None:
    config = alone(1, checks=["true", "echo its fan; exit 1"], check_timeout=60)
    with pytest.raises(rallypoint.UnfitError, match="is not fit to run workers: echo: its fan"):
        elastic_launch(config, ["touch", str(tmp_path / "ran")])()
    assert not (tmp_path / "ran").exists()


def test_launching_does_not_import_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import sys, rallypoint
        config = rallypoint.LaunchConfig(1, 1, 2)
        assert rallypoint.elastic_launch(config, ["true"])() == {0: None, 1: None}
        rallypoint.record(len)
        assert "torch" not in sys.modules
        """
    )


def test_without_torch(tmp_path: Path, python_without_torch: str) -> None:
    (tmp_path / "main.py").write_text(
        textwrap.dedent(
            """
            import os
            import rallypoint
            from rallypoint import LaunchConfig, elastic_launch

            def rank(): return int(os.environ["RANK"])

            def fail(): raise ValueError("no")

            @rallypoint.record
            def main():
                try:
                    import torch
                except ImportError:
                    pass
                else:
                    raise AssertionError("torch is here")
                config = LaunchConfig(1, 1, 2, max_restarts=0)
                steps = []
                launch = elastic_launch(
                    config, rank, on_rdzv_event=lambda event: steps.append(event["name"])
                )
                assert launch() == {0: 0, 1: 1}
                assert steps[-1] == "rallypoint:shutdown" and len(steps) == 5
                assert elastic_launch(config, "true")() == {0: None, 1: None}
                elastic_launch(config, fail)()

            if __name__ == "__main__":
                main()
            """
        )
    )
    own = tmp_path / "error.json"
    done = subprocess.run(
        [python_without_torch, str(tmp_path / "main.py")],
        env={**os.environ, "TORCHELASTIC_ERROR_FILE": str(own)},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 1
    assert "ChildFailedError: \n====" in done.stderr
    assert "fail FAILED" in done.stderr and "ValueError: no" in done.stderr

    message = json.loads(own.read_text())["message"]
    assert message["message"] == "ValueError: no" and message["errorCode"] == 1


def test_report_is_that_of_the_agent() -> None:
    """The report that the package makes without torch is the agent's, but for the host and for
    what the agent does about the failure."""
    from rallypoint._launch import failure_plain as plain

    code = f"""
import sys
sys.path.append({str(Path(jobs.__file__).parent)!r})
from launch_jobs import fail
from rallypoint import record
record(fail)(1)
"""
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(3), PYTHON)("-c", code)
    error = caught.value
    assert set(error.failures) == {0, 1, 2}
    made = plain.ChildFailedError(error.name, error.failures, root=1)

    def shared(report: str) -> list[str]:
        return [
            line for line in report.split("\n") if not line.startswith(("  host  ", "  next  "))
        ]

    assert shared(made.format_msg()) == shared(str(error))
    assert "  next      : no restarts left" in str(error)
    assert set(made.format_msg("*", "+").splitlines()[1]) == {"*"}


@pytest.mark.parametrize("count", [1, 2])
def test_example(count: int) -> None:
    """examples/launch/pi.py, alone and on two nodes."""
    example = Path(__file__).resolve().parents[3] / "examples" / "launch" / "pi.py"
    arguments = [f"127.0.0.1:{free_port()}", "2", "1", "10000"] if count == 2 else []
    programs = [
        subprocess.Popen([PYTHON, str(example), *arguments], stdout=subprocess.PIPE, text=True)
        for _ in range(count)
    ]
    out = [program.communicate(timeout=110)[0].splitlines() for program in programs]
    assert [program.returncode for program in programs] == [0] * count
    for lines in out:
        assert lines[-1].startswith("pi is about 3.1")
    ranks = sorted(line.split(":")[0] for lines in out for line in lines[:-1])
    assert ranks == ["rank 0", "rank 1"]
