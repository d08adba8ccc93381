"""The errors of the package.

Every error is a RallypointError and carries the library's number as `code`. There
is one class for each kind that a program may want to catch. Errors that torch sees
also have torch's own class as a base: see _torch/errors.py, which is loaded only where
torch is used.
"""

from __future__ import annotations

import enum


class Code(enum.IntEnum):
    """Numbers of errors, as in rallypoint.h (enum rp_code)."""

    INVALID = 10  # an argument or option is malformed or contradicts another
    MISMATCH = 12  # the run has another size, target, segment or command
    TENANT = 14  # the port serves another run
    NODE_IN_USE = 16  # a live node already carries this node id
    AUTH = 18  # one side could not prove that it knows the token
    CLOSED = 20  # the run is closed, or can no longer regroup
    GRACEFUL = 22  # the run ended well and never needed this node
    UNFIT = 24  # this node is not fit to run workers, by its own word
    TIMEOUT = 30  # a deadline passed
    CANCELED = 32  # the caller withdrew, or the object was closed meanwhile
    CONNECTION = 40  # the control plane or a store cannot be reached
    STATE = 50  # what came back is not Rallypoint's or not valid
    FENCED = 52  # another process has written the checkpoint
    EVICTED = 60  # this node was dropped from the run
    ROUND_OVER = 62  # the round of this store is over
    WORKERS = 64  # workers of this node failed for good
    START = 66  # workers could not be started
    NUMBER = 70  # add on a value that is not a number
    TOO_LARGE = 72  # a key, value or quota limit
    EMPTY = 74  # pop from an empty queue
    UNSUPPORTED = 76  # this kind of store or file system cannot do that
    HANDLE = 80  # the object was closed
    FORKED = 82  # the process was forked after the library was loaded
    BUFFER = 84  # a buffer is too small
    INTERNAL = 90  # a defect of the library


class RallypointError(Exception):
    """Base of all errors of this package.

    `code` is the kind of error. `retryable` is true if the same call may succeed later
    without a change by the user. The message, str(), says what failed, on which address
    or key, how long it was tried and what to do.
    """

    def __init__(
        self, message: str, code: Code | int = Code.INTERNAL, retryable: bool = False
    ) -> None:
        super().__init__(message)
        try:
            self.code: Code = Code(code)
        except ValueError:  # of a newer library
            self.code = Code.INTERNAL
        self.retryable = retryable

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r}, {self.code.name})"

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.code, self.retryable)


class InvalidError(RallypointError, ValueError):
    """An argument or option is malformed or contradicts another (INVALID)."""


class AuthenticationError(RallypointError):
    """This process or the control plane does not know the other's token (AUTH)."""


class ClosedError(RallypointError):
    """The run is closed, or can no longer regroup (CLOSED)."""


class RequeueError(ClosedError):
    """A directive ended the run so that it can be queued again (CLOSED). Not a failure."""


class NoProgressError(ClosedError):
    """The run ended because its rounds reached no higher step (CLOSED)."""


class GracefulExitError(RallypointError):
    """The run succeeded and never needed this node (GRACEFUL). Not a failure."""


class UnfitError(RallypointError):
    """This node declared itself unfit to run workers (UNFIT).

    A check of the node failed, or its workers kept failing and the node left the run.
    """


class DeadlineError(RallypointError, TimeoutError):
    """A deadline passed (TIMEOUT)."""


class MissingKeyError(DeadlineError, KeyError):
    """A store key was not set in time (TIMEOUT)."""


class CanceledError(RallypointError):
    """The call was canceled, or its object was closed in the meantime (CANCELED)."""


class ConnectionFailedError(RallypointError, ConnectionError):
    """The control plane or a store cannot be reached (CONNECTION)."""


class StateError(RallypointError):
    """The data received is not Rallypoint's, or not valid (STATE)."""


class FencedError(RallypointError):
    """Another process has written the checkpoint since this one loaded it (FENCED).

    The message says who, and when. The worker should end: started again it resumes from the
    present checkpoint.
    """


class EmptyError(RallypointError):
    """Pop from an empty queue (EMPTY)."""


class UnsupportedError(RallypointError, NotImplementedError):
    """This kind of store or file system cannot do that (UNSUPPORTED)."""


class ForkedError(RallypointError):
    """The process was forked after the library was loaded (FORKED)."""


class StartError(RallypointError):
    """Workers could not be started (START)."""


class LibraryError(RallypointError):
    """The library librallypoint.so is missing or does not fit this package."""


for _error in list(vars().values()):
    if isinstance(_error, type) and issubclass(_error, BaseException):
        _error.__module__ = "rallypoint"  # as programs name it, and tracebacks should

CLASSES: dict[int, type[RallypointError]] = {
    Code.INVALID: InvalidError,
    Code.AUTH: AuthenticationError,
    Code.CLOSED: ClosedError,
    Code.GRACEFUL: GracefulExitError,
    Code.UNFIT: UnfitError,
    Code.TIMEOUT: DeadlineError,
    Code.CANCELED: CanceledError,
    Code.CONNECTION: ConnectionFailedError,
    Code.STATE: StateError,
    Code.FENCED: FencedError,
    Code.EMPTY: EmptyError,
    Code.UNSUPPORTED: UnsupportedError,
    Code.FORKED: ForkedError,
    Code.START: StartError,
}


def invalid(message: str) -> InvalidError:
    """The error for an argument or option that is wrong."""
    return InvalidError(message, Code.INVALID)


def make_error(code: int, message: str, retryable: bool) -> RallypointError:
    """The error for a number of the library."""
    return CLASSES.get(code, RallypointError)(message, code, retryable)
