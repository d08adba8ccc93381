"""Error files and the classes of failures (docs/spec/agent.md, sections 7 and 9)."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rallypoint
from rallypoint import ChildFailedError, ErrorHandler, ProcessFailure, record
from rallypoint import _failure_plain as plain


@pytest.fixture
def error_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "error.json"
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    return path


def boom(text: str = "no") -> None:
    raise ValueError(text)


def content(path: Path) -> Any:
    return json.loads(path.read_text())


def test_exception(error_file: Path) -> None:
    with pytest.raises(ValueError):
        record(boom)("t\u00fct nicht")
    message = content(error_file)["message"]
    assert message["message"] == "ValueError: t\u00fct nicht"
    assert "in boom\n" in message["extraInfo"]["py_callstack"]
    assert abs(int(message["extraInfo"]["timestamp"]) - time.time()) < 60


@pytest.mark.parametrize("value", [None, ""])
def test_without_error_file(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    if value is None:
        monkeypatch.delenv("TORCHELASTIC_ERROR_FILE", raising=False)
    else:
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", value)
    with pytest.raises(ValueError):
        record(boom)()


def test_success(error_file: Path) -> None:
    @record
    def function(a: int, *, b: int) -> int:
        """The docstring."""
        return a + b

    assert function(1, b=2) == 3
    assert function.__name__ == "function" and function.__doc__ == "The docstring."
    assert not error_file.exists()


def test_system_exit(error_file: Path) -> None:
    assert record(sys.exit)(0) is None  # type: ignore[func-returns-value]
    for code in (None, 3, "text"):
        with pytest.raises(SystemExit) as caught:
            record(sys.exit)(code)
        assert caught.value.code == code
    assert not error_file.exists()


@pytest.mark.parametrize("errors", ["plain", "torch"])
def test_failed_children(error_file: Path, tmp_path: Path, errors: str) -> None:
    """The file of the worker that failed first is handed up, with its exit code."""
    if errors == "torch":
        import torch.distributed.elastic.multiprocessing.errors as module
    else:
        module = plain
    paths = []
    for i, seconds in enumerate((200, 100)):
        paths.append(tmp_path / f"{i}.json")
        info = {"py_callstack": "Traceback", "timestamp": str(seconds)}
        paths[i].write_text(json.dumps({"message": {"message": f"{i}", "extraInfo": info}}))
    failures = {i: module.ProcessFailure(i, 100 + i, 3, str(path)) for i, path in enumerate(paths)}
    error_file.write_text("an older file is replaced")
    with pytest.raises(module.ChildFailedError):
        record(raise_)(module.ChildFailedError("trainer", failures))
    message = content(error_file)["message"]
    assert message["message"] == "1" and message["errorCode"] == 3


def raise_(error: BaseException) -> None:
    raise error


def failure(code: int, path: object = "") -> plain.ProcessFailure:
    return plain.ProcessFailure(0, 997, code, str(path))


def test_failed_children_without_error_file(error_file: Path) -> None:
    with pytest.raises(plain.ChildFailedError):
        record(raise_)(plain.ChildFailedError("trainer", {0: failure(1)}))
    assert not error_file.exists()


def test_failed_children_with_a_text(error_file: Path, tmp_path: Path) -> None:
    """A message that is no object gets no code (A86)."""
    path = tmp_path / "text.json"
    path.write_text('{"message": "text", "timestamp": 10}')
    with pytest.raises(plain.ChildFailedError):
        record(raise_)(plain.ChildFailedError("trainer", {0: failure(7, path)}))
    assert content(error_file) == {"message": "text", "timestamp": 10}


def test_error_file_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", "/no/such/folder/error.json")
    with pytest.raises(ValueError, match="no"):
        record(boom)()


def test_own_handler(error_file: Path) -> None:
    told: list[object] = []

    class Handler(ErrorHandler):
        def initialize(self) -> None:
            told.append("initialize")

        def set_entrypoint_fn_name(self, fn_name: str) -> None:
            told.append(fn_name)

        def record_exception(self, e: BaseException) -> None:
            told.append(type(e))

        def record_success(self) -> None:
            told.append("success")

    with pytest.raises(ValueError):
        record(boom, Handler())()
    record(os.getpid, Handler())()
    assert told == ["boom", "initialize", ValueError, "getpid", "initialize", "success"]
    assert not error_file.exists()


def test_file_is_that_of_torch(error_file: Path) -> None:
    """torch writes the same keys, and reads what we write."""
    from torch.distributed.elastic.multiprocessing.errors import record as of_torch

    with pytest.raises(ValueError):
        of_torch(boom)()
    theirs = content(error_file)
    with pytest.raises(ValueError):
        record(boom)()
    ours = content(error_file)
    assert ours.keys() == theirs.keys()
    assert ours["message"].keys() == theirs["message"].keys()
    assert ours["message"]["extraInfo"].keys() == theirs["message"]["extraInfo"].keys()
    read = ProcessFailure(0, 997, 1, str(error_file))
    assert read.message == ours["message"]


# The classes


def test_failure_with_error_file(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    path.write_text('{"message": "text", "timestamp": 10}')
    made = failure(1, path)
    assert (made.message, made.timestamp, made.error_file) == ("text", 10, str(path))
    assert made.error_file_data == {"message": "text", "timestamp": 10}
    path.write_text('{"message": "text", "timestamp": "11"}')
    assert failure(1, path).timestamp == 11
    path.write_text('{"message": {"message": "m", "extraInfo": {"timestamp": "12"}}}')
    assert failure(1, path).timestamp == 12
    path.write_text("{}")
    with pytest.raises(KeyError):
        failure(1, path)


def test_failure_without_error_file() -> None:
    made = failure(-signal.SIGSEGV)
    assert (made.error_file, made.signal_name()) == ("<N/A>", "SIGSEGV")
    assert made.message == "Signal 11 (SIGSEGV) received by PID 997"
    assert failure(-99).signal_name() == "<N/A>"
    made = failure(138)
    assert made.signal_name() == "<N/A>" and "To enable traceback see" in made.message
    assert len(made.timestamp_isoformat()) == len("2026-11-21_04:30:43")


def test_first_failure() -> None:
    failures = {i: failure(1) for i in range(3)}
    for i, seconds in enumerate((12, 10, 11)):
        failures[i].timestamp = seconds
    assert plain.ChildFailedError("x", failures).get_first_failure() == (1, failures[1])
    known = plain.ChildFailedError("x", failures, root=2)
    assert known.get_first_failure() == (2, failures[2])
    with pytest.raises(AssertionError):
        plain.ChildFailedError("x", {})


def test_classes_are_those_of_torch() -> None:
    from torch.distributed.elastic.multiprocessing import errors

    assert issubclass(ChildFailedError, errors.ChildFailedError)
    assert issubclass(ChildFailedError, rallypoint.RallypointError)
    assert ProcessFailure is errors.ProcessFailure


def test_report_is_that_of_torch() -> None:
    from torch.distributed.elastic.multiprocessing import errors

    failures = {i: errors.ProcessFailure(i, 100 + i, code, "") for i, code in enumerate((1, -9))}
    ours, theirs = (
        c("trainer", failures) for c in (plain.ChildFailedError, errors.ChildFailedError)
    )
    if ")  (SIGKILL)\n" not in str(theirs):
        pytest.skip("an older torch leaves out the name of the signal")
    assert str(ours) == str(theirs)
