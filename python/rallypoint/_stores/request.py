"""One operation of a store: from Python's values to the library and back.

For a store in memory or in a file the library answers in less time than it takes to build
the structs of a call, so those are kept and used again.
"""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, Union

from .._errors import Code, DeadlineError, MissingKeyError, RallypointError
from .._native import abi, library
from .._native.library import bytes_at
from .._native.structs import out_of_range
from .._native.wait import wait

if TYPE_CHECKING:
    from datetime import timedelta

Text = Union[str, bytes]

# What these operations return is bytes,
_VALUE = frozenset((abi.STORE_GET, abi.STORE_COMPARE_SET, abi.STORE_QUEUE_POP))
# and these a list; the others a number.
_LIST = frozenset((abi.STORE_LIST_KEYS, abi.STORE_MULTI_GET))

_EXISTING = frozenset(
    (abi.STORE_GET, abi.STORE_WAIT, abi.STORE_MULTI_GET)
)  # these wait for keys that are missing

_ABSENT: Any = object()  # of an argument that an operation does not have; None is a mistake


def encode(value: Text) -> bytes:
    """The bytes of a key or value. Those that list_keys() could not decode come back."""
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            return value.encode("utf-8", "surrogateescape")
    try:
        return value if isinstance(value, bytes) else bytes(memoryview(value))
    except TypeError:
        raise TypeError(f"a key or value is str or bytes, not {type(value).__name__}") from None


_SLOTS = 16  # so many keys need no array of their own
_KEPT = 4096  # bytes of values that may stay in memory until the next call


class _Call:
    """The structs of one call, and pointers to them."""

    def __init__(self) -> None:
        self.request = abi.StoreRequest()
        self.keys = (abi.Bytes * _SLOTS)()
        self.slots = list(self.keys)  # each of them is a view of its part
        self.request.keys = self.keys
        self.key, self.value = self.request.key, self.request.value
        self.expected = self.request.expected
        self.timeout: float | timedelta | None = math.nan  # what timeout_ms stands for; none yet
        self.op = abi.OpHandle()
        self.result = abi.StoreResult()
        self.buffer = self.result.value
        self.error = abi.Error()
        self.to_request = ctypes.byref(self.request)
        self.to_op = ctypes.byref(self.op)
        self.to_result = ctypes.byref(self.result)
        self.to_error = ctypes.byref(self.error)
        self.attempt = library.bare("rp_store_attempt")
        self.free = library.bare("rp_store_result_free")

    def release(self) -> None:
        """Ends the operation if it is under way, and frees its result if there is one."""
        loaded = library.load()
        if self.op.id:
            loaded.rp_op_free(self.op, None)
        loaded.rp_store_result_free(self.to_result)


_SLICE = ctypes.c_int64(library.SLICE_MS)
_NOTHING = (abi.Bytes * 0)()


def _encode_all(values: Iterable[Text]) -> list[bytes]:
    if isinstance(values, str):
        raise TypeError(f"{values!r:.100} is one text where a list of them is needed")
    return [encode(value) for value in values]


def _array(values: list[bytes]) -> ctypes.Array[abi.Bytes]:
    items = [abi.Bytes(data, len(data)) for data in values]
    return (abi.Bytes * len(items))(*items)


def _await(op: abi.OpHandle, to_result: Any) -> None:
    """Waits for an operation in slices, takes its result and frees it."""
    try:
        wait("rp_op_wait", op, library.SLICE_MS)
        library.call("rp_op_result", op, to_result)
    finally:  # also on KeyboardInterrupt: freeing cancels
        library.call("rp_op_free", op)


def opened(handle: abi.StoreHandle, name: str, *args: Any) -> None:
    """Starts an operation that opens a store, waits for it, and frees it.

    Args:
        handle: what the store is put into.
        name: the function that starts it.
        args: what that takes before the operation.
    """
    result = abi.StoreResult()
    try:
        _finish(result, name, *args)
        handle.id = result.store.id
    finally:
        if result.store.id != handle.id:
            library.call("rp_store_close", result.store)


def finished(name: str, *args: Any) -> abi.StoreResult:
    """Starts an operation, waits for it, and frees it.

    Args:
        name: the function that starts it.
        args: what that takes before the operation.

    Returns:
        Its result, to be freed by rp_store_result_free.
    """
    result = abi.StoreResult()
    _finish(result, name, *args)
    return result


def _finish(result: abi.StoreResult, name: str, *args: Any) -> None:
    op = abi.OpHandle()
    try:
        library.call(name, *args, ctypes.byref(op))
        _await(op, ctypes.byref(result))
    finally:
        if op.id:
            library.load().rp_op_free(op, None)  # if an interrupt came before


class Target(Protocol):
    """What an operation is performed on: a Store."""

    timeout: float | timedelta
    _handle: abi.StoreHandle


# The calls that are not in use. A stack, not one for each thread: what interrupts a call
# (a handler of a signal, a finalizer) may make another one.
_calls: list[_Call] = []
os.register_at_fork(after_in_child=_calls.clear)  # unusable there


def perform(
    store: Target,
    op: int,
    timeout: float | timedelta | None,
    key: Text = _ABSENT,
    value: Text = _ABSENT,
    expected: Text = _ABSENT,
    number: int = _ABSENT,
    block: bool = _ABSENT,
    keys: Iterable[Text] = _ABSENT,
    values: Iterable[Text] = _ABSENT,
) -> Any:
    """Performs an operation, in slices that let Ctrl-C through.

    Args:
        store: what it is performed on.
        op: abi.STORE_SET to STORE_BARRIER; it says which of the others are needed.
        timeout: in seconds; None is the store's own.
        key, value, expected, number, block, keys, values: as in rp_store_request.

    Returns:
        What came out: bytes, list[bytes] or int.
    """
    if timeout is None:
        timeout = store.timeout
    try:
        call = _calls.pop()
    except IndexError:
        call = _Call()
    answer: Any
    try:
        request = call.request
        request.op = op
        if key is not _ABSENT:
            part, data = call.key, encode(key)
            part.data, part.len = data, len(data)
        held = 0
        if value is not _ABSENT:
            part, data = call.value, encode(value)
            part.data, part.len = data, len(data)
            held = len(data)
        if expected is not _ABSENT:
            part, data = call.expected, encode(expected)
            part.data, part.len = data, len(data)
            held += len(data)
        if keys is not _ABSENT:
            names = _encode_all(keys)
            request.keys_len = len(names)
            if len(names) > _SLOTS:
                request.keys = _array(names)
            else:
                for part, data in zip(call.slots, names):
                    part.data, part.len = data, len(data)
            if values is not _ABSENT:
                many = _array(_encode_all(values))
                request.values, request.values_len = many, len(many)
        if number is not _ABSENT:
            request.number = number
            if request.number != number:  # ctypes takes the lower 64 bits
                raise out_of_range("the number", number)
        if block is not _ABSENT:
            request.block = bool(block)
        if timeout != call.timeout:
            call.timeout, request.timeout_ms = timeout, library.milliseconds(timeout)
        code = call.attempt(
            store._handle, call.to_request, _SLICE, call.to_op, call.to_result, call.to_error
        )
        if code:
            if code != abi.PENDING:
                if code == Code.HANDLE:
                    raise RallypointError("the store is closed", Code.HANDLE)
                raise library.failure("rp_store_attempt", code, call.error)
            _await(call.op, call.to_result)
            call.op.id = 0
        if held > _KEPT:  # by ctypes
            call.value.data = call.expected.data = b""
        if keys is not _ABSENT and request.keys_len > _SLOTS:
            request.keys = call.keys
        if values is not _ABSENT:
            request.values = _NOTHING
        if op in _VALUE:
            answer = bytes_at(call.buffer.data, call.buffer.len)
            call.free(call.to_result)
        elif op in _LIST:
            answer = library.items_of(call.result.list)
            call.free(call.to_result)
        else:
            answer = call.result.number
    except DeadlineError as e:
        call.release()
        if op in _EXISTING:
            raise MissingKeyError(str(e), e.code, e.retryable) from None
        raise
    except BaseException:
        call.release()
        raise
    _calls.append(call)
    return answer
