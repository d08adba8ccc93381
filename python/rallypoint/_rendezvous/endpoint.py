"""Where and how a node meets the others, and what it takes of a launcher's options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from .._native import abi, library

BACKEND = "rallypoint"
STATIC_BACKEND = "rallypoint-static"


@dataclasses.dataclass(frozen=True)
class MemberConfig:
    """How a node meets the others, as rp_member_config."""

    run_id: str
    endpoint: str = ""  # "": the node is the whole job
    min_nodes: int = 1
    max_nodes: int = 1
    local_addr: str | None = None
    options: Mapping[str, object] | None = None
    environment: bool = True  # whether hints are read from it

    def native(self) -> abi.MemberConfig:
        """The struct of the header, which keeps what it points to alive."""
        options = library.options(self.options)
        return abi.MemberConfig(
            run_id=library.text(self.run_id),
            endpoint=library.text(self.endpoint),
            min_nodes=self.min_nodes,
            max_nodes=self.max_nodes,
            local_addr=library.text(self.local_addr),
            options=options,
            options_len=len(options),
            flags=abi.MEMBER_ENVIRONMENT if self.environment else 0,
        )


def resolve(
    backend: str, endpoint: str | None, configs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The endpoint and the options of a node, as the library takes them.

    The library's option `backend` says what the endpoint and the options mean by the name
    of the backend: which plain paths and addresses it takes, and what torch's launchers add.
    """
    return endpoint or "", {**configs, "backend": backend}
