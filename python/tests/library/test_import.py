"""What importing costs and does not do; finding the library."""

from __future__ import annotations

import ast
import graphlib
import importlib.metadata
import os
from pathlib import Path

import pytest

import rallypoint


def finds_plugins() -> bool:
    from torch.distributed.elastic.rendezvous import registry

    return hasattr(registry, "_register_out_of_tree_handlers")


needs_discovery = pytest.mark.skipif(not finds_plugins(), reason="torch 2.5")


def test_package_imports_neither_torch_nor_the_library(run_python) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import sys, rallypoint
        from rallypoint import RallypointError, Member, Store
        from rallypoint._native import library
        assert "torch" not in sys.modules
        assert "numpy" not in sys.modules
        assert library._library is None
        """
    )


def test_exit_does_not_load_the_library(run_python, tmp_path) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import os, sys
        os.environ["RALLYPOINT_LIBRARY"] = sys.argv[1]  # there is none
        from rallypoint import Member, elastic_launch
        import atexit, rallypoint._native.library
        sys.excepthook = sys.unraisablehook = lambda *_: os._exit(3)
        """,
        tmp_path / "none.so",
    )


def test_everything_in_all_exists() -> None:
    for name in rallypoint.__all__:
        assert getattr(rallypoint, name) is not None
    assert set(dir(rallypoint)) == set(rallypoint.__all__)
    assert not hasattr(rallypoint, "no_such_name")


def test_checkers_know_the_names() -> None:
    """mypy sees each name, and no __getattr__, with which it would believe every other one."""
    body = ast.parse(Path(rallypoint.__file__).read_text()).body
    assert not [n for n in body if isinstance(n, ast.FunctionDef) and n.name == "__getattr__"]
    [told] = [n for n in body if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    named = {
        a.asname or a.name for n in told.body if isinstance(n, ast.ImportFrom) for a in n.names
    }
    assert {*rallypoint.__all__, *rallypoint._SUBMODULES} <= named | {"__version__"}


def test_modules_need_no_import(run_python) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import sys, rallypoint
        assert "rallypoint.admin" not in sys.modules
        assert callable(rallypoint.admin.drain) and callable(rallypoint.timer.expires)
        """
    )


def test_without_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    """import *, dir() and help() leave out what torch is needed for, which says so."""
    run_python(
        """
        import sys
        sys.modules["torch"] = None
        import pydoc
        from rallypoint import *
        import rallypoint
        assert "EtcdStore" not in dir(rallypoint) and "EtcdStore" not in rallypoint.__all__
        text = pydoc.plain(pydoc.render_doc(rallypoint))
        assert "class LaunchConfig" in text and "connect_store(host" in text
        for name in ("EtcdStore", "DynamicRendezvousHandler"):
            try:
                getattr(rallypoint, name)
            except ImportError as e:
                assert f"rallypoint.{name} needs torch" in str(e), e
            else:
                raise AssertionError
        """
    )


def test_help_with_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import pydoc, rallypoint
        assert "class EtcdStore" in pydoc.plain(pydoc.render_doc(rallypoint))
        """
    )


def test_entry_point() -> None:
    found = importlib.metadata.entry_points(group="torchrun.handlers")
    [ours] = [e for e in found if e.name == "rallypoint"]
    assert ours.value == "rallypoint._entrypoint:creator_factory"


@needs_discovery
def test_plugin_is_lazy(run_python) -> None:  # type: ignore[no-untyped-def]
    """Discovery loads neither the library nor the handler (R25)."""
    out = run_python(
        """
        import sys
        import torch.distributed.elastic.rendezvous.registry as registry
        from torch.distributed.elastic.rendezvous import rendezvous_handler_registry as known
        creator = known._registry["rallypoint"]
        assert "rallypoint._entrypoint" in sys.modules
        for name in ("_native", "_stores", "_rendezvous", "_torch", "_launch", "handler"):
            assert f"rallypoint.{name}" not in sys.modules, name
        # A second discovery is no conflict (R24), and does not warn.
        import logging
        logging.basicConfig(stream=sys.stdout, level=logging.WARNING)
        registry._register_out_of_tree_handlers()
        assert known._registry["rallypoint"] is creator
        """
    )
    assert "rallypoint" not in out


def test_plugin_imports_nothing_of_torch(run_python) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import sys
        from rallypoint._entrypoint import creator_factory
        assert creator_factory() is creator_factory()
        assert "torch" not in sys.modules and "ctypes" not in sys.modules
        """
    )


def test_missing_library(run_python, tmp_path) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import os, sys
        os.environ["RALLYPOINT_LIBRARY"] = sys.argv[1]
        import rallypoint
        try:
            rallypoint.StoreServer()
        except rallypoint.LibraryError as e:
            assert sys.argv[1] in str(e) and "RALLYPOINT_LIBRARY" in str(e), e
        else:
            raise AssertionError
        """,
        tmp_path / "none.so",
    )


def test_library_of_another_version(run_python, tmp_path) -> None:  # type: ignore[no-untyped-def]
    run_python(
        """
        import rallypoint
        from rallypoint._native import abi
        abi.ABI_MINOR += 1
        try:
            rallypoint.StoreServer()
        except rallypoint.LibraryError as e:
            assert "version" in str(e), e
        else:
            raise AssertionError
        """
    )


def test_forked_child(run_python) -> None:  # type: ignore[no-untyped-def]
    """A child of fork() gets an error at once, and can exit in the ordinary way."""
    run_python(
        """
        import os, signal, sys
        import rallypoint
        server = rallypoint.StoreServer("127.0.0.1")
        store = rallypoint.connect_store("127.0.0.1", server.port, 5)
        member = rallypoint.Member("run", "127.0.0.1:0")
        for i in range(3):
            pid = os.fork()
            if pid == 0:
                signal.alarm(10)
                for call in (
                    lambda: store.get("k"),
                    lambda: rallypoint.StoreServer("127.0.0.1"),
                    lambda: member.nodes_waiting(),
                    lambda: member.next(),
                ):
                    try:
                        call()
                    except rallypoint.ForkedError as e:
                        assert "fork" in str(e) and e.code == rallypoint.Code.FORKED
                    else:
                        raise AssertionError
                store.close()
                member.close()
                del store, server, member
                sys.exit(7)  # runs the handlers of atexit
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        store.set("k", "v")
        assert store.get("k") == b"v"
        """
    )


def test_fork_before_use(run_python) -> None:  # type: ignore[no-untyped-def]
    """A child whose parent has not loaded the library may use it."""
    run_python(
        """
        import os, signal, sys
        import rallypoint
        pid = os.fork()
        if pid == 0:
            signal.alarm(10)
            with rallypoint.StoreServer("127.0.0.1") as server:
                assert server.port
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
        """
    )


def test_python_path_of_the_library() -> None:
    from rallypoint._native import library

    assert os.path.exists(library.path())


def imports() -> dict[str, set[str]]:
    """Which modules each module imports, within functions and for types included.

    The package itself, which loads them by their public names, stands above all.
    """
    [folder] = rallypoint.__path__
    files = {
        ".".join(file.relative_to(folder).with_suffix("").parts): file
        for file in Path(folder).rglob("*.py")
    }
    graph: dict[str, set[str]] = {}
    for module, file in files.items():
        found = graph.setdefault(module.removesuffix(".__init__"), set())
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            above = module.split(".")[: -node.level]
            source = ".".join([*above, *filter(None, [node.module])])
            inside = {".".join(filter(None, [source, alias.name])) for alias in node.names}
            found |= {name if name in files else source for name in inside}
    del graph["__init__"]
    return graph


def test_modules_import_one_way() -> None:
    """No circle among the modules, nor among their folders."""
    graph = imports()
    assert len(graph) > 35
    graphlib.TopologicalSorter(graph).prepare()

    folders: dict[str, set[str]] = {}
    for module, others in graph.items():
        own = module.split(".")[0]
        folders.setdefault(own, set()).update({other.split(".")[0] for other in others} - {own})
    graphlib.TopologicalSorter(folders).prepare()
