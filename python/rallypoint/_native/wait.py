"""Calls of the library that are waited for, in slices."""

from __future__ import annotations

from typing import Any

from . import abi, library, log


def wait(name: str, *args: Any) -> None:
    """Calls a function that may be PENDING until it is not.

    Its timeout argument is given as a SLICE_MS in args. Signals are acted on and log records
    shown between the calls.
    """
    while library.call(name, *args) == abi.PENDING:
        log.drain()
