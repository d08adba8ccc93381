"""The C interface (include/rallypoint.h) as ctypes sees it.

TABLE and the structs repeat the header; python/tests/test_abi.py compares them. The
library is loaded by the first call, so that importing the package costs nothing.
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
from ctypes import (
    POINTER,
    c_char,
    c_char_p,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from typing import TYPE_CHECKING, Any, Callable

from ._errors import Code, ForkedError, LibraryError, RallypointError, make_error

if TYPE_CHECKING:
    from datetime import timedelta

ABI_MAJOR = 0
ABI_MINOR = 1

OK = 0
PENDING = 1

# How long one call into the library waits at most, in milliseconds. Python acts on
# a signal only between two calls; Ctrl-C is to be answered within 0.1 s.
SLICE_MS = 50

FOREVER = -1

MEMBER_ENVIRONMENT = 1
FILE_REMOTE = 1

# enum rp_agent_flag
AGENT_VIRTUAL_RANK = 1
AGENT_NO_MACROS = 2
AGENT_IDENTICAL = 4
AGENT_SUBREAPER = 8
AGENT_KEEP_DAEMONS = 16
AGENT_EVENTS = 32
AGENT_RDZV_EVENTS = 64
AGENT_METRICS = 128

# enum rp_agent_event_kind
AGENT_JOINING = 1
AGENT_JOINED = 2
AGENT_WORKER_STARTED = 3
AGENT_WORKER_EXITED = 4
AGENT_STOPPING = 5
AGENT_RESTARTING = 6
AGENT_ENDED = 7

# enum rp_agent_state
AGENT_SUCCEEDED = 1
AGENT_FAILED = 2
AGENT_PEER_FAILED = 3
AGENT_STOPPED = 4
AGENT_NOT_NEEDED = 5
AGENT_BROKEN = 6


def out_of_range(name: str, number: int) -> RallypointError:
    """What is raised for a number that C's type for it cannot hold."""
    bits = int(number).bit_length()
    what = str(number) if bits <= 128 else f"a number of {bits} bits"
    return make_error(Code.INVALID, f"{name} is {what}, which is out of range", False)


class Struct(ctypes.Structure):
    """A struct of the header. One with struct_size fills that in by itself.

    Raises InvalidError for a number that does not fit its field, of which ctypes would take
    the lower bits.
    """

    def __init__(self, *args: Any, **fields: Any) -> None:
        if self._fields_[0][0] == "struct_size":
            fields["struct_size"] = ctypes.sizeof(self)
        super().__init__(*args, **fields)
        for name, value in fields.items():
            if isinstance(value, int) and getattr(self, name) != value:
                raise out_of_range(name, value)


class Error(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("code", c_int32),
        ("retryable", c_int32),
        ("message", c_char * 2048),
    )


# What ctypes.string_at takes at most: its size is a C int, which cuts larger ones.
SHORT = 2**31 - 1


def bytes_at(data: int, size: int) -> bytes:
    """The `size` bytes at an address, however many they are."""
    if size <= SHORT:
        return ctypes.string_at(data, size)
    return (c_char * size).from_address(data).raw


class Bytes(ctypes.Structure):
    _fields_ = (("data", c_char_p), ("len", c_size_t))


class Buffer(ctypes.Structure):
    _fields_ = (("data", c_void_p), ("len", c_size_t))

    def value(self) -> bytes:
        return bytes_at(self.data, self.len)


class List(Struct):
    _fields_ = (("items", POINTER(Buffer)), ("len", c_size_t))

    def values(self) -> list[bytes]:
        if not self.len:
            return []
        flat = (c_size_t * (2 * self.len)).from_address(ctypes.addressof(self.items[0]))[:]
        return [bytes_at(data, n) for data, n in zip(flat[::2], flat[1::2])]


class StoreHandle(Struct):
    _fields_ = (("id", c_uint64),)


class StoreServerHandle(Struct):
    _fields_ = (("id", c_uint64),)


class EtcdServerHandle(Struct):
    _fields_ = (("id", c_uint64),)


class OpHandle(Struct):
    _fields_ = (("id", c_uint64),)


class MemberHandle(Struct):
    _fields_ = (("id", c_uint64),)


class AgentHandle(Struct):
    _fields_ = (("id", c_uint64),)


class Usage(Struct):
    _fields_ = (("struct_size", c_size_t), ("handles", c_int64), ("goroutines", c_int64))


class LogRecord(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("level", c_int32),
        ("dropped", c_uint32),
        ("time_ms", c_int64),
        ("text", c_char * 4096),
    )


LogCallback = ctypes.CFUNCTYPE(None, c_void_p, POINTER(LogRecord))
OpCallback = ctypes.CFUNCTYPE(None, c_void_p)


class StoreServerConfig(Struct):
    _fields_ = (("struct_size", c_size_t), ("host", c_char_p), ("port", c_int32))


class StoreConfig(Struct):
    _fields_ = (("struct_size", c_size_t), ("host", c_char_p), ("port", c_int32))


class StoreFileConfig(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("world_size", c_int64),
        ("flags", c_uint32),
    )


class StoreRequest(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("op", c_int32),
        ("block", c_int32),
        ("key", Bytes),
        ("value", Bytes),
        ("expected", Bytes),
        ("keys", POINTER(Bytes)),
        ("keys_len", c_size_t),
        ("values", POINTER(Bytes)),
        ("values_len", c_size_t),
        ("number", c_int64),
        ("timeout_ms", c_int64),
    )


class StoreResult(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("number", c_int64),
        ("value", Buffer),
        ("list", List),
        ("store", StoreHandle),
    )


class Option(Struct):
    _fields_ = (("key", c_char_p), ("value", c_char_p))


class StoreEtcdConfig(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("endpoint", c_char_p),
        ("prefix", c_char_p),
        ("options", POINTER(Option)),
        ("options_len", c_size_t),
    )


class EtcdServerConfig(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("binary", c_char_p),
        ("beside", c_char_p),
        ("data_dir", c_char_p),
        ("retries", c_int32),
        ("output_fd", c_int32),
    )


class MemberConfig(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("run_id", c_char_p),
        ("endpoint", c_char_p),
        ("min_nodes", c_int32),
        ("max_nodes", c_int32),
        ("local_addr", c_char_p),
        ("options", POINTER(Option)),
        ("options_len", c_size_t),
        ("flags", c_uint32),
    )


class Outcome(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("round", c_uint64),
        ("rank", c_int32),
        ("world_size", c_int32),
        ("store_port", c_int32),
        ("store_addr", c_char * 516),
    )


_TEXTS = POINTER(c_char_p)


class AgentConfig(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("argv", _TEXTS),
        ("argv_len", c_size_t),
        ("environment", _TEXTS),
        ("environment_len", c_size_t),
        ("workers", c_int32),
        ("max_restarts", c_int32),
        ("rendezvous", POINTER(MemberConfig)),
        ("member", MemberHandle),
        ("role", c_char_p),
        ("name", c_char_p),
        ("monitor_interval_ms", c_int64),
        ("shutdown_timeout_ms", c_int64),
        ("exit_barrier_timeout_ms", c_int64),
        ("restart_delay_ms", c_int64),
        ("log_dir", c_char_p),
        ("redirects", c_char_p),
        ("tee", c_char_p),
        ("log_prefix", c_char_p),
        ("local_ranks", POINTER(c_int32)),
        ("local_ranks_len", c_size_t),
        ("stdout_filters", _TEXTS),
        ("stdout_filters_len", c_size_t),
        ("stderr_filters", _TEXTS),
        ("stderr_filters_len", c_size_t),
        ("flags", c_uint32),
        ("numa_binding", c_char_p),
        ("numa_devices", _TEXTS),
        ("numa_devices_len", c_size_t),
        ("logs_fd", c_int32),
        ("events_fd", c_int32),
    )


class AgentEvent(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("dropped", c_uint32),
        ("time_ms", c_int64),
        ("round", c_uint64),
        ("restarts", c_int32),
        ("group_rank", c_int32),
        ("group_world_size", c_int32),
        ("world_size", c_int32),
        ("local_rank", c_int32),
        ("rank", c_int32),
        ("pid", c_int32),
        ("exit_code", c_int32),
        ("store_port", c_int32),
        ("store_addr", c_char * 516),
        ("text", c_char * 1024),
    )


class AgentResult(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("state", c_int32),
        ("signal", c_int32),
        ("round", c_uint64),
        ("restarts", c_int32),
        ("group_rank", c_int32),
        ("group_world_size", c_int32),
        ("world_size", c_int32),
        ("workers", c_int32),
        ("failures", c_int32),
        ("root_cause", c_int32),
        ("report", Buffer),
    )


class WorkerResult(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("local_rank", c_int32),
        ("rank", c_int32),
        ("role_rank", c_int32),
        ("role_world_size", c_int32),
        ("pid", c_int32),
        ("exit_code", c_int32),
        ("stdout_path", Buffer),
        ("stderr_path", Buffer),
        ("error_file", Buffer),
    )


class Failure(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("rank", c_int32),
        ("local_rank", c_int32),
        ("pid", c_int32),
        ("exit_code", c_int32),
        ("terminated", c_int32),
        ("time_ms", c_int64),
        ("host", Buffer),
        ("error_file", Buffer),
        ("error_data", Buffer),
        ("message", Buffer),
    )


class BackendReply(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("answered", c_int32),
        ("stored", c_int32),
        ("state", Buffer),
        ("token", Buffer),
    )


BackendGet = ctypes.CFUNCTYPE(c_int32, c_void_p, POINTER(BackendReply), POINTER(Error))
BackendSet = ctypes.CFUNCTYPE(
    c_int32,
    c_void_p,
    c_void_p,
    c_size_t,
    c_void_p,
    c_size_t,
    POINTER(BackendReply),
    POINTER(Error),
)
BackendRelease = ctypes.CFUNCTYPE(None, c_void_p)


class Backend(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("user", c_void_p),
        ("get", BackendGet),
        ("set", BackendSet),
        ("release", BackendRelease),
    )


# The structs by their names in the header.
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "rp_error": Error,
    "rp_bytes": Bytes,
    "rp_buffer": Buffer,
    "rp_list": List,
    "rp_store": StoreHandle,
    "rp_store_server": StoreServerHandle,
    "rp_etcd_server": EtcdServerHandle,
    "rp_op": OpHandle,
    "rp_member": MemberHandle,
    "rp_usage": Usage,
    "rp_log_record": LogRecord,
    "rp_store_server_config": StoreServerConfig,
    "rp_store_config": StoreConfig,
    "rp_store_file_config": StoreFileConfig,
    "rp_store_etcd_config": StoreEtcdConfig,
    "rp_etcd_server_config": EtcdServerConfig,
    "rp_store_request": StoreRequest,
    "rp_store_result": StoreResult,
    "rp_option": Option,
    "rp_member_config": MemberConfig,
    "rp_outcome": Outcome,
    "rp_agent": AgentHandle,
    "rp_agent_config": AgentConfig,
    "rp_agent_event": AgentEvent,
    "rp_agent_result": AgentResult,
    "rp_worker_result": WorkerResult,
    "rp_failure": Failure,
    "rp_backend_reply": BackendReply,
    "rp_backend": Backend,
}

# The types of functions that the library calls, by their names in the header.
CALLBACKS: dict[str, Any] = {
    "rp_log_callback": LogCallback,
    "rp_op_callback": OpCallback,
    "rp_backend_get": BackendGet,
    "rp_backend_set": BackendSet,
    "rp_backend_release": BackendRelease,
}

_ERR = POINTER(Error)
_KEY = (c_char_p, c_size_t)
_KEYS = (POINTER(Bytes), c_size_t)

# Every function of the header: its result and its arguments.
TABLE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rp_abi_version": (c_uint32, ()),
    "rp_version": (c_char_p, ()),
    "rp_code_name": (c_char_p, (c_int32,)),
    "rp_buffer_free": (None, (POINTER(Buffer),)),
    "rp_list_free": (None, (POINTER(List),)),
    "rp_handles_open": (c_int32, (POINTER(c_int64), _ERR)),
    "rp_usage_get": (c_int32, (POINTER(Usage), _ERR)),
    "rp_log_next": (c_int32, (POINTER(LogRecord), _ERR)),
    "rp_log_set_level": (c_int32, (c_int32, _ERR)),
    "rp_log_set_callback": (c_int32, (LogCallback, c_void_p, _ERR)),
    "rp_store_server_start": (
        c_int32,
        (POINTER(StoreServerConfig), POINTER(StoreServerHandle), _ERR),
    ),
    "rp_store_server_port": (c_int32, (StoreServerHandle, POINTER(c_int32), _ERR)),
    "rp_store_server_stop": (c_int32, (StoreServerHandle, _ERR)),
    "rp_store_connect": (c_int32, (POINTER(StoreConfig), c_int64, POINTER(StoreHandle), _ERR)),
    "rp_store_connect_start": (c_int32, (POINTER(StoreConfig), c_int64, POINTER(OpHandle), _ERR)),
    "rp_store_open_file": (
        c_int32,
        (POINTER(StoreFileConfig), c_int64, POINTER(StoreHandle), _ERR),
    ),
    "rp_store_open_file_start": (
        c_int32,
        (POINTER(StoreFileConfig), c_int64, POINTER(OpHandle), _ERR),
    ),
    "rp_store_open_hash": (c_int32, (POINTER(StoreHandle), _ERR)),
    "rp_store_open_prefix": (c_int32, (StoreHandle, *_KEY, POINTER(StoreHandle), _ERR)),
    "rp_store_close": (c_int32, (StoreHandle, _ERR)),
    "rp_store_set": (c_int32, (StoreHandle, *_KEY, *_KEY, c_int64, _ERR)),
    "rp_store_get": (c_int32, (StoreHandle, *_KEY, c_int64, POINTER(Buffer), _ERR)),
    "rp_store_add": (c_int32, (StoreHandle, *_KEY, c_int64, c_int64, POINTER(c_int64), _ERR)),
    "rp_store_compare_set": (
        c_int32,
        (StoreHandle, *_KEY, *_KEY, *_KEY, c_int64, POINTER(Buffer), _ERR),
    ),
    "rp_store_append": (c_int32, (StoreHandle, *_KEY, *_KEY, c_int64, _ERR)),
    "rp_store_check": (c_int32, (StoreHandle, *_KEYS, c_int64, POINTER(c_int32), _ERR)),
    "rp_store_wait": (c_int32, (StoreHandle, *_KEYS, c_int64, _ERR)),
    "rp_store_delete": (c_int32, (StoreHandle, *_KEY, c_int64, POINTER(c_int32), _ERR)),
    "rp_store_num_keys": (c_int32, (StoreHandle, c_int64, POINTER(c_int64), _ERR)),
    "rp_store_list_keys": (c_int32, (StoreHandle, c_int64, POINTER(List), _ERR)),
    "rp_store_multi_get": (c_int32, (StoreHandle, *_KEYS, c_int64, POINTER(List), _ERR)),
    "rp_store_multi_set": (
        c_int32,
        (StoreHandle, POINTER(Bytes), POINTER(Bytes), c_size_t, c_int64, _ERR),
    ),
    "rp_store_queue_push": (c_int32, (StoreHandle, *_KEY, *_KEY, c_int64, _ERR)),
    "rp_store_queue_pop": (c_int32, (StoreHandle, *_KEY, c_int32, c_int64, POINTER(Buffer), _ERR)),
    "rp_store_queue_len": (c_int32, (StoreHandle, *_KEY, c_int64, POINTER(c_int64), _ERR)),
    "rp_store_barrier": (c_int32, (StoreHandle, *_KEY, c_int64, c_int64, _ERR)),
    "rp_store_start": (c_int32, (StoreHandle, POINTER(StoreRequest), POINTER(OpHandle), _ERR)),
    "rp_store_attempt": (
        c_int32,
        (
            StoreHandle,
            POINTER(StoreRequest),
            c_int64,
            POINTER(OpHandle),
            POINTER(StoreResult),
            _ERR,
        ),
    ),
    "rp_op_wait": (c_int32, (OpHandle, c_int64, _ERR)),
    "rp_op_fd": (c_int32, (OpHandle, POINTER(c_int32), _ERR)),
    "rp_op_notify": (c_int32, (OpHandle, OpCallback, c_void_p, _ERR)),
    "rp_op_result": (c_int32, (OpHandle, POINTER(StoreResult), _ERR)),
    "rp_op_cancel": (c_int32, (OpHandle, _ERR)),
    "rp_op_free": (c_int32, (OpHandle, _ERR)),
    "rp_store_result_free": (None, (POINTER(StoreResult),)),
    "rp_member_open": (c_int32, (POINTER(MemberConfig), POINTER(MemberHandle), _ERR)),
    "rp_member_next": (c_int32, (MemberHandle, c_int64, POINTER(Outcome), _ERR)),
    "rp_member_cancel": (c_int32, (MemberHandle, _ERR)),
    "rp_member_finish": (c_int32, (MemberHandle, c_int64, _ERR)),
    "rp_member_shutdown": (c_int32, (MemberHandle, c_int32, c_char_p, c_int64, _ERR)),
    "rp_member_set_closed": (c_int32, (MemberHandle, c_char_p, c_int64, _ERR)),
    "rp_member_nodes_waiting": (c_int32, (MemberHandle, POINTER(c_int32), _ERR)),
    "rp_member_is_closed": (c_int32, (MemberHandle, POINTER(c_int32), _ERR)),
    "rp_member_wait": (c_int32, (MemberHandle, c_int64, _ERR)),
    "rp_member_fd": (c_int32, (MemberHandle, POINTER(c_int32), _ERR)),
    "rp_member_reason": (c_int32, (MemberHandle, c_char_p, POINTER(c_size_t), _ERR)),
    "rp_member_keys": (c_int32, (MemberHandle, c_uint64, POINTER(StoreHandle), _ERR)),
    "rp_member_close": (c_int32, (MemberHandle, _ERR)),
    "rp_agent_open": (c_int32, (POINTER(AgentConfig), POINTER(AgentHandle), _ERR)),
    "rp_agent_run": (c_int32, (AgentHandle, c_int64, _ERR)),
    "rp_agent_stop": (c_int32, (AgentHandle, c_int32, c_int64, _ERR)),
    "rp_agent_next_event": (c_int32, (AgentHandle, POINTER(AgentEvent), _ERR)),
    "rp_agent_fd": (c_int32, (AgentHandle, POINTER(c_int32), _ERR)),
    "rp_agent_get_result": (c_int32, (AgentHandle, POINTER(AgentResult), _ERR)),
    "rp_agent_get_worker": (c_int32, (AgentHandle, c_int32, POINTER(WorkerResult), _ERR)),
    "rp_agent_get_failure": (c_int32, (AgentHandle, c_int32, POINTER(Failure), _ERR)),
    "rp_agent_result_free": (None, (POINTER(AgentResult),)),
    "rp_worker_result_free": (None, (POINTER(WorkerResult),)),
    "rp_failure_free": (None, (POINTER(Failure),)),
    "rp_agent_close": (c_int32, (AgentHandle, _ERR)),
    "rp_backend_answer": (c_int32, (POINTER(BackendReply), *_KEY, *_KEY, c_int32, _ERR)),
    "rp_member_open_backend": (
        c_int32,
        (POINTER(MemberConfig), POINTER(Backend), POINTER(MemberHandle), _ERR),
    ),
    "rp_store_open_etcd": (
        c_int32,
        (POINTER(StoreEtcdConfig), c_int64, POINTER(StoreHandle), _ERR),
    ),
    "rp_store_open_etcd_start": (
        c_int32,
        (POINTER(StoreEtcdConfig), c_int64, POINTER(OpHandle), _ERR),
    ),
    "rp_etcd_server_start": (
        c_int32,
        (POINTER(EtcdServerConfig), c_int64, POINTER(EtcdServerHandle), _ERR),
    ),
    "rp_etcd_server_ready": (c_int32, (EtcdServerHandle, c_int64, POINTER(c_int32), _ERR)),
    "rp_etcd_server_stop": (c_int32, (EtcdServerHandle, _ERR)),
    "rp_main": (c_int, (c_int, POINTER(c_char_p))),
}

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
    """Where the library is: RALLYPOINT_LIBRARY, else beside this file."""
    return os.environ.get("RALLYPOINT_LIBRARY") or os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "librallypoint.so"
    )


def library() -> ctypes.CDLL:
    """The library, loaded and checked by the first call.

    Raises LibraryError if it cannot be loaded or is of another version, and
    ForkedError in a child of fork() whose parent has loaded it.
    """
    if _library is None:
        return _load()
    if _forked:
        raise ForkedError(
            "this process was forked after Rallypoint was used, which only the parent can go on "
            "to use: use it after the fork, or start the process with spawn",
            Code.FORKED,
        ) from None
    return _library


def _load() -> ctypes.CDLL:
    global _library
    with _lock:
        if _library is not None:
            return _library
        where = path()
        try:
            lib = ctypes.CDLL(where)
            for name, (result, arguments) in TABLE.items():
                function = getattr(lib, name)
                function.restype, function.argtypes = result, arguments
        except (OSError, AttributeError) as e:
            raise LibraryError(
                f"cannot load Rallypoint's library {where}: {e}; install the wheel for this "
                "platform, or let RALLYPOINT_LIBRARY name a library of this version"
            ) from e
        version = lib.rp_abi_version()
        if version >> 16 != ABI_MAJOR or version & 0xFFFF < ABI_MINOR:
            raise LibraryError(
                f"{where} has version {version >> 16}.{version & 0xFFFF} of the interface, this "
                f"package needs {ABI_MAJOR}.{ABI_MINOR}: install both from one release"
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
    function = getattr(library(), name)
    try:
        err = _local.error
    except AttributeError:
        err = _local.error = Error()
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
    function = library()[name]
    function.restype = TABLE[name][0]
    return function


def failure(name: str, code: int, err: Error) -> RallypointError:
    """What a function that has returned `code` and filled `err` is to raise."""
    message = err.message.decode("utf-8", "replace") if err.code == code else f"{name} failed"
    return make_error(code, message, bool(err.retryable))


def wait(name: str, *args: Any) -> None:
    """Calls a function that may be PENDING until it is not.

    Its timeout argument is given as a SLICE_MS in args. Log records are shown
    between the calls.
    """
    from . import _log

    while call(name, *args) == PENDING:
        _log.drain()


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
        raise TypeError(
            f"{self!r} cannot be copied: threads may share it, and another one is to be opened"
        )

    def __deepcopy__(self, memo: object) -> Any:
        return self.__copy__()


def name(thing: object) -> str:
    """The name of an object's class for messages, without the modules that hold it."""
    kind = type(thing)
    module = kind.__module__
    return f"rallypoint.{kind.__name__}" if module.startswith("rallypoint.") else kind.__name__


def without_password(endpoint: str) -> str:
    """An endpoint for messages: what stands before the last @ of an address is left out."""
    if endpoint.lower().startswith("file:"):
        return endpoint
    scheme, mark, rest = endpoint.rpartition("://")
    return scheme + mark + rest.rpartition("@")[2]


def options(values: Mapping[str, object] | None) -> ctypes.Array[Option]:
    """Options for the library, without those that are None; a timedelta is seconds."""
    pairs = [(str(k), seconds(v)) for k, v in (values or {}).items() if v is not None]
    return (Option * len(pairs))(*(Option(key=text(k), value=text(str(v))) for k, v in pairs))


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
        raise make_error(Code.INVALID, "a timeout is not a number (NaN)", False)
    return max(1, round(min(max(limit, 0), 2**52) * 1000))


def text(value: str | None) -> bytes | None:
    """A text argument. One with a NUL would be cut, so it is refused."""
    if value is None:
        return None
    if "\0" in value:
        raise make_error(Code.INVALID, f"a text holds a NUL: {value!r}", False)
    return value.encode("utf-8", "surrogateescape")
