"""The console script `rallypoint`: the library's command in this process.

The library holds the whole command, so that a wheel needs no second copy of it as a
program. Nothing is imported that is not needed: neither torch nor the rest of the package,
and of the standard library little more than the interpreter has loaded already.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # signal without its enums
import ctypes
import os
import sys

from ._limits import too_low

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def main() -> int:
    """Runs the command with the arguments of this process; returns its exit code."""
    # The interpreter of `rallypoint run`'s workers; the library copies the environment
    # when it is loaded.
    os.environ.setdefault("RALLYPOINT_PYTHON", sys.executable)
    if "_pydev_bundle.pydev_monkey" in sys.modules:
        _have_debugger_follow()
    # Python's own settings are not for the command, nor for what it starts. The library
    # has to find them thus when it is loaded: then it takes care that SIGPIPE ends the
    # process for a broken standard output only, and not for a peer that is gone. With
    # SIGCHLD ignored, as a parent may have set it, no exit code could be learned.
    for number in (_signal.SIGINT, _signal.SIGPIPE, _signal.SIGXFSZ, _signal.SIGCHLD):
        _signal.signal(number, _signal.SIG_DFL)
    _open_standard_streams()
    rp_main = _rp_main()
    arguments = [b"rallypoint", *(os.fsencode(a) for a in sys.argv[1:])]
    argv = (ctypes.c_char_p * (len(arguments) + 1))(*arguments, None)
    return int(rp_main(len(arguments), argv))


def _have_debugger_follow() -> None:
    """Tells the library how the debugger starts a script or a module: its name comes last."""
    import json

    from ._debugger import followed

    python = [sys.executable, "-u"]
    forms = {"script": followed([*python, "x.py"]), "module": followed([*python, "-m", "x"])}
    os.environ["RALLYPOINT_DEBUGGER"] = json.dumps({k: v[1:-1] for k, v in forms.items()})


def _rp_main() -> Any:
    """The library's function; without it the process ends, and says why."""
    package = os.path.dirname(os.path.abspath(__file__))
    given = os.environ.get("RALLYPOINT_LIBRARY")
    if why := too_low():
        print(f"rallypoint: {why}", file=sys.stderr)
        sys.exit(1)
    try:
        return ctypes.CDLL(given or os.path.join(package, "librallypoint.so")).rp_main
    except (OSError, AttributeError):
        command = os.path.join(package, "rallypoint")
        if not given and os.path.exists(command):  # the wheel for musl, which has no library
            os.execv(command, ["rallypoint", *sys.argv[1:]])
        from ._errors import LibraryError
        from ._native import library

        try:
            return library.load().rp_main
        except LibraryError as e:
            print(f"rallypoint: {e}", file=sys.stderr)
            sys.exit(1)


def _open_standard_streams() -> None:
    """Opens /dev/null in the place of standard streams that are closed.

    Else the next files that are opened would be taken for them, and written to.
    """
    while True:
        descriptor = os.open(os.devnull, os.O_RDWR)
        if descriptor > 2:
            os.close(descriptor)
            return
        os.set_inheritable(descriptor, True)


if __name__ == "__main__":
    sys.exit(main())
