"""Has a debugger that follows child processes follow workers, which the library starts.

debugpy (VS Code, PyCharm) patches Python's own ways to start a process. It does not see what
the library starts, so its function is applied to the workers' command here.
"""

from __future__ import annotations

import sys
from typing import Any


def followed(argv: list[str]) -> list[str]:
    """The command with which the debugger would start argv; argv itself without a debugger."""
    monkey: Any = sys.modules.get("_pydev_bundle.pydev_monkey")
    return [str(part) for part in monkey.patch_args(argv)] if monkey else argv
