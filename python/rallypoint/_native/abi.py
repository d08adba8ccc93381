"""What include/rallypoint.h declares, for ctypes; its comments say what it means.

Written by packaging/python_bindings.py: `make docs` writes it again.
"""

from __future__ import annotations

from ctypes import (
    CFUNCTYPE,
    POINTER,
    Structure,
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
from typing import Any

from .structs import Struct

ABI_MAJOR = 0
ABI_MINOR = 1
ABI_VERSION = 1
TEXT = 18446744073709551615

# enum rp_code
OK = 0
PENDING = 1
ERR_INVALID = 10
ERR_MISMATCH = 12
ERR_TENANT = 14
ERR_NODE_IN_USE = 16
ERR_AUTH = 18
ERR_CLOSED = 20
ERR_GRACEFUL = 22
ERR_UNFIT = 24
ERR_TIMEOUT = 30
ERR_CANCELED = 32
ERR_CONNECTION = 40
ERR_STATE = 50
ERR_EVICTED = 60
ERR_ROUND_OVER = 62
ERR_WORKERS = 64
ERR_START = 66
ERR_NUMBER = 70
ERR_TOO_LARGE = 72
ERR_EMPTY = 74
ERR_UNSUPPORTED = 76
ERR_HANDLE = 80
ERR_FORKED = 82
ERR_BUFFER = 84
ERR_INTERNAL = 90

# enum rp_log_level
LOG_DEBUG = 10
LOG_INFO = 20
LOG_WARNING = 30
LOG_ERROR = 40
LOG_OFF = 100

# enum rp_file_flag
FILE_REMOTE = 1

# enum rp_store_op
STORE_SET = 1
STORE_GET = 2
STORE_ADD = 3
STORE_COMPARE_SET = 4
STORE_APPEND = 5
STORE_CHECK = 6
STORE_WAIT = 7
STORE_DELETE = 8
STORE_NUM_KEYS = 9
STORE_LIST_KEYS = 10
STORE_MULTI_GET = 11
STORE_MULTI_SET = 12
STORE_QUEUE_PUSH = 13
STORE_QUEUE_POP = 14
STORE_QUEUE_LEN = 15
STORE_BARRIER = 16

# enum rp_member_flag
MEMBER_ENVIRONMENT = 1

# enum rp_ending
END_LEAVE = 0
END_SUCCESS = 1
END_FAILED = 2

# enum rp_agent_flag
AGENT_VIRTUAL_RANK = 1
AGENT_NO_MACROS = 2
AGENT_IDENTICAL = 4
AGENT_SUBREAPER = 8
AGENT_KEEP_DAEMONS = 16
AGENT_EVENTS = 32
AGENT_RDZV_EVENTS = 64
AGENT_METRICS = 128
AGENT_WARM = 256
AGENT_AUTO_PROGRESS = 512

# enum rp_on_hang
HANG_REPORT = 0
HANG_STACKS = 1
HANG_RESTART = 2

# enum rp_directive_kind
DIRECTIVE_NONE = 0
DIRECTIVE_SAVE = 1
DIRECTIVE_DRAIN = 2
DIRECTIVE_SCALE = 3
DIRECTIVE_STOP = 4

# enum rp_admin_action
ADMIN_SAVE = 1
ADMIN_DRAIN = 2
ADMIN_SCALE = 3
ADMIN_STOP = 4
ADMIN_CANCEL = 5
ADMIN_UNDRAIN = 6
ADMIN_EVICT = 7
ADMIN_CLOSE = 8
ADMIN_FAIL = 9
ADMIN_FORGET = 10
ADMIN_STACKS = 11
ADMIN_STATUS = 12
ADMIN_LOGS = 13
ADMIN_CORDON = 14

# enum rp_agent_event_kind
AGENT_JOINING = 1
AGENT_JOINED = 2
AGENT_WORKER_STARTED = 3
AGENT_WORKER_EXITED = 4
AGENT_STOPPING = 5
AGENT_RESTARTING = 6
AGENT_ENDED = 7
AGENT_STALLED = 8

# enum rp_agent_state
AGENT_SUCCEEDED = 1
AGENT_FAILED = 2
AGENT_PEER_FAILED = 3
AGENT_STOPPED = 4
AGENT_NOT_NEEDED = 5
AGENT_BROKEN = 6
AGENT_REQUEUED = 7
AGENT_NO_PROGRESS = 8


class Error(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("code", c_int32),
        ("retryable", c_int32),
        ("message", c_char * 2048),
    )


class Bytes(Structure):
    _fields_ = (("data", c_char_p), ("len", c_size_t))


class Buffer(Structure):
    _fields_ = (("data", c_void_p), ("len", c_size_t))


class List(Structure):
    _fields_ = (("items", POINTER(Buffer)), ("len", c_size_t))


class StoreHandle(Structure):
    _fields_ = (("id", c_uint64),)


class StoreServerHandle(Structure):
    _fields_ = (("id", c_uint64),)


class EtcdServerHandle(Structure):
    _fields_ = (("id", c_uint64),)


class OpHandle(Structure):
    _fields_ = (("id", c_uint64),)


class MemberHandle(Structure):
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


LogCallback = CFUNCTYPE(None, c_void_p, POINTER(LogRecord))


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


OpCallback = CFUNCTYPE(None, c_void_p)


class Option(Structure):
    _fields_ = (("key", c_char_p), ("value", c_char_p))


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
        ("advertised_addr", c_char * 516),
    )


class AgentHandle(Structure):
    _fields_ = (("id", c_uint64),)


class AgentConfig(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("argv", POINTER(c_char_p)),
        ("argv_len", c_size_t),
        ("environment", POINTER(c_char_p)),
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
        ("stdout_filters", POINTER(c_char_p)),
        ("stdout_filters_len", c_size_t),
        ("stderr_filters", POINTER(c_char_p)),
        ("stderr_filters_len", c_size_t),
        ("flags", c_uint32),
        ("numa_binding", c_char_p),
        ("numa_devices", POINTER(c_char_p)),
        ("numa_devices_len", c_size_t),
        ("logs_fd", c_int32),
        ("events_fd", c_int32),
        ("restart_window_ms", c_int64),
        ("max_no_progress", c_int32),
        ("directive_signal", c_int32),
        ("on_signal", c_char_p),
        ("drain_timeout_ms", c_int64),
        ("hang_timeout_ms", c_int64),
        ("on_hang", c_int32),
        ("preload", POINTER(c_char_p)),
        ("preload_len", c_size_t),
        ("preload_timeout_ms", c_int64),
        ("on_failure", c_char_p),
        ("checks", POINTER(c_char_p)),
        ("checks_len", c_size_t),
        ("check_timeout_ms", c_int64),
        ("check_every_ms", c_int64),
        ("check_away_ms", c_int64),
    )


class AdminRequest(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("endpoint", c_char_p),
        ("run_id", c_char_p),
        ("reason", c_char_p),
        ("by", c_char_p),
        ("action", c_int32),
        ("target", c_int32),
        ("nodes", POINTER(c_char_p)),
        ("nodes_len", c_size_t),
        ("directive", c_char_p),
        ("within_ms", c_int64),
        ("for_ms", c_int64),
        ("token_file", c_char_p),
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
        ("advertised_addr", c_char * 516),
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


class Directive(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("kind", c_int32),
        ("named", c_int32),
        ("step", c_int64),
        ("deadline_ms", c_int64),
        ("target", c_int32),
        ("id", c_char * 256),
        ("by", c_char * 256),
        ("reason", c_char * 1024),
    )


class BackendReply(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("answered", c_int32),
        ("stored", c_int32),
        ("state", Buffer),
        ("token", Buffer),
    )


BackendGet = CFUNCTYPE(c_int32, c_void_p, POINTER(BackendReply), POINTER(Error))


BackendSet = CFUNCTYPE(
    c_int32,
    c_void_p,
    c_void_p,
    c_size_t,
    c_void_p,
    c_size_t,
    POINTER(BackendReply),
    POINTER(Error),
)


BackendRelease = CFUNCTYPE(None, c_void_p)


class Backend(Struct):
    _fields_ = (
        ("struct_size", c_size_t),
        ("user", c_void_p),
        ("get", BackendGet),
        ("set", BackendSet),
        ("release", BackendRelease),
    )


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


# By their names in the header.
STRUCTS: dict[str, type[Structure]] = {
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
    "rp_store_request": StoreRequest,
    "rp_store_result": StoreResult,
    "rp_option": Option,
    "rp_member_config": MemberConfig,
    "rp_outcome": Outcome,
    "rp_agent": AgentHandle,
    "rp_agent_config": AgentConfig,
    "rp_admin_request": AdminRequest,
    "rp_agent_event": AgentEvent,
    "rp_agent_result": AgentResult,
    "rp_worker_result": WorkerResult,
    "rp_failure": Failure,
    "rp_directive": Directive,
    "rp_backend_reply": BackendReply,
    "rp_backend": Backend,
    "rp_store_etcd_config": StoreEtcdConfig,
    "rp_etcd_server_config": EtcdServerConfig,
}

CALLBACKS: dict[str, Any] = {
    "rp_log_callback": LogCallback,
    "rp_op_callback": OpCallback,
    "rp_backend_get": BackendGet,
    "rp_backend_set": BackendSet,
    "rp_backend_release": BackendRelease,
}

# Every function: its result and its arguments.
TABLE: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "rp_abi_version": (c_uint32, ()),
    "rp_version": (c_char_p, ()),
    "rp_code_name": (c_char_p, (c_int32,)),
    "rp_buffer_free": (None, (POINTER(Buffer),)),
    "rp_list_free": (None, (POINTER(List),)),
    "rp_handles_open": (c_int32, (POINTER(c_int64), POINTER(Error))),
    "rp_usage_get": (c_int32, (POINTER(Usage), POINTER(Error))),
    "rp_log_next": (c_int32, (POINTER(LogRecord), POINTER(Error))),
    "rp_log_set_level": (c_int32, (c_int32, POINTER(Error))),
    "rp_log_set_callback": (c_int32, (LogCallback, c_void_p, POINTER(Error))),
    "rp_store_server_start": (
        c_int32,
        (POINTER(StoreServerConfig), POINTER(StoreServerHandle), POINTER(Error)),
    ),
    "rp_store_server_port": (c_int32, (StoreServerHandle, POINTER(c_int32), POINTER(Error))),
    "rp_store_server_stop": (c_int32, (StoreServerHandle, POINTER(Error))),
    "rp_store_connect": (
        c_int32,
        (POINTER(StoreConfig), c_int64, POINTER(StoreHandle), POINTER(Error)),
    ),
    "rp_store_connect_start": (
        c_int32,
        (POINTER(StoreConfig), c_int64, POINTER(OpHandle), POINTER(Error)),
    ),
    "rp_store_open_file": (
        c_int32,
        (POINTER(StoreFileConfig), c_int64, POINTER(StoreHandle), POINTER(Error)),
    ),
    "rp_store_open_file_start": (
        c_int32,
        (POINTER(StoreFileConfig), c_int64, POINTER(OpHandle), POINTER(Error)),
    ),
    "rp_store_open_hash": (c_int32, (POINTER(StoreHandle), POINTER(Error))),
    "rp_store_open_prefix": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, POINTER(StoreHandle), POINTER(Error)),
    ),
    "rp_store_close": (c_int32, (StoreHandle, POINTER(Error))),
    "rp_store_set": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, c_char_p, c_size_t, c_int64, POINTER(Error)),
    ),
    "rp_store_get": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, c_int64, POINTER(Buffer), POINTER(Error)),
    ),
    "rp_store_add": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, c_int64, c_int64, POINTER(c_int64), POINTER(Error)),
    ),
    "rp_store_compare_set": (
        c_int32,
        (
            StoreHandle,
            c_char_p,
            c_size_t,
            c_char_p,
            c_size_t,
            c_char_p,
            c_size_t,
            c_int64,
            POINTER(Buffer),
            POINTER(Error),
        ),
    ),
    "rp_store_append": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, c_char_p, c_size_t, c_int64, POINTER(Error)),
    ),
    "rp_store_check": (
        c_int32,
        (StoreHandle, POINTER(Bytes), c_size_t, c_int64, POINTER(c_int32), POINTER(Error)),
    ),
    "rp_store_wait": (c_int32, (StoreHandle, POINTER(Bytes), c_size_t, c_int64, POINTER(Error))),
    "rp_store_delete": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, c_int64, POINTER(c_int32), POINTER(Error)),
    ),
    "rp_store_num_keys": (c_int32, (StoreHandle, c_int64, POINTER(c_int64), POINTER(Error))),
    "rp_store_list_keys": (c_int32, (StoreHandle, c_int64, POINTER(List), POINTER(Error))),
    "rp_store_multi_get": (
        c_int32,
        (StoreHandle, POINTER(Bytes), c_size_t, c_int64, POINTER(List), POINTER(Error)),
    ),
    "rp_store_multi_set": (
        c_int32,
        (StoreHandle, POINTER(Bytes), POINTER(Bytes), c_size_t, c_int64, POINTER(Error)),
    ),
    "rp_store_queue_push": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, c_char_p, c_size_t, c_int64, POINTER(Error)),
    ),
    "rp_store_queue_pop": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, c_int32, c_int64, POINTER(Buffer), POINTER(Error)),
    ),
    "rp_store_queue_len": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, c_int64, POINTER(c_int64), POINTER(Error)),
    ),
    "rp_store_barrier": (
        c_int32,
        (StoreHandle, c_char_p, c_size_t, c_int64, c_int64, POINTER(Error)),
    ),
    "rp_store_start": (
        c_int32,
        (StoreHandle, POINTER(StoreRequest), POINTER(OpHandle), POINTER(Error)),
    ),
    "rp_store_attempt": (
        c_int32,
        (
            StoreHandle,
            POINTER(StoreRequest),
            c_int64,
            POINTER(OpHandle),
            POINTER(StoreResult),
            POINTER(Error),
        ),
    ),
    "rp_op_wait": (c_int32, (OpHandle, c_int64, POINTER(Error))),
    "rp_op_fd": (c_int32, (OpHandle, POINTER(c_int32), POINTER(Error))),
    "rp_op_notify": (c_int32, (OpHandle, OpCallback, c_void_p, POINTER(Error))),
    "rp_op_result": (c_int32, (OpHandle, POINTER(StoreResult), POINTER(Error))),
    "rp_op_cancel": (c_int32, (OpHandle, POINTER(Error))),
    "rp_op_free": (c_int32, (OpHandle, POINTER(Error))),
    "rp_store_result_free": (None, (POINTER(StoreResult),)),
    "rp_member_open": (c_int32, (POINTER(MemberConfig), POINTER(MemberHandle), POINTER(Error))),
    "rp_member_next": (c_int32, (MemberHandle, c_int64, POINTER(Outcome), POINTER(Error))),
    "rp_member_cancel": (c_int32, (MemberHandle, POINTER(Error))),
    "rp_member_finish": (c_int32, (MemberHandle, c_int64, POINTER(Error))),
    "rp_member_shutdown": (c_int32, (MemberHandle, c_int32, c_char_p, c_int64, POINTER(Error))),
    "rp_member_set_closed": (c_int32, (MemberHandle, c_char_p, c_int64, POINTER(Error))),
    "rp_member_nodes_waiting": (c_int32, (MemberHandle, POINTER(c_int32), POINTER(Error))),
    "rp_member_is_closed": (c_int32, (MemberHandle, POINTER(c_int32), POINTER(Error))),
    "rp_member_wait": (c_int32, (MemberHandle, c_int64, POINTER(Error))),
    "rp_member_fd": (c_int32, (MemberHandle, POINTER(c_int32), POINTER(Error))),
    "rp_member_reason": (c_int32, (MemberHandle, c_char_p, POINTER(c_size_t), POINTER(Error))),
    "rp_member_keys": (c_int32, (MemberHandle, c_uint64, POINTER(StoreHandle), POINTER(Error))),
    "rp_member_close": (c_int32, (MemberHandle, POINTER(Error))),
    "rp_agent_open": (c_int32, (POINTER(AgentConfig), POINTER(AgentHandle), POINTER(Error))),
    "rp_agent_run": (c_int32, (AgentHandle, c_int64, POINTER(Error))),
    "rp_agent_stop": (c_int32, (AgentHandle, c_int32, c_int64, POINTER(Error))),
    "rp_agent_direct": (c_int32, (AgentHandle, c_int32, c_int64, c_char_p, POINTER(Error))),
    "rp_admin_start": (
        c_int32,
        (POINTER(AdminRequest), c_int64, POINTER(OpHandle), POINTER(Error)),
    ),
    "rp_agent_next_event": (c_int32, (AgentHandle, POINTER(AgentEvent), POINTER(Error))),
    "rp_agent_fd": (c_int32, (AgentHandle, POINTER(c_int32), POINTER(Error))),
    "rp_agent_get_result": (c_int32, (AgentHandle, POINTER(AgentResult), POINTER(Error))),
    "rp_agent_get_worker": (c_int32, (AgentHandle, c_int32, POINTER(WorkerResult), POINTER(Error))),
    "rp_agent_get_failure": (c_int32, (AgentHandle, c_int32, POINTER(Failure), POINTER(Error))),
    "rp_agent_result_free": (None, (POINTER(AgentResult),)),
    "rp_worker_result_free": (None, (POINTER(WorkerResult),)),
    "rp_failure_free": (None, (POINTER(Failure),)),
    "rp_agent_close": (c_int32, (AgentHandle, POINTER(Error))),
    "rp_progress": (c_int32, (c_int64, POINTER(Error))),
    "rp_busy": (c_int32, (c_int64, POINTER(Error))),
    "rp_busy_end": (c_int32, (POINTER(Error),)),
    "rp_progress_directive": (c_int32, (c_int64, POINTER(Directive), POINTER(Error))),
    "rp_get_directive": (c_int32, (POINTER(Directive), POINTER(Error))),
    "rp_saved": (c_int32, (c_int64, POINTER(Error))),
    "rp_backend_answer": (
        c_int32,
        (POINTER(BackendReply), c_char_p, c_size_t, c_char_p, c_size_t, c_int32, POINTER(Error)),
    ),
    "rp_member_open_backend": (
        c_int32,
        (POINTER(MemberConfig), POINTER(Backend), POINTER(MemberHandle), POINTER(Error)),
    ),
    "rp_store_open_etcd": (
        c_int32,
        (POINTER(StoreEtcdConfig), c_int64, POINTER(StoreHandle), POINTER(Error)),
    ),
    "rp_store_open_etcd_start": (
        c_int32,
        (POINTER(StoreEtcdConfig), c_int64, POINTER(OpHandle), POINTER(Error)),
    ),
    "rp_etcd_server_start": (
        c_int32,
        (POINTER(EtcdServerConfig), c_int64, POINTER(EtcdServerHandle), POINTER(Error)),
    ),
    "rp_etcd_server_ready": (
        c_int32,
        (EtcdServerHandle, c_int64, POINTER(c_int32), POINTER(Error)),
    ),
    "rp_etcd_server_stop": (c_int32, (EtcdServerHandle, POINTER(Error))),
    "rp_main": (c_int, (c_int, POINTER(c_char_p))),
}
