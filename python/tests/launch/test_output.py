"""Logs and events of what elastic_launch starts."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
import types
from pathlib import Path
from typing import Any

import launch_jobs as jobs
import pytest
from launch.harness import alone, nodes

import rallypoint
from rallypoint import ChildFailedError, LogsSpecs, elastic_launch, launch_agent

# Output


def test_logs(tmp_path: Path) -> None:
    logs = LogsSpecs(log_dir=str(tmp_path / "logs"), redirects={0: 1, 1: 3})
    elastic_launch(alone(2, logs_specs=logs), jobs.talk)()
    [job] = (tmp_path / "logs").glob("job_????????")
    files = {str(p.relative_to(job)): p.read_text() for p in job.rglob("*.log")}
    assert files == {
        "attempt_0/0/stdout.log": "out 0\n",
        "attempt_0/1/stdout.log": "out 1\n",
        "attempt_0/1/stderr.log": "err 1\n",
    }


def test_tee(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = LogsSpecs(log_dir=str(tmp_path / "logs"), tee=3, local_ranks_filter={1})
    config = alone(
        2,
        logs_specs=logs,
        role="r",
        log_line_prefix_template="<${role_name} ${rank}>",
        duplicate_stdout_filters=["out"],
    )
    elastic_launch(config, jobs.talk)()
    out, err = capfd.readouterr()
    assert out == "<r 1>out 1\n" and "<r 1>err 1\n" in err and "err 0" not in err
    [filtered] = (tmp_path / "logs").rglob("filtered_stdout.log")
    assert filtered.read_text() == "<r 1>out 1\n"


def test_every_way_of_writing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What Python, C and children of a worker write all lands in its files."""
    logs = LogsSpecs(log_dir=str(tmp_path / "logs"), redirects=3)
    elastic_launch(alone(1, logs_specs=logs), jobs.talk_by_every_way)()
    for name in ("out", "err"):
        [log] = (tmp_path / "logs").rglob(f"std{name}.log")
        lines = {line.partition(":")[0] for line in log.read_text().splitlines()}
        assert lines == {f"{way} {name}" for way in ("Python", "descriptor", "C", "child")}
    assert capfd.readouterr() == ("", "")


def test_logs_of_torch(tmp_path: Path) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    logs = DefaultLogsSpecs(str(tmp_path / "logs"), redirects={0: Std.OUT}, tee=Std.NONE)
    elastic_launch(alone(2, logs_specs=logs), jobs.talk)()
    [log] = (tmp_path / "logs").rglob("*.log")
    assert log.name == "stdout.log" and log.parent.name == "0"


def test_no_files() -> None:
    config = alone(1, logs_specs=LogsSpecs(log_dir=os.devnull))
    [environment] = elastic_launch(config, jobs.environment)().values()
    assert environment["TORCHELASTIC_ERROR_FILE"] == ""


def test_console_events(capfd: pytest.CaptureFixture[str]) -> None:
    elastic_launch(alone(1, event_log_handler="console"), ["true"])()
    err = capfd.readouterr().err
    assert '"name":"torchelastic.worker.status.SUCCEEDED"' in err


class Paths:
    """Decides where output goes; torch's LogsSpecs without torch."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.threads: list[threading.Thread] = []

    def path(self, env: dict[str, str], what: str) -> Path:
        return self.base / f"{what}.{env['TORCHELASTIC_RESTART_COUNT']}.{env['RANK']}"

    def reify(self, envs: dict[int, dict[str, str]]) -> Any:
        self.threads.append(threading.current_thread())
        envs[1]["ADDED"] = "yes"
        return types.SimpleNamespace(
            stdouts={r: self.path(env, "out") for r, env in envs.items()},
            stderrs={},
            tee_stdouts={1: self.path(envs[1], "out")},
            tee_stderrs={},
            error_files={r: self.path(env, "error") for r, env in envs.items()},
            filtered_stdout="",
            filtered_stderr="",
        )


def test_logs_by_plugin(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    logs = Paths(tmp_path)
    script = 'echo "$RANK$ADDED $TORCHELASTIC_ERROR_FILE"; [ $TORCHELASTIC_RESTART_COUNT = 1 ]'
    elastic_launch(alone(2, logs_specs=logs, max_restarts=1), ["sh", "-c", script])()
    assert (tmp_path / "out.1.0").read_text() == f"0 {tmp_path}/error.1.0\n"
    assert capfd.readouterr().out.endswith(f"1yes {tmp_path}/error.1.1\n")
    assert len(logs.threads) == 2 and threading.main_thread() not in logs.threads
    assert not logs.threads[0].is_alive()


def test_error_file_by_plugin(tmp_path: Path) -> None:
    with pytest.raises(ChildFailedError, match="traceback"):
        elastic_launch(alone(2, logs_specs=Paths(tmp_path)), jobs.fail)(0)
    assert (tmp_path / "error.0.0").exists()


def test_logs_by_subclass_of_torch(tmp_path: Path) -> None:
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std

    class Renamed(DefaultLogsSpecs):
        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            dest = super().reify(envs)
            dest.stdouts[0] = str(tmp_path / "zero")
            return dest

    logs = Renamed(str(tmp_path / "logs"), redirects=Std.OUT)
    elastic_launch(alone(2, logs_specs=logs), jobs.talk)()
    [log] = (tmp_path / "logs").rglob("1/stdout.log")
    assert (tmp_path / "zero").read_text() == "out 0\n" and log.read_text() == "out 1\n"


def test_plugin_for_logs_fails(tmp_path: Path) -> None:
    class Fails(Paths):
        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            raise KeyError("bucket")

    with pytest.raises(rallypoint.RallypointError, match="KeyError: 'bucket'"):
        elastic_launch(alone(2, logs_specs=Fails(tmp_path)), ["true"])()


def test_signal_while_plugin_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plug-in that hangs does not keep a signal from ending the launch."""
    go_on = threading.Event()

    class Hangs(Paths):
        def reify(self, envs: dict[int, dict[str, str]]) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            go_on.wait()
            return super().reify(envs)

    monkeypatch.setattr("rallypoint._launch.hooks.PATIENCE", 0.1)
    with pytest.raises(rallypoint.SignalException):
        elastic_launch(alone(2, logs_specs=Hangs(tmp_path)), ["true"])()
    go_on.set()


def test_events(tmp_path: Path) -> None:
    seen: list[tuple[str, str]] = []
    threads: set[threading.Thread] = set()

    def note(event: dict[str, Any]) -> None:
        threads.add(threading.current_thread())
        seen.append((event["source"], event["metadata"]["state"]))
        raise ValueError("a listener that fails")

    elastic_launch(alone(1), ["true"], on_event=note)()
    assert seen == [
        ("AGENT", "RENDEZVOUS"),
        ("AGENT", "ASSIGN_WORKER_RANKS"),
        ("WORKER", "START"),
        ("WORKER", "SUCCEEDED"),
        ("AGENT", "SUCCEEDED"),
    ]
    [thread] = threads
    assert thread is not threading.main_thread() and not thread.is_alive()


def test_events_of_failures() -> None:
    """One event of the agent's end: workers that fail are no failure of the agent (A38)."""

    def launch(config: Any, raises: type[BaseException]) -> list[dict[str, Any]]:
        events: list[dict[str, Any]] = []
        with pytest.raises(raises):
            elastic_launch(config, ["sh", "-c", "exit 7"], on_event=events.append)()
        return events

    *_, worker, agent = launch(alone(1), ChildFailedError)
    assert (worker["source"], worker["metadata"]["state"]) == ("WORKER", "FAILED")
    assert json.loads(worker["metadata"]["metadata"])["exit_code"] == [7]
    assert (agent["source"], agent["metadata"]["state"]) == ("AGENT", "SUCCEEDED")

    [config, _] = nodes(2, 1)
    config.rdzv_configs["join_timeout"] = 0.2
    [failed] = launch(config, rallypoint.DeadlineError)
    assert (failed["source"], failed["metadata"]["state"]) == ("AGENT", "FAILED")
    assert "1 of 2" in failed["metadata"]["raw_error"]


def test_listener_that_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the workers nor the launch wait for it."""
    pair = socket.socketpair

    def small_pair() -> tuple[socket.socket, socket.socket]:
        theirs, ours = pair()
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2048)
        return theirs, ours

    monkeypatch.setattr("rallypoint._launch.hooks.socket.socketpair", small_pair)
    monkeypatch.setattr("rallypoint._launch.hooks.PATIENCE", 0.1)
    go_on = threading.Event()
    # More events than the socket and the reader's own buffer hold, however late that one comes.
    elastic_launch(alone(48), ["true"], on_event=lambda event: go_on.wait())()
    go_on.set()
    assert "events_fd could not be written" in caplog.text  # a record of those that were dropped
    assert "rallypoint-events hangs" in caplog.text


def test_event_handler_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.distributed.elastic.events import handlers

    texts: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            texts.append(record.getMessage())

    monkeypatch.setitem(handlers._log_handlers, "mine", Handler())
    events: list[Any] = []
    launch_agent(alone(1, event_log_handler="mine"), ["true"], [], on_event=events.append)
    assert [json.loads(text) for text in texts] == events and len(events) == 5


def test_numa(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode and the devices reach the agent, which does not know such a device."""
    binding = pytest.importorskip("torch.numa.binding", reason="torch 2.9")

    monkeypatch.setattr("rallypoint._launch.run.devices", lambda: ["fffe:ff:1f.0"])
    options = binding.NumaOptions(affinity_mode=binding.AffinityMode.NODE)
    with pytest.raises(rallypoint.InvalidError, match=r"numa_binding: .*fffe:ff:1f\.0"):
        elastic_launch(alone(1, numa_options=options), ["true"])()
