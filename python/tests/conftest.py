"""What all tests share. The tests see the installed package."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from guarantee import GuaranteeBroken

from rallypoint import EtcdServer, StoreServer
from rallypoint._native import library

REPOSITORY = Path(__file__).resolve().parents[2]

GUARANTEE_BROKEN = 8  # exit code; see `define pytest` in make/test.mk


def pytest_configure() -> None:
    # Where the tests run in the background of a shell they inherit a SIGINT that is ignored,
    # and so would all processes that they interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> None:
    if call.excinfo and call.excinfo.errisinstance(GuaranteeBroken):
        item.session.config.stash[_BROKEN] = True


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if session.config.stash.get(_BROKEN, False):
        session.exitstatus = GUARANTEE_BROKEN


_BROKEN = pytest.StashKey[bool]()


@pytest.fixture
def server() -> Iterator[StoreServer]:
    """A store server on loopback."""
    with StoreServer("127.0.0.1") as running:
        yield running


@contextmanager
def etcd_of(binary: str) -> Iterator[EtcdServer]:
    """An etcd that runs this program."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHELASTIC_ETCD_BINARY_PATH", binary)
        server = EtcdServer()
        try:
            server.start()
            yield server
        finally:
            server.stop()


def etcd_to_test() -> str:
    """The etcd that `make test-python` names."""
    binary = os.environ.get("RALLYPOINT_TEST_ETCD")
    if not binary:
        pytest.skip("RALLYPOINT_TEST_ETCD names no etcd; make test-python does")
    return binary


@pytest.fixture(scope="session")
def etcd() -> Iterator[EtcdServer]:
    """A real etcd."""
    with etcd_of(etcd_to_test()) as server:
        yield server


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    """A file with a token that only this user may read."""
    path = tmp_path / "token"
    path.write_text("a token that is long enough to be one\n")
    path.chmod(0o600)
    return path


def programs(folder: Path, scripts: dict[str, str]) -> None:
    """Makes programs of shell scripts, by name."""
    for name, body in scripts.items():
        (folder / name).write_text(f"#!/bin/sh\n{body}\n")
        (folder / name).chmod(0o755)


def assert_serves(*arguments: object) -> None:
    """`rallypoint` with these arguments listens on loopback, and ends well when it is told to."""
    process = subprocess.Popen(
        [REPOSITORY / "build" / "rallypoint", *map(str, arguments)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout
        assert "listening on 127.0.0.1:" in process.stdout.readline()
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0


@pytest.fixture
def run_python():  # type: ignore[no-untyped-def]
    """run_python(code, *args): runs code in a new interpreter, returns its stdout.

    Fails with its stderr if it does not exit with `code_wanted` (0) within a minute.
    """

    def run(code: str, *args: object, exit_code: int = 0) -> str:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code), *map(str, args)],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == exit_code, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
        return done.stdout

    return run


@pytest.fixture(autouse=True, scope="session")
def no_handle_leaks() -> Iterator[None]:
    """All tests of a session together leave no handle of the library open."""
    import ctypes
    import gc

    yield
    gc.collect()
    count = ctypes.c_int64(-1)
    library.call("rp_handles_open", ctypes.byref(count))
    assert count.value == 0
