"""The wheel, from a URL and from an index on this machine: pip, uvx, pipx."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import REPOSITORY

BUILDER = REPOSITORY / ".venvs" / "build" / "bin" / "python"
UV = REPOSITORY / ".tools" / "uv" / "bin" / "uv"
RUN = ["run", "--standalone", "--no-python", "echo", "a worker ran"]


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """A server with the wheel and an index of it: the URLs of both."""
    wheels = list((REPOSITORY / "dist").glob("rallypoint-*.whl"))
    if len(wheels) != 1:
        pytest.skip("dist does not hold one wheel: make wheel")
    folder = tmp_path_factory.mktemp("index")
    index = folder / "simple" / "rallypoint"
    index.mkdir(parents=True)
    shutil.copy(wheels[0], folder)
    (index / "index.html").write_text(f'<a href="../../{wheels[0].name}">{wheels[0].name}</a>')
    handler = functools.partial(Quiet, directory=folder)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            here = f"http://127.0.0.1:{server.server_port}"
            yield f"{here}/{wheels[0].name}", f"{here}/simple"
        finally:
            server.shutdown()
            thread.join()


def output(folder: Path, *command: object) -> str:
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith(("PIP_", "UV_", "VIRTUAL_ENV"))},
        "HOME": str(folder),
        "UV_CACHE_DIR": str(folder / "cache"),
        "UV_PYTHON_DOWNLOADS": "never",
        "PIPX_HOME": str(folder / "pipx"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    done = subprocess.run(
        [str(word) for word in command],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_pip(served: tuple[str, str], tmp_path: Path) -> None:
    if not BUILDER.exists():
        pytest.skip("the environment that builds wheels is not there: make wheel")
    wheel, index = served
    venv = tmp_path / "venv"
    for source in ([wheel], ["--index-url", index, "rallypoint"]):
        output(tmp_path, sys.executable, "-m", "venv", "--clear", "--without-pip", venv)
        pip = [BUILDER, "-m", "pip", "--python", venv / "bin" / "python"]
        output(tmp_path, *pip, "install", "-q", *source)
        assert "a worker ran" in output(tmp_path, venv / "bin" / "rallypoint", *RUN)


def test_uvx(served: tuple[str, str], tmp_path: Path) -> None:
    if not UV.exists():
        pytest.skip("uv is not there: make dev-install")
    wheel, index = served
    uvx = [UV, "tool", "run", "--python", sys.executable]
    for source in (["--from", wheel, "rallypoint"], ["--default-index", index, "rallypoint"]):
        assert "a worker ran" in output(tmp_path, *uvx, *source, *RUN)


def test_pipx(served: tuple[str, str], tmp_path: Path) -> None:
    pipx = shutil.which("pipx")
    if pipx is None:
        pytest.skip("pipx is not installed")
    wheel, index = served
    for source in (["--spec", wheel, "rallypoint"], ["--index-url", index, "rallypoint"]):
        assert "a worker ran" in output(tmp_path, pipx, "run", *source, *RUN)
