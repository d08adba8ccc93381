"""Key-value stores without torch: a client, a server, and the agents' own store.

The methods are those of torch.distributed.Store. See _torch/store.py for the class that
torch takes.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Callable

from .._errors import invalid
from .._native import abi, library, log
from .._native.abi import (
    STORE_ADD,
    STORE_APPEND,
    STORE_BARRIER,
    STORE_CHECK,
    STORE_COMPARE_SET,
    STORE_DELETE,
    STORE_GET,
    STORE_LIST_KEYS,
    STORE_MULTI_GET,
    STORE_MULTI_SET,
    STORE_NUM_KEYS,
    STORE_QUEUE_LEN,
    STORE_QUEUE_POP,
    STORE_QUEUE_PUSH,
    STORE_SET,
    STORE_WAIT,
)
from . import request
from .request import Text, perform

if TYPE_CHECKING:
    from datetime import timedelta
    from typing import Union

    Timeout = Union[float, timedelta]  # float: seconds

DEFAULT_TIMEOUT = 300.0


class Store(library.Handle):
    """A key-value store, made by connect_store and Member.keys; see also HashStore,
    FileStore and PrefixStore.

    Keys and values are str (taken as UTF-8) or bytes; values come back as bytes. All
    methods may be called from several threads at once and release the interpreter lock;
    Ctrl-C ends a wait within 0.1 s. A store is a context manager, which closes it.

    Every call takes at most `timeout` seconds, and then raises DeadlineError. It raises
    ConnectionFailedError if the server is away, and RallypointError with the code TOO_LARGE
    for what is larger than the store takes. After close(), errors have the code HANDLE, and
    those of calls that were waiting CANCELED (CanceledError). A key that does not come in time
    is a MissingKeyError, which is a KeyError, too.

    All timeouts are seconds, or a timedelta as torch takes it. A store that has an address or a
    file can be pickled: it is opened again where it is unpickled. Others cannot, and none can be
    copied.

    Attributes:
        timeout: longest wait of a call that is given none; 300 at first.

    Args:
        handle: of the library, open or about to be; stores are not made by hand.
        place: where it is, human-readable.
    """

    def __init__(self, handle: abi.StoreHandle, place: str = "") -> None:
        self.timeout: Timeout = DEFAULT_TIMEOUT
        self._handle = handle
        self._place = place
        self._reopen: Callable[[Timeout], Store] | None = None
        self._finalizer = library.owned(self, "rp_store_close", handle)

    def _open(self, start: str, config: ctypes.Structure, timeout: Timeout) -> None:
        """Opens what the handle is for by a function that starts that, and waits for it."""
        limit = library.milliseconds(timeout)
        try:
            request.opened(self._handle, start, ctypes.byref(config), limit)
        finally:
            log.drain()  # such as a warning that other users can change the file
        self.timeout = timeout

    def _again(self) -> tuple[Callable[..., object], tuple[object, ...]] | None:
        return None if self._reopen is None else (self._reopen, (self.timeout,))

    def __repr__(self) -> str:
        closed = "" if self._finalizer.alive else ", closed"
        return f"<{library.name(self)} {self._place}{closed}>"

    def set_timeout(self, timeout: Timeout) -> None:
        """Sets the longest wait of calls that are given none, as torch's method does.

        Args:
            timeout: seconds, or a timedelta.
        """
        library.milliseconds(timeout)
        self.timeout = timeout

    def set(self, key: Text, value: Text, timeout: Timeout | None = None) -> None:
        """Stores a value and wakes the callers that wait for its key.

        Args:
            key: the key.
            value: the value.
            timeout: longest wait in seconds; None is the store's own.
        """
        perform(self, STORE_SET, timeout, key, value)

    def get(self, key: Text, timeout: Timeout | None = None) -> bytes:
        """Waits until a key exists.

        Args:
            key: the key.
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            Its value.
        """
        value: bytes = perform(self, STORE_GET, timeout, key)
        return value

    def add(self, key: Text, amount: int, timeout: Timeout | None = None) -> int:
        """Adds to the decimal number under a key; a missing key counts as 0.

        Args:
            key: the key.
            amount: what is added; may be negative, and has at most 64 bits.
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            The sum, which wraps at 64 bits.

        Raises:
            RallypointError: the value is no number (code NUMBER; over a network, the connection
                breaks instead).
            InvalidError: the amount has more than 64 bits.
        """
        total: int = perform(self, STORE_ADD, timeout, key, number=amount)
        return total

    def compare_set(
        self, key: Text, expected: Text, desired: Text, timeout: Timeout | None = None
    ) -> bytes:
        """Stores a value if the present one is as expected, or if the key is missing and nothing
        is expected.

        Args:
            key: the key.
            expected: the present value; empty for a missing key.
            desired: the new value.
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            The value then current; for a missing key and an expected value that is not empty,
                `expected`.
        """
        current: bytes = perform(self, STORE_COMPARE_SET, timeout, key, desired, expected)
        return current

    def append(self, key: Text, value: Text, timeout: Timeout | None = None) -> None:
        """Appends to what is stored under a key, which is made if it is missing.

        Args:
            key: the key.
            value: what is appended.
            timeout: longest wait in seconds; None is the store's own.
        """
        perform(self, STORE_APPEND, timeout, key, value)

    def check(self, keys: Sequence[Text], timeout: Timeout | None = None) -> bool:
        """Asks whether keys exist, without waiting for them.

        Args:
            keys: the keys; names of queues that have items do, too.
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            True if all do.
        """
        return bool(perform(self, STORE_CHECK, timeout, keys=keys))

    def wait(
        self,
        keys: Sequence[Text],
        timeout: Timeout | None = None,
        override_timeout: Timeout | None = None,
    ) -> None:
        """Waits until each of the keys that was missing has been written once.

        Args:
            keys: the keys.
            timeout: longest wait in seconds; None is the store's own.
            override_timeout: another name of timeout, that of torch's EtcdStore.
        """
        perform(self, STORE_WAIT, override_timeout if timeout is None else timeout, keys=keys)

    def delete_key(self, key: Text, timeout: Timeout | None = None) -> bool:
        """Removes a key. That wakes no waiter.

        Args:
            key: the key.
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            Whether there was one.
        """
        return bool(perform(self, STORE_DELETE, timeout, key))

    def num_keys(self, timeout: Timeout | None = None) -> int:
        """Counts the keys of the whole store, without queues.

        Args:
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            Their number.
        """
        count: int = perform(self, STORE_NUM_KEYS, timeout)
        return count

    def list_keys(self, timeout: Timeout | None = None) -> list[str]:
        """Lists the keys, without queues.

        Args:
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            The keys, in no particular order; bytes that are no UTF-8 come as surrogate escapes.
        """
        values: list[bytes] = perform(self, STORE_LIST_KEYS, timeout)
        return [v.decode("utf-8", "surrogateescape") for v in values]

    def multi_get(self, keys: Sequence[Text], timeout: Timeout | None = None) -> list[bytes]:
        """Waits until all keys exist.

        Args:
            keys: the keys.
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            Their values, in the same order.
        """
        values: list[bytes] = perform(self, STORE_MULTI_GET, timeout, keys=keys)
        return values

    def multi_set(
        self, keys: Sequence[Text], values: Sequence[Text], timeout: Timeout | None = None
    ) -> None:
        """Stores several values, in order.

        Args:
            keys: the keys.
            values: as many values.
            timeout: longest wait in seconds; None is the store's own.
        """
        perform(self, STORE_MULTI_SET, timeout, keys=keys, values=values)

    def queue_push(self, key: Text, value: Text, timeout: Timeout | None = None) -> None:
        """Appends an item to a queue and wakes one caller that waits for it.

        Args:
            key: name of the queue.
            value: the item.
            timeout: longest wait in seconds; None is the store's own.

        Raises:
            UnsupportedError: this kind of store has no queues; it is a NotImplementedError.
        """
        perform(self, STORE_QUEUE_PUSH, timeout, key, value)

    def queue_pop(self, key: Text, block: bool = True, timeout: Timeout | None = None) -> bytes:
        """Removes the oldest item of a queue.

        Args:
            key: name of the queue.
            block: whether to wait for an item if there is none.
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            The item.

        Raises:
            EmptyError: there is none, and `block` is false.
            UnsupportedError: this kind of store has no queues; it is a NotImplementedError.
        """
        item: bytes = perform(self, STORE_QUEUE_POP, timeout, key, block=block)
        return item

    def queue_len(self, key: Text, timeout: Timeout | None = None) -> int:
        """Counts the items of a queue.

        Args:
            key: name of the queue.
            timeout: longest wait in seconds; None is the store's own.

        Returns:
            Their number; 0 if there is no such queue.
        """
        count: int = perform(self, STORE_QUEUE_LEN, timeout, key)
        return count

    def barrier(self, key: Text, world_size: int, timeout: Timeout | None = None) -> None:
        """Waits until so many callers have come. A key serves for one barrier.

        Args:
            key: name of the barrier.
            world_size: how many callers it waits for.
            timeout: longest wait in seconds; None is the store's own.
        """
        perform(self, STORE_BARRIER, timeout, key, number=world_size)

    def close(self) -> None:
        """Closes the store for this object; closing again does nothing. A FileStore waits for
        the file's lock for at most 5 s."""
        library.close(self._finalizer)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class HashStore(Store):
    """A store in the memory of this process, for its threads."""

    def __init__(self) -> None:
        handle = abi.StoreHandle()
        super().__init__(handle, "in the memory of this process")
        library.call("rp_store_open_hash", ctypes.byref(handle))


class FileStore(Store):
    """A store in a file, shared with all that open it, also by torch's FileStore.

    There are no queues (code UNSUPPORTED).

    Args:
        path: of the file, which is made if it is missing, and whose keys are kept if it is
            not. Its directory must exist.
        world_size: how many stores must have been closed before the one that closes last
            removes the file; 0 is however many, -1 that it stays.
        timeout: longest wait for the file's lock, in seconds; becomes the store's own.
        remote: whether other machines write to it on a file system that looks local.

    Raises:
        DeadlineError: the lock was not free in time.
        RallypointError: the file cannot be opened, or is none of a store.
    """

    def __init__(
        self,
        path: str | bytes | os.PathLike[str],
        world_size: int = 0,
        timeout: Timeout = DEFAULT_TIMEOUT,
        *,
        remote: bool = False,
    ) -> None:
        config = abi.StoreFileConfig(
            path=library.text(os.fsdecode(path)),
            world_size=world_size,
            flags=abi.FILE_REMOTE if remote else 0,
        )
        super().__init__(abi.StoreHandle(), f"of the file {os.fsdecode(path)!r}")
        self._open("rp_store_open_file_start", config, timeout)
        self._reopen = partial(
            FileStore, os.path.abspath(os.fsdecode(path)), world_size, remote=remote
        )


class PrefixStore(Store):
    """A part of another store: key k here is the key prefix/k there.

    num_keys() counts the whole store, list_keys() its own keys.

    Args:
        prefix: of the keys.
        store: the other store. It stays open when this one is closed; after it is closed,
            calls raise CanceledError.
    """

    def __init__(self, prefix: Text, store: Store) -> None:
        data = request.encode(prefix)
        handle = abi.StoreHandle()
        super().__init__(handle, f"{data.decode('utf-8', 'replace')!r} of {store!r}")
        library.call("rp_store_open_prefix", store._handle, data, len(data), ctypes.byref(handle))
        self.timeout = store.timeout
        self._below = store  # which would close itself otherwise
        self._prefix = data

    def _again(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return PrefixStore, (self._prefix, self._below)


def connect_store(host: str, port: int, timeout: Timeout = DEFAULT_TIMEOUT) -> Store:
    """Connects to a store server, Rallypoint's or torch's TCPStore (2.2 and newer).

    Args:
        host: name or address of the server.
        port: its port.
        timeout: how long to try, in seconds; becomes the store's own.

    Returns:
        The store.

    Raises:
        DeadlineError: the server did not answer in time.
        InvalidError: the address is none.
    """
    if not isinstance(host, str) or host.count(":") == 1 or host.startswith("["):
        raise invalid(
            f"the host is {host!r}: host and port are two arguments, as in "
            'connect_store("127.0.0.1", 29400)'
        )
    config = abi.StoreConfig(host=library.text(host), port=port)
    store = Store(abi.StoreHandle(), f"at {library.address(host, port)}")
    store._open("rp_store_connect_start", config, timeout)
    store._reopen = partial(connect_store, host, port)
    return store


class StoreServer(library.Handle):
    """A server that torch's TCPStore clients (torch 2.2 and newer) connect to.

    It listens from the beginning until close(), or until the end of a `with` block. It may be
    used from any thread.

    Attributes:
        port: the port that it listens on.

    Args:
        host: the IP address to listen on; "" is all addresses.
        port: 0 is any free one.

    Raises:
        ConnectionFailedError: the address cannot be bound.
    """

    def __init__(self, host: str = "", port: int = 0) -> None:
        config = abi.StoreServerConfig(host=library.text(host), port=port)
        handle = abi.StoreServerHandle()
        self._finalizer = library.owned(self, "rp_store_server_stop", handle)
        library.call("rp_store_server_start", ctypes.byref(config), ctypes.byref(handle))
        bound = ctypes.c_int32()
        library.call("rp_store_server_port", handle, ctypes.byref(bound))
        self.port: int = bound.value
        self._host = host

    def __repr__(self) -> str:
        closed = "" if self._finalizer.alive else ", closed"
        return f"<{library.name(self)} on {library.address(self._host or '*', self.port)}{closed}>"

    def close(self) -> None:
        """Stops the server and drops its data; closing again does nothing."""
        library.close(self._finalizer)

    def stop(self) -> None:
        """Another name of close()."""
        self.close()

    def __enter__(self) -> StoreServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
