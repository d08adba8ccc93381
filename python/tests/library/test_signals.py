"""Python's own handlers of signals keep working with the library in the process."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

LOAD = "from rallypoint import HashStore; store = HashStore(); store.set('k', 'v')\n"


@pytest.mark.parametrize("first", ["faulthandler", "library"])
def test_faulthandler(first: str) -> None:
    """A fault prints its stack and ends the process by the signal, in whatever order."""
    enable = "import ctypes, faulthandler; faulthandler.enable()\n"
    code = (enable + LOAD if first == "faulthandler" else LOAD + enable) + (
        "def here():\n    ctypes.string_at(16)\nhere()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert "Fatal Python error: Segmentation fault" in done.stderr
    assert "in here" in done.stderr


def test_profiling_timer(run_python) -> None:  # type: ignore[no-untyped-def]
    """A sampling profiler's SIGPROF reaches Python while it calls the library."""
    run_python(
        LOAD
        + """
import signal, sys
ticks = 0
def tick(number, frame):
    global ticks
    ticks += 1
signal.signal(signal.SIGPROF, tick)
signal.setitimer(signal.ITIMER_PROF, 0.001, 0.001)
while ticks < 50:
    store.add("n", 1)
signal.setitimer(signal.ITIMER_PROF, 0)
assert int(store.get("n")) > 0
"""
    )
