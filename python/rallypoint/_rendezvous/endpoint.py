"""Names of backends, and what a node takes of a launcher's options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

BACKEND = "rallypoint"
STATIC_BACKEND = "rallypoint-static"


def resolve(
    backend: str, endpoint: str | None, configs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The endpoint and the options of a node, as the library takes them.

    The library's option `backend` says what the endpoint and the options mean by the name
    of the backend: which plain paths and addresses it takes, and what torch's launchers add.
    """
    return endpoint or "", {**configs, "backend": backend}
