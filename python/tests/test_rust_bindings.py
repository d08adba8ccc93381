"""The Rust declarations that are checked in are those of the header."""

from __future__ import annotations

import importlib.util

from conftest import REPOSITORY


def test_bindings_are_current() -> None:
    path = REPOSITORY / "packaging" / "rust_bindings.py"
    spec = importlib.util.spec_from_file_location("rust_bindings", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.generate(), "run packaging/rust_bindings.py"
