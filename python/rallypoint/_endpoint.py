"""Names of backends, and the endpoints that they take."""

from __future__ import annotations

import urllib.parse
from collections.abc import Mapping
from typing import Any

from ._errors import Code, InvalidError

BACKEND = "rallypoint"
FILE_BACKEND = "rallypoint-file"
ETCD_BACKEND = "rallypoint-etcd"
STATIC_BACKEND = "rallypoint-static"

# The names of torch's own etcd backends, which rallypoint's launcher answers, too.
ETCD_BACKENDS = (ETCD_BACKEND, "etcd", "etcd-v2")

# What torch's launchers add for every backend: no options of ours.
_NOT_OURS = frozenset({"timeout", "rank"})


def place(
    backend: str, endpoint: str | None, configs: Mapping[str, Any]
) -> tuple[str, dict[str, Any]]:
    """The endpoint and the options of a node, as the library takes them.

    The backend rallypoint takes every endpoint, rallypoint-file also a plain path,
    rallypoint-etcd also plain host:port, or several of them with commas, and
    rallypoint-static also plain host:port of node 0; a static node's rank may be `rank`
    in configs, and its time to meet `timeout`, as for torch's static backend. store_type=file
    with a path makes rallypoint, or c10d, rallypoint-file.
    """
    endpoint = (endpoint or "").strip()
    options = {k: v for k, v in configs.items() if k not in _NOT_OURS}
    if (
        backend in (BACKEND, "c10d")
        and str(options.get("store_type")).lower() == "file"
        and endpoint.lower().startswith(("/", "file://"))
    ):
        del options["store_type"]  # c10d's way to say so
        backend = FILE_BACKEND
    if backend == FILE_BACKEND:
        endpoint = _file_endpoint(endpoint)
    if backend in ETCD_BACKENDS:
        endpoint = _etcd_endpoint(backend, endpoint)
    if backend == STATIC_BACKEND:
        endpoint = _static_endpoint(endpoint)
    if endpoint.lower().startswith("static://"):
        if configs.get("rank") is not None:
            options.setdefault("node_rank", configs["rank"])
        if configs.get("timeout"):
            options.setdefault("join_timeout", configs["timeout"])
    return endpoint, options


def _file_endpoint(endpoint: str) -> str:
    if endpoint.startswith("/"):
        return "file://" + urllib.parse.quote(endpoint)
    if not endpoint.lower().startswith("file://"):
        raise InvalidError(
            f"the endpoint {endpoint!r} is not one of {FILE_BACKEND}: write file:///DIRECTORY, "
            "or the path of a directory that all nodes share",
            Code.INVALID,
        )
    return endpoint


def _etcd_endpoint(backend: str, endpoint: str) -> str:
    if "://" not in endpoint:
        return "etcd://" + (endpoint or "localhost")
    if not endpoint.lower().startswith(("etcd://", "etcds://")):
        raise InvalidError(
            f"the endpoint {endpoint!r} is not one of {backend}: write "
            "etcd://HOST[:PORT][,HOST[:PORT]...], or etcds:// with TLS",
            Code.INVALID,
        )
    return endpoint


def _static_endpoint(endpoint: str) -> str:
    if not endpoint:
        raise InvalidError(
            "the endpoint of a static job is host:port of its node 0, and it is missing",
            Code.INVALID,
        )
    if "://" not in endpoint:
        return "static://" + endpoint
    if not endpoint.lower().startswith("static://"):
        raise InvalidError(
            f"the endpoint {endpoint!r} is not one of {STATIC_BACKEND}: write HOST:PORT of node 0",
            Code.INVALID,
        )
    return endpoint
