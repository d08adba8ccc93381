"""A store in etcd for torch."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from typing import Any, Callable

from .._errors import RallypointError, invalid
from .._native import library
from .._stores.etcd import EtcdClient, connect_etcd
from .errors import store_error
from .store import TorchStore, as_timedelta


class EtcdStore(TorchStore):
    """torch.distributed.Store in an etcd: for init_process_group(store=...) and others.

    All processes of a group give the same endpoint and prefix, and each job a prefix of its
    own, for the keys stay unless there is a ttl among the options. Errors are torch's
    DistStoreErrors and RallypointErrors at once, except InvalidError, which is a
    ValueError. Hold the object as long as the group: torch's C++ side does not.

    Args:
        endpoint: EtcdServer.get_client(), whose etcd is then this store's, too; or a client of
            the package python-etcd, whose address and certificates are taken; or
            etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...], the members of one
            cluster; etcds:// with TLS; the port is 2379.
        prefix: in front of all keys; None is /rallypoint/store.
        timeout: how long to try; becomes the store's own. None: 300 s.
        etcd_client: torch's name of endpoint, for programs that give it by keyword.
        etcd_store_prefix: torch's name of prefix, likewise.
        **options: protocol (http, https), ca_cert, ssl_cert, ssl_cert_key (files in PEM),
            user, password or password_file, key_prefix, and ttl in seconds: with it the keys
            vanish so long after the store was closed, else they stay.
    """

    def __init__(
        self,
        endpoint: Any = None,
        prefix: str | None = None,
        timeout: timedelta | float | None = None,
        *,
        etcd_client: Any = None,
        etcd_store_prefix: str | None = None,
        **options: object,
    ) -> None:
        if (endpoint is None) == (etcd_client is None):
            raise invalid("an EtcdStore takes one of endpoint and etcd_client")
        if prefix is not None and etcd_store_prefix is not None:
            raise invalid("an EtcdStore takes one of prefix and etcd_store_prefix")
        endpoint = etcd_client if endpoint is None else endpoint
        prefix = etcd_store_prefix if prefix is None else prefix
        limit = timedelta(seconds=300) if timeout is None else as_timedelta(timeout)
        endpoint, options = _endpoint(endpoint, options)
        try:
            store = connect_etcd(endpoint, prefix, limit, options)
        except ValueError:
            raise
        except RallypointError as e:
            raise store_error(e) from None
        super().__init__(store, limit)
        self._opened: Any = partial(EtcdStore, endpoint, prefix, **options)  # type: ignore[arg-type]

    def _again(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self._opened, (self.timeout,)

    def close(self) -> None:
        """Closes the store for this object and its clones."""
        self._store.close()


def _endpoint(client: Any, options: dict[str, object]) -> tuple[str, dict[str, object]]:
    """The endpoint and the options by which a client was opened."""
    if isinstance(client, str):
        return client, options
    if isinstance(client, TorchStore):
        client = client._store
    if isinstance(client, EtcdClient):
        return client.endpoint, {**client.options, **options}
    host, port = getattr(client, "host", None), getattr(client, "port", None)
    if not isinstance(host, str) or not isinstance(port, int):
        raise invalid(
            f"{client!r} is not an etcd client: give EtcdServer.get_client(), one of the package "
            "python-etcd, or an endpoint such as etcd://host:2379"
        )
    found: dict[str, object] = {
        "protocol": getattr(client, "protocol", None),
        "user": getattr(client, "username", None),
        "password": getattr(client, "password", None),
    }
    pool = getattr(getattr(client, "http", None), "connection_pool_kw", {})
    for option, name in (
        ("ssl_cert", "cert_file"),
        ("ssl_cert_key", "key_file"),
        ("ca_cert", "ca_certs"),
    ):
        found[option] = pool.get(name)
    return f"etcd://{library.address(host, port)}", {**found, **options}
