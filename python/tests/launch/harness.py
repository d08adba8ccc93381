"""What the tests of elastic_launch share (docs/spec/agent.md, sections 3 and 15)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import free_port

from rallypoint import LaunchConfig, elastic_launch

PYTHON = sys.executable


def alone(workers: int = 2, **fields: Any) -> LaunchConfig:
    fields.setdefault("max_restarts", 0)
    return LaunchConfig(1, 1, workers, run_id="job", **fields)


def nodes(count: int, workers: int, backend: str = "rallypoint", **fields: Any) -> list[Any]:
    """The configurations of the nodes of one job."""
    endpoint = f"127.0.0.1:{free_port()}"
    fields.setdefault("max_restarts", 0)
    return [
        LaunchConfig(
            count,
            count,
            workers,
            run_id="job",
            rdzv_backend=backend,
            rdzv_endpoint=endpoint,
            rdzv_configs={"rank": i, "node_rank": i},
            **fields,
        )
        for i in range(count)
    ]


def launch_all(configs: list[Any], entrypoint: Any, *args: Any) -> list[Future[dict[int, Any]]]:
    """Launches each node in a thread of its own and waits for all."""
    with ThreadPoolExecutor(len(configs)) as pool:
        return [pool.submit(elastic_launch(c, entrypoint), *args) for c in configs]


@contextlib.contextmanager
def in_folder(folder: Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def run_script(tmp_path: Path, text: str, python: str = PYTHON) -> subprocess.CompletedProcess[str]:
    (tmp_path / "main.py").write_text(textwrap.dedent(text))
    return subprocess.run(
        [python, str(tmp_path / "main.py"), "argument"],
        capture_output=True,
        text=True,
        timeout=110,
    )


# Signals


@contextlib.contextmanager
def launching(tmp_path: Path, config: str) -> Iterator[subprocess.Popen[str]]:
    """A program that launches workers which announce themselves."""
    (tmp_path / "main.py").write_text(
        textwrap.dedent(
            f"""
            import os, sys, time
            import rallypoint
            from rallypoint import LaunchConfig, elastic_launch
            sys.path.append({os.path.dirname(__file__)!r})

            def work():
                os.write(1, b"worker %d\\n" % os.getpid())  # in one piece
                time.sleep(1000)

            if __name__ == "__main__":
                try:
                    elastic_launch(LaunchConfig(1, 1, 2, {config}), work)()
                except rallypoint.SignalException as e:
                    assert "torch" not in sys.modules, "people wait for this"
                    print("signal", int(e.sigval), str(e), flush=True)
                except KeyboardInterrupt:
                    print("interrupt", flush=True)
            """
        )
    )
    (tmp_path / "own").mkdir()
    program = subprocess.Popen(
        [PYTHON, str(tmp_path / "main.py")],
        stdout=subprocess.PIPE,
        env={**os.environ, "TMPDIR": str(tmp_path / "own")},
        text=True,
    )
    try:
        yield program
    finally:
        program.kill()
        program.communicate()


def worker_pids(program: subprocess.Popen[str]) -> list[int]:
    assert program.stdout is not None
    return [int(program.stdout.readline().split()[1]) for _ in range(2)]


def gone(pids: list[int]) -> bool:
    return not any(os.path.exists(f"/proc/{pid}") for pid in pids)
