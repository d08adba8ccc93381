"""How workers fail, for programs that also catch torch's errors."""

from __future__ import annotations

from torch.distributed.elastic.multiprocessing import SignalException as _TorchSignalException
from torch.distributed.elastic.multiprocessing.errors import (
    ChildFailedError as _TorchChildFailedError,
)
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

from . import failure_plain as plain

__all__ = ["ChildFailedError", "ProcessFailure", "SignalException"]


class ChildFailedError(plain.ChildFailedError, _TorchChildFailedError):
    __doc__ = plain.ChildFailedError.__doc__


class SignalException(plain.SignalException, _TorchSignalException):
    __doc__ = plain.SignalException.__doc__
