"""The errors of the package as torch's own kinds of errors, too.

Imports torch; nothing of this package imports it before torch is used.
"""

from __future__ import annotations

from typing import Any

import torch.distributed as dist
from torch.distributed.elastic.rendezvous import api

from .._errors import (
    ClosedError,
    Code,
    ConnectionFailedError,
    DeadlineError,
    EmptyError,
    GracefulExitError,
    InvalidError,
    MissingKeyError,
    RallypointError,
    StateError,
    UnsupportedError,
)


class RendezvousError(RallypointError, api.RendezvousError):
    """An error of the rendezvous for which torch has no class of its own."""


class RendezvousInvalidError(InvalidError, api.RendezvousError):
    """A setting turned out to be wrong when it was used."""


class RendezvousClosedError(ClosedError, api.RendezvousClosedError):
    """The run is closed, or can no longer regroup."""


class RendezvousTimeoutError(DeadlineError, api.RendezvousTimeoutError):
    """The nodes did not come together in time."""


class RendezvousConnectionError(ConnectionFailedError, api.RendezvousConnectionError):
    """The control plane cannot be reached."""


class RendezvousStateError(StateError, api.RendezvousStateError):
    """What came back is not Rallypoint's or not valid."""


class RendezvousGracefulExitError(
    GracefulExitError, api.RendezvousGracefulExitError, api.RendezvousClosedError
):
    """The run ended well and never needed this node: for torch's handlers, it is closed."""


_RENDEZVOUS: dict[Code, type[RallypointError]] = {
    Code.INVALID: RendezvousInvalidError,
    Code.CLOSED: RendezvousClosedError,
    Code.TIMEOUT: RendezvousTimeoutError,
    Code.CONNECTION: RendezvousConnectionError,
    Code.STATE: RendezvousStateError,
    Code.GRACEFUL: RendezvousGracefulExitError,
}


def rendezvous_error(e: RallypointError) -> RallypointError:
    """The same error as one that torch's agent knows."""
    cls: type[RallypointError] = _RENDEZVOUS.get(e.code, RendezvousError)
    error: RallypointError = cls(str(e), e.code, e.retryable)
    return error


class StoreError(RallypointError, dist.DistStoreError):
    """An operation of a store failed."""


class StoreTimeoutError(DeadlineError, dist.DistStoreError):
    """An operation of a store did not end in time."""


class StoreMissingKeyError(MissingKeyError, StoreTimeoutError):
    """A key did not come in time."""


class StoreConnectionError(ConnectionFailedError, dist.DistNetworkError):
    """A store cannot be reached."""


_QueueEmptyError: Any = getattr(dist, "QueueEmptyError", dist.DistStoreError)  # torch 2.8


class QueueEmptyError(EmptyError, _QueueEmptyError):
    """Pop from an empty queue."""


class StoreUnsupportedError(UnsupportedError, dist.DistStoreError):
    """This kind of store cannot do that."""


_STORE: dict[Code, type[RallypointError]] = {
    Code.TIMEOUT: StoreTimeoutError,
    Code.CONNECTION: StoreConnectionError,
    Code.EMPTY: QueueEmptyError,
    Code.UNSUPPORTED: StoreUnsupportedError,
}


def store_error(e: RallypointError) -> RallypointError:
    """The same error as one that users of torch's stores know."""
    kind = (
        StoreMissingKeyError if isinstance(e, MissingKeyError) else _STORE.get(e.code, StoreError)
    )
    return kind(str(e), e.code, e.retryable)
