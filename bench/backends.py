"""Rendezvous handlers as torch's agent makes them, ours and the reference."""

from __future__ import annotations

import gc
import itertools
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from processes import BenchError, Group, Link, free_port

OURS = "rallypoint"
REFERENCE = "c10d"

_runs = itertools.count(1)


@dataclass
class Settings:
    """One run of one backend, at a port of its own."""

    backend: str
    min_nodes: int
    max_nodes: int
    options: dict[str, object] = field(default_factory=dict)
    port: int = field(default_factory=free_port)
    run_id: str = field(default_factory=lambda: f"bench-{next(_runs)}")
    endpoint: str = ""  # instead of the port

    def handler(self):  # type: ignore[no-untyped-def]
        """Makes a node's handler, as torchrun does."""
        from torch.distributed.elastic.rendezvous import RendezvousParameters
        from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

        return get_rendezvous_handler(
            RendezvousParameters(
                backend=self.backend,
                endpoint=self.endpoint or f"127.0.0.1:{self.port}",
                run_id=self.run_id,
                min_nodes=self.min_nodes,
                max_nodes=self.max_nodes,
                local_addr="127.0.0.1",
                **self.options,
            )
        )


def meet(backend: str, n: int, prepare: Callable[[], Callable[[], Any]], timeout: float) -> float:
    """Seconds from the first node's call to the last one's return, in processes of their own.

    The call is the making of the handler, by what prepare returns, and next_rendezvous. For
    ours that includes loading the library, unless prepare has loaded it.
    """

    def node(link: Link) -> None:
        make = prepare()
        link.ready()
        began = time.monotonic()
        handler = make()
        info = handler.next_rendezvous()
        link.send((began, time.monotonic(), info.rank, info.world_size))
        link.hold()

    with Group(n, node) as group:
        group.open_gate()
        outcomes = group.receive_all(timeout=timeout)
    if sorted(o[2] for o in outcomes) != list(range(n)) or {o[3] for o in outcomes} != {n}:
        raise BenchError(f"{backend}: wrong ranks or world sizes: {outcomes}")
    return float(max(o[1] for o in outcomes) - min(o[0] for o in outcomes))


def serve_torchs_store(link: Link) -> None:
    """Serves a TCPStore of torch's, and sends its port."""
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    link.ready()
    link.send(store.port)
    link.hold()


def import_everything() -> None:
    """Imports all Python code that the children need, once, before they are forked.

    Rallypoint's library is not loaded by that, which is what lets the children use it.
    """
    import torch.distributed.elastic.rendezvous.registry  # noqa: F401

    import rallypoint.handler  # noqa: F401
    from rallypoint._native import library

    if library._library is not None:
        raise AssertionError("importing rallypoint.handler has loaded the library")
    # What is collected later would copy the pages that the children share.
    logging.disable(logging.WARNING)
    gc.collect()
    gc.freeze()
