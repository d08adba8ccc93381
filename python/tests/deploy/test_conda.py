"""The conda recipe: of the format that rattler-build reads, and true to the package."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import REPOSITORY

yaml = pytest.importorskip("yaml")

RECIPE = REPOSITORY / "packaging" / "conda" / "recipe.yaml"
PROJECT = (REPOSITORY / "pyproject.toml").read_text()

# What the format's first version has, in which a typing mistake is an error.
KEYS = {
    "": "schema_version context package source build requirements tests about",
    "package": "name version",
    "source": "path",
    "build": "number skip script python",
    "requirements": "build host run",
    "about": "summary license license_file",
}


@pytest.fixture
def recipe() -> dict[str, Any]:
    return dict(yaml.safe_load(RECIPE.read_text()))


def test_format(recipe: dict[str, Any]) -> None:
    assert recipe["schema_version"] == 1
    for section, keys in KEYS.items():
        assert set(recipe[section] if section else recipe) == set(keys.split()), section
    assert all(set(test) <= {"python", "script"} for test in recipe["tests"])


def test_it_is_this_package(recipe: dict[str, Any]) -> None:
    assert recipe["context"]["version"] == (REPOSITORY / "VERSION").read_text().strip()
    assert recipe["package"] == {"name": "rallypoint", "version": "${{ version }}"}
    assert (RECIPE.parent / recipe["source"]["path"]).resolve() == REPOSITORY
    assert (REPOSITORY / recipe["about"]["license_file"][0]).exists()
    [entry] = recipe["build"]["python"]["entry_points"]
    name, _, target = entry.partition(" = ")
    assert f'{name} = "{target}"' in PROJECT


def test_it_asks_for_what_the_build_needs(recipe: dict[str, Any]) -> None:
    wanted = re.search(r"^requires = \[(.*)\]$", PROJECT, re.MULTILINE)
    assert wanted
    host = {name.replace(" ", "") for name in recipe["requirements"]["host"]}
    assert set(re.findall(r'"([^"]+)"', wanted[1])) <= host
    assert {"make", '${{ compiler("c") }}'} <= set(recipe["requirements"]["build"])
    python = re.search(r'^requires-python = "(.*)"$', PROJECT, re.MULTILINE)
    assert python and recipe["requirements"]["run"] == [f"python {python[1]}"]


def test_build_says_why_it_is_skipped() -> None:
    """`make test-conda` fails nowhere for the want of a tool or of a network."""
    script = REPOSITORY / "packaging" / "tests" / "conda"
    for settings, why in (
        ({"PATH": "/usr/bin:/bin"}, "rattler-build is not installed"),
        (
            {"RATTLER_BUILD": "/bin/false", "CONDA_CHANNEL": "http://127.0.0.1:1"},
            "cannot be reached",
        ),
    ):
        done = subprocess.run(
            [script], env={**os.environ, **settings}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0 and done.stderr.startswith("skipped: "), done.stderr
        assert why in done.stderr


def test_modules_exist(recipe: dict[str, Any]) -> None:
    for module in recipe["tests"][0]["python"]["imports"]:
        path = Path(*module.split("."))
        folder = REPOSITORY / "python"
        assert (folder / path / "__init__.py").exists() or (folder / path).with_suffix(
            ".py"
        ).exists()
