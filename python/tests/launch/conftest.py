"""Fixtures of the tests of elastic_launch; see harness.py."""

from __future__ import annotations

import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

import rallypoint


@pytest.fixture(autouse=True)
def temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder for temporary files, in which a launch that succeeded leaves nothing."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    yield folder
    assert not list(folder.glob("rallypoint_*")), "the folder of a function is left behind"


@pytest.fixture(scope="module")
def python_without_torch(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The interpreter of an environment that has this package and nothing else."""
    folder = tmp_path_factory.mktemp("no-torch")
    venv.create(folder, symlinks=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "rallypoint").symlink_to(Path(rallypoint.__file__).parent)
    return str(folder / "bin" / "python")
