"""Who may replace a checkpoint: processes that load and write one, and what they are told."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rallypoint

RUN = {"TORCHELASTIC_RUN_ID": "job7", "RALLYPOINT_GENERATION": "G1", "RALLYPOINT_ROUND": "2"}


def write(path: str, text: str) -> None:
    Path(path).write_text(text)


def save(fence: rallypoint.Fence, text: str) -> None:
    with fence.replace() as new:
        write(new, text)


def test_one_goes_on_and_the_other_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "checkpoint.pt"
    for name, value in RUN.items():
        monkeypatch.setenv(name, value)
    first = rallypoint.fence(path)
    second = rallypoint.fence(str(path))
    assert not first.exists
    assert first.version == ""
    save(first, "one")
    with pytest.raises(rallypoint.FencedError) as caught, second.replace():
        pytest.fail("the body ran")
    error = caught.value
    assert error.code is rallypoint.Code.FENCED == 52
    assert not error.retryable
    assert f"{path} is no longer the one that this process loaded or wrote" in str(error)
    assert 'run "job7", generation G1, round 2, process ' in str(error)
    assert "Start this worker again" in str(error)
    save(first, "two")
    third = rallypoint.fence(path)
    assert third.exists
    assert third.version == first.version
    save(third, "three")
    assert path.read_text() == "three"
    record = json.loads((tmp_path / "checkpoint.pt.fence").read_text())
    assert record["version"] == third.version
    assert record["previous"] == first.version
    assert sorted(os.listdir(tmp_path)) == [
        "checkpoint.pt", "checkpoint.pt.fence", "checkpoint.pt.fence.lock",
    ]  # fmt: skip


def test_a_folder(tmp_path: Path) -> None:
    path = tmp_path / "model"
    with rallypoint.fence(path) as fence:
        for step in 1, 2:
            with fence.replace() as new:
                assert os.path.dirname(new) == str(tmp_path)
                os.mkdir(new)
                write(os.path.join(new, f"step{step}"), "")
            assert os.listdir(path) == [f"step{step}"]
    assert sorted(os.listdir(tmp_path)) == ["model", "model.fence", "model.fence.lock"]


def test_a_body_that_fails(tmp_path: Path) -> None:
    """Nothing is replaced, and nothing is left; unless the cause is another writer, it is shown."""
    path = tmp_path / "checkpoint.pt"
    fence = rallypoint.fence(path)
    save(fence, "one")

    def fail(error: BaseException, before: Callable[[], None] = lambda: None) -> None:
        with fence.replace() as new:
            write(new, "half")
            before()
            raise error

    for error in ZeroDivisionError(), KeyboardInterrupt():
        with pytest.raises(type(error)):
            fail(error)
    with pytest.raises(rallypoint.InvalidError, match="nothing was written"), fence.replace():
        pass
    assert path.read_text() == "one"
    assert len(os.listdir(tmp_path)) == 3
    with pytest.raises(rallypoint.FencedError) as caught:
        fail(FileNotFoundError(), lambda: save(rallypoint.fence(path), "other"))
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert path.read_text() == "other"


def test_a_folder_that_is_written_into(tmp_path: Path) -> None:
    out = tmp_path / "out"
    first, second = rallypoint.fence(out, into=True), rallypoint.fence(out, into=True)
    assert not out.exists()
    with first.claim() as folder:
        assert folder == str(out)
        (out / "checkpoint-1").mkdir()
        with pytest.raises(rallypoint.DeadlineError, match=r"lock.*\(waited for 0\.1 s\)"):
            rallypoint.fence(out, into=True, timeout=0.1)
    with pytest.raises(rallypoint.FencedError), second.claim():
        pytest.fail("the body ran")
    late = rallypoint.fence(out, into=True)
    assert late.exists
    with late.claim():
        pass
    with pytest.raises(rallypoint.InvalidError, match="claim it"), late.replace():
        pass


def test_errors(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    (tmp_path / "checkpoint.pt.fence").write_text("{}")
    with pytest.raises(rallypoint.StateError, match="remove that file"):
        rallypoint.fence(path)
    with pytest.raises(rallypoint.InvalidError):
        rallypoint.fence(tmp_path / "checkpoint.pt.fence" / "below")
    with pytest.raises(ValueError, match="NUL"):
        rallypoint.fence("a\0b")
    fence = rallypoint.fence(tmp_path / "other")
    assert repr(fence) == f"<rallypoint.Fence of '{tmp_path / 'other'}'>"
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(fence)
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.copy(fence)
    fence.close()
    fence.close()
    with pytest.raises(rallypoint.RallypointError) as caught, fence.replace():
        pass
    assert caught.value.code is rallypoint.Code.HANDLE


# Loads a number, adds one and writes it, again and again; a line for each number that it wrote.
# Refused, it starts over, as a worker that is started again does.
COUNTER = """
import sys, time, rallypoint
path, times = sys.argv[1], int(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
done = 0
while done < times:
    with rallypoint.fence(path) as fence:
        number = int(open(path).read()) if fence.exists else 0
        try:
            for _ in range(3):
                with fence.replace() as new:
                    open(new, "w").write(str(number + 1))
                number += 1
                done += 1
                print(number, flush=True)
        except rallypoint.FencedError as e:
            assert "process" in str(e), e
            print("refused", flush=True)
"""


def test_two_processes(tmp_path: Path) -> None:
    """Two processes on one checkpoint; two more are killed. No count is lost."""
    path = tmp_path / "count"
    command = [sys.executable, "-c", COUNTER, str(path)]

    def start(times: int) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*command, str(times)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    counters, victims = [start(60) for _ in range(2)], [start(1_000_000) for _ in range(2)]
    for process in counters + victims:
        assert process.stdout
        assert process.stdin
        assert process.stdout.readline() == "ready\n"
        process.stdin.write("go\n")
        process.stdin.flush()
    numbers: list[int] = []
    for victim in victims:
        assert victim.stdout
        victim.stdout.readline()
        victim.kill()
        victim.communicate()
    refusals = 0
    for counter in counters:
        lines = counter.communicate()[0].split()
        assert counter.returncode == 0
        refusals += lines.count("refused")
        numbers += [int(line) for line in lines if line != "refused"]
    assert len(numbers) == len(set(numbers)), "a number was written twice"
    assert len(numbers) >= 120
    assert int(path.read_text()) >= max(numbers)
    assert refusals > 0


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """A folder that another process has claimed."""
    code = "import sys, time, rallypoint\nwith rallypoint.fence(sys.argv[1], into=True).claim():\n"
    code += "    print('held', flush=True); time.sleep(1000)"
    out = tmp_path / "out"
    holder = subprocess.Popen([sys.executable, "-c", code, out], stdout=subprocess.PIPE)
    assert holder.stdout
    holder.stdout.readline()
    yield out
    holder.kill()
    holder.wait()
    holder.stdout.close()


def test_ctrl_c_while_it_waits(held: Path) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        main = threading.get_ident()
        with pytest.raises(KeyboardInterrupt):
            threading.Timer(0.1, signal.pthread_kill, (main, signal.SIGUSR1)).start()
            rallypoint.fence(held, into=True, timeout=None)
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_holder_that_is_killed(held: Path) -> None:
    """Its lock ends with it."""
    record = json.loads((held / "_rallypoint.fence").read_text())
    waiting = threading.Timer(0.1, os.kill, (record["pid"], signal.SIGKILL))
    waiting.start()
    assert rallypoint.fence(held, into=True).version == record["version"]
