"""Where the library's log lines go."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from rallypoint._native import abi, library


def stderr_of(code: str, environment: dict[str, str] | None = None) -> tuple[int, list[str]]:
    """Runs code with a Member "member" of a run of one; its pid and lines on stderr."""
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"""
import logging, rallypoint
{code}
member = rallypoint.Member("the-run", "127.0.0.1:0", options={{"unheard_of": 1}})
logging.getLogger("rallypoint").error("of Python")
""",
        ],
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    return process.pid, err.splitlines()


def test_form() -> None:
    """Without logging set up lines go to stderr in torchrun's form."""
    pid, lines = stderr_of("")
    pattern = rf"([IWE])\d{{4}} \d\d:\d\d:\d\d\.\d{{3}} {pid} rallypoint\] (\S.*)"
    matches = [re.fullmatch(pattern, line) for line in lines]
    assert all(matches), lines
    assert [m[1] for m in matches if m] == ["W", "E"]
    assert "unheard_of" in lines[0]


@pytest.mark.parametrize(
    ("level", "count"),
    [("debug", 2), ("info", 2), ("warning", 2), ("ERROR", 1), ("off", 0), ("loud", 3)],
)
def test_level(level: str, count: int) -> None:
    _, lines = stderr_of("", {"RALLYPOINT_LOG": level})
    assert len(lines) == count, lines
    if level == "loud":
        assert "RALLYPOINT_LOG" in lines[0] and "debug" in lines[0]


@pytest.mark.parametrize(
    "setup",
    [
        "logging.basicConfig(format='<%(message)s>')",
        "logging.getLogger('rallypoint').addHandler(logging.StreamHandler())\n"
        "logging.getLogger('rallypoint').handlers[0].setFormatter(logging.Formatter('<%(message)s>'))",
    ],
)
def test_program_that_configures_logging(setup: str) -> None:
    """Its handlers get the lines, and only they."""
    _, lines = stderr_of(setup)
    assert [line[:1] + line[-1:] for line in lines] == ["<>", "<>"], lines


def test_logging_configured_later() -> None:
    """The handler of ours gives way to the program's."""
    _, lines = stderr_of(
        "rallypoint.Member('other', '127.0.0.1:0', options={'strange': 1})\n"
        "logging.basicConfig(format='<%(message)s>')"
    )
    assert len(lines) == 3, lines
    assert "strange" in lines[0] and lines[0][-1:] != ">"
    assert [line[-1:] for line in lines[1:]] == [">", ">"]


class _Gate(logging.Handler):
    """A handler that waits for a reader, or raises."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.opened, self.entered, self.all = (threading.Event() for _ in range(3))
        self.error, self.lines = error, list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.entered.set()
        self.opened.wait(60)
        self.lines.append(record.getMessage())
        if record.getMessage() == "the last":
            self.all.set()
        if self.error is not None:
            raise self.error


@pytest.fixture
def gate(request: pytest.FixtureRequest) -> Iterator[_Gate]:
    handler = _Gate(getattr(request, "param", None))
    logging.getLogger("rallypoint").addHandler(handler)
    yield handler
    handler.opened.set()
    logging.getLogger("rallypoint").removeHandler(handler)


def test_a_handler_that_waits(gate: _Gate) -> None:
    """Calls return while a handler waits for its reader; nothing is lost or out of order."""
    from rallypoint import Member
    from rallypoint._native import log

    for i in range(5):
        Member("run", "127.0.0.1:0", options={f"unheard_of_{i}": 1}).close()
    log.logger.warning("the last")
    assert gate.entered.is_set() and not gate.lines
    gate.opened.set()
    assert gate.all.wait(60)
    named = [line for line in gate.lines if "unheard_of" in line]
    assert [f"unheard_of_{i}" in line for i, line in enumerate(named)] == [True] * 5


@pytest.mark.parametrize("gate", [ValueError("a handler's")], indirect=True)
def test_a_handler_that_raises(gate: _Gate, capfd: pytest.CaptureFixture[str]) -> None:
    """A call does not fail because a handler of the program raises; its error is printed."""
    from rallypoint import Member

    gate.opened.set()
    for _ in range(2):
        Member("run", "127.0.0.1:0", options={"unheard_of": 1}).close()
    assert len([line for line in gate.lines if "unheard_of" in line]) == 2
    assert "ValueError: a handler's" in capfd.readouterr().err


NO_THREADS = """
import threading

def refuse(thread):
    raise RuntimeError("can't create new thread at interpreter shutdown")

threading.Thread.start = refuse
"""


def test_without_a_thread() -> None:
    """... as when the interpreter ends, and a member that was not closed leaves its run."""
    _, lines = stderr_of(NO_THREADS)
    assert len(lines) == 2 and "unheard_of" in lines[0] and "of Python" in lines[1], lines


def test_a_file_that_others_may_write(tmp_path: Path) -> None:
    """A store's warnings are shown when it is opened, also without a member."""
    path = tmp_path / "store"
    path.touch()
    path.chmod(0o666)
    _, lines = stderr_of(f"rallypoint.FileStore({str(path)!r}, -1, 20).close()\nraise SystemExit")
    assert "other users can change what is in the file" in lines[0], lines


def test_the_ring_is_bounded() -> None:
    """A program that never asks loses the oldest records, and learns how many."""
    from rallypoint import Member
    from rallypoint._native import log

    log.drain()
    n = 1100
    held = log._draining
    with held:  # no thread asks meanwhile
        for i in range(n):
            Member("run", "127.0.0.1:0", options={f"unheard_of_{i}": 1}).close()
    record = abi.LogRecord()
    import ctypes

    library.call("rp_log_next", ctypes.byref(record))
    assert record.dropped == n - 1024
    assert f"unheard_of_{n - 1024}".encode() in record.text
    assert record.level == 30
    count = 1
    while library.call("rp_log_next", ctypes.byref(record)) == abi.OK:
        assert record.dropped == 0
        count += 1
    assert count == 1024
