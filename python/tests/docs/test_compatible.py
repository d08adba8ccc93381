"""docs/compatible.md counts what the tests have."""

from __future__ import annotations

import json
import re

import compatible
from docs.test_ported import exists

RUNS = json.loads(compatible.RUNS.read_text())


def test_page_is_current() -> None:
    assert compatible.TARGET.read_text() == compatible.generate(), "run make reference"


def test_runs_are_of_this_torch() -> None:
    """A new torch needs new runs: make test-torch-suites test-prove."""
    assert {run["torch"] for run in RUNS.values()} == {compatible.pinned("dev.in")}


def test_runs_are_of_what_is_run() -> None:
    assert RUNS["suites"]["counts"].keys() <= set(compatible.SUITES)
    for counts in RUNS["suites"]["counts"].values():
        assert counts["passed"] and not counts["failed"]


def test_tests_of_the_page_exist() -> None:
    named = re.findall(r"`(\w+\.Test\w+)`", compatible.TARGET.read_text())
    assert named and [name for name in named if not exists(name)] == []
