"""The library: loading it, calling its functions, and what their errors are in Python.

abi.py has the functions and their types. The library is loaded by the first call, so that
importing the package costs nothing.
"""

from __future__ import annotations

import _thread
import ctypes
import math
import os
import sys
import threading
import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Callable

from .._errors import Code, ForkedError, LibraryError, RallypointError, invalid, make_error
from .._limits import too_low
from . import abi
from .abi import PENDING, TABLE

if TYPE_CHECKING:
    from datetime import timedelta

# How long one call into the library waits at most, in milliseconds. Python acts on
# a signal only between two calls; Ctrl-C must be answered within 0.1 s.
SLICE_MS = 50

FOREVER = -1

# What ctypes.string_at takes at most: its size is a C int, which cuts larger ones.
SHORT = 2**31 - 1

# The folder of the package, which the library lies in.
PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

_lock = threading.Lock()
_library: ctypes.CDLL | None = None
_forked = False
_local = threading.local()


def _after_fork_in_child() -> None:
    global _lock, _forked
    _lock = threading.Lock()  # another thread may have held the old one
    _forked = _library is not None


os.register_at_fork(after_in_child=_after_fork_in_child)


def path() -> str:
    """Where the library is: RALLYPOINT_LIBRARY, else in the package's folder."""
    return os.environ.get("RALLYPOINT_LIBRARY") or os.path.join(PACKAGE, "librallypoint.so")


def load() -> ctypes.CDLL:
    """The library, loaded and checked by the first call.

    Raises LibraryError if it cannot be loaded or is of another version, and
    ForkedError in a child of fork() whose parent has loaded it.
    """
    if _library is None:
        return _open()
    if _forked:
        raise ForkedError(
            "this process was forked after its parent used Rallypoint, and only the parent can "
            "continue to use it: use it after the fork only, or start the process with spawn",
            Code.FORKED,
        ) from None
    return _library


def _open() -> ctypes.CDLL:
    global _library
    with _lock:
        if _library is not None:
            return _library
        where = path()
        if why := too_low():
            raise LibraryError(f"cannot load Rallypoint's library {where}: {why}")
        try:
            lib = ctypes.CDLL(where)
            for name, (result, arguments) in TABLE.items():
                function = getattr(lib, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as e:
            if os.path.exists(os.path.join(PACKAGE, "rallypoint")):
                advice = (
                    "this wheel, for musl, has the command `rallypoint` alone, since musl cannot "
                    "load a library written in Go: use a Python built for glibc"
                )
            else:
                advice = (
                    "install the wheel for this platform, or let RALLYPOINT_LIBRARY name a "
                    "library of this version"
                )
            raise LibraryError(f"cannot load Rallypoint's library {where}: {e}; {advice}") from e
        version = lib.rp_abi_version()
        if version >> 16 != abi.ABI_MAJOR or version & 0xFFFF < abi.ABI_MINOR:
            raise LibraryError(
                f"{where} has version {version >> 16}.{version & 0xFFFF} of the interface, this "
                f"package needs {abi.ABI_MAJOR}.{abi.ABI_MINOR}: install both from one release"
            )
        _library = lib
        return lib


def loaded() -> bool:
    """Whether the library was loaded by this process or by the one it was forked from."""
    return _library is not None


def forked() -> bool:
    """Whether this is a child of fork() whose parent has loaded the library."""
    return _forked


def call(name: str, *args: Any) -> int:
    """Calls a function that takes an rp_error last, with one added to args.

    Returns OK or PENDING; raises the error otherwise. The interpreter lock is
    released meanwhile.
    """
    function = getattr(load(), name)
    try:
        err = _local.error
    except AttributeError:
        err = _local.error = abi.Error()
    code: int = function(*args, ctypes.byref(err))
    if code <= PENDING:
        return code
    raise failure(name, code, err)


def owned(owner: Any, close: str, handle: Any) -> weakref.finalize[Any, Any]:
    """A finalizer of `owner` that closes a handle by the function `close`.

    It is made before the handle is open, so that nothing comes between that is raised by a
    handler of a signal.
    """
    return weakref.finalize(owner, _close, close, handle)


def _close(name: str, handle: Any) -> None:
    if handle.id and not _forked:
        call(name, handle)


def close(finalizer: weakref.finalize[Any, Any]) -> None:
    """Runs the finalizer of an object that is closed by hand, if it has not run.

    It may take seconds, and runs aside: Ctrl-C ends the wait for it, not the closing.
    """
    if sys.is_finalizing():  # when no thread gets on but this one
        finalizer()
    if not finalizer.alive:
        return
    errors: list[BaseException] = []
    done = _thread.allocate_lock()
    done.acquire()

    def run() -> None:
        try:
            finalizer()
        except BaseException as e:
            errors.append(e)
        finally:
            done.release()

    try:
        _thread.start_new_thread(run, ())
    except RuntimeError:  # the interpreter ends, or there are no more threads
        run()
    done.acquire()
    if errors:
        raise errors[0]


def bare(name: str) -> Any:
    """A function that takes its arguments as they are, which must be ctypes' own objects of
    the right types: converting six of them takes as long as a short call."""
    function = load()[name]
    function.restype = TABLE[name][0]
    return function


def failure(name: str, code: int, err: abi.Error) -> RallypointError:
    """The exception for a function that has returned `code` and filled `err`."""
    message = err.message.decode("utf-8", "replace") if err.code == code else f"{name} failed"
    return make_error(code, message, bool(err.retryable))


class Handle:
    """Base of what stands for an object of the library, which lives in this process only: it
    refuses to be copied, and to be pickled unless it can be opened again elsewhere."""

    def _again(self) -> tuple[Callable[..., object], tuple[object, ...]] | None:
        """What opens the same in another process, and its arguments; None: nothing does."""
        return None

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., object], tuple[object, ...]]:
        again = self._again()
        if again is None:
            raise TypeError(
                f"{self!r} cannot be pickled: it belongs to this process. Make one in the process "
                "that is to use it, from its address or arguments"
            )
        return again

    def __copy__(self) -> Any:
        raise TypeError(f"{self!r} cannot be copied: threads may share it; open another one")

    def __deepcopy__(self, memo: object) -> Any:
        return self.__copy__()


def name(thing: object) -> str:
    """The name of an object's class for messages, without the modules that hold it."""
    kind = type(thing)
    module = kind.__module__
    return f"rallypoint.{kind.__name__}" if module.startswith("rallypoint.") else kind.__name__


def without_password(endpoint: str) -> str:
    """An endpoint for messages, without the part of an address before its last @."""
    if endpoint.lower().startswith("file:"):
        return endpoint
    scheme, mark, rest = endpoint.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]


def options(values: Mapping[str, object] | None) -> ctypes.Array[abi.Option]:
    """Options for the library, without those that are None; a timedelta is seconds."""
    pairs = [(str(k), seconds(v)) for k, v in (values or {}).items() if v is not None]
    return (abi.Option * len(pairs))(
        *(abi.Option(key=text(k), value=text(str(v))) for k, v in pairs)
    )


def address(host: str, port: int) -> str:
    """host:port, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def seconds(time: Any) -> Any:
    """A timedelta as seconds; anything else as it is."""
    total = getattr(time, "total_seconds", None)
    return time if total is None else total()


def milliseconds(timeout: float | timedelta | None) -> int:
    """A timeout for the library; None and infinity are none. Never 0: not to try."""
    limit: float | None = seconds(timeout)
    if limit is None or limit == math.inf:
        return FOREVER
    if limit != limit:
        raise invalid("a timeout is not a number (NaN)")
    return max(1, round(min(max(limit, 0), 2**52) * 1000))


def text(value: str | None) -> bytes | None:
    """A text argument. One with a NUL would be cut, so it is refused."""
    if value is None:
        return None
    if "\0" in value:
        raise invalid(f"a text holds a NUL: {value!r}")
    return value.encode("utf-8", "surrogateescape")


def bytes_at(data: int, size: int) -> bytes:
    """The `size` bytes at an address, however many they are."""
    if size <= SHORT:
        return ctypes.string_at(data, size)
    return (ctypes.c_char * size).from_address(data).raw


def bytes_of(buffer: abi.Buffer) -> bytes:
    """What the library handed out."""
    return bytes_at(buffer.data, buffer.len)


def items_of(found: abi.List) -> list[bytes]:
    """The items of a list that the library handed out."""
    if not found.len:
        return []
    first = ctypes.addressof(found.items[0])
    flat = (ctypes.c_size_t * (2 * found.len)).from_address(first)[:]
    return [bytes_at(data, n) for data, n in zip(flat[::2], flat[1::2])]
