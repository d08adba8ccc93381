"""The console script: the library's command in a Python process."""

from __future__ import annotations

import fcntl
import os
import signal
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

import rallypoint

COMMAND = [sys.executable, "-c", "import sys; from rallypoint._cli import main; sys.exit(main())"]


IGNORE_CHILDREN = (
    "import os, signal, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, timeout=60)


def test_help() -> None:
    done = run("--help")
    assert done.returncode == 0 and done.stderr == ""
    assert "rallypoint serve" in done.stdout


def test_version() -> None:
    assert rallypoint.__version__ in run("--version").stdout + run("version").stdout


def test_wrong_usage() -> None:
    done = run("no-such-command")
    assert done.returncode == 2
    assert "no-such-command" in done.stderr and "Traceback" not in done.stderr


def test_has_what_its_help_names(tmp_path: Path) -> None:
    """The file of options, as the command without Python has."""
    options = tmp_path / "serve.yaml"
    options.write_text("max-nodes: many\n")
    options.chmod(0o600)
    done = run("serve", "--config", str(options))
    assert done.returncode == 2 and "max-nodes" in done.stderr and str(options) in done.stderr


def test_imports_little(run_python) -> None:  # type: ignore[no-untyped-def]
    """Neither torch nor most of the package: --help is quick."""
    run_python(
        """
        import sys
        before = set(sys.modules)
        from rallypoint import _cli
        for name in ("torch", "logging", "importlib.metadata", "rallypoint._rendezvous.member"):
            assert name not in sys.modules, name
        slow = {"enum", "re", "signal", "threading", "typing", "rallypoint._native"}
        assert not (set(sys.modules) - before) & slow, slow
        """
    )


def test_closed_streams(tmp_path: Path) -> None:
    """A launcher without standard streams has no descriptor of its own in their place."""
    said = tmp_path / "said"
    links = " ".join(f"/proc/{who}/fd/{n}" for who in ("$PPID", "$$") for n in range(3))
    worker = f'links=$(readlink {links}); echo "$links" > {said}'
    launch = [*COMMAND, "run", "--standalone", "--no-python", "--no-macros", "sh", "-c", worker]
    close = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh"]
    assert subprocess.run([*close, *launch], timeout=60).returncode == 0
    *others, stderr = said.read_text().split()
    assert others == ["/dev/null"] * 5 and stderr.startswith("pipe:")


def test_ignored_children() -> None:
    """Exit codes are learned also below a supervisor that ignores SIGCHLD."""
    launch = [*COMMAND, "run", "--standalone", "--keep-daemons", "--no-python", "true"]
    done = subprocess.run(
        [sys.executable, "-c", IGNORE_CHILDREN, *launch],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_a_server(number: int) -> None:
    process = subprocess.Popen(
        [*COMMAND, "serve", "--listen", "127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if "127.0.0.1:" in line:
                break
        process.send_signal(number)
        assert process.wait(30) == 0
    finally:
        process.kill()
        process.communicate()


def test_closed_pipe() -> None:
    """`rallypoint --help | head -1` ends quietly."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer) as closed:
        done = subprocess.run(
            [*COMMAND, "--help"], stdout=closed, stderr=subprocess.PIPE, text=True, timeout=60
        )
    assert done.stderr == ""


def test_missing_library(tmp_path) -> None:  # type: ignore[no-untyped-def]
    done = subprocess.run(
        [*COMMAND, "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "RALLYPOINT_LIBRARY": str(tmp_path / "none.so")},
    )
    assert done.returncode == 1
    assert done.stderr.startswith("rallypoint: ") and "Traceback" not in done.stderr


def test_workers_run_in_this_interpreter(tmp_path: Path) -> None:
    script = tmp_path / "which.py"
    script.write_text("import sys; print(sys.executable)")
    done = subprocess.run(
        [*COMMAND, "run", str(script)],
        capture_output=True,
        text=True,
        timeout=60,
        env={k: v for k, v in os.environ.items() if k != "VIRTUAL_ENV"},
    )
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n"), done.stderr


def test_workers_run_in_the_active_environment(tmp_path: Path) -> None:
    """As `uv tool install` and pipx need it, whose environments hold no packages but ours."""
    python = tmp_path / "active" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\necho "active $*"\n')
    python.chmod(0o755)
    (tmp_path / "train.py").touch()
    env = {**os.environ, "VIRTUAL_ENV": str(tmp_path / "active")}
    command = [*COMMAND, "run", "train.py"]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, env=env, cwd=tmp_path
    )
    assert (done.returncode, done.stdout) == (0, "active -u train.py\n"), done.stderr
    assert f"workers run in {python}, of $VIRTUAL_ENV, and not in {sys.executable}" in done.stderr


def test_module_names_the_interpreter(tmp_path: Path) -> None:
    """`python -m rallypoint` has: VIRTUAL_ENV may be left over from another terminal."""
    other = tmp_path / "other" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.symlink_to(sys.executable)
    script = tmp_path / "which.py"
    script.write_text("import sys; print(sys.executable)")
    env = {**os.environ, "VIRTUAL_ENV": str(tmp_path / "other")}
    command = [sys.executable, "-m", "rallypoint", "run", str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=env)
    assert (done.returncode, done.stdout) == (0, f"{sys.executable}\n"), done.stderr
    assert f"and not in {other} of $VIRTUAL_ENV" in done.stderr


FOLLOWED = "any('pydevd' in name for name in sys.modules)"


@pytest.mark.parametrize(
    ("options", "module"),
    [
        ([], False),
        (["--warm"], True),
        (["--nproc-per-node=2"], False),
        pytest.param([], True, marks=pytest.mark.long),
        pytest.param(["--warm"], False, marks=pytest.mark.long),
        pytest.param(["--nproc-per-node=2"], True, marks=pytest.mark.long),
    ],
)
def test_debugger_follows(tmp_path: Path, options: list[str], module: bool) -> None:
    """As VS Code starts it, whose debugger follows child processes."""
    script = tmp_path / "train.py"
    script.write_text(f"import sys; print(sys.argv[1:], {FOLLOWED}, __name__)")
    named = ["-m", "train"] if module else [str(script)]
    done = debug(tmp_path, "-m", "rallypoint", "run", *options, *named, "--lr=3")
    workers = 2 if "--nproc-per-node=2" in options else 1
    assert (done.returncode, done.stdout) == (0, "['--lr=3'] True __main__\n" * workers), (
        done.stderr
    )


def test_debugger_follows_functions(tmp_path: Path) -> None:
    script = tmp_path / "launch.py"
    script.write_text(f"""
import sys
import rallypoint

def work():
    return {FOLLOWED}

if __name__ == "__main__":
    config = rallypoint.LaunchConfig(min_nodes=1, max_nodes=1, nproc_per_node=2)
    print(rallypoint.elastic_launch(config, work)())
""")
    done = debug(tmp_path, str(script))
    assert (done.returncode, done.stdout) == (0, "{0: True, 1: True}\n"), done.stderr


def debug(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "debugpy", "--listen", "127.0.0.1:0", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        cwd=folder,
        env={**os.environ, "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
    )


@pytest.mark.parametrize("program", [["-m", "rallypoint", "--version"], ["-c", "LOAD"]])
def test_low_limit_of_addresses(program: list[str]) -> None:
    """One line says so: Go's runtime would end the process with a dump of itself."""
    load = "import rallypoint; rallypoint.connect_store('127.0.0.1', 1, timeout=1)"
    arguments = [load if a == "LOAD" else a for a in program]
    done = subprocess.run(
        ["sh", "-c", 'ulimit -v 600000; exec "$0" "$@"', sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "goroutine" not in done.stderr
    last = done.stderr.splitlines()[-1]
    assert "(ulimit -v) is 600000 KiB" in last and "2000000 or more" in last


@pytest.mark.parametrize(
    ("name", "limit", "said"),
    [("NPROC", 5, "may have 5 processes and threads (ulimit -u)"), ("NOFILE", 8, "(ulimit -Hn)")],
)
def test_low_limit(name: str, limit: int, said: str) -> None:
    """The same for threads and descriptors. Root has no limit of threads."""
    code = (
        "import os, resource, sys; from rallypoint import _cli\n"
        f"resource.setrlimit(resource.RLIMIT_{name}, ({limit}, {limit}))\n"
        "os.getuid() or os.setuid(61234)\n"
        "sys.argv[1:] = ['run', '--no-python', 'true']; sys.exit(_cli.main())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and said in done.stderr and done.stderr.count("\n") == 1


def test_terminal_is_resized() -> None:
    """Workers see the size of the command's terminal, as under torchrun, also a new one."""

    def resize(rows: int, columns: int) -> None:
        fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    ours, theirs = os.openpty()
    resize(11, 77)
    script = (
        'size() { stty size <&2; }; [ "$(size)" = "11 77" ] || exit 3; '
        'echo up; until [ "$(size)" = "12 78" ]; do sleep 0.01; done'
    )
    with subprocess.Popen(
        [*COMMAND, "run", "--no-macros", "--no-python", "sh", "-c", script],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    ) as command:
        assert command.stdout is not None and command.stdout.readline() == b"up\n"
        resize(12, 78)
        command.send_signal(signal.SIGWINCH)
        assert command.wait(60) == 0
    os.close(ours)
    os.close(theirs)
