"""elastic_launch and LaunchConfig (docs/spec/agent.md, sections 3 and 15)."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import types
import venv
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import launch_jobs as jobs
import pytest

import rallypoint
from rallypoint import ChildFailedError, LaunchConfig, LogsSpecs, elastic_launch, launch_agent
from rallypoint._launch.run import entry_name

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, in which a launch that succeeded leaves nothing."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    assert not list(folder.glob("rallypoint_*")), "the folder of a function is left behind"


def alone(workers: int = 2, **fields: Any) -> LaunchConfig:
    fields.setdefault("max_restarts", 0)
    return LaunchConfig(1, 1, workers, run_id="job", **fields)


def free_port() -> int:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port: int = s.getsockname()[1]
        return port


def nodes(count: int, workers: int, backend: str = "rallypoint", **fields: Any) -> list[Any]:
    """The configurations of the nodes of one job."""
    endpoint = f"127.0.0.1:{free_port()}"
    fields.setdefault("max_restarts", 0)
    return [
        LaunchConfig(
            count,
            count,
            workers,
            run_id="job",
            rdzv_backend=backend,
            rdzv_endpoint=endpoint,
            rdzv_configs={"rank": i, "node_rank": i},
            **fields,
        )
        for i in range(count)
    ]


def launch_all(configs: list[Any], entrypoint: Any, *args: Any) -> list[Future[dict[int, Any]]]:
    """Launches each node in a thread of its own and waits for all."""
    with ThreadPoolExecutor(len(configs)) as pool:
        return [pool.submit(elastic_launch(c, entrypoint), *args) for c in configs]


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


@pytest.fixture(scope="module")
def python_without_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment that has this package and nothing else."""
    folder = tmp_path_factory.mktemp("no-torch")
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "rallypoint").symlink_to(Path(rallypoint.__file__).parent)
    return str(folder / "bin" / "python")


# Commands


def touch_rank(folder: Path) -> str:
    return f"import os, pathlib; pathlib.Path({str(folder)!r}, os.environ['RANK']).touch()"


@pytest.mark.parametrize("as_list", [False, True])
def test_script(tmp_path: Path, temporary_folder: Path, as_list: bool) -> None:
    (tmp_path / "out").mkdir()
    code = touch_rank(tmp_path / "out")
    if as_list:
        results = elastic_launch(alone(4), [PYTHON, "-u", "-c", code])()
    else:
        results = elastic_launch(alone(4), PYTHON)("-u", "-c", code)
    assert results == dict.fromkeys(range(4))
    assert sorted(os.listdir(tmp_path / "out")) == ["0", "1", "2", "3"]
    assert not os.listdir(temporary_folder)


def test_shell_and_macros(tmp_path: Path) -> None:
    script = f'echo "$$0" > {tmp_path}/${{local_rank}}'  # $$ is a $ for the shell
    elastic_launch(alone(2), "/bin/sh")("-c", script, Path("x"))
    assert [(tmp_path / str(i)).read_text() for i in (0, 1)] == ["x\n", "x\n"]


def test_no_program() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        elastic_launch(alone(), "no-such-program")()
    assert caught.value.filename == "no-such-program"


def test_program_that_cannot_be_started(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(rallypoint.StartError, match=r"local rank 0.*permission denied"):
        elastic_launch(alone(), str(tmp_path / "data"))()


def test_entry_point_is_missing() -> None:
    for none in ("", [], None):
        with pytest.raises(rallypoint.InvalidError):
            elastic_launch(alone(), none)()  # type: ignore[arg-type]


def test_entry_names() -> None:
    """A36."""
    assert entry_name(jobs.add_rank, ()) == "add_rank"
    assert entry_name("/bin/echo", ("x",)) == "/bin/echo"
    assert entry_name(sys.executable, ("-u", "-m", "x.py")) == "x.py"
    assert entry_name(sys.executable, ("-u",)) == ""
    assert entry_name([sys.executable, "-u", "train.py"], ()) == "train.py"
    assert entry_name(None, ()) == ""


# Functions


def test_workers_take_nothing_from_the_current_directory(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir()
    for module in ("pickle", "signal", "string", "json", "multiprocessing"):
        (here / f"{module}.py").write_text("raise SystemExit('of the current directory')")
    (tmp_path / "train.py").write_text(
        textwrap.dedent("""
            from rallypoint import LaunchConfig, elastic_launch

            def double(number):
                return 2 * number

            if __name__ == "__main__":
                print(elastic_launch(LaunchConfig(1, 1, 1), double)(21))
        """)
    )
    done = subprocess.run(
        [PYTHON, str(tmp_path / "train.py")], cwd=here, capture_output=True, text=True, timeout=60
    )
    assert done.stdout == "{0: 42}\n", done.stderr


def test_function() -> None:
    assert elastic_launch(alone(4), jobs.add_rank)(10) == {0: 10, 1: 11, 2: 12, 3: 13}


def test_function_arguments() -> None:
    results = elastic_launch(alone(2), jobs.arguments)("a${local_rank}$$", {"b": [1]}, None, 2.5)
    assert results == {i: (f"a{i}$", {"b": [1]}, None, 2.5) for i in (0, 1)}


def test_virtual_local_rank() -> None:
    results = elastic_launch(alone(2, virtual_local_rank=True), jobs.arguments)("$local_rank")
    assert results == {0: ("0",), 1: ("1",)}, "macros keep the true rank (A40)"


def test_function_without_result() -> None:
    assert elastic_launch(alone(2), jobs.nothing)() == {0: None, 1: None}
    assert elastic_launch(alone(2), jobs.leave_hard)() == {0: None, 1: None}
    assert elastic_launch(alone(2), jobs.leave)(0) == {0: None, 1: None}


def test_large_results() -> None:
    results = elastic_launch(alone(2), jobs.bytes_of)(10_000_000)
    assert results == {i: bytes([i]) * 10_000_000 for i in (0, 1)}


@pytest.mark.long
def test_very_large_results() -> None:
    results = elastic_launch(alone(2), jobs.bytes_of)(100_000_000)
    assert {k: len(v) for k, v in results.items()} == {0: 100_000_000, 1: 100_000_000}


def test_environment() -> None:
    """A39; the agent's own error file is not the workers'."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ERROR_FILE", "/nowhere")
        patch.delenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", raising=False)
        config = alone(2, role="trainer", max_restarts=5, signals_to_handle="SIGTERM,SIGUSR1")
        [first, second] = elastic_launch(config, jobs.environment)().values()
    assert second["RANK"] == second["LOCAL_RANK"] == second["ROLE_RANK"] == "1"
    assert first["ROLE_NAME"] == "trainer"
    assert first["WORLD_SIZE"] == first["LOCAL_WORLD_SIZE"] == first["ROLE_WORLD_SIZE"] == "2"
    assert first["GROUP_RANK"] == "0" and first["GROUP_WORLD_SIZE"] == "1"
    assert first["TORCHELASTIC_RUN_ID"] == "job"
    assert first["TORCHELASTIC_MAX_RESTARTS"] == "5"
    assert first["TORCHELASTIC_RESTART_COUNT"] == "0"
    assert first["TORCHELASTIC_USE_AGENT_STORE"] == "True"
    assert first["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGUSR1"
    assert first["TORCH_NCCL_ASYNC_ERROR_HANDLING"] == "1"
    assert first["TORCHELASTIC_ERROR_FILE"].endswith("attempt_0/0/error.json")


def test_default_signals() -> None:
    [first] = elastic_launch(alone(1), jobs.environment)().values()
    assert first["TORCHELASTIC_SIGNALS_TO_HANDLE"] == "SIGTERM,SIGINT,SIGHUP,SIGQUIT"


def test_random_run_id() -> None:
    [first] = elastic_launch(LaunchConfig(1, 1, 1), jobs.environment)().values()
    assert first["TORCHELASTIC_RUN_ID"].isdecimal()


def test_store_of_the_workers() -> None:
    assert elastic_launch(alone(3), jobs.sum_of_ranks)() == {0: 3, 1: 3, 2: 3}


def test_functions_that_cannot_be_sent() -> None:
    for wrong in (lambda: None, jobs.unpicklable()):
        with pytest.raises(rallypoint.InvalidError, match=r"pickled.*top level"):
            elastic_launch(alone(), wrong)()  # type: ignore[arg-type]


def test_result_that_cannot_be_sent() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(1), jobs.unpicklable)()
    assert "pickle" in str(caught.value)


def run_script(tmp_path: Path, text: str, python: str = PYTHON) -> subprocess.CompletedProcess[str]:
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    return subprocess.run(
        [python, str(tmp_path / "main.py"), "argument"],
        capture_output=True,
        text=True,
        timeout=110,
    )


def test_function_of_the_main_program(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        import os, sys
        from rallypoint import LaunchConfig, elastic_launch

        class Pair:
            def __init__(self, a, b):
                self.a, self.b = a, b

        def make(x):
            assert sys.argv[1] == "argument" and __name__ == "__mp_main__"
            return Pair(x, os.environ["RANK"])

        if __name__ == "__main__":
            results = elastic_launch(LaunchConfig(1, 1, 2), make)(7)
            assert all(type(r) is Pair and r.a == 7 for r in results.values())
            print([r.b for r in results.values()])
        """,
    )
    assert (done.returncode, done.stdout) == (0, "['0', '1']\n"), done.stderr


NOTEBOOK = """
    import os
    from {package} import LaunchConfig, elastic_launch

    def double(number):
        return 2 * number + int(os.environ["RANK"])

    config = LaunchConfig(
        1, 1, 2, run_id="notebook", max_restarts=0, rdzv_backend="rallypoint",
        rdzv_endpoint="127.0.0.1:{port}", start_method="fork",
    )
    print(elastic_launch(config, double)(20))
"""


@pytest.mark.parametrize("package", ["rallypoint", "torch.distributed.launcher.api"])
def test_function_of_a_notebook(package: str) -> None:
    """Its module is no file: it is refused with the way that works, which is tried, too."""
    if package != "rallypoint":
        pytest.importorskip("torch")
    code = textwrap.dedent(NOTEBOOK.format(package=package, port=free_port()))
    done = subprocess.run(
        [PYTHON, "-"], input=code, capture_output=True, text=True, timeout=110, check=False
    )
    if package == "rallypoint":
        assert done.returncode == 1
        assert "torch.distributed.launcher.api.elastic_launch" in done.stderr
        assert 'start_method="fork"' in done.stderr
    else:
        assert done.stdout == "{0: 40, 1: 41}\n", done.stderr


def test_main_program_without_guard(tmp_path: Path, python_without_torch: str) -> None:
    done = run_script(
        tmp_path,
        """
        from rallypoint import LaunchConfig, elastic_launch
        def f(): pass
        elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0), f)()
        """,
        python_without_torch,  # whose import would only take time
    )
    assert done.returncode == 1
    assert 'if __name__ == "__main__":' in done.stderr


def test_function_of_a_session(run_python) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import rallypoint
        def f(): pass
        try:
            rallypoint.elastic_launch(rallypoint.LaunchConfig(1, 1, 1), f)()
        except rallypoint.InvalidError as e:
            assert "module" in str(e)
        else:
            raise AssertionError
        """
    )


# Failures


def test_failure_of_a_function() -> None:
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError as OfTorch

    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(2), jobs.fail)(1)
    error = caught.value
    assert isinstance(error, OfTorch) and isinstance(error, rallypoint.RallypointError)
    assert error.code == rallypoint.Code.WORKERS
    assert error.name == "fail" and set(error.failures) == {0, 1}
    rank, failure = error.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
    callstack = failure.message["extraInfo"]["py_callstack"]
    assert failure.message["message"] == "ValueError: rank 1 has had enough: \u00fc\u20ac"
    assert "in fail\n" in callstack and "raise ValueError" in callstack
    assert abs(failure.timestamp - int(failure.message["extraInfo"]["timestamp"])) <= 1
    assert error.failures[0].exitcode == -signal.SIGTERM
    assert "Root Cause" in str(error) and "ValueError: rank 1 has had enough" in str(error)


def test_failure_of_a_command() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(1), ["sh", "-c", "exit 7"])()
    _, failure = caught.value.get_first_failure()
    assert (failure.exitcode, failure.error_file) == (7, "<N/A>")
    assert "exitcode  : 7" in str(caught.value) and "sh FAILED" in str(caught.value)


def test_exit_code_of_a_function() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(1), jobs.leave)(138)
    _, failure = caught.value.get_first_failure()
    assert (failure.exitcode, failure.error_file) == (138, "<N/A>")


def test_signal_of_a_worker() -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(1), ["sh", "-c", "kill -SEGV $$$$"])()
    _, failure = caught.value.get_first_failure()
    assert (failure.exitcode, failure.signal_name()) == (-signal.SIGSEGV, "SIGSEGV")
    assert f"Signal 11 (SIGSEGV) received by PID {failure.pid}" in failure.message


def test_errors_can_be_sent_on() -> None:
    import pickle

    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(1), ["sh", "-c", "exit 7"])()
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value) and copy.code == caught.value.code
    assert copy.get_first_failure() == caught.value.get_first_failure()


def test_restarts() -> None:
    assert elastic_launch(alone(2, max_restarts=2), jobs.fail_until)(2) == {0: 2, 1: 2}
    with pytest.raises(ChildFailedError):
        elastic_launch(alone(2, max_restarts=1), jobs.fail_until)(2)


# Several nodes; each is launched from a thread


@pytest.mark.parametrize(
    "backend",
    ["rallypoint", "c10d", "static", "rallypoint-static", "rallypoint-file", "etcd", "etcd-v2"],
)
def test_two_nodes(tmp_path: Path, backend: str, request: pytest.FixtureRequest) -> None:
    configs = nodes(2, 2, backend)
    if backend in ("etcd", "etcd-v2"):  # torch's names
        etcd = request.getfixturevalue("etcd")
        for config in configs:
            config.run_id, config.rdzv_endpoint = backend, etcd.get_endpoint()
            config.local_addr = "127.0.0.1"
    (tmp_path / "shared").mkdir()
    if backend == "rallypoint-file":
        for config in configs:
            config.rdzv_endpoint, config.local_addr = str(tmp_path / "shared"), "127.0.0.1"
    first, second = launch_all(configs, jobs.sum_of_ranks)
    assert first.result() == {0: 6, 1: 6}
    assert second.result() == {2: 6, 3: 6}


def test_different_numbers_of_workers() -> None:
    """1, 2 and 3 workers: ranks 0 to 5, and the roles' own."""
    configs = nodes(3, 1)
    for i, config in enumerate(configs):
        config.nproc_per_node, config.role = i + 1, "ps" if i == 0 else "trainer"
    results = launch_all(configs, jobs.sum_of_ranks)
    assert [r.result() for r in results] == [{0: 15}, {1: 15, 2: 15}, {3: 15, 4: 15, 5: 15}]


@pytest.mark.parametrize(
    "backend",
    ["rallypoint", *(pytest.param(b, marks=pytest.mark.long) for b in ("etcd", "static"))],
)
@pytest.mark.parametrize("way", ["rpc", "tcp", pytest.param("env", marks=pytest.mark.long)])
def test_torch_meets(
    backend: str, way: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """RPC between roles, and process groups, through the round's store."""
    pytest.importorskip("torch")
    for name in ("GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "lo")
    configs = nodes(2, 1, backend)
    for config, role in zip(configs, ("master", "worker")):
        config.role, config.local_addr = role, "127.0.0.1"
        if backend == "etcd":
            config.rdzv_endpoint = request.getfixturevalue("etcd").get_endpoint()
            config.run_id = way
    if way == "rpc":
        first, second = launch_all(configs, jobs.torch_rpc)
        assert (first.result(), second.result()) == ({0: [("worker", 1, 0)]}, {1: []})
    else:
        first, second = launch_all(configs, jobs.torch_sum, way)
        assert (first.result(), second.result()) == ({0: 1}, {1: 1})


def test_elastic_job_of_one_node() -> None:
    config = LaunchConfig(
        1,
        2,
        2,
        run_id="job",
        rdzv_backend="rallypoint",
        rdzv_endpoint=f"127.0.0.1:{free_port()}",
        rdzv_configs={"last_call_timeout": "0.1", "lease_timeout": "0.2"},
    )
    assert elastic_launch(config, jobs.sum_of_ranks)() == {0: 1, 1: 1}


@pytest.mark.parametrize("backend", ["rallypoint", "static"])
def test_failure_of_another_node(backend: str) -> None:
    futures = launch_all(nodes(2, 1, backend), jobs.fail, 1)
    for future, code in zip(futures, (rallypoint.Code.CLOSED, rallypoint.Code.WORKERS)):
        error = future.exception()
        assert isinstance(error, ChildFailedError) and error.code == code
        rank, failure = error.get_first_failure()
        assert (rank, failure.exitcode) == (1, 1)
        assert "ValueError: rank 1 has had enough" in str(error)


def test_static_nodes_restart_together() -> None:
    results = launch_all(nodes(2, 1, "static", max_restarts=1), jobs.fail_until, 1)
    assert [r.result() for r in results] == [{0: 1}, {1: 1}]


def test_no_other_node() -> None:
    [config, _] = nodes(2, 1)
    config.rdzv_configs["join_timeout"] = 0.2
    with pytest.raises(rallypoint.DeadlineError, match="1 of 2"):
        elastic_launch(config, jobs.nothing)()


@pytest.mark.long
def test_gloo_over_static_nodes() -> None:
    pytest.importorskip("torch")
    first, second = launch_all(nodes(2, 1, "static"), jobs.gloo_sum)
    assert (first.result(), second.result()) == ({0: 1}, {1: 1})


@pytest.mark.long
def test_tensors() -> None:
    [first, second] = elastic_launch(alone(2), jobs.tensor)().values()
    assert first.tolist() == [0, 0, 0] and second.tolist() == [1, 1, 1]


# Signals


@contextlib.contextmanager
def launching(tmp_path: Path, config: str) -> Iterator[subprocess.Popen[str]]:
    """A program that launches workers which announce themselves."""
    (tmp_path / "main.py").write_text(
        textwrap.dedent(
            f"""
            import os, sys, time
            import rallypoint
            from rallypoint import LaunchConfig, elastic_launch
            sys.path.append({os.path.dirname(__file__)!r})

            def work():
                os.write(1, b"worker %d\\n" % os.getpid())  # in one piece
                time.sleep(1000)

            if __name__ == "__main__":
                try:
                    elastic_launch(LaunchConfig(1, 1, 2, {config}), work)()
                except rallypoint.SignalException as e:
                    assert "torch" not in sys.modules, "people wait for this"
                    print("signal", int(e.sigval), str(e), flush=True)
                except KeyboardInterrupt:
                    print("interrupt", flush=True)
            """
        )
    )
    (tmp_path / "own").mkdir()
    program = subprocess.Popen(
        [PYTHON, str(tmp_path / "main.py")],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "own")},
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def worker_pids(program: subprocess.Popen[str]) -> list[int]:
    assert program.stdout is not None
    return [int(program.stdout.readline().split()[1]) for _ in range(2)]


def gone(pids: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1]
)
def test_signals(tmp_path: Path, number: signal.Signals) -> None:
    handled = "SIGTERM, SIGINT,SIGHUP,SIGQUIT,SIGUSR1,SIGNONE"
    with launching(tmp_path, f"signals_to_handle={handled!r}") as program:
        pids = worker_pids(program)
        program.send_signal(number)
        out, _ = program.communicate(timeout=110)
        assert out == f"signal {int(number)} Process {program.pid} got signal: {int(number)}\n"
        assert program.returncode == 0 and gone(pids)
        assert not list((tmp_path / "own").glob("rallypoint_*"))


def test_keyboard_interrupt(tmp_path: Path) -> None:
    with launching(tmp_path, "signals_to_handle='SIGTERM'") as program:
        pids = worker_pids(program)
        program.send_signal(signal.SIGINT)
        out, _ = program.communicate(timeout=110)
        assert (out, program.returncode) == ("interrupt\n", 0)
        assert gone(pids)


def test_killed_launcher(tmp_path: Path) -> None:
    """Workers end with the program that launched them (W4)."""
    with launching(tmp_path, "") as program:
        pids = worker_pids(program)
        descriptors = [os.pidfd_open(pid) for pid in pids]
        program.kill()
        import select

        for descriptor in descriptors:
            ready, _, _ = select.select([descriptor], [], [], 60)
            assert ready
            os.close(descriptor)


def test_detached_descendants(tmp_path: Path) -> None:
    """What workers started in sessions of their own ends with the launch, too (W3)."""
    script = "setsid sh -c 'echo \"$$$$\" > pid; exec sleep 1000' & until [ -s pid ]; do :; done"
    with in_folder(tmp_path):
        elastic_launch(alone(1), "sh")("-c", script)
    stat = Path(f"/proc/{int((tmp_path / 'pid').read_text())}/stat")
    assert not stat.exists() or stat.read_text().rpartition(") ")[2].startswith("Z")


def test_signal_exception_is_that_of_torch() -> None:
    from torch.distributed.elastic.multiprocessing import SignalException

    def interrupt(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGUSR2)

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(SignalException) as caught:
            elastic_launch(alone(1, signals_to_handle="SIGUSR2"), ["sleep", "1000"])()
    finally:
        signal.signal(signal.SIGALRM, before)
    assert caught.value.sigval == signal.SIGUSR2


def test_handlers_are_put_back() -> None:
    assert threading.current_thread() is threading.main_thread()
    before = [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)]
    elastic_launch(alone(1), ["true"])()
    assert [signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)] == before


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
    elastic_launch(alone(16), ["true"], on_event=lambda event: go_on.wait())()
    go_on.set()
    assert "events are lost" in caplog.text and "rallypoint-events hangs" in caplog.text


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
    ],
)
def test_wrong_configurations(fields: dict[str, Any], says: str) -> None:
    given: dict[str, Any] = {"min_nodes": 1, "max_nodes": 1, "nproc_per_node": 1, "run_id": "job"}
    with pytest.raises(rallypoint.InvalidError, match=says):
        elastic_launch(LaunchConfig(**{**given, **fields}), ["true"])()


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
    import json

    message = json.loads(own.read_text())["message"]
    assert message["message"] == "ValueError: no" and message["errorCode"] == 1


def test_report_is_that_of_the_agent() -> None:
    """The report that the package makes without torch is the agent's, byte for byte."""
    from rallypoint._launch import failure_plain as plain

    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(3), jobs.fail)(1)
    error = caught.value
    made = plain.ChildFailedError(error.name, error.failures, root=1)
    ours, its = made.format_msg().split("\n"), str(error).split("\n")
    assert [line for line in ours if "  host  " not in line] == [
        line for line in its if "  host  " not in line
    ]
    assert set(made.format_msg("*", "+").splitlines()[1]) == {"*"}


@pytest.mark.parametrize("count", [1, 2])
def test_example(count: int) -> None:
    """examples/launch/pi.py, alone and on two nodes."""
    example = Path(__file__).resolve().parents[2] / "examples" / "launch" / "pi.py"
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
