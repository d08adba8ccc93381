"""Error files and the classes of failures (docs/spec/agent.md, sections 7 and 9)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import rallypoint
from rallypoint import ChildFailedError, ErrorHandler, ProcessFailure, record
from rallypoint._launch import failure_plain as plain


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
    """The file of the worker that failed first is propagated, with its exit code."""
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


def test_message_of_a_signal_is_enriched(monkeypatch: pytest.MonkeyPatch) -> None:
    """When it is shown, and only then; an error in it does no harm (A87)."""

    class Handler(ErrorHandler):
        def maybe_enrich_signal_failure_message(self, message: str, error_file: str) -> str:
            if error_file != "<N/A>":
                raise AssertionError(error_file)
            return message + " (page fault of the device)"

    monkeypatch.setattr("rallypoint._launch.record.get_error_handler", Handler)
    failures = {i: failure(code) for i, code in enumerate((-signal.SIGABRT, 1, -signal.SIGKILL))}
    failures[2].error_file = "other"
    error = plain.ChildFailedError("trainer", failures)
    assert str(error).count("page fault") == 1
    assert "Signal 6 (SIGABRT) received by PID 997 (page fault of the device)\n" in str(error)
    assert "Signal 9 (SIGKILL) received by PID 997\n" in str(error)
    assert "page fault" not in failures[0].message


def test_signal_in_a_crash(error_file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """`record` makes the process show where it was; if it cannot, it continues (A86)."""
    code = """
import os, sys, rallypoint
@rallypoint.record
def crash():
    os.abort()
if len(sys.argv) > 1:
    sys.stderr = None  # which faulthandler cannot take
    rallypoint.record(print)("fine")
else:
    crash()
"""
    done = subprocess.run([sys.executable, "-c", code], check=False)
    assert done.returncode == -signal.SIGABRT
    assert "in crash" in capfd.readouterr().err
    done = subprocess.run([sys.executable, "-c", code, "x"], check=False)
    assert (done.returncode, capfd.readouterr().out) == (0, "fine\n")
    assert not error_file.exists()


def test_name_of_the_function_is_not_stored(error_file: Path) -> None:
    with pytest.raises(ValueError):
        record(boom)()
    message = content(error_file)["message"]
    assert message.keys() == {"message", "extraInfo"}
    assert message["extraInfo"].keys() == {"py_callstack", "timestamp"}


def test_handing_up(
    error_file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """dump_error_file by itself: with a code, over an older file, and with nowhere to go."""
    worker = tmp_path / "worker.json"
    worker.write_text('{"message": {"message": "m"}}')
    handler = rallypoint.get_error_handler()
    handler.dump_error_file(str(worker))
    assert content(error_file) == {"message": {"message": "m"}} and not caplog.records
    handler.dump_error_file(str(worker), 7)
    assert content(error_file) == {"message": {"message": "m", "errorCode": 7}}
    assert "is replaced" in caplog.text
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    handler.dump_error_file(str(worker), 8)
    assert caplog.records[-1].levelname == "ERROR" and "errorCode" in caplog.text
    assert content(error_file)["message"]["errorCode"] == 7


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
