"""Signals and the end of a program that launches."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest
from launch.harness import PYTHON, alone, gone, in_folder, launching, worker_pids

from rallypoint import elastic_launch
from rallypoint._native import library


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1]
)
def test_signals(tmp_path: Path, number: signal.Signals) -> None:
    if signal.getsignal(number) is signal.SIG_IGN:  # as of SIGHUP under nohup: programs inherit it
        signal.signal(number, signal.SIG_DFL)
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


def test_agent_at_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits for events, and asks now and then only whether the log has something."""
    calls: list[str] = []
    call = library.call

    def counted(name: str, *args: object) -> int:
        calls.append(name)
        return call(name, *args)

    monkeypatch.setattr(library, "call", counted)
    elastic_launch(alone(1), "sleep")("2")
    assert calls.count("rp_agent_run") < 20, calls


_LOADS = """
import os, signal, sys, time
import torch
from torch.utils.data import DataLoader

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return 1 << 20
    def __getitem__(self, at):
        return at

def train():
    stop = []
    signal.signal(signal.SIGTERM, lambda *_: stop.append(1))
    batches = iter(DataLoader(Numbers(), 2, num_workers=2))
    next(batches)
    os.write(1, b"ready\\n")
    while not stop:
        next(batches)
        time.sleep(0.01)
    for _ in range(50):
        next(batches)
    open("saved", "w").close()

if __name__ == "__main__" and "RANK" in os.environ:
    train()
elif __name__ == "__main__":
    from rallypoint import LaunchConfig, elastic_launch
    elastic_launch(LaunchConfig(1, 1, 1, max_restarts=0), train)()
"""


@pytest.mark.parametrize(
    "how",
    ["script", *(pytest.param(w, marks=pytest.mark.long) for w in ("shell", "stop", "function"))],
)
def test_data_loader_outlives_sigterm(tmp_path: Path, how: str) -> None:
    """A script that saves on SIGTERM still has the processes of its DataLoader."""
    (tmp_path / "train.py").write_text(_LOADS)
    shell = f"trap : TERM; {PYTHON} train.py; echo after"
    command: list[str] = {
        "script": [PYTHON, "-m", "rallypoint", "run", "train.py"],
        "shell": [PYTHON, "-m", "rallypoint", "run", "--no-python", "sh", "-c", shell],
        "stop": [PYTHON, "-m", "rallypoint", "run", "--on-signal=TERM:stop", "--drain-timeout=1"],
        "function": [PYTHON, "train.py"],
    }[how]
    if how == "stop":
        command += ["--standalone", "train.py"]
    program = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={**os.environ, "PYTHON_EXEC": PYTHON, "TMPDIR": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        program.send_signal(signal.SIGTERM)
        out, err = program.communicate(timeout=110)
        assert (tmp_path / "saved").exists(), err
        assert (out == "after\n") == (how == "shell")
    finally:
        program.kill()
        program.communicate()
