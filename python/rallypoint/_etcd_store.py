"""A store in etcd for torch."""

from __future__ import annotations

from datetime import timedelta

from ._errors import RallypointError
from ._etcd import connect_etcd
from ._torch import TorchStore, store_error


class EtcdStore(TorchStore):
    """torch.distributed.Store in an etcd: for init_process_group(store=...) and others.

    The arguments are those of connect_etcd; all processes of a group give the same
    endpoint and prefix, and each job a prefix of its own, for the keys stay unless there
    is a ttl among the options. Errors are torch's DistStoreErrors and RallypointErrors
    at once, except InvalidError, which is a ValueError. Hold the object as long as the
    group: torch's C++ side does not.
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
