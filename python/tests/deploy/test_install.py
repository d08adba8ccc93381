"""What pip and uv ask the build backend for: a wheel, and an editable install."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from conftest import REPOSITORY

pytest.importorskip("hatchling")  # the environments of older torch versions lack it

LIBRARY = REPOSITORY / "build" / "librallypoint.so"

BUILD = "import sys, hatchling.build as b; print(getattr(b, sys.argv[1])(sys.argv[2]))"

TRY = """
import sys
sys.path[:] = [p for p in sys.path if "site-packages" not in p]
sys.path.insert(0, sys.argv[1])
import rallypoint
assert rallypoint.__file__.startswith(sys.argv[1]), rallypoint.__file__
with rallypoint.StoreServer("127.0.0.1"):
    pass
"""


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The sources of the package, in a folder that an install may write to."""
    copy = tmp_path / "sources"
    copy.mkdir()
    for name in ("pyproject.toml", "VERSION", "LICENSE", "README.md", ".gitignore", "go.mod"):
        shutil.copy(REPOSITORY / name, copy)
    shutil.copy(REPOSITORY / "go.sum", copy)
    ignored = shutil.ignore_patterns("__pycache__", "tests", "librallypoint.so", "abi.py")
    for name in ("python", "packaging", "include"):
        shutil.copytree(REPOSITORY / name, copy / name, ignore=ignored)
    return copy


def build(sources: Path, hook: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What one of the backend's hooks builds, with the library that is ready."""
    monkeypatch.setenv("RALLYPOINT_LIB", str(LIBRARY))
    folder = sources / "dist"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BUILD, hook, str(folder)],
        cwd=sources,
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / done.stdout.splitlines()[-1]


def works(folder: Path) -> None:
    done = subprocess.run([sys.executable, "-c", TRY, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_wheel(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel = build(sources, "build_wheel", monkeypatch)
    with zipfile.ZipFile(wheel) as archive:
        assert "rallypoint/THIRD_PARTY_LICENSES" in archive.namelist()
        archive.extractall(tmp_path / "installed")
    works(tmp_path / "installed")


def test_without_go_one_line_says_so(sources: Path) -> None:
    """What pip shows of a build that cannot begin: no calls of hatchling's."""
    shutil.copy(REPOSITORY / ".go-version", sources)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, "build_wheel", str(sources)],
        cwd=sources,
        env={"PATH": "/nonexistent"},
        capture_output=True,
        text=True,
        timeout=100,
    )
    assert done.returncode == 1 and done.stdout == ""
    [line] = done.stderr.splitlines()
    assert re.search(r"needs what is not on PATH: .*; Go [\d.]+ or newer", line)
    assert not (sources / "build").exists()


def test_wheel_for_musl(sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The static command is in it, which the console script becomes."""
    monkeypatch.setenv("RALLYPOINT_COMMAND", str(REPOSITORY / "build" / "rallypoint"))
    wheel = build(sources, "build_wheel", monkeypatch)
    assert "-musllinux_1_1_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        assert "rallypoint/librallypoint.so" not in archive.namelist()
        mode = archive.getinfo("rallypoint/rallypoint").external_attr >> 16
        assert mode & 0o111 == 0o111
        archive.extractall(tmp_path / "installed")
    (tmp_path / "installed" / "rallypoint" / "rallypoint").chmod(0o755)  # as pip does
    begin = "import sys; sys.path.insert(0, sys.argv.pop(1))"
    for program, says in (
        ("from rallypoint._cli import main; main()", "Usage:"),
        ("import rallypoint; rallypoint.StoreServer()", "this wheel, for musl, has the command"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", f"{begin}; {program}", str(tmp_path / "installed")],
            capture_output=True,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "RALLYPOINT_LIBRARY"},
        )
        assert says in done.stdout + done.stderr


def test_editable(sources: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sources are used where they are, with a link to the library that make builds."""
    wheel = build(sources, "build_editable", monkeypatch)
    with zipfile.ZipFile(wheel) as archive:
        [path] = [name for name in archive.namelist() if name.endswith(".pth")]
        [folder] = archive.read(path).decode().splitlines()
        assert not [name for name in archive.namelist() if name.endswith(".so")]
    assert Path(folder) == sources / "python"
    link = sources / "python" / "rallypoint" / "librallypoint.so"
    assert link.is_symlink() and link.resolve() == LIBRARY.resolve()
    works(sources / "python")


def test_a_wheel_of_an_editable_tree_holds_the_library_itself(
    sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = sources / "python" / "rallypoint" / "librallypoint.so"
    link.symlink_to("elsewhere")
    with zipfile.ZipFile(build(sources, "build_wheel", monkeypatch)) as archive:
        assert archive.getinfo("rallypoint/librallypoint.so").file_size == LIBRARY.stat().st_size


def test_make_wheel_asks_for_no_torch() -> None:
    """Nothing but the build backend is installed for a wheel."""
    wanted = subprocess.run(
        ["make", "--dry-run", "--always-make", "wheel"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "requirements/build.txt" in wanted
    assert "requirements/dev.txt" not in wanted and "uv pip" not in wanted
    names = (REPOSITORY / "requirements" / "build.txt").read_text()
    assert "torch" not in names and "hatchling==" in names


def test_every_requirement_has_a_hash() -> None:
    """An installer that finds one hash refuses whatever has another."""
    for file in (REPOSITORY / "requirements").glob("*.txt"):
        logical = file.read_text().replace("\\\n", " ").splitlines()
        pinned = [line for line in logical if "==" in line.partition(" ")[0]]
        assert pinned, file.name
        assert [line for line in pinned if "--hash=sha256:" not in line] == [], file.name
