"""Stores in etcd (3.4 or newer, its v3 API), and a local etcd, without torch."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Mapping
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Union

from .._errors import Code, RallypointError
from .._native import abi, library, log
from .._native.wait import wait
from .store import DEFAULT_TIMEOUT, Store

if TYPE_CHECKING:
    from .store import Timeout

Output = Union[int, IO[str], IO[bytes], None]

_NOT_RUNNING = "the etcd was not started, or was stopped"


def connect_etcd(
    endpoint: str,
    prefix: str | None = None,
    timeout: Timeout = DEFAULT_TIMEOUT,
    options: Mapping[str, object] | None = None,
) -> Store:
    """Opens a store in an etcd, shared with all that open it with one prefix.

    Its operations are applied exactly once, also if a member of the cluster dies meanwhile. It
    has no queues (code UNSUPPORTED).

    Args:
        endpoint: etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...], the members of one
            cluster; etcds:// with TLS; the port is 2379.
        prefix: in front of all keys; None is /rallypoint/store.
        timeout: how long to try, in seconds; becomes the store's own.
        options: protocol (http, https), ca_cert, ssl_cert, ssl_cert_key (files in PEM),
            user, password or password_file, key_prefix, and ttl in seconds: with it the keys
            vanish so long after the store was closed, else they stay. None: none.

    Returns:
        The store.

    Raises:
        ConnectionFailedError, DeadlineError: no member of the cluster answered in time.
        InvalidError: what no further try would help.
    """
    items = library.options(options)
    config = abi.StoreEtcdConfig(
        endpoint=library.text(endpoint),
        prefix=library.text(prefix),
        options=items,
        options_len=len(items),
    )
    where = f"in etcd at {library.without_password(endpoint)}"
    if prefix is not None:
        where += f" under {prefix!r}"
    store = EtcdClient(abi.StoreHandle(), where)
    store.endpoint, store.options = endpoint, dict(options or {})
    store._open("rp_store_open_etcd_start", config, timeout)
    store._reopen = partial(connect_etcd, endpoint, prefix, options=store.options)
    return store


class EtcdClient(Store):
    """A store in etcd, which knows how it was opened: what EtcdStore takes as a client."""

    endpoint: str
    options: dict[str, object]


class EtcdServer(library.Handle):
    """A local etcd of one member: for tests, and for jobs of one node.

    Its program is what TORCHELASTIC_ETCD_BINARY_PATH names, else bin/etcd beside this
    package, else etcd in PATH. It listens on a free port of 127.0.0.1 from start() to
    close(), and ends with this process, even if that is killed.

    Example:
        with EtcdServer() as server:
            server.start()
            store = server.get_client()

    Args:
        data_dir: where it keeps its data, which stay. None: they go with the server.
    """

    def __init__(self, data_dir: str | os.PathLike[str] | None = None) -> None:
        self._data_dir = data_dir
        self._port = -1
        self._finalizer: weakref.finalize[Any, Any] | None = None

    def __repr__(self) -> str:
        where = f"on {self.get_endpoint()}" if self._port > 0 else "that does not run"
        return f"<{library.name(self)} {where}>"

    def start(self, timeout: Timeout = 60, num_retries: int = 3, stderr: Output = None) -> None:
        """Starts the etcd and waits until it answers. Ctrl-C ends the wait, and the etcd.

        Args:
            timeout: longest wait, in seconds.
            num_retries: how often a start that fails is tried again.
            stderr: a file, or the descriptor of one, that gets what the etcd writes. None: it
                is written nowhere; an error carries the end of it in any case.

        Raises:
            InvalidError: there is no etcd to start.
            ValueError: one runs already.
        """
        if self._finalizer is not None:
            raise ValueError("the etcd runs already")
        beside = os.path.join(library.PACKAGE, "bin", "etcd")
        config = abi.EtcdServerConfig(
            beside=library.text(beside),
            data_dir=None if self._data_dir is None else library.text(os.fsdecode(self._data_dir)),
            retries=num_retries,
            output_fd=_descriptor(stderr),
        )
        limit = library.milliseconds(timeout)
        port = ctypes.c_int32()
        handle = abi.EtcdServerHandle()
        self._finalizer = library.owned(self, "rp_etcd_server_stop", handle)
        try:
            library.call("rp_etcd_server_start", ctypes.byref(config), limit, ctypes.byref(handle))
            wait("rp_etcd_server_ready", handle, library.SLICE_MS, ctypes.byref(port))
        except BaseException:
            self.close()
            raise
        finally:
            log.drain()
        self._port = port.value

    def close(self) -> None:
        """Stops the etcd and waits for its end; closing again does nothing."""
        finalizer, self._finalizer, self._port = self._finalizer, None, -1
        if finalizer is not None:
            library.close(finalizer)

    def stop(self) -> None:
        """close() by torch's name."""
        self.close()

    def get_host(self) -> str:
        """The host that it listens on."""
        return "127.0.0.1"

    def get_port(self) -> int:
        """The port for clients."""
        if self._port < 0:
            raise RallypointError(_NOT_RUNNING, Code.HANDLE)
        return self._port

    def get_endpoint(self) -> str:
        """host:port for clients."""
        return f"{self.get_host()}:{self.get_port()}"

    def get_client(self) -> Store:
        """A store in it, as connect_etcd opens one."""
        return connect_etcd("etcd://" + self.get_endpoint())

    def __enter__(self) -> EtcdServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _descriptor(output: Output) -> int:
    if output is None:
        return -1
    if isinstance(output, int):
        return output  # subprocess.DEVNULL, which is below 0, is nowhere, too
    output.flush()
    return output.fileno()
