// Written by packaging/rust_bindings.py from include/rallypoint.h: what the functions
// mean is said there.

use core::ffi::{c_char, c_int, c_void};

pub const RP_ABI_MAJOR: u32 = 0;
pub const RP_ABI_MINOR: u32 = 1;
pub const RP_ABI_VERSION: u32 = 1;
pub const RP_TEXT: usize = usize::MAX;

// enum rp_code
pub const RP_OK: i32 = 0;
pub const RP_PENDING: i32 = 1;
pub const RP_ERR_INVALID: i32 = 10;
pub const RP_ERR_MISMATCH: i32 = 12;
pub const RP_ERR_TENANT: i32 = 14;
pub const RP_ERR_NODE_IN_USE: i32 = 16;
pub const RP_ERR_AUTH: i32 = 18;
pub const RP_ERR_CLOSED: i32 = 20;
pub const RP_ERR_GRACEFUL: i32 = 22;
pub const RP_ERR_UNFIT: i32 = 24;
pub const RP_ERR_TIMEOUT: i32 = 30;
pub const RP_ERR_CANCELED: i32 = 32;
pub const RP_ERR_CONNECTION: i32 = 40;
pub const RP_ERR_STATE: i32 = 50;
pub const RP_ERR_FENCED: i32 = 52;
pub const RP_ERR_EVICTED: i32 = 60;
pub const RP_ERR_ROUND_OVER: i32 = 62;
pub const RP_ERR_WORKERS: i32 = 64;
pub const RP_ERR_START: i32 = 66;
pub const RP_ERR_NUMBER: i32 = 70;
pub const RP_ERR_TOO_LARGE: i32 = 72;
pub const RP_ERR_EMPTY: i32 = 74;
pub const RP_ERR_UNSUPPORTED: i32 = 76;
pub const RP_ERR_HANDLE: i32 = 80;
pub const RP_ERR_FORKED: i32 = 82;
pub const RP_ERR_BUFFER: i32 = 84;
pub const RP_ERR_INTERNAL: i32 = 90;

// enum rp_log_level
pub const RP_LOG_DEBUG: i32 = 10;
pub const RP_LOG_INFO: i32 = 20;
pub const RP_LOG_WARNING: i32 = 30;
pub const RP_LOG_ERROR: i32 = 40;
pub const RP_LOG_OFF: i32 = 100;

// enum rp_file_flag
pub const RP_FILE_REMOTE: u32 = 1;

// enum rp_store_op
pub const RP_STORE_SET: i32 = 1;
pub const RP_STORE_GET: i32 = 2;
pub const RP_STORE_ADD: i32 = 3;
pub const RP_STORE_COMPARE_SET: i32 = 4;
pub const RP_STORE_APPEND: i32 = 5;
pub const RP_STORE_CHECK: i32 = 6;
pub const RP_STORE_WAIT: i32 = 7;
pub const RP_STORE_DELETE: i32 = 8;
pub const RP_STORE_NUM_KEYS: i32 = 9;
pub const RP_STORE_LIST_KEYS: i32 = 10;
pub const RP_STORE_MULTI_GET: i32 = 11;
pub const RP_STORE_MULTI_SET: i32 = 12;
pub const RP_STORE_QUEUE_PUSH: i32 = 13;
pub const RP_STORE_QUEUE_POP: i32 = 14;
pub const RP_STORE_QUEUE_LEN: i32 = 15;
pub const RP_STORE_BARRIER: i32 = 16;

// enum rp_member_flag
pub const RP_MEMBER_ENVIRONMENT: u32 = 1;

// enum rp_ending
pub const RP_END_LEAVE: i32 = 0;
pub const RP_END_SUCCESS: i32 = 1;
pub const RP_END_FAILED: i32 = 2;

// enum rp_agent_flag
pub const RP_AGENT_VIRTUAL_RANK: u32 = 1;
pub const RP_AGENT_NO_MACROS: u32 = 2;
pub const RP_AGENT_IDENTICAL: u32 = 4;
pub const RP_AGENT_SUBREAPER: u32 = 8;
pub const RP_AGENT_KEEP_DAEMONS: u32 = 16;
pub const RP_AGENT_EVENTS: u32 = 32;
pub const RP_AGENT_RDZV_EVENTS: u32 = 64;
pub const RP_AGENT_METRICS: u32 = 128;
pub const RP_AGENT_WARM: u32 = 256;
pub const RP_AGENT_AUTO_PROGRESS: u32 = 512;

// enum rp_on_hang
pub const RP_HANG_REPORT: i32 = 0;
pub const RP_HANG_STACKS: i32 = 1;
pub const RP_HANG_RESTART: i32 = 2;

// enum rp_directive_kind
pub const RP_DIRECTIVE_NONE: i32 = 0;
pub const RP_DIRECTIVE_SAVE: i32 = 1;
pub const RP_DIRECTIVE_DRAIN: i32 = 2;
pub const RP_DIRECTIVE_SCALE: i32 = 3;
pub const RP_DIRECTIVE_STOP: i32 = 4;

// enum rp_admin_action
pub const RP_ADMIN_SAVE: i32 = 1;
pub const RP_ADMIN_DRAIN: i32 = 2;
pub const RP_ADMIN_SCALE: i32 = 3;
pub const RP_ADMIN_STOP: i32 = 4;
pub const RP_ADMIN_CANCEL: i32 = 5;
pub const RP_ADMIN_UNDRAIN: i32 = 6;
pub const RP_ADMIN_EVICT: i32 = 7;
pub const RP_ADMIN_CLOSE: i32 = 8;
pub const RP_ADMIN_FAIL: i32 = 9;
pub const RP_ADMIN_FORGET: i32 = 10;
pub const RP_ADMIN_STACKS: i32 = 11;
pub const RP_ADMIN_STATUS: i32 = 12;
pub const RP_ADMIN_LOGS: i32 = 13;
pub const RP_ADMIN_CORDON: i32 = 14;

// enum rp_agent_event_kind
pub const RP_AGENT_JOINING: i32 = 1;
pub const RP_AGENT_JOINED: i32 = 2;
pub const RP_AGENT_WORKER_STARTED: i32 = 3;
pub const RP_AGENT_WORKER_EXITED: i32 = 4;
pub const RP_AGENT_STOPPING: i32 = 5;
pub const RP_AGENT_RESTARTING: i32 = 6;
pub const RP_AGENT_ENDED: i32 = 7;
pub const RP_AGENT_STALLED: i32 = 8;

// enum rp_agent_state
pub const RP_AGENT_SUCCEEDED: i32 = 1;
pub const RP_AGENT_FAILED: i32 = 2;
pub const RP_AGENT_PEER_FAILED: i32 = 3;
pub const RP_AGENT_STOPPED: i32 = 4;
pub const RP_AGENT_NOT_NEEDED: i32 = 5;
pub const RP_AGENT_BROKEN: i32 = 6;
pub const RP_AGENT_REQUEUED: i32 = 7;
pub const RP_AGENT_NO_PROGRESS: i32 = 8;

// enum rp_fence_flag
pub const RP_FENCE_INTO: u32 = 1;

pub type rp_log_callback = unsafe extern "C" fn(user: *mut c_void, record: *const rp_log_record);

pub type rp_op_callback = unsafe extern "C" fn(user: *mut c_void);

pub type rp_backend_get = unsafe extern "C" fn(user: *mut c_void, reply: *mut rp_backend_reply, err: *mut rp_error);

pub type rp_backend_set = unsafe extern "C" fn(user: *mut c_void, state: *const c_void, state_len: usize, token: *const c_void, token_len: usize, reply: *mut rp_backend_reply, err: *mut rp_error);

pub type rp_backend_release = unsafe extern "C" fn(user: *mut c_void);

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_error {
    pub struct_size: usize,
    pub code: i32,
    pub retryable: i32,
    pub message: [c_char; 2048],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_bytes {
    pub data: *const c_void,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_buffer {
    pub data: *mut c_void,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_list {
    pub items: *mut rp_buffer,
    pub len: usize,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rp_store {
    pub id: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rp_store_server {
    pub id: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rp_etcd_server {
    pub id: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rp_op {
    pub id: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rp_member {
    pub id: u64,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rp_fence {
    pub id: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_usage {
    pub struct_size: usize,
    pub handles: i64,
    pub goroutines: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_log_record {
    pub struct_size: usize,
    pub level: i32,
    pub dropped: u32,
    pub time_ms: i64,
    pub text: [c_char; 4096],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_store_server_config {
    pub struct_size: usize,
    pub host: *const c_char,
    pub port: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_store_config {
    pub struct_size: usize,
    pub host: *const c_char,
    pub port: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_store_file_config {
    pub struct_size: usize,
    pub path: *const c_char,
    pub world_size: i64,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_store_request {
    pub struct_size: usize,
    pub op: i32,
    pub block: i32,
    pub key: rp_bytes,
    pub value: rp_bytes,
    pub expected: rp_bytes,
    pub keys: *const rp_bytes,
    pub keys_len: usize,
    pub values: *const rp_bytes,
    pub values_len: usize,
    pub number: i64,
    pub timeout_ms: i64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_store_result {
    pub struct_size: usize,
    pub number: i64,
    pub value: rp_buffer,
    pub list: rp_list,
    pub store: rp_store,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_option {
    pub key: *const c_char,
    pub value: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_member_config {
    pub struct_size: usize,
    pub run_id: *const c_char,
    pub endpoint: *const c_char,
    pub min_nodes: i32,
    pub max_nodes: i32,
    pub local_addr: *const c_char,
    pub options: *const rp_option,
    pub options_len: usize,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_outcome {
    pub struct_size: usize,
    pub round: u64,
    pub rank: i32,
    pub world_size: i32,
    pub store_port: i32,
    pub store_addr: [c_char; 516],
    pub advertised_addr: [c_char; 516],
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct rp_agent {
    pub id: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_agent_config {
    pub struct_size: usize,
    pub argv: *const *const c_char,
    pub argv_len: usize,
    pub environment: *const *const c_char,
    pub environment_len: usize,
    pub workers: i32,
    pub max_restarts: i32,
    pub rendezvous: *const rp_member_config,
    pub member: rp_member,
    pub role: *const c_char,
    pub name: *const c_char,
    pub monitor_interval_ms: i64,
    pub shutdown_timeout_ms: i64,
    pub exit_barrier_timeout_ms: i64,
    pub restart_delay_ms: i64,
    pub log_dir: *const c_char,
    pub redirects: *const c_char,
    pub tee: *const c_char,
    pub log_prefix: *const c_char,
    pub local_ranks: *const i32,
    pub local_ranks_len: usize,
    pub stdout_filters: *const *const c_char,
    pub stdout_filters_len: usize,
    pub stderr_filters: *const *const c_char,
    pub stderr_filters_len: usize,
    pub flags: u32,
    pub numa_binding: *const c_char,
    pub numa_devices: *const *const c_char,
    pub numa_devices_len: usize,
    pub logs_fd: i32,
    pub events_fd: i32,
    pub restart_window_ms: i64,
    pub max_no_progress: i32,
    pub directive_signal: i32,
    pub on_signal: *const c_char,
    pub drain_timeout_ms: i64,
    pub hang_timeout_ms: i64,
    pub on_hang: i32,
    pub preload: *const *const c_char,
    pub preload_len: usize,
    pub preload_timeout_ms: i64,
    pub on_failure: *const c_char,
    pub checks: *const *const c_char,
    pub checks_len: usize,
    pub check_timeout_ms: i64,
    pub check_every_ms: i64,
    pub check_away_ms: i64,
    pub command: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_admin_request {
    pub struct_size: usize,
    pub endpoint: *const c_char,
    pub run_id: *const c_char,
    pub reason: *const c_char,
    pub by: *const c_char,
    pub action: i32,
    pub target: i32,
    pub nodes: *const *const c_char,
    pub nodes_len: usize,
    pub directive: *const c_char,
    pub within_ms: i64,
    pub for_ms: i64,
    pub token_file: *const c_char,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_agent_event {
    pub struct_size: usize,
    pub kind: i32,
    pub dropped: u32,
    pub time_ms: i64,
    pub round: u64,
    pub restarts: i32,
    pub group_rank: i32,
    pub group_world_size: i32,
    pub world_size: i32,
    pub local_rank: i32,
    pub rank: i32,
    pub pid: i32,
    pub exit_code: i32,
    pub store_port: i32,
    pub store_addr: [c_char; 516],
    pub text: [c_char; 1024],
    pub advertised_addr: [c_char; 516],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_agent_result {
    pub struct_size: usize,
    pub state: i32,
    pub signal: i32,
    pub round: u64,
    pub restarts: i32,
    pub group_rank: i32,
    pub group_world_size: i32,
    pub world_size: i32,
    pub workers: i32,
    pub failures: i32,
    pub root_cause: i32,
    pub report: rp_buffer,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_worker_result {
    pub struct_size: usize,
    pub local_rank: i32,
    pub rank: i32,
    pub role_rank: i32,
    pub role_world_size: i32,
    pub pid: i32,
    pub exit_code: i32,
    pub stdout_path: rp_buffer,
    pub stderr_path: rp_buffer,
    pub error_file: rp_buffer,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_failure {
    pub struct_size: usize,
    pub rank: i32,
    pub local_rank: i32,
    pub pid: i32,
    pub exit_code: i32,
    pub terminated: i32,
    pub time_ms: i64,
    pub host: rp_buffer,
    pub error_file: rp_buffer,
    pub error_data: rp_buffer,
    pub message: rp_buffer,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_directive {
    pub struct_size: usize,
    pub kind: i32,
    pub named: i32,
    pub step: i64,
    pub deadline_ms: i64,
    pub target: i32,
    pub id: [c_char; 256],
    pub by: [c_char; 256],
    pub reason: [c_char; 1024],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_world {
    pub struct_size: usize,
    pub epoch: u64,
    pub rank: i32,
    pub size: i32,
    pub local_rank: i32,
    pub local_size: i32,
    pub node_rank: i32,
    pub store_port: i32,
    pub store_addr: [c_char; 320],
    pub prefix: [c_char; 64],
    pub carried: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_fence_config {
    pub struct_size: usize,
    pub path: *const c_char,
    pub flags: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_fence_state {
    pub struct_size: usize,
    pub existed: i32,
    pub version: [c_char; 64],
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_backend_reply {
    pub struct_size: usize,
    pub answered: i32,
    pub stored: i32,
    pub state: rp_buffer,
    pub token: rp_buffer,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_backend {
    pub struct_size: usize,
    pub user: *mut c_void,
    pub get: Option<rp_backend_get>,
    pub set: Option<rp_backend_set>,
    pub release: Option<rp_backend_release>,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_store_etcd_config {
    pub struct_size: usize,
    pub endpoint: *const c_char,
    pub prefix: *const c_char,
    pub options: *const rp_option,
    pub options_len: usize,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct rp_etcd_server_config {
    pub struct_size: usize,
    pub binary: *const c_char,
    pub beside: *const c_char,
    pub data_dir: *const c_char,
    pub retries: i32,
    pub output_fd: i32,
}

extern "C" {
    pub fn rp_abi_version() -> u32;
    pub fn rp_version() -> *const c_char;
    pub fn rp_code_name(code: i32) -> *const c_char;
    pub fn rp_buffer_free(buffer: *mut rp_buffer);
    pub fn rp_list_free(list: *mut rp_list);
    pub fn rp_handles_open(count: *mut i64, err: *mut rp_error) -> i32;
    pub fn rp_usage_get(usage: *mut rp_usage, err: *mut rp_error) -> i32;
    pub fn rp_log_next(record: *mut rp_log_record, err: *mut rp_error) -> i32;
    pub fn rp_log_set_level(level: i32, err: *mut rp_error) -> i32;
    pub fn rp_log_set_callback(callback: Option<rp_log_callback>, user: *mut c_void, err: *mut rp_error) -> i32;
    pub fn rp_store_server_start(config: *const rp_store_server_config, server: *mut rp_store_server, err: *mut rp_error) -> i32;
    pub fn rp_store_server_port(server: rp_store_server, port: *mut i32, err: *mut rp_error) -> i32;
    pub fn rp_store_server_stop(server: rp_store_server, err: *mut rp_error) -> i32;
    pub fn rp_store_connect(config: *const rp_store_config, timeout_ms: i64, store: *mut rp_store, err: *mut rp_error) -> i32;
    pub fn rp_store_connect_start(config: *const rp_store_config, timeout_ms: i64, op: *mut rp_op, err: *mut rp_error) -> i32;
    pub fn rp_store_open_file(config: *const rp_store_file_config, timeout_ms: i64, store: *mut rp_store, err: *mut rp_error) -> i32;
    pub fn rp_store_open_file_start(config: *const rp_store_file_config, timeout_ms: i64, op: *mut rp_op, err: *mut rp_error) -> i32;
    pub fn rp_store_open_hash(store: *mut rp_store, err: *mut rp_error) -> i32;
    pub fn rp_store_open_prefix(store: rp_store, prefix: *const c_void, prefix_len: usize, view: *mut rp_store, err: *mut rp_error) -> i32;
    pub fn rp_store_close(store: rp_store, err: *mut rp_error) -> i32;
    pub fn rp_store_set(store: rp_store, key: *const c_void, key_len: usize, value: *const c_void, value_len: usize, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_store_get(store: rp_store, key: *const c_void, key_len: usize, timeout_ms: i64, value: *mut rp_buffer, err: *mut rp_error) -> i32;
    pub fn rp_store_add(store: rp_store, key: *const c_void, key_len: usize, amount: i64, timeout_ms: i64, sum: *mut i64, err: *mut rp_error) -> i32;
    pub fn rp_store_compare_set(store: rp_store, key: *const c_void, key_len: usize, expected: *const c_void, expected_len: usize, desired: *const c_void, desired_len: usize, timeout_ms: i64, current: *mut rp_buffer, err: *mut rp_error) -> i32;
    pub fn rp_store_append(store: rp_store, key: *const c_void, key_len: usize, value: *const c_void, value_len: usize, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_store_check(store: rp_store, keys: *const rp_bytes, keys_len: usize, timeout_ms: i64, ready: *mut i32, err: *mut rp_error) -> i32;
    pub fn rp_store_wait(store: rp_store, keys: *const rp_bytes, keys_len: usize, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_store_delete(store: rp_store, key: *const c_void, key_len: usize, timeout_ms: i64, existed: *mut i32, err: *mut rp_error) -> i32;
    pub fn rp_store_num_keys(store: rp_store, timeout_ms: i64, count: *mut i64, err: *mut rp_error) -> i32;
    pub fn rp_store_list_keys(store: rp_store, timeout_ms: i64, keys: *mut rp_list, err: *mut rp_error) -> i32;
    pub fn rp_store_multi_get(store: rp_store, keys: *const rp_bytes, keys_len: usize, timeout_ms: i64, values: *mut rp_list, err: *mut rp_error) -> i32;
    pub fn rp_store_multi_set(store: rp_store, keys: *const rp_bytes, values: *const rp_bytes, len: usize, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_store_queue_push(store: rp_store, key: *const c_void, key_len: usize, value: *const c_void, value_len: usize, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_store_queue_pop(store: rp_store, key: *const c_void, key_len: usize, block: i32, timeout_ms: i64, value: *mut rp_buffer, err: *mut rp_error) -> i32;
    pub fn rp_store_queue_len(store: rp_store, key: *const c_void, key_len: usize, timeout_ms: i64, count: *mut i64, err: *mut rp_error) -> i32;
    pub fn rp_store_barrier(store: rp_store, key: *const c_void, key_len: usize, world_size: i64, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_store_start(store: rp_store, request: *const rp_store_request, op: *mut rp_op, err: *mut rp_error) -> i32;
    pub fn rp_store_attempt(store: rp_store, request: *const rp_store_request, wait_ms: i64, op: *mut rp_op, result: *mut rp_store_result, err: *mut rp_error) -> i32;
    pub fn rp_op_wait(op: rp_op, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_op_fd(op: rp_op, fd: *mut i32, err: *mut rp_error) -> i32;
    pub fn rp_op_notify(op: rp_op, callback: Option<rp_op_callback>, user: *mut c_void, err: *mut rp_error) -> i32;
    pub fn rp_op_result(op: rp_op, result: *mut rp_store_result, err: *mut rp_error) -> i32;
    pub fn rp_op_cancel(op: rp_op, err: *mut rp_error) -> i32;
    pub fn rp_op_free(op: rp_op, err: *mut rp_error) -> i32;
    pub fn rp_store_result_free(result: *mut rp_store_result);
    pub fn rp_member_open(config: *const rp_member_config, member: *mut rp_member, err: *mut rp_error) -> i32;
    pub fn rp_member_next(member: rp_member, timeout_ms: i64, outcome: *mut rp_outcome, err: *mut rp_error) -> i32;
    pub fn rp_member_cancel(member: rp_member, err: *mut rp_error) -> i32;
    pub fn rp_member_finish(member: rp_member, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_member_shutdown(member: rp_member, ending: i32, reason: *const c_char, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_member_set_closed(member: rp_member, reason: *const c_char, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_member_nodes_waiting(member: rp_member, count: *mut i32, err: *mut rp_error) -> i32;
    pub fn rp_member_is_closed(member: rp_member, closed: *mut i32, err: *mut rp_error) -> i32;
    pub fn rp_member_wait(member: rp_member, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_member_fd(member: rp_member, fd: *mut i32, err: *mut rp_error) -> i32;
    pub fn rp_member_reason(member: rp_member, text: *mut c_char, size: *mut usize, err: *mut rp_error) -> i32;
    pub fn rp_member_keys(member: rp_member, round: u64, store: *mut rp_store, err: *mut rp_error) -> i32;
    pub fn rp_member_close(member: rp_member, err: *mut rp_error) -> i32;
    pub fn rp_agent_open(config: *const rp_agent_config, agent: *mut rp_agent, err: *mut rp_error) -> i32;
    pub fn rp_agent_run(agent: rp_agent, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_agent_stop(agent: rp_agent, signal: i32, grace_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_agent_direct(agent: rp_agent, kind: i32, within_ms: i64, reason: *const c_char, err: *mut rp_error) -> i32;
    pub fn rp_admin_start(request: *const rp_admin_request, timeout_ms: i64, op: *mut rp_op, err: *mut rp_error) -> i32;
    pub fn rp_agent_next_event(agent: rp_agent, event: *mut rp_agent_event, err: *mut rp_error) -> i32;
    pub fn rp_agent_fd(agent: rp_agent, fd: *mut i32, err: *mut rp_error) -> i32;
    pub fn rp_agent_get_result(agent: rp_agent, result: *mut rp_agent_result, err: *mut rp_error) -> i32;
    pub fn rp_agent_get_worker(agent: rp_agent, local_rank: i32, worker: *mut rp_worker_result, err: *mut rp_error) -> i32;
    pub fn rp_agent_get_failure(agent: rp_agent, index: i32, failure: *mut rp_failure, err: *mut rp_error) -> i32;
    pub fn rp_agent_result_free(result: *mut rp_agent_result);
    pub fn rp_worker_result_free(worker: *mut rp_worker_result);
    pub fn rp_failure_free(failure: *mut rp_failure);
    pub fn rp_agent_close(agent: rp_agent, err: *mut rp_error) -> i32;
    pub fn rp_progress(step: i64, err: *mut rp_error) -> i32;
    pub fn rp_busy(within_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_busy_end(err: *mut rp_error) -> i32;
    pub fn rp_progress_directive(step: i64, directive: *mut rp_directive, err: *mut rp_error) -> i32;
    pub fn rp_get_directive(directive: *mut rp_directive, err: *mut rp_error) -> i32;
    pub fn rp_saved(step: i64, err: *mut rp_error) -> i32;
    pub fn rp_world_get(world: *mut rp_world, err: *mut rp_error) -> i32;
    pub fn rp_world_can_regroup(err: *mut rp_error) -> i32;
    pub fn rp_world_changing() -> i32;
    pub fn rp_regroup(timeout_ms: i64, world: *mut rp_world, err: *mut rp_error) -> i32;
    pub fn rp_fence_open(config: *const rp_fence_config, timeout_ms: i64, fence: *mut rp_fence, err: *mut rp_error) -> i32;
    pub fn rp_fence_get_state(fence: rp_fence, state: *mut rp_fence_state, err: *mut rp_error) -> i32;
    pub fn rp_fence_prepare(fence: rp_fence, timeout_ms: i64, temporary: *mut rp_buffer, err: *mut rp_error) -> i32;
    pub fn rp_fence_commit(fence: rp_fence, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_fence_claim(fence: rp_fence, timeout_ms: i64, err: *mut rp_error) -> i32;
    pub fn rp_fence_release(fence: rp_fence, err: *mut rp_error) -> i32;
    pub fn rp_fence_close(fence: rp_fence, err: *mut rp_error) -> i32;
    pub fn rp_backend_answer(reply: *mut rp_backend_reply, state: *const c_void, state_len: usize, token: *const c_void, token_len: usize, stored: i32, err: *mut rp_error) -> i32;
    pub fn rp_member_open_backend(config: *const rp_member_config, backend: *const rp_backend, member: *mut rp_member, err: *mut rp_error) -> i32;
    pub fn rp_store_open_etcd(config: *const rp_store_etcd_config, timeout_ms: i64, store: *mut rp_store, err: *mut rp_error) -> i32;
    pub fn rp_store_open_etcd_start(config: *const rp_store_etcd_config, timeout_ms: i64, op: *mut rp_op, err: *mut rp_error) -> i32;
    pub fn rp_etcd_server_start(config: *const rp_etcd_server_config, timeout_ms: i64, server: *mut rp_etcd_server, err: *mut rp_error) -> i32;
    pub fn rp_etcd_server_ready(server: rp_etcd_server, timeout_ms: i64, port: *mut i32, err: *mut rp_error) -> i32;
    pub fn rp_etcd_server_stop(server: rp_etcd_server, err: *mut rp_error) -> i32;
    pub fn rp_main(argc: c_int, argv: *const *mut c_char) -> c_int;
}
