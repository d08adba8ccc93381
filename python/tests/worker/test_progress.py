"""rallypoint.progress: a worker's steps, as the record and the agent have them."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from harness import free_port

import rallypoint
from rallypoint import LaunchConfig, LogsSpecs, elastic_launch

RECORD = struct.Struct("<8sIIqQQQ16x")


def new_record(path: Path, version: int = 1, size: int = 64, magic: bytes = b"rp-steps") -> Path:
    path.write_bytes(RECORD.pack(magic, version, size, -1, 0, 0, 0))
    return path


def step_in(path: Path) -> int:
    return int(RECORD.unpack(path.read_bytes())[3])


def run(script: str, record: Path | str | None) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k != "RALLYPOINT_PROGRESS_FILE"}
    if record is not None:
        env["RALLYPOINT_PROGRESS_FILE"] = str(record)
    return subprocess.run(
        [sys.executable, "-c", "import rallypoint\n" + textwrap.dedent(script)],
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_step_is_in_the_record_and_that_the_worker_can_be_held(tmp_path: Path) -> None:
    record = new_record(tmp_path / "record")
    done = run("rallypoint.progress(41200); rallypoint.progress(True)", record)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert record.read_bytes() == RECORD.pack(b"rp-steps", 1, 64, 1, 0, 0, 1)


def test_a_worker_can_be_held_from_its_import_on(tmp_path: Path) -> None:
    """Else the agent would take one that has not come to its first step for one that never does."""
    record = new_record(tmp_path / "record")
    done = run(
        "import sys; assert 'torch' not in sys.modules and 'ctypes' not in sys.modules", record
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert record.read_bytes() == RECORD.pack(b"rp-steps", 1, 64, -1, 0, 0, 1)


def test_it_returns_nothing_and_needs_neither_torch_nor_the_library(tmp_path: Path) -> None:
    done = run(
        """
        import sys
        assert rallypoint.progress(2**63 - 1) is None
        assert not {"torch", "ctypes", "logging"} & set(sys.modules), sys.modules.keys()
        """,
        new_record(tmp_path / "record"),
    )
    assert done.stderr == ""
    assert step_in(tmp_path / "record") == 2**63 - 1


def test_after_the_first_a_report_makes_no_call_of_the_system(tmp_path: Path) -> None:
    """The kernel counts the calls: seccomp in strict mode allows read, write and exit."""
    record = new_record(tmp_path / "record")
    done = run(
        """
        import ctypes, os
        rallypoint.progress(0)
        libc = ctypes.CDLL(None)
        exit = {"x86_64": 60, "aarch64": 93}[os.uname().machine]  # and not exit_group
        steps = list(range(1000))
        PR_SET_SECCOMP, STRICT = 22, 1
        assert libc.prctl(PR_SET_SECCOMP, STRICT) == 0
        for step in steps:
            rallypoint.progress(step)
        libc.syscall(exit, 7)
        """,
        record,
    )
    if "AssertionError" in done.stderr:
        pytest.skip("seccomp is not allowed here")
    assert (done.returncode, done.stderr) == (7, "")
    assert step_in(record) == 999


@pytest.mark.parametrize(
    "step", [-1, 2**63, -(2**70), 1 << 20000], ids=lambda n: f"{n.bit_length()}"
)
def test_a_step_out_of_range(step: int) -> None:
    with pytest.raises(ValueError, match=r"a step is from 0 to 9223372036854775807, not"):
        rallypoint.progress(step)


@pytest.mark.parametrize("step", [1.0, "1", None, b"1", [1], 1j, float("nan")])
def test_a_step_that_is_no_integer(step: Any) -> None:
    with pytest.raises(TypeError, match="a step is an integer, not"):
        rallypoint.progress(step)


def test_a_refused_step_leaves_the_record_alone(tmp_path: Path) -> None:
    record = new_record(tmp_path / "record")
    script = """
        rallypoint.progress(5)
        for wrong in (-1, 2.5, 2**63):
            try:
                rallypoint.progress(wrong)
            except (TypeError, ValueError):
                continue
            raise AssertionError(wrong)
        """
    assert run(script, record).stderr == ""
    assert step_in(record) == 5


def test_integers_of_other_kinds(tmp_path: Path) -> None:
    record = new_record(tmp_path / "record")
    done = run(
        """
        class Index:
            def __index__(self): return 77
            def __lt__(self, other): return False
        rallypoint.progress(Index())
        """,
        record,
    )
    assert done.stderr == ""
    assert step_in(record) == 77


@pytest.mark.parametrize("given", [None, ""])
def test_without_a_record_nothing_happens(given: str | None) -> None:
    done = run("rallypoint.progress(3)", given)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"version": 2}, "it is a progress record of version 2 with 64 bytes, this release knows"),
        ({"size": 128}, "it is a progress record of version 1 with 128 bytes, this release knows"),
        ({"magic": b"another!"}, "it is not a progress record"),
    ],
)
def test_a_record_of_another_kind_is_left_alone(
    tmp_path: Path, made: dict[str, Any], said: str
) -> None:
    record = new_record(tmp_path / "record", **made)
    before = record.read_bytes()
    done = run("for step in range(9): rallypoint.progress(step)", record)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert said in done.stderr
    assert str(record) in done.stderr
    assert record.read_bytes() == before


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing", "No such file"),
        ("short", "it has 63 bytes"),
        ("folder", "directory"),
        ("fifo", "it has 0 bytes"),
    ],
)
def test_what_is_no_record_at_all(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "short").write_bytes(bytes(63))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "fifo")
    done = run("rallypoint.progress(1)", tmp_path / name)
    assert done.returncode == 0
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


def test_threads_and_a_forked_child_report_into_one_record(tmp_path: Path) -> None:
    record = new_record(tmp_path / "record")
    done = run(
        """
        import os, threading
        rallypoint.progress(1)
        child = os.fork()
        if child == 0:
            rallypoint.progress(2)
            os._exit(0)
        os.waitpid(child, 0)
        words = memoryview(open(os.environ["RALLYPOINT_PROGRESS_FILE"], "rb").read()).cast("q")
        assert words[2] == 2, words[2]
        thread = threading.Thread(target=rallypoint.progress, args=(3,))
        thread.start()
        thread.join()
        """,
        record,
    )
    assert done.stderr == ""
    assert step_in(record) == 3


def worker(gate: str) -> int:
    """Goes back behind the step at which the first attempt failed."""
    again = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
    rallypoint.progress((7 if again else 10) + int(os.environ["RANK"]))
    with open(f"{gate}.{os.environ['TORCHELASTIC_RESTART_COUNT']}") as f:
        f.read()
    if not again:
        raise SystemExit(3)
    return step_in(Path(os.environ["RALLYPOINT_PROGRESS_FILE"]))


def test_the_agent_knows_the_steps_of_workers_that_are_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From elastic_launch, whose workers and agent are the package's own."""
    port = free_port()
    monkeypatch.setenv("TORCHELASTIC_HEALTH_CHECK_PORT", str(port))
    monkeypatch.setenv("RALLYPOINT_PROGRESS_DIR", str(tmp_path / "records"))
    (tmp_path / "records").mkdir()
    gate = tmp_path / "gate"
    for attempt in "01":
        os.mkfifo(f"{gate}.{attempt}")
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=2,
        max_restarts=1,
        rdzv_backend="static",
        rdzv_endpoint="127.0.0.1:0",
        rdzv_configs={"rank": 0},
        logs_specs=LogsSpecs(log_dir=str(tmp_path / "logs")),
    )
    result: list[Any] = []
    launch = threading.Thread(
        target=lambda: result.append(elastic_launch(config, worker)(str(gate)))
    )
    launch.start()
    seen = []
    for attempt in "01":
        with open(f"{gate}.{attempt}", "w"):  # there is a reader: a worker has reported
            while True:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/status") as answer:
                    status = json.load(answer)
                found = status.get("progress")
                if found and found["reporting_workers"] == 2 and found["round"] == int(attempt) + 1:
                    break
            seen.append((found["smallest_step"], found["step"]))
    launch.join()
    assert seen == [(10, 11), (7, 8)]
    assert result == [{0: 7, 1: 8}]
    assert list((tmp_path / "records").iterdir()) == []


def report_and_wait(gate: str) -> None:
    rallypoint.progress(41200)
    with open(gate) as f:
        f.read()


def test_a_job_of_torch_agents_class_is_in_the_status(tmp_path: Path) -> None:
    """RallypointElasticAgent runs the workers over a handler's member, which carries the steps."""
    pytest.importorskip("torch")

    from torch.distributed.elastic.agent.server.api import WorkerSpec
    from torch.distributed.elastic.rendezvous import RendezvousParameters

    from rallypoint.agent import RallypointElasticAgent
    from rallypoint.handler import create_handler

    endpoint = f"127.0.0.1:{free_port()}"
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    params = RendezvousParameters(
        "rallypoint", endpoint, "job", 1, 1, lease_timeout="1.5", reconnect_grace="1"
    )
    spec = WorkerSpec(
        "trainer",
        1,
        entrypoint=report_and_wait,
        args=(str(gate),),
        rdzv_handler=create_handler(params),
        max_restarts=0,
    )
    agent = RallypointElasticAgent(spec)
    launch = threading.Thread(target=agent.run)
    launch.start()
    with open(gate, "w"):
        progress = None
        while progress is None:
            with urllib.request.urlopen(f"http://{endpoint}/status") as answer:
                progress = json.load(answer)["runs"][0]["progress"]
            time.sleep(0.02)  # no event of this process tells of a heartbeat
    launch.join()
    assert (progress["step"], progress["nodes"], progress["behind"]) == (41200, 1, None)


def test_who_is_busy_says_until_when(tmp_path: Path) -> None:
    """The longest of what lies within each other counts, and nothing stays, whatever is raised."""
    record = new_record(tmp_path / "record")
    done = run(
        """
        import struct, subprocess, sys, time
        def left():
            with open({path!r}, "rb") as f:
                f.seek(40)
                word, = struct.unpack("<Q", f.read(8))
            assert word & 0xff == 1, word
            return word >> 8 and (word >> 8) / 1000 - time.monotonic()
        assert left() == 0
        again = rallypoint.busy("evaluation", within=50)
        with rallypoint.busy("checkpoint"):
            assert 590 < left() <= 600.01, left()
            with again:
                assert 590 < left() <= 600.01, left()
            subprocess.run([sys.executable, "-c", "import rallypoint"], check=True)
            assert left() > 590, left()
        assert left() == 0
        try:
            with again, again:
                assert 40 < left() <= 50.01, left()
                raise KeyError
        except KeyError:
            assert left() == 0
        with rallypoint.busy("long", within=float("inf")):
            assert left() > 1e8
        for wrong in (0, -1, float("nan")):
            try:
                rallypoint.busy("x", within=wrong)
            except ValueError as e:
                assert str(e) == "busy('x'): within is %s, it must be greater than 0" % wrong
            else:
                raise AssertionError(wrong)
        """.replace("{path!r}", repr(str(record))),
        record,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    without = run("with rallypoint.busy('x'): rallypoint.progress(1)", None)
    assert (without.returncode, without.stderr) == (0, "")
