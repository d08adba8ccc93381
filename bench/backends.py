"""Rendezvous handlers as torch's agent makes them, ours and the reference."""

from __future__ import annotations

import gc
import itertools
import logging
from dataclasses import dataclass, field

from processes import free_port

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
