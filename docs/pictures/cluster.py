"""A `rallypoint serve` and nodes of a run, of which pictures are taken."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
RALLYPOINT = ROOT / "build" / "rallypoint"
RUN = "llama-70b"


class Cluster:
    """The server is at its endpoint; its nodes write nothing here."""

    def __init__(self) -> None:
        self.serve = subprocess.Popen(
            [RALLYPOINT, "serve", "--listen", "127.0.0.1:0", "--log-level", "off"],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.serve.stdout is not None
        self.endpoint = self.serve.stdout.readline().split()[-1]
        self.nodes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, node: str, conf: str, *arguments: str, **options: Any) -> None:
        self.nodes[node] = subprocess.Popen(
            [
                *(RALLYPOINT, "run", "--rdzv-endpoint", self.endpoint, "--rdzv-id", RUN),
                *("--rdzv-conf", f"node_id={node},is_host=0,{conf}", *arguments),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **options,
        )


@contextmanager
def cluster() -> Iterator[Cluster]:
    made = Cluster()
    try:
        yield made
    finally:
        for p in [*made.nodes.values(), made.serve]:
            p.kill()
            p.wait()
