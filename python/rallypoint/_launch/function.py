"""A function as the entry point of workers: how it gets into them and back.

Each worker is a fresh interpreter, which worker.py runs in. It fetches the function and its
arguments from the launcher (arguments.py), and leaves what the function returned in a folder
that only this user may enter.
"""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import pickle
import re
import reprlib
import subprocess
import sys
from multiprocessing import spawn
from typing import Any, Callable

from .._errors import invalid
from .arguments import ArgumentServer
from .folder import OwnFolder

# Without the current directory, which may be any user's; the worker takes the launcher's
# path before it looks for the function.
_BOOTSTRAP = (
    "import sys; sys.path[:] = [{path!r}, *filter(None, sys.path)]; "
    "from rallypoint._launch.worker import main; main({job!r}, *sys.argv[1:])"
)


def _words(values: tuple[Any, ...]) -> str:
    """Arguments in words that are the same on all nodes, and tell the jobs of a sweep apart; of
    large ones not all."""
    words = reprlib.Repr()
    words.maxlevel = 8
    words.maxtuple = words.maxlist = words.maxdict = words.maxset = words.maxfrozenset = 100
    words.maxstring = words.maxlong = words.maxother = 1000
    try:
        return re.sub(r" at 0x[0-9a-fA-F]+", "", words.repr(values))
    except Exception:  # of an argument's own class
        return ", ".join(type(value).__name__ for value in values)


def result_file(folder: str, round: object, rank: object) -> str:
    """Where the worker of a rank leaves what its function returned."""
    return os.path.join(folder, f"result.{round}.{rank}")


def of_notebook(function: Any) -> bool:
    """Whether a function is of a main program that no other interpreter can import."""
    if getattr(function, "__module__", None) != "__main__":
        return False
    preparation = spawn.get_preparation_data("rallypoint worker")
    main = preparation.get("init_main_from_path")
    return "init_main_from_name" not in preparation and (main is None or not os.path.isfile(main))


class FunctionJob:
    """A function on its way to workers. A context manager: the end removes its folder."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if getattr(multiprocessing.process.current_process(), "_inheriting", False):
            raise RuntimeError(
                "a launch was attempted while a worker was importing the main module: put the "
                'code that launches under `if __name__ == "__main__":`'
            )
        self._function = function
        self._args = args
        self.folder = ""

    def __enter__(self) -> FunctionJob:
        self._folder = OwnFolder()
        self.folder = self._folder.path
        try:
            self._server = self._serve()
        except BaseException:
            self._folder.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._server.close()
        self._folder.close()

    def _serve(self) -> ArgumentServer:
        preparation = spawn.get_preparation_data("rallypoint worker")
        if not os.path.isfile(preparation.get("init_main_from_path", __file__)):
            del preparation["init_main_from_path"]  # such as "<stdin>"
        if not preparation.keys() & {"init_main_from_path", "init_main_from_name"}:
            self._refuse_main()
        try:
            return ArgumentServer(self.folder, (preparation, (self._function, self._args)))
        except OSError:
            raise
        except Exception as e:
            raise invalid(
                f"the entry point {self._function!r} or its arguments cannot be pickled: {e}; "
                "a function must be defined at the top level of a module, and what "
                'multiprocessing shares be made by multiprocessing.get_context("spawn") '
                "(docs/deviations.md)"
            ) from e

    def _refuse_main(self) -> None:
        if getattr(self._function, "__module__", None) == "__main__":
            raise invalid(
                f"the entry point {self._function!r} is defined in a notebook or another "
                "program that is no file, which workers cannot import: put it into a module, or "
                'have the workers forked: start_method="fork" in the LaunchConfig'
            )

    def argv(self, virtual: bool) -> list[str]:
        """The command of each worker; ${local_rank} in it will be replaced.

        It is the same for all workers, so that they can be forked, but for virtual local ranks:
        there only it tells a worker its true one.
        """
        package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
        flags: list[str] = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
        code = _BOOTSTRAP.format(path=package, job=self.folder)
        executable = os.fsdecode(spawn.get_executable() or sys.executable)
        command = [executable, *flags, "-c", code]
        command = [part.replace("$", "$$") for part in command]
        return [*command, "${local_rank}"] if virtual else command

    def command(self) -> str:
        """What runs, in the same words on all nodes. Other users may see them, and so a digest
        stands for the arguments."""
        function = self._function
        origin = getattr(function, "__module__", None) or ""
        file = getattr(sys.modules.get(origin), "__file__", None)
        name = getattr(function, "__qualname__", None) or _words((function,))
        digest = hashlib.sha256(_words(self._args).encode(errors="replace")).hexdigest()[:8]
        given = f"#{digest}" if self._args else ""
        return f"{os.path.basename(file) if file else origin}: {name}({given})"

    def value(self, round: int, rank: int) -> Any:
        """What a worker's function returned; None if it ended before."""
        try:
            with open(result_file(self.folder, round, rank), "rb") as file:
                return pickle.load(file)
        except FileNotFoundError:
            return None
