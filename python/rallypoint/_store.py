"""Key-value stores without torch: a client, a server, and the agents' own store.

The methods are those of torch.distributed.Store. See _torch.py for the class that
torch takes.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Union

from . import _log, _native

Text = Union[str, bytes]

SET, GET, ADD, COMPARE_SET, APPEND, CHECK, WAIT, DELETE = range(1, 9)
NUM_KEYS, LIST_KEYS, MULTI_GET, MULTI_SET = range(9, 13)
QUEUE_PUSH, QUEUE_POP, QUEUE_LEN, BARRIER = range(13, 17)

DEFAULT_TIMEOUT = 300.0


def _encode(value: Text) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def _bytes(value: Text) -> _native.Bytes:
    data = _encode(value)
    return _native.Bytes(data, len(data))


def _array(values: Iterable[Text]) -> ctypes.Array[_native.Bytes]:
    items = [_bytes(v) for v in values]
    return (_native.Bytes * len(items))(*items)


def _wait_for(op: _native.OpHandle) -> _native.StoreResult:
    """Waits for an operation in slices, takes its result and frees it."""
    try:
        while _native.call("rp_op_wait", op, _native.SLICE_MS) == _native.PENDING:
            _log.drain()
        result = _native.StoreResult()
        _native.call("rp_op_result", op, ctypes.byref(result))
        return result
    finally:  # also on KeyboardInterrupt: freeing cancels
        _native.call("rp_op_free", op)


def _close(handle_id: int) -> None:
    if not _native.forked():
        _native.call("rp_store_close", _native.StoreHandle(handle_id))


class Store:
    """A key-value store. Made by connect_store and Member.keys; see also HashStore,
    FileStore and PrefixStore.

    Keys and values are str (taken as UTF-8) or bytes; values come back as bytes. A
    call takes at most `timeout` seconds, and then raises DeadlineError; None stands
    for the store's own (300 s at first). All methods may be called from several
    threads at once and release the interpreter lock; Ctrl-C ends a wait within 0.1 s.
    After close(), errors have the code HANDLE, and those that were waiting CANCELED.
    """

    def __init__(self, handle: _native.StoreHandle) -> None:
        self.timeout = DEFAULT_TIMEOUT
        self._handle = handle
        self._finalizer = weakref.finalize(self, _close, handle.id)

    def _do(
        self,
        op: int,
        *,
        key: Text = b"",
        value: Text = b"",
        expected: Text = b"",
        keys: Iterable[Text] = (),
        values: Iterable[Text] = (),
        number: int = 0,
        block: bool = False,
        timeout: float | None = None,
    ) -> _native.StoreResult:
        many, each = _array(keys), _array(values)
        request = _native.StoreRequest(
            op=op,
            key=_bytes(key),
            value=_bytes(value),
            expected=_bytes(expected),
            keys=many,
            keys_len=len(many),
            values=each,
            values_len=len(each),
            number=number,
            block=block,
            timeout_ms=_native.milliseconds(self.timeout if timeout is None else timeout),
        )
        handle = _native.OpHandle()
        _native.call("rp_store_start", self._handle, ctypes.byref(request), ctypes.byref(handle))
        return _wait_for(handle)

    @staticmethod
    def _value(result: _native.StoreResult) -> bytes:
        try:
            value: bytes = result.value.value()
            return value
        finally:
            _native.library().rp_store_result_free(ctypes.byref(result))

    @staticmethod
    def _values(result: _native.StoreResult) -> list[bytes]:
        try:
            values: list[bytes] = result.list.values()
            return values
        finally:
            _native.library().rp_store_result_free(ctypes.byref(result))

    def set(self, key: Text, value: Text, timeout: float | None = None) -> None:
        """Stores value under key and wakes who waits for it."""
        self._do(SET, key=key, value=value, timeout=timeout)

    def get(self, key: Text, timeout: float | None = None) -> bytes:
        """Waits until key exists and returns its value."""
        return self._value(self._do(GET, key=key, timeout=timeout))

    def add(self, key: Text, amount: int, timeout: float | None = None) -> int:
        """Adds amount to the decimal number under key and returns the sum."""
        return int(self._do(ADD, key=key, number=amount, timeout=timeout).number)

    def compare_set(
        self, key: Text, expected: Text, desired: Text, timeout: float | None = None
    ) -> bytes:
        """Stores desired if the value is expected (or the key missing and expected empty).

        Returns the value then current; for a missing key with an expected value that is
        not empty, expected.
        """
        return self._value(
            self._do(COMPARE_SET, key=key, value=desired, expected=expected, timeout=timeout)
        )

    def append(self, key: Text, value: Text, timeout: float | None = None) -> None:
        """Appends value to what is stored under key."""
        self._do(APPEND, key=key, value=value, timeout=timeout)

    def check(self, keys: Sequence[Text], timeout: float | None = None) -> bool:
        """Whether all keys exist (or name queues with items)."""
        return bool(self._do(CHECK, keys=keys, timeout=timeout).number)

    def wait(self, keys: Sequence[Text], timeout: float | None = None) -> None:
        """Waits until each of the keys that was missing has been written once."""
        self._do(WAIT, keys=keys, timeout=timeout)

    def delete_key(self, key: Text, timeout: float | None = None) -> bool:
        """Removes key; whether there was one."""
        return bool(self._do(DELETE, key=key, timeout=timeout).number)

    def num_keys(self, timeout: float | None = None) -> int:
        """The number of keys, without queues."""
        return int(self._do(NUM_KEYS, timeout=timeout).number)

    def list_keys(self, timeout: float | None = None) -> list[str]:
        """All keys, without queues, in no particular order."""
        values = self._values(self._do(LIST_KEYS, timeout=timeout))
        return [v.decode("utf-8", "surrogateescape") for v in values]

    def multi_get(self, keys: Sequence[Text], timeout: float | None = None) -> list[bytes]:
        """Waits until all keys exist and returns their values."""
        return self._values(self._do(MULTI_GET, keys=keys, timeout=timeout))

    def multi_set(
        self, keys: Sequence[Text], values: Sequence[Text], timeout: float | None = None
    ) -> None:
        """set() for each pair, in order."""
        self._do(MULTI_SET, keys=keys, values=values, timeout=timeout)

    def queue_push(self, key: Text, value: Text, timeout: float | None = None) -> None:
        """Appends value to the queue key and wakes one who waits."""
        self._do(QUEUE_PUSH, key=key, value=value, timeout=timeout)

    def queue_pop(self, key: Text, block: bool = True, timeout: float | None = None) -> bytes:
        """Removes and returns the oldest item; if there is none, waits or raises EmptyError."""
        return self._value(self._do(QUEUE_POP, key=key, block=block, timeout=timeout))

    def queue_len(self, key: Text, timeout: float | None = None) -> int:
        """The number of items in the queue key."""
        return int(self._do(QUEUE_LEN, key=key, timeout=timeout).number)

    def barrier(self, key: Text, world_size: int, timeout: float | None = None) -> None:
        """Waits until world_size callers have come. A key serves for one barrier."""
        self._do(BARRIER, key=key, number=world_size, timeout=timeout)

    def close(self) -> None:
        """Closes the store for this object; closing again does nothing."""
        self._finalizer()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.close()


class HashStore(Store):
    """A store in the memory of this process, for its threads."""

    def __init__(self) -> None:
        handle = _native.StoreHandle()
        _native.call("rp_store_open_hash", ctypes.byref(handle))
        super().__init__(handle)


class FileStore(Store):
    """A store in a file, shared with all that open it, also by torch's FileStore.

    The directory of `path` must exist; the file is created if it is missing, and used on
    with its keys if it is not. `world_size` is how many stores must have been closed
    before the one that closes last removes the file; 0 is however many, -1 that it stays.
    `remote` tells that other machines write to it on a file system that looks local.
    Waits for the file's lock for `timeout` seconds (DeadlineError); the store's own
    timeout becomes the same. There are no queues (code UNSUPPORTED).
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        world_size: int = 0,
        timeout: float = DEFAULT_TIMEOUT,
        *,
        remote: bool = False,
    ) -> None:
        config = _native.StoreFileConfig(
            path=_native.text(os.fspath(path)),
            world_size=world_size,
            flags=_native.FILE_REMOTE if remote else 0,
        )
        op = _native.OpHandle()
        _native.call(
            "rp_store_open_file_start",
            ctypes.byref(config),
            _native.milliseconds(timeout),
            ctypes.byref(op),
        )
        super().__init__(_wait_for(op).store)
        self.timeout = timeout


class PrefixStore(Store):
    """A part of another store: key k here is the key prefix/k there.

    num_keys() counts the whole store, list_keys() its own keys. Closing it leaves
    `store` open; after `store` is closed its calls raise CanceledError.
    """

    def __init__(self, prefix: Text, store: Store) -> None:
        data = _encode(prefix)
        handle = _native.StoreHandle()
        _native.call("rp_store_open_prefix", store._handle, data, len(data), ctypes.byref(handle))
        super().__init__(handle)
        self.timeout = store.timeout
        self._below = store  # which would close itself otherwise


def connect_store(host: str, port: int, timeout: float = DEFAULT_TIMEOUT) -> Store:
    """Connects to a store server, Rallypoint's or torch's TCPStore (2.2 and newer).

    Tries until `timeout` seconds have passed (DeadlineError). The store's own timeout
    becomes the same.
    """
    config = _native.StoreConfig(host=_native.text(host), port=port)
    op = _native.OpHandle()
    _native.call(
        "rp_store_connect_start",
        ctypes.byref(config),
        _native.milliseconds(timeout),
        ctypes.byref(op),
    )
    store = Store(_wait_for(op).store)
    store.timeout = timeout
    return store


def _stop(handle_id: int) -> None:
    if not _native.forked():
        _native.call("rp_store_server_stop", _native.StoreServerHandle(handle_id))


class StoreServer:
    """A server that torch's TCPStore clients (torch 2.2 and newer) connect to.

    It listens on `host` (an IP address; "" is all addresses) and `port` (0: any free
    one, see the attribute `port`) from the beginning until stop().
    """

    def __init__(self, host: str = "", port: int = 0) -> None:
        config = _native.StoreServerConfig(host=_native.text(host), port=port)
        handle = _native.StoreServerHandle()
        _native.call("rp_store_server_start", ctypes.byref(config), ctypes.byref(handle))
        self._finalizer = weakref.finalize(self, _stop, handle.id)
        bound = ctypes.c_int32()
        _native.call("rp_store_server_port", handle, ctypes.byref(bound))
        self.port: int = bound.value

    def stop(self) -> None:
        """Stops the server and drops its data; stopping again does nothing."""
        self._finalizer()

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self.stop()
