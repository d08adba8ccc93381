"""What the handler's tests share: handlers of one run."""

from __future__ import annotations

import socket
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness import free_port, until
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.elastic.rendezvous import RendezvousParameters

from rallypoint.handler import RallypointHandler, create_handler

PATIENCE = 60.0


# Short for tests; the first round waits for no node in vain.
FAST: dict[str, object] = {"last_call_timeout": 0.2, "lease_timeout": 2, "join_timeout": 100}


class Run:
    """Handlers of one run, each of which may be used in a thread of its own."""

    def __init__(self) -> None:
        self.run_id = "the-run"
        self.endpoint = f"127.0.0.1:{free_port()}"
        self.pool = ThreadPoolExecutor(16)
        self.handlers: list[RallypointHandler] = []

    def parameters(self, min_nodes: int, max_nodes: int, **config: object) -> RendezvousParameters:
        return RendezvousParameters(
            "rallypoint",
            self.endpoint,
            self.run_id,
            min_nodes,
            max_nodes,
            None,
            **{**FAST, **config},
        )

    def handler(
        self, min_nodes: int = 2, max_nodes: int = 2, **config: object
    ) -> RallypointHandler:
        made = create_handler(self.parameters(min_nodes, max_nodes, **config))
        self.handlers.append(made)
        return made

    def join(self, *handlers: RallypointHandler) -> list[Future[Any]]:
        return [self.pool.submit(h.next_rendezvous) for h in handlers]

    def round(self, *handlers: RallypointHandler) -> list[Any]:
        """One round of all these handlers; their infos. The first of all rounds is hosted
        by the first of its handlers."""
        futures = self.join(handlers[0])
        until(lambda: futures[0].done() or listens(self.endpoint))
        futures += self.join(*handlers[1:])
        return [f.result(PATIENCE) for f in futures]

    def end(self) -> None:
        for handler in self.handlers:
            handler._member.close()
        self.pool.shutdown()


def fail_with(handler: RallypointHandler, error: BaseException) -> bool:
    """shutdown() as torch's launcher calls it: while the error is on its way."""
    try:
        try:
            raise error
        finally:
            result = handler.shutdown()
    except type(error):
        return result
    raise AssertionError


def child_failed() -> ChildFailedError:
    failure = ProcessFailure(local_rank=1, pid=4711, exitcode=3, error_file="")
    return ChildFailedError("train.py", {5: failure})


def evict(run: Run, node: str) -> None:
    """Drops a node from the run, as a person would."""
    command = [Path(sys.executable).with_name("rallypoint"), "admin", "evict", run.endpoint]
    of = ["--rdzv-id", run.run_id, "--node", node, "--reason", "of the test"]
    subprocess.run([*command, *of], check=True, timeout=PATIENCE)


def listens(endpoint: str) -> bool:
    host, port = endpoint.split(":")
    with socket.socket() as s:
        return s.connect_ex((host, int(port))) == 0
