"""A store in etcd for torch."""

from __future__ import annotations

from datetime import timedelta

from ._errors import RallypointError
from ._etcd import connect_etcd
from ._torch import TorchStore, store_error


class EtcdStore(TorchStore):
    """torch.distributed.Store in an etcd: for init_process_group(store=...) and others.

    All processes of a group give the same endpoint and prefix, and each job a prefix of its
    own, for the keys stay unless there is a ttl among the options. Errors are torch's
    DistStoreErrors and RallypointErrors at once, except InvalidError, which is a
    ValueError. Hold the object as long as the group: torch's C++ side does not.

    Args:
        endpoint: etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...], the members of one
            cluster; etcds:// with TLS; the port is 2379.
        prefix: in front of all keys; None is /rallypoint/store.
        timeout: how long to try; becomes the store's own.
        **options: protocol (http, https), ca_cert, ssl_cert, ssl_cert_key (files in PEM),
            user, password or password_file, key_prefix, and ttl in seconds: with it the keys
            vanish so long after the store was closed, else they stay.
    """

    def __init__(
        self,
        endpoint: str,
        prefix: str | None = None,
        timeout: timedelta = timedelta(seconds=300),
        **options: object,
    ) -> None:
        try:
            store = connect_etcd(endpoint, prefix, timeout.total_seconds(), options)
        except ValueError:
            raise
        except RallypointError as e:
            raise store_error(e) from None
        super().__init__(store, timeout)

    def close(self) -> None:
        """Closes the store for this object and its clones."""
        self._store.close()
