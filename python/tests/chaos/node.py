"""The agents of test_places.py: node.py agent OPTIONS runs one; node.py parent starts
each that a line on its standard input asks for, as a fork of itself, which has loaded
nothing of the library, and says what comes of it, a line of JSON each."""

from __future__ import annotations

import fcntl
import json
import os
import sys
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

SH = "/bin/sh"
LOADED = "has loaded torch:"  # what an agent that needs it says first, with its process id


def run(options: dict[str, Any]) -> None:
    """One node's part in the job, from its first join to its end."""
    with open(options["log"], "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    os.environ.update(options["environment"])
    worker = (str(Path(__file__).with_name("worker.sh")), options["history"], options["stop"])
    if "value" in options["place"]:
        run_with_backend(options, worker)
        return
    from rallypoint import LaunchConfig, elastic_launch

    config = LaunchConfig(
        options["least"], options["most"], 1, run_id="chaos", max_restarts=1_000_000,
        rdzv_backend="c10d", rdzv_endpoint=options["place"]["endpoint"],
        rdzv_configs=options["settings"], local_addr="127.0.0.1", shutdown_timeout=2,
    )  # fmt: skip
    elastic_launch(config, SH)(*worker)


def run_with_backend(options: dict[str, Any], worker: tuple[str, ...]) -> None:
    """The same in a backend of the user's own, which only torch's classes can name."""
    from torch.distributed.elastic.agent.server.api import WorkerSpec

    import rallypoint
    from rallypoint.agent import RallypointElasticAgent
    from rallypoint.handler import DynamicRendezvousHandler

    print(LOADED, os.getpid(), flush=True)

    class Value(rallypoint.RendezvousBackend):
        """A file that is read and replaced under a lock; its version is its token."""

        name = "value"
        path = Path(options["place"]["value"])

        def get_state(self) -> Any:
            try:
                with self.path.open("rb") as f:
                    version, _, state = f.read().partition(b"\n")
            except FileNotFoundError:
                return None
            return state, version

        def set_state(self, state: bytes, token: Any = None) -> Any:
            with self.path.with_suffix(".lock").open("ab") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                found = self.get_state()
                if token != (found and found[1]):
                    return (*found, False) if found else None
                version = b"%d" % (int(token or 0) + 1)
                fresh = self.path.with_suffix(".new")
                fresh.write_bytes(version + b"\n" + state)
                fresh.replace(self.path)
                return state, version, True

    handler = DynamicRendezvousHandler.from_backend(
        "chaos", None, Value(), options["least"], options["most"], local_addr="127.0.0.1",
        **options["settings"],
    )  # fmt: skip
    spec = WorkerSpec("default", 1, handler, entrypoint=SH, args=worker, max_restarts=1_000_000)
    RallypointElasticAgent(spec, shutdown_timeout=2).run()


def serve_forks() -> None:
    """Starts agents until its standard input ends."""
    fork = get_context("fork")
    running: dict[int, tuple[str, Any]] = {}
    if sys.argv[2:] == ["torch"]:  # slow to load; torch's elastic modules would load the library
        import torch.distributed  # noqa: F401
    said("ready")
    while True:
        for ready in connection.wait([sys.stdin.fileno(), *running]):
            if ready != sys.stdin.fileno():
                name, process = running.pop(ready)  # type: ignore[arg-type]
                process.join()
                said("ended", name, process.exitcode)
                continue
            line = b""
            while not line.endswith(b"\n"):
                if not (byte := os.read(sys.stdin.fileno(), 1)):
                    return
                line += byte
            options = json.loads(line)
            assert "rallypoint" not in sys.modules
            process = fork.Process(target=run, args=(options,))
            process.start()
            running[process.sentinel] = (options["name"], process)
            said("started", options["name"], process.pid)


def said(*what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    if sys.argv[1] == "parent":
        serve_forks()
    else:
        run(json.loads(sys.argv[2]))
