"""The errors: classes, codes, and what torch sees of them."""

from __future__ import annotations

import pickle

import pytest
import torch.distributed as dist
from torch.distributed.elastic.rendezvous import api

import rallypoint
from rallypoint import Code, RallypointError, _errors
from rallypoint._torch import errors


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_class(code: Code) -> None:
    e = _errors.make_error(code, "what failed", code == Code.CONNECTION)
    assert isinstance(e, RallypointError)
    assert e.code is code
    assert str(e) == "what failed"
    assert e.retryable == (code == Code.CONNECTION)
    copy = pickle.loads(pickle.dumps(e))
    assert (type(copy), str(copy), copy.code) == (type(e), str(e), code)
    assert copy.retryable == e.retryable
    assert type(e).__module__ == "rallypoint"  # what a traceback shows


def test_unknown_code() -> None:
    e = _errors.make_error(4711, "of a newer library", False)
    assert type(e) is RallypointError and e.code is Code.INTERNAL


@pytest.mark.parametrize(
    ("code", "torch_class", "own_class"),
    [
        (Code.CLOSED, api.RendezvousClosedError, rallypoint.ClosedError),
        (Code.TIMEOUT, api.RendezvousTimeoutError, rallypoint.DeadlineError),
        (Code.CONNECTION, api.RendezvousConnectionError, rallypoint.ConnectionFailedError),
        (Code.STATE, api.RendezvousStateError, rallypoint.StateError),
        (Code.GRACEFUL, api.RendezvousGracefulExitError, rallypoint.GracefulExitError),
        (Code.INVALID, api.RendezvousError, ValueError),
        (Code.TENANT, api.RendezvousError, RallypointError),
        (Code.MISMATCH, api.RendezvousError, RallypointError),
        (Code.CANCELED, api.RendezvousError, RallypointError),
    ],
)
def test_rendezvous_errors(
    code: Code, torch_class: type[Exception], own_class: type[Exception]
) -> None:
    e = errors.rendezvous_error(_errors.make_error(code, "why", False))
    assert isinstance(e, torch_class) and isinstance(e, own_class)
    assert e.code is code and str(e) == "why"
    assert type(pickle.loads(pickle.dumps(e))) is type(e)


@pytest.mark.parametrize(
    ("code", "torch_class"),
    [
        (Code.TIMEOUT, dist.DistStoreError),
        (Code.CONNECTION, dist.DistNetworkError),
        (Code.EMPTY, getattr(dist, "QueueEmptyError", dist.DistStoreError)),
        (Code.UNSUPPORTED, NotImplementedError),
        (Code.ROUND_OVER, dist.DistStoreError),
        (Code.HANDLE, dist.DistStoreError),
    ],
)
def test_store_errors(code: Code, torch_class: type[Exception]) -> None:
    e = errors.store_error(_errors.make_error(code, "why", False))
    assert isinstance(e, torch_class) and isinstance(e, RallypointError)
    assert isinstance(e, RuntimeError) and e.code is code


def test_message_is_the_library_s() -> None:
    with pytest.raises(ValueError, match="minimum number of nodes is 0") as caught:
        rallypoint.Member("run", "127.0.0.1", 0, 1)
    assert caught.value.code is Code.INVALID  # type: ignore[attr-defined]


def test_text_with_nul() -> None:
    with pytest.raises(rallypoint.InvalidError, match="NUL"):
        rallypoint.Member("run\0", "127.0.0.1")
