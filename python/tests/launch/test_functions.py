"""elastic_launch of commands and functions, and how they fail."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import launch_jobs as jobs
import pytest
from harness import free_port
from launch.harness import PYTHON, alone, run_script

import rallypoint
from rallypoint import ChildFailedError, LaunchConfig, elastic_launch
from rallypoint._launch.agent import Agent, Job
from rallypoint._launch.run import entry_name

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


def test_result_outlives_finalisation() -> None:
    """What finalisation would make of the process is no failure of a function that returned."""
    assert elastic_launch(alone(2), jobs.abort_at_finalisation)() == {0: 0, 1: 1}
    assert elastic_launch(alone(1), jobs.abort_at_finalisation)(None) == {0: None}


@pytest.mark.parametrize(("end", "code"), [("raise", 1), (7, 7), (-1, 255)])
def test_exit_code_outlives_finalisation(end: object, code: int) -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(1), jobs.abort_at_finalisation)(end)
    _, failure = caught.value.get_first_failure()
    assert failure.exitcode == code
    if end == "raise":
        assert "ValueError: the function's own" in str(caught.value)


def test_text_of_an_exit(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ChildFailedError) as caught:
        elastic_launch(alone(1), jobs.leave)("the reason")  # the interpreter's own end
    assert caught.value.get_first_failure()[1].exitcode == 1
    assert "the reason\n" in capfd.readouterr().err


def test_streams_that_cannot_be_flushed() -> None:
    """The interpreter says so, and ends with 120, as it does elsewhere."""
    for job in (jobs.print_to_full, jobs.print_to_full_and_fail):
        with pytest.raises(ChildFailedError) as caught:
            elastic_launch(alone(1), job)()
        assert caught.value.get_first_failure()[1].exitcode == 120


def test_end_of_a_worker(tmp_path: Path) -> None:
    """Threads are awaited, exit callbacks run, files and streams flushed."""
    logs = rallypoint.LogsSpecs(str(tmp_path / "logs"), redirects=3)
    (tmp_path / "out").mkdir()
    elastic_launch(alone(1, logs_specs=logs), jobs.leave_unfinished)(str(tmp_path / "out"))
    written = {p.name: p.read_text() for p in (tmp_path / "out").iterdir()}
    assert written == {"file0": "file", "thread0": "thread", "callback0": "callback"}
    [out, err] = (
        next((tmp_path / "logs").rglob(f"{s}.log")).read_text() for s in ("stdout", "stderr")
    )
    assert sorted(out.splitlines()) == ["of C", "of Python"]
    assert err.count("ValueError: of an exit callback") == 1


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


def test_timer_file(tmp_path: Path) -> None:
    """An agent names the FIFO of its workers' timers in its own process, too, for as long as it is
    there. A second one meanwhile has a FIFO of its own, and a path that was given stays."""
    name = "TORCHELASTIC_TIMER_FILE"

    def launch() -> str:
        return str(elastic_launch(alone(1), jobs.variable)(name)[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ENABLE_FILE_TIMER", "1")
        patch.delenv(name, raising=False)
        command = ["sh", "-c", f'echo "$${name}" >{tmp_path}/path']
        with Agent(Job(command, {}, 1, name="sh")) as agent:
            path = os.environ[name]
            assert path.startswith(tempfile.gettempdir())
            assert launch() not in ("", path) and os.environ[name] == path
            agent.run()
        assert (tmp_path / "path").read_text() == f"{path}\n"
        assert name not in os.environ
        patch.setenv(name, str(tmp_path / "given"))
        assert launch() == str(tmp_path / "given") == os.environ[name]


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


EARLIER = """
    import os
    import torch
    from torch.distributed.launcher import api

    def available():
        print("asked", os.environ.get("PYTORCH_NVML_BASED_CUDA_CHECK"))
        return False

    torch.accelerator.is_available = available
    api.LaunchConfig.__dataclass_fields__.pop("shutdown_timeout", None)
"""


def test_function_of_a_notebook() -> None:
    """Its module is no file: torch's launcher forks its workers, called by us or by the program. An
    earlier one has fewer options, and asks for GPUs before it forks: not so that a forked process
    could use none."""
    pytest.importorskip("torch", minversion="2.6")  # which has torch.accelerator
    ours = textwrap.dedent(NOTEBOOK.format(package="rallypoint", port=free_port()))
    torchs = NOTEBOOK.format(package="torch.distributed.launcher.api", port=free_port())
    done = notebook(ours + textwrap.dedent(torchs) + textwrap.dedent(EARLIER) + ours)
    results = "{0: 40, 1: 41}"
    assert done.stdout.startswith(f"{results}\n{results}\n"), done.stderr
    *asked, last = done.stdout.splitlines()[2:]
    assert last == results, done.stderr
    assert set(asked) <= {"asked 1"}


def notebook(code: str) -> subprocess.CompletedProcess[str]:
    """Runs a program that is no file, as a notebook is none."""
    return subprocess.run(
        [PYTHON, "-"], input=code, capture_output=True, text=True, timeout=110, check=False
    )


REFUSED = """
    import logging, threading, torch
    from rallypoint import ChildFailedError, InvalidError, LaunchConfig, elastic_launch

    def fails():
        raise ValueError("loss is nan")

    def launch(**more):
        try:
            elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0, **more), fails)()
        except (InvalidError, ChildFailedError) as e:
            print(type(e).__name__, e.failures[0].exitcode if hasattr(e, "failures") else e)

    launch()
    launch(start_method="fork", warm=True)
    go = threading.Event()
    loader = threading.Thread(target=go.wait, name="loader")
    loader.start()
    launch(start_method="fork")
    go.set()
    loader.join()
    torch.cuda.is_initialized = lambda: True
    launch(start_method="fork")
    torch.cuda.is_initialized = lambda: False
    logging.disable()  # torch imports its compiler to log the failure
    launch(start_method="fork")
"""


def test_when_a_notebook_is_not_forked() -> None:
    """What would make a forked worker hang is refused, with the reason and the other way."""
    pytest.importorskip("torch", minversion="2.5")
    said = notebook(textwrap.dedent(REFUSED)).stdout.splitlines()
    wanted = [
        'start_method="fork"',
        "torch's launcher has no warm",
        "thread 'loader' runs",
        "this process has used CUDA",
        "ChildFailedError 1",
    ]
    assert len(said) == len(wanted), said
    for line, part in zip(said, wanted):
        assert part in line


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
    assert error.name == "fail" and set(error.failures) == {1}
    rank, failure = error.get_first_failure()
    assert (rank, failure.local_rank, failure.exitcode) == (1, 1, 1)
    callstack = failure.message["extraInfo"]["py_callstack"]
    assert failure.message["message"] == "ValueError: rank 1 has had enough: \u00fc\u20ac"
    assert "in fail\n" in callstack and "raise ValueError" in callstack
    assert abs(failure.timestamp - int(failure.message["extraInfo"]["timestamp"])) <= 1
    assert "(terminated by agent)" in str(error), "the report names those that were stopped"
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


def test_folder_of_a_killed_process(temporary_folder: Path) -> None:
    """The next launch removes it, and leaves that of a process which lives alone."""
    code = (
        "import sys; from rallypoint._launch.function import FunctionJob\n"
        "with FunctionJob(print, ()) as job: print(job.folder, flush=True); sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    others = [subprocess.Popen([PYTHON, "-c", code], **pipes) for _ in range(2)]  # type: ignore[call-overload]
    killed, lives = [Path(other.stdout.readline().strip()) for other in others]
    others[0].kill()
    others[0].wait()
    assert killed.parent == lives.parent == temporary_folder
    assert killed.exists()
    assert elastic_launch(alone(1), len)("abc") == {0: 3}
    assert lives.exists()
    assert not killed.exists()
    others[1].communicate()
    assert others[1].returncode == 0
    assert not lives.exists()
