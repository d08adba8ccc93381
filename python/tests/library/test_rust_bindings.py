"""The Rust declarations that are checked in are those of the header."""

from __future__ import annotations

import rust_bindings


def test_bindings_are_current() -> None:
    assert rust_bindings.TARGET.read_text() == rust_bindings.generate(), "run make docs"
