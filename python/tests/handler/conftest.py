"""Fixtures of the handler's tests; see harness.py."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from handler.harness import Run


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run()
    yield made
    made.end()
