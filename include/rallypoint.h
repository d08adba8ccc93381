/*
 * rallypoint.h - the C interface of Rallypoint (librallypoint.so).
 *
 * Rallypoint brings the processes of a distributed job together: it agrees on who
 * takes part, gives each node a rank and a shared store, and regroups when a node
 * comes or goes. What is not in this file is not supported.
 *
 * Rules that hold for every function, unless its comment says otherwise:
 *
 *   Results    The return value is an enum rp_code: RP_OK, RP_PENDING, or an error.
 *              Output arguments are written only with RP_OK.
 *   Errors     `err` may be NULL. If it is not, it is written when an error is
 *              returned, and left alone otherwise.
 *   Threads    Every function may be called from any thread, on one object from
 *              several threads at once, and while another thread closes the object.
 *   Blocking   A function without a timeout does not block.
 *   Time       `timeout_ms` is in milliseconds: 0 does not wait, -1 waits without a
 *              limit, anything below -1 is RP_ERR_INVALID.
 *   Texts      `const char *` texts end with NUL and are UTF-8; RP_ERR_INVALID if not.
 *   Bytes      Keys and values are any bytes: a pointer and a length. The length
 *              RP_TEXT says that they end with NUL. NULL is allowed with length 0.
 *   Ownership  What is handed in is copied before the function returns. What is
 *              handed out in a rp_buffer, rp_list or rp_store_result belongs to the
 *              caller and is freed with the function of that name.
 *   Handles    A handle is valid until it is closed. A closed handle, {0} and any
 *              other number give RP_ERR_HANDLE. Handles are never used twice.
 *   Structs    A struct with `struct_size` must have it set to sizeof of the struct
 *              as the caller knows it, so that it can grow in later versions; all
 *              other fields may be zero unless they are required. A size below that
 *              of the first version is RP_ERR_INVALID.
 *   fork()     In a child of fork() every function that needs the library's threads
 *              returns RP_ERR_FORKED at once. A child that calls exec() is free.
 *   Signals    The library handles no signals, except in rp_main. (The Go runtime
 *              in it installs handlers for SIGSEGV, SIGBUS, SIGFPE, SIGPIPE and
 *              SIGURG, which serve its own threads and pass on the program's. A
 *              handler of the program for one of these, or for SIGPROF, needs
 *              SA_ONSTACK.) The library's threads block no signals: a program that
 *              blocks one in its own threads, for signalfd, say, still gets it there.
 *
 * Linux, glibc. C99 and C++11.
 */
#ifndef RALLYPOINT_H
#define RALLYPOINT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define RP_API __attribute__((visibility("default")))
#else
#define RP_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ------------------------------------------------------------------ version */

/*
 * The version of this interface. A program compiled with this header works with a
 * library whose rp_abi_version() has the same upper 16 bits (RP_ABI_MAJOR) and lower
 * 16 bits that are at least RP_ABI_MINOR. RP_ABI_MAJOR is the number in the soname.
 */
#define RP_ABI_MAJOR 0
#define RP_ABI_MINOR 1
#define RP_ABI_VERSION ((uint32_t)((RP_ABI_MAJOR << 16) | RP_ABI_MINOR))

/* Returns RP_ABI_VERSION of the library. Works after fork(). */
RP_API uint32_t rp_abi_version(void);

/*
 * Returns the version of the library, "0.1.0". The text lives as long as the
 * library. In a forked child that asks for the first time: "".
 */
RP_API const char *rp_version(void);

/* ------------------------------------------------------------------- errors */

/*
 * The results of all functions. Numbers never change; new ones may be added, so an
 * unknown number above RP_PENDING must be treated as RP_ERR_INTERNAL.
 */
enum rp_code {
    RP_OK = 0,
    RP_PENDING = 1, /* not done yet: call again */

    RP_ERR_INVALID = 10,     /* an argument or option is malformed or contradicts another */
    RP_ERR_MISMATCH = 12,    /* the run has another size, target, segment or command */
    RP_ERR_TENANT = 14,      /* the port serves another run */
    RP_ERR_NODE_IN_USE = 16, /* a live node already has this node id */
    RP_ERR_AUTH = 18,        /* one side could not prove that it knows the token */
    RP_ERR_CLOSED = 20,      /* the run is closed, or can no longer regroup */
    RP_ERR_GRACEFUL = 22,    /* the run succeeded and never needed this node */
    RP_ERR_UNFIT = 24,       /* this node declared itself unfit to run workers */
    RP_ERR_TIMEOUT = 30,     /* a deadline passed */
    RP_ERR_CANCELED = 32,    /* the caller canceled, or the object was closed in the meantime */
    RP_ERR_CONNECTION = 40,  /* the control plane or a store cannot be reached */
    RP_ERR_STATE = 50,       /* the data received is invalid or not Rallypoint's */
    RP_ERR_FENCED = 52,      /* another process has written the checkpoint */
    RP_ERR_EVICTED = 60,     /* this node was dropped from the run */
    RP_ERR_ROUND_OVER = 62,  /* the round of this store is over */
    RP_ERR_WORKERS = 64,     /* workers of this node failed and no restart is left */
    RP_ERR_START = 66,       /* workers could not be started */
    RP_ERR_NUMBER = 70,      /* add on a value that is not a number */
    RP_ERR_TOO_LARGE = 72,   /* a key, value or quota is too large */
    RP_ERR_EMPTY = 74,       /* pop from an empty queue */
    RP_ERR_UNSUPPORTED = 76, /* this kind of store or file system does not support this */
    RP_ERR_HANDLE = 80,      /* the handle is closed, zero or of another kind */
    RP_ERR_FORKED = 82,      /* the process was forked after the library was loaded */
    RP_ERR_BUFFER = 84,      /* the caller's buffer is too small */
    RP_ERR_INTERNAL = 90     /* a defect of the library */
};

/*
 * Returns the name of a code without its prefix, "TIMEOUT" for RP_ERR_TIMEOUT, and
 * "UNKNOWN" for a number that is no code. The text is static. Works after fork().
 */
RP_API const char *rp_code_name(int32_t code);

/*
 * What went wrong. `message` is human-readable: it says what failed, on which address or
 * key, how long it was tried and what to do. It is UTF-8, ends with NUL and is cut
 * between two characters if it is too long. `retryable` is 1 if the same call may
 * succeed later without a change by the user, else 0.
 */
typedef struct rp_error {
    size_t struct_size;
    int32_t code;
    int32_t retryable;
    char message[2048];
} rp_error;

/* ------------------------------------------------------------ bytes and lists */

/* A length that says: these bytes end with NUL. */
#define RP_TEXT ((size_t)-1)

/* Bytes of the caller. `len` may be RP_TEXT. */
typedef struct rp_bytes {
    const void *data;
    size_t len;
} rp_bytes;

/*
 * Bytes that the library handed out. One NUL that `len` does not count follows them,
 * and `data` is not NULL even if `len` is 0.
 */
typedef struct rp_buffer {
    void *data;
    size_t len;
} rp_buffer;

/* A list that the library handed out. `items` is NULL if `len` is 0. */
typedef struct rp_list {
    rp_buffer *items;
    size_t len;
} rp_list;

/*
 * Free the memory of *buffer or *list and set the struct to zero. NULL and a zeroed struct
 * are allowed. Work after fork(). Do not call them from two threads on the same object.
 */
RP_API void rp_buffer_free(rp_buffer *buffer);
RP_API void rp_list_free(rp_list *list);

/* ------------------------------------------------------------------ handles */

/*
 * A handle to an object that a function opened: a number in a struct type of its own, so
 * that the compiler can tell one kind from another. Handles are passed by value and may be
 * copied freely; {0} means no handle.
 */
typedef struct rp_store {
    uint64_t id;
} rp_store;

typedef struct rp_store_server {
    uint64_t id;
} rp_store_server;

typedef struct rp_etcd_server {
    uint64_t id;
} rp_etcd_server;

typedef struct rp_op {
    uint64_t id;
} rp_op;

typedef struct rp_member {
    uint64_t id;
} rp_member;

typedef struct rp_fence {
    uint64_t id;
} rp_fence;

/*
 * Stores the number of handles that are open in this process in *count, for leak
 * tests.
 */
RP_API int32_t rp_handles_open(int64_t *count, rp_error *err);

/*
 * The resources that the library currently holds in this process. `goroutines` counts its
 * own threads of execution; a few of them remain once the first handle has been opened.
 */
typedef struct rp_usage {
    size_t struct_size;
    int64_t handles;
    int64_t goroutines;
} rp_usage;

/* Fills *usage, for leak tests and monitoring. */
RP_API int32_t rp_usage_get(rp_usage *usage, rp_error *err);

/* ------------------------------------------------------------------ logging */

/* Levels of log records, with the numbers that Python's logging module uses. */
enum rp_log_level {
    RP_LOG_DEBUG = 10,
    RP_LOG_INFO = 20,
    RP_LOG_WARNING = 30,
    RP_LOG_ERROR = 40,
    RP_LOG_OFF = 100
};

/*
 * One line of the library's log. `time_ms` is wall-clock time in milliseconds since
 * 1970. `dropped` is the number of records lost just before this one because the
 * program did not take them in time. `text` is UTF-8, ends with NUL and is cut like an
 * error's message.
 */
typedef struct rp_log_record {
    size_t struct_size;
    int32_t level;
    uint32_t dropped;
    int64_t time_ms;
    char text[4096];
} rp_log_record;

/*
 * Removes the oldest record from the log of the process and stores it in *record.
 * RP_PENDING if there is none. The library keeps its last 1024 records until they are
 * taken by this function or by the callback of rp_log_set_callback.
 */
RP_API int32_t rp_log_next(rp_log_record *record, rp_error *err);

/*
 * Sets the lowest level that is recorded from now on; the default is RP_LOG_INFO.
 * Records below it cost next to nothing.
 */
RP_API int32_t rp_log_set_level(int32_t level, rp_error *err);

/*
 * A callback for rp_log_set_callback. `record` is valid only during the call. The callback
 * runs on a thread of the library that does nothing else, one call at a time. It may call any
 * function of the library except rp_log_set_callback. If it blocks, nothing else waits for
 * it: records pile up meanwhile, and beyond 1024 the oldest are lost (`dropped`).
 */
typedef void (*rp_log_callback)(void *user, const rp_log_record *record);

/*
 * Makes the library call `callback` with each record from now on, including those it has
 * kept; NULL stops this. When the function returns, the previous callback is not running
 * and will not be called again, so its `user` may be freed. RP_ERR_INVALID if called by a
 * callback. A program that sets a callback should not call rp_log_next.
 */
RP_API int32_t rp_log_set_callback(rp_log_callback callback, void *user, rp_error *err);

/* ------------------------------------------------------------- store servers */

/*
 * host: the IP address to listen on, without brackets; NULL or "" for all addresses.
 * port: 0 for any that is free.
 */
typedef struct rp_store_server_config {
    size_t struct_size;
    const char *host;
    int32_t port;
} rp_store_server_config;

/*
 * Starts a server that speaks the protocol of PyTorch's TCPStore (torch 2.2 and
 * newer), with an empty store, and listens when the function returns.
 * RP_ERR_CONNECTION if the address cannot be bound. Stop it with
 * rp_store_server_stop.
 */
RP_API int32_t rp_store_server_start(const rp_store_server_config *config,
                                     rp_store_server *server, rp_error *err);

/* Stores the port that the server listens on in *port. */
RP_API int32_t rp_store_server_port(rp_store_server server, int32_t *port, rp_error *err);

/*
 * Stops the server, closes its connections, drops its data and closes the handle.
 * Returns when the server's threads are done, within a second.
 */
RP_API int32_t rp_store_server_stop(rp_store_server server, rp_error *err);

/* ------------------------------------------------------------------- stores */

/*
 * A key-value store with the operations of PyTorch's c10d Store. It is made by one of
 * rp_store_connect (a server), rp_store_open_file (a shared file), rp_store_open_etcd
 * (an etcd), rp_store_open_hash (memory), rp_store_open_prefix (a part of another store)
 * and rp_member_keys (the control plane). Waiting operations do not hold up others on the
 * same handle, except that a store made by rp_store_connect may use one connection for
 * each operation under way.
 *
 * Every operation takes `timeout_ms`. It blocks for at most that long and then returns
 * RP_ERR_TIMEOUT; with 0 it has no time to do anything. If a write ends with
 * RP_ERR_TIMEOUT, RP_ERR_CANCELED or RP_ERR_CONNECTION, it may or may not have been applied.
 * To cancel from another thread: close the store, or start the operation with
 * rp_store_start and cancel that.
 *
 * All may return RP_ERR_INVALID, RP_ERR_TIMEOUT, RP_ERR_CANCELED, RP_ERR_CONNECTION,
 * RP_ERR_TOO_LARGE and the codes of handles; rp_store_open_file and rp_member_keys name
 * others.
 */

/* host: name or address. port: 1 to 65535. */
typedef struct rp_store_config {
    size_t struct_size;
    const char *host;
    int32_t port;
} rp_store_config;

/*
 * Connects to a server that speaks the protocol of PyTorch's TCPStore (PyTorch's own,
 * or rp_store_server_start), trying again until it answers or `timeout_ms` has passed.
 * Keys are those that PyTorch's client sees. rp_store_connect_start does the same as
 * an operation (see below), whose result holds the store.
 */
RP_API int32_t rp_store_connect(const rp_store_config *config, int64_t timeout_ms,
                                rp_store *store, rp_error *err);
RP_API int32_t rp_store_connect_start(const rp_store_config *config, int64_t timeout_ms,
                                      rp_op *op, rp_error *err);

/* Bits of rp_store_file_config.flags. */
enum rp_file_flag {
    RP_FILE_REMOTE = 1 /* other machines write to the file: for a network file system
                          that its name does not show to be one */
};

/*
 * path: required; the directory must exist. world_size: how many stores must have been
 * closed before the one that closes last removes the file; 0: however many, -1: the
 * file stays.
 */
typedef struct rp_store_file_config {
    size_t struct_size;
    const char *path;
    int64_t world_size;
    uint32_t flags; /* enum rp_file_flag */
} rp_store_file_config;

/*
 * Opens a store in a file that it shares with every process, on this machine or on
 * others with locks over the same file system, that opens it by this function or as
 * PyTorch's FileStore. A missing file is created; an existing one is reused with its keys.
 * Waits for the file's lock for at most `timeout_ms`.
 *
 * RP_ERR_INVALID if the system refuses the path, RP_ERR_UNSUPPORTED if the file system
 * has no locks. Operations also return RP_ERR_STATE if the file is gone, was replaced or
 * is not a store, and RP_ERR_UNSUPPORTED for queues, which a file does not have.
 */
RP_API int32_t rp_store_open_file(const rp_store_file_config *config, int64_t timeout_ms,
                                  rp_store *store, rp_error *err);
RP_API int32_t rp_store_open_file_start(const rp_store_file_config *config, int64_t timeout_ms,
                                        rp_op *op, rp_error *err);

/* Makes an empty store in the memory of this process, for its threads. */
RP_API int32_t rp_store_open_hash(rp_store *store, rp_error *err);

/*
 * Makes a view of `store` in which key k is the key prefix/k there, as PyTorch's
 * PrefixStore does. rp_store_num_keys on the view counts the keys of the whole store, but
 * rp_store_list_keys lists only the view's own. Closing the view leaves `store` open; once
 * `store` is closed, operations on the view end with RP_ERR_CANCELED.
 */
RP_API int32_t rp_store_open_prefix(rp_store store, const void *prefix, size_t prefix_len,
                                    rp_store *view, rp_error *err);

/* Closes the store for this handle. Operations under way end with RP_ERR_CANCELED. */
RP_API int32_t rp_store_close(rp_store store, rp_error *err);

/* Stores `value` under `key` and wakes all operations that wait for the key. */
RP_API int32_t rp_store_set(rp_store store, const void *key, size_t key_len, const void *value,
                            size_t value_len, int64_t timeout_ms, rp_error *err);

/* Waits until `key` exists and returns its value. */
RP_API int32_t rp_store_get(rp_store store, const void *key, size_t key_len, int64_t timeout_ms,
                            rp_buffer *value, rp_error *err);

/*
 * Adds `amount` to the decimal number under `key` (0 if it is missing) and returns
 * the sum, which wraps. If the value is not a number: RP_ERR_NUMBER, but
 * RP_ERR_CONNECTION from a store made by rp_store_connect, whose server then closes
 * the connection without reporting an error.
 */
RP_API int32_t rp_store_add(rp_store store, const void *key, size_t key_len, int64_t amount,
                            int64_t timeout_ms, int64_t *sum, rp_error *err);

/*
 * Stores `desired` if the value of `key` equals `expected`, or if the key is missing
 * and `expected` is empty. Returns the value that is stored afterwards. If the key is
 * missing and `expected` is not empty, nothing is stored and `expected` is returned.
 */
RP_API int32_t rp_store_compare_set(rp_store store, const void *key, size_t key_len,
                                    const void *expected, size_t expected_len,
                                    const void *desired, size_t desired_len, int64_t timeout_ms,
                                    rp_buffer *current, rp_error *err);

/* Appends `value` to the value of `key`, creating it if missing, and wakes its waiters. */
RP_API int32_t rp_store_append(rp_store store, const void *key, size_t key_len,
                               const void *value, size_t value_len, int64_t timeout_ms,
                               rp_error *err);

/* Sets *ready to 1 if every key exists or names a queue with items, else to 0. */
RP_API int32_t rp_store_check(rp_store store, const rp_bytes *keys, size_t keys_len,
                              int64_t timeout_ms, int32_t *ready, rp_error *err);

/* Waits until each of `keys` that was missing at the call has been written once. */
RP_API int32_t rp_store_wait(rp_store store, const rp_bytes *keys, size_t keys_len,
                             int64_t timeout_ms, rp_error *err);

/* Removes `key`; *existed becomes 1 if there was one, else 0. */
RP_API int32_t rp_store_delete(rp_store store, const void *key, size_t key_len,
                               int64_t timeout_ms, int32_t *existed, rp_error *err);

/* Counts the keys of the whole store; queues do not count. */
RP_API int32_t rp_store_num_keys(rp_store store, int64_t timeout_ms, int64_t *count,
                                 rp_error *err);

/* Returns all keys in no particular order, without queues. */
RP_API int32_t rp_store_list_keys(rp_store store, int64_t timeout_ms, rp_list *keys,
                                  rp_error *err);

/* Waits until all keys exist and returns their values, in the order of `keys`. */
RP_API int32_t rp_store_multi_get(rp_store store, const rp_bytes *keys, size_t keys_len,
                                  int64_t timeout_ms, rp_list *values, rp_error *err);

/* Stores values[i] under keys[i], in order. Both arrays have `len` items. */
RP_API int32_t rp_store_multi_set(rp_store store, const rp_bytes *keys, const rp_bytes *values,
                                  size_t len, int64_t timeout_ms, rp_error *err);

/* Appends `value` to the queue `key` and wakes one waiter. */
RP_API int32_t rp_store_queue_push(rp_store store, const void *key, size_t key_len,
                                   const void *value, size_t value_len, int64_t timeout_ms,
                                   rp_error *err);

/*
 * Removes the oldest item of the queue `key` and returns it. If there is none, waits
 * for one if `block` is 1 and returns RP_ERR_EMPTY if it is 0.
 */
RP_API int32_t rp_store_queue_pop(rp_store store, const void *key, size_t key_len,
                                  int32_t block, int64_t timeout_ms, rp_buffer *value,
                                  rp_error *err);

/* Returns the number of items in the queue `key`, 0 if there is no such queue. */
RP_API int32_t rp_store_queue_len(rp_store store, const void *key, size_t key_len,
                                  int64_t timeout_ms, int64_t *count, rp_error *err);

/*
 * Adds one to the counter `key` and waits until it has reached `world_size`. The
 * counter is never reset: a key serves for one barrier.
 */
RP_API int32_t rp_store_barrier(rp_store store, const void *key, size_t key_len,
                                int64_t world_size, int64_t timeout_ms, rp_error *err);

/* --------------------------------------------------- operations in the background */

/* What a rp_store_request asks for. Numbers never change. */
enum rp_store_op {
    RP_STORE_SET = 1,         /* key, value */
    RP_STORE_GET = 2,         /* key -> value */
    RP_STORE_ADD = 3,         /* key, number -> number */
    RP_STORE_COMPARE_SET = 4, /* key, expected, value (desired) -> value */
    RP_STORE_APPEND = 5,      /* key, value */
    RP_STORE_CHECK = 6,       /* keys -> number (0 or 1) */
    RP_STORE_WAIT = 7,        /* keys */
    RP_STORE_DELETE = 8,      /* key -> number (0 or 1) */
    RP_STORE_NUM_KEYS = 9,    /* -> number */
    RP_STORE_LIST_KEYS = 10,  /* -> list */
    RP_STORE_MULTI_GET = 11,  /* keys -> list */
    RP_STORE_MULTI_SET = 12,  /* keys, values (values_len = keys_len) */
    RP_STORE_QUEUE_PUSH = 13, /* key, value */
    RP_STORE_QUEUE_POP = 14,  /* key, block -> value */
    RP_STORE_QUEUE_LEN = 15,  /* key -> number */
    RP_STORE_BARRIER = 16     /* key, number (world size) */
};

/*
 * One operation. The fields mean what they mean for the function of the same name. The
 * comment of each rp_store_op lists the fields that it uses; all others are ignored.
 */
typedef struct rp_store_request {
    size_t struct_size;
    int32_t op; /* enum rp_store_op */
    int32_t block;
    rp_bytes key;
    rp_bytes value;
    rp_bytes expected;
    const rp_bytes *keys;
    size_t keys_len;
    const rp_bytes *values;
    size_t values_len;
    int64_t number;
    int64_t timeout_ms; /* of the operation */
} rp_store_request;

/*
 * The result of an operation. Fields that the operation does not use are zero. `store` is
 * the store opened by rp_store_connect_start and the other functions that open one as an
 * operation; `value` and `list` also hold the results of rp_admin_start. Free it with
 * rp_store_result_free, which does not close `store`.
 */
typedef struct rp_store_result {
    size_t struct_size;
    int64_t number;
    rp_buffer value;
    rp_list list;
    rp_store store;
} rp_store_result;

/*
 * Starts an operation and returns at once, so that a program can wait for it in
 * slices, for several at once, or not at all. The handle in *op is closed with
 * rp_op_free.
 */
RP_API int32_t rp_store_start(rp_store store, const rp_store_request *request, rp_op *op,
                              rp_error *err);

/*
 * Performs an operation. If it ends within about `wait_ms`, stores the result in *result
 * and leaves *op alone, or returns the error. If it takes longer, returns RP_PENDING and
 * stores the operation in *op, as rp_store_start does; the caller takes the result later.
 * Meant for interpreters, which must check for signals now and then. A call that waits for
 * nothing but the answer of a store server costs as much as the blocking function. So do
 * all but the rarest calls on such a store, on one in memory and on one in a file of this
 * machine.
 */
RP_API int32_t rp_store_attempt(rp_store store, const rp_store_request *request,
                                int64_t wait_ms, rp_op *op, rp_store_result *result,
                                rp_error *err);

/*
 * Waits at most `timeout_ms` for the end of an operation. RP_PENDING if it is still
 * under way, RP_OK if it succeeded, else its error. May be called again, and from
 * several threads. Cancelled by rp_op_cancel and rp_op_free.
 */
RP_API int32_t rp_op_wait(rp_op op, int64_t timeout_ms, rp_error *err);

/*
 * Stores a descriptor in *fd that poll(2) finds readable as soon as the operation has
 * ended, whatever its result: for event loops. The descriptor belongs to the operation and
 * is closed by rp_op_free; the program may only poll it. Every call returns the same one.
 * RP_ERR_TOO_LARGE if the process may not open more descriptors.
 */
RP_API int32_t rp_op_fd(rp_op op, int32_t *fd, rp_error *err);

/*
 * A callback for rp_op_notify. It runs on a thread of the library. It may call the library,
 * including the functions of its operation. It should not block, but wake another thread or
 * an event loop.
 */
typedef void (*rp_op_callback)(void *user);

/*
 * Makes the library call `callback` once, as soon as the operation has ended with any
 * result, or immediately if it already has. The callback never runs on the calling thread
 * and may run before this function returns. Each successful call of this function leads to
 * exactly one call of `callback`, even if the operation is freed first (which ends it), so
 * the callback may free `user`. If this function returns an error, `callback` is not called.
 * RP_ERR_INVALID if `callback` is NULL.
 */
RP_API int32_t rp_op_notify(rp_op op, rp_op_callback callback, void *user, rp_error *err);

/*
 * Takes the result out of an operation that succeeded; the second call for one
 * operation is RP_ERR_INVALID. RP_PENDING if it is still under way, its error if it
 * failed.
 */
RP_API int32_t rp_op_result(rp_op op, rp_store_result *result, rp_error *err);

/*
 * Asks an operation to end soon, with RP_ERR_CANCELED or, if it is too late to cancel it,
 * with its own result. Canceling an operation that has ended does nothing.
 */
RP_API int32_t rp_op_cancel(rp_op op, rp_error *err);

/* Cancels the operation if it is under way, and closes the handle without waiting. */
RP_API int32_t rp_op_free(rp_op op, rp_error *err);

/* Like rp_buffer_free. */
RP_API void rp_store_result_free(rp_store_result *result);

/* ------------------------------------------------------------------- members */

/* One option, as in --rdzv-conf. Both texts are required; `value` may be empty. */
typedef struct rp_option {
    const char *key;
    const char *value;
} rp_option;

/* Bits of rp_member_config.flags. */
enum rp_member_flag {
    RP_MEMBER_ENVIRONMENT = 1 /* also read settings and hints from the environment */
};

/* What a node brings to a rendezvous. */
typedef struct rp_member_config {
    size_t struct_size;
    const char *run_id;       /* required: the job; 1 to 512 bytes */
    const char *endpoint;     /* required: host[:port] of the control plane; port 29400; of
                                 several that succeed each other, host[:port],.... Or
                                 file:///directory, which all nodes share. Or
                                 etcd://host[:port][,...] (etcds:// with TLS). Or
                                 static://host:port of node 0 of a fixed set of nodes, each
                                 of which has option node_rank and min_nodes = max_nodes.
                                 Option backend, a name as --rdzv-backend takes it, makes
                                 it what that backend takes, such as a plain path */
    int32_t min_nodes;        /* required: fewest nodes of a round, at least 1 */
    int32_t max_nodes;        /* required: most nodes of a round, at least min_nodes */
    const char *local_addr;   /* address announced for this node; NULL: found out */
    const rp_option *options; /* the last of several with one key counts; NULL: none */
    size_t options_len;
    uint32_t flags; /* enum rp_member_flag */
} rp_member_config;

/*
 * A node's place in a completed round. All members of a round see the same round,
 * world_size, store_addr and store_port; ranks are 0 to world_size - 1, each once.
 * `round` increases with each new round, not always by one. store_addr and store_port are
 * the address of the round's store, which speaks PyTorch's TCPStore protocol and lives as
 * long as the round. The workers get them as MASTER_ADDR and MASTER_PORT.
 *
 * If the run uses a token, store_addr is a loopback address, for the workers of this
 * machine; advertised_addr is always the host of the node that runs the store.
 */
typedef struct rp_outcome {
    size_t struct_size;
    uint64_t round;
    int32_t rank;
    int32_t world_size;
    int32_t store_port;
    char store_addr[516];
    char advertised_addr[516];
} rp_outcome;

/* How a node's part in a run ends. */
enum rp_ending {
    RP_END_LEAVE = 0,   /* it goes; the run stays open */
    RP_END_SUCCESS = 1, /* its work is done */
    RP_END_FAILED = 2   /* its workers failed for good */
};

/*
 * Makes a member. Checks the configuration and touches no network: RP_ERR_INVALID
 * names what is wrong with it. Unknown options are logged as warnings and ignored.
 */
RP_API int32_t rp_member_open(const rp_member_config *config, rp_member *member, rp_error *err);

/*
 * Leaves the current round, joins the next one of the run and waits until this node is part
 * of it. The first call begins the join; RP_PENDING means that `timeout_ms` passed first:
 * call again to continue waiting. The join as a whole is limited by option join_timeout
 * (600 s) and then ends with RP_ERR_TIMEOUT; a spare waits without a limit. Calls from
 * several threads at once wait for the same join.
 * Cancelled by rp_member_cancel, rp_member_shutdown and rp_member_close.
 *
 * Errors: RP_ERR_CLOSED, RP_ERR_GRACEFUL, RP_ERR_TIMEOUT, RP_ERR_CANCELED,
 * RP_ERR_CONNECTION, RP_ERR_STATE, RP_ERR_MISMATCH, RP_ERR_TENANT,
 * RP_ERR_NODE_IN_USE, RP_ERR_AUTH, RP_ERR_INVALID. After an error it may be called again.
 */
RP_API int32_t rp_member_next(rp_member member, int64_t timeout_ms, rp_outcome *outcome,
                              rp_error *err);

/*
 * Withdraws the join under way: rp_member_next then returns RP_ERR_CANCELED soon, or
 * RP_OK if the round was completed before the withdrawal. If a rp_member_shutdown or
 * rp_member_set_closed is under way, it stops waiting, too. Otherwise does nothing.
 */
RP_API int32_t rp_member_cancel(rp_member member, rp_error *err);

/*
 * Tells the other nodes that all workers of this node have succeeded: from then on it
 * counts neither as lost nor for a regroup. A program must call this before
 * rp_member_shutdown with RP_END_SUCCESS, unless it runs the agents' exit barrier on the
 * store of rp_member_keys, which announces the same. RP_PENDING as in rp_member_next;
 * limited by option read_timeout (60 s). Does nothing before the first outcome. Cancelled
 * by rp_member_cancel and rp_member_close.
 */
RP_API int32_t rp_member_finish(rp_member member, int64_t timeout_ms, rp_error *err);

/*
 * Ends this node's part in the run. With RP_END_SUCCESS or RP_END_FAILED a member of
 * the last completed round closes the run for all; every other node, and RP_END_LEAVE,
 * merely leaves. Nodes that find the run closed are given `reason` (NULL for none).
 * If this process hosts the control plane or the round's store, it then waits until
 * every other member has finished, left or been lost, but no longer than option
 * close_timeout (30 s). RP_PENDING as in rp_member_next; only the `ending` and `reason`
 * of the first call count. Cancelled by rp_member_cancel and rp_member_close. Call
 * rp_member_close afterwards.
 */
RP_API int32_t rp_member_shutdown(rp_member member, int32_t ending, const char *reason,
                                  int64_t timeout_ms, rp_error *err);

/*
 * Closes the run: no more nodes are admitted, the running round continues. This cannot be undone.
 * RP_PENDING as in rp_member_next; limited by option close_timeout.
 */
RP_API int32_t rp_member_set_closed(rp_member member, const char *reason, int64_t timeout_ms,
                                    rp_error *err);

/*
 * Stores in *count the number of nodes that are a reason to regroup. It is above 0 when a
 * member of this node's round was lost or announced that it stops its workers, or when
 * there is room for newcomers. Answers from what this node already knows, so it never fails
 * because the control plane is out of reach.
 */
RP_API int32_t rp_member_nodes_waiting(rp_member member, int32_t *count, rp_error *err);

/*
 * Sets *closed to 1 if this node knows that the run is closed, else to 0. Like
 * rp_member_nodes_waiting, it never fails because the control plane is out of reach.
 */
RP_API int32_t rp_member_is_closed(rp_member member, int32_t *closed, rp_error *err);

/*
 * Waits for an event, which means that there is something to check again: nodes_waiting,
 * is_closed or reason may have changed, or a rp_member_next, _finish, _shutdown or
 * _set_closed has ended and the next such call returns its result. Takes the event, which
 * stands for everything that has happened so far: if several callers wait, only one gets
 * it. RP_PENDING if there is none within `timeout_ms`. An event may turn out to be nothing
 * new; rp_member_cancel causes one, too. RP_ERR_CANCELED if the member is closed meanwhile.
 */
RP_API int32_t rp_member_wait(rp_member member, int64_t timeout_ms, rp_error *err);

/*
 * Stores a descriptor in *fd that poll(2) finds readable while there is an event. It is for
 * event loops, which then take the event by rp_member_wait with timeout 0, check what
 * interests them, and poll again. The descriptor belongs to the member and is closed by
 * rp_member_close. Every call returns the same one. RP_ERR_TOO_LARGE as in rp_op_fd.
 */
RP_API int32_t rp_member_fd(rp_member member, int32_t *fd, rp_error *err);

/*
 * Explains, in human-readable form, why nodes_waiting or is_closed last changed. *size is
 * the size of `text` in bytes on entry and the length of the reason with its NUL on return.
 * RP_ERR_BUFFER if the reason does not fit; `text` may be NULL if *size is too small for it.
 */
RP_API int32_t rp_member_reason(rp_member member, char *text, size_t *size, rp_error *err);

/*
 * Opens the store that the nodes of `round` share among themselves (not the workers'
 * one). It lives in the control plane, survives reconnects, and its operations do
 * not fail because another node died. Once a later round is complete, operations on this
 * store end with RP_ERR_ROUND_OVER. Close it with rp_store_close.
 */
RP_API int32_t rp_member_keys(rp_member member, uint64_t round, rp_store *store, rp_error *err);

/*
 * Closes the member: ends what it started and closes the handle. A node that was not
 * shut down counts as lost. Blocks until its threads are done.
 */
RP_API int32_t rp_member_close(rp_member member, rp_error *err);

/* ------------------------------------------------------------------- agents */

/*
 * An agent runs the worker processes of one node: it takes its place in each round of
 * a rendezvous, starts the workers with their ranks in their environment, as torchrun
 * does (RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT and so on), starts them
 * again after a failure or when the nodes have to regroup, keeps their logs, and reports
 * the result at the end. Workers are processes in sessions of their own; nothing
 * remains of them when the agent has ended, even if the agent's own process is killed.
 *
 * The agent waits for its own children only. A program in which SIGCHLD is ignored
 * loses their exit codes (they are -1 then). The workers inherit the descriptors 0, 1
 * and 2 of the process.
 */
typedef struct rp_agent {
    uint64_t id;
} rp_agent;

/* Bits of rp_agent_config.flags. */
enum rp_agent_flag {
    RP_AGENT_VIRTUAL_RANK = 1,   /* every worker is local rank 0 and sees one GPU */
    RP_AGENT_NO_MACROS = 2,      /* leave $local_rank and $$ in arguments as they are */
    RP_AGENT_IDENTICAL = 4,      /* all nodes have this role and as many workers: no exchange */
    RP_AGENT_SUBREAPER = 8,      /* adopt and end what workers detached: only for a process
                                  that has no other children */
    RP_AGENT_KEEP_DAEMONS = 16,  /* leave alone what the workers started and left behind */
    RP_AGENT_EVENTS = 32,        /* write torch's events to standard error, a JSON a line */
    RP_AGENT_RDZV_EVENTS = 64,   /* events_fd: also those of the rendezvous ("node_state") */
    RP_AGENT_METRICS = 128,      /* events_fd: also torch's metrics ("group_name") */
    RP_AGENT_WARM = 256,         /* import once and fork the workers; takes RP_AGENT_SUBREAPER,
                                   and argv is Python with a script or a module. Workers that
                                   cannot be forked start cold, and the log says why */
    RP_AGENT_AUTO_PROGRESS = 512 /* count the steps of torch's optimizers in workers that
                                    report none; argv is as for RP_AGENT_WARM */
};

/*
 * What an agent runs. Durations are in milliseconds: 0 is the default in brackets, and
 * -1 says "none". Lists of texts are arrays of `..._len` pointers.
 */
typedef struct rp_agent_config {
    size_t struct_size;
    const char *const *argv; /* required: the workers' program, looked up in PATH, and its
                                arguments, with ${local_rank} replaced */
    size_t argv_len;
    const char *const *environment; /* NAME=value of the workers; NULL: this process's */
    size_t environment_len;
    int32_t workers;      /* required: on this node, at least 1 */
    int32_t max_restarts; /* of the whole job's workers */

    /*
     * How this node joins the others, in the form that rp_member_open takes. Without an
     * endpoint (NULL or empty), this node is the whole job; with a NULL rendezvous it is,
     * too, and the run id is "none". Instead, `member` may be a member that the program
     * opened itself: the run shuts it down.
     */
    const rp_member_config *rendezvous;
    rp_member member;

    const char *role; /* NULL: "default" */
    const char *name; /* of the entry point, in reports; NULL: the program */

    int64_t monitor_interval_ms;     /* torchrun's; events come at once all the same [100] */
    int64_t shutdown_timeout_ms;     /* from a signal to the workers to SIGKILL [30 000] */
    int64_t exit_barrier_timeout_ms; /* for other nodes after success [300 000] */
    int64_t restart_delay_ms;        /* pause before a restart after a failure [none] */

    const char *log_dir;    /* base folder; NULL: a new one in $TMPDIR, removed if nothing was
                              written; "/dev/null": no files */
    const char *redirects;  /* streams that go to files: "3", "0:1,1:3" (1 stdout, 2 stderr,
                              3 both); NULL: none */
    const char *tee;        /* streams that go to files and to the console */
    const char *log_prefix; /* of lines on the console, with ${role_name}, ${local_rank},
                               ${rank}, ${hostname}; NULL: "[role0]:" */
    const int32_t *local_ranks; /* whose output may reach the console; NULL: all */
    size_t local_ranks_len;
    const char *const *stdout_filters; /* tee'd lines that hold one of these texts also go */
    size_t stdout_filters_len;         /* to filtered_stdout.log */
    const char *const *stderr_filters;
    size_t stderr_filters_len;
    uint32_t flags; /* enum rp_agent_flag */

    /*
     * CPUs near a device for each worker: "node", "socket", "exclusive" or "core-complex",
     * and the PCI addresses of all devices ("0000:dc:00.0"), of which the first belong to
     * the workers. NULL: all CPUs of this process.
     */
    const char *numa_binding;
    const char *const *numa_devices;
    size_t numa_devices_len;

    /*
     * One end of a socket pair. At the other end, the program decides where the workers of
     * each attempt write; this replaces log_dir, redirects, tee and local_ranks. For each
     * attempt the library writes a line of JSON, an array with one object of environment
     * variables per worker. It reads a line in reply: an object with the fields of torch's
     * LogsDest ("stdouts", "error_files", ..., each an object by local rank) and "envs", the
     * variables as changed, by local rank; or with "error". If the reply takes longer than a
     * minute, the run ends with RP_ERR_START. The library keeps a duplicate, which it makes
     * non-blocking, until the agent is closed. 0: none.
     */
    int32_t logs_fd;

    /*
     * A pipe or socket to which the agent writes torch's events, one JSON object a line. The
     * flags RP_AGENT_RDZV_EVENTS and RP_AGENT_METRICS add more kinds. If it stays full for a
     * second, or its reader is gone, all later events are lost. The library keeps a duplicate,
     * which it makes non-blocking, until the agent is closed. 0: none.
     */
    int32_t events_fd;

    /*
     * Limits of a run. restart_window_ms: a sliding window; max_restarts limits the restarts
     * within it [the whole run]. max_no_progress: the run ends after this many rounds in a
     * row in which no worker reported a higher step (rp_progress) than in the round before;
     * 0: never.
     */
    int64_t restart_window_ms;
    int32_t max_no_progress;

    /* The signal sent to each worker that has been given a directive. 0: none. */
    int32_t directive_signal;

    /*
     * on_signal: maps signals to directives, as in "USR1:save,TERM:drain". If rp_agent_stop
     * is called with one of these signals and a grace of -1, it asks the job for that
     * directive instead of ending this node's part: save, drain (of this node) or stop, as
     * rp_agent_direct gives them. NULL: no signal does. The workers have drain_timeout_ms
     * [120 000] to save. The signal takes its plain effect after all if a drain or stop
     * cannot be given, is not carried out 5 s after its deadline, or is asked for again 5 s
     * or more later. A save that cannot be given is only logged.
     */
    const char *on_signal;
    int64_t drain_timeout_ms;

    /*
     * hang_timeout_ms: if no worker makes a step (rp_progress) for this long, the job is
     * reported to hang, by RP_AGENT_STALLED and in the log, with the places where its workers
     * are [derived from the time between steps, at least 60 s]; -1: never. on_hang: what the
     * agent does then, an rp_on_hang. Use the same values on all nodes.
     */
    int64_t hang_timeout_ms;
    int32_t on_hang;

    /*
     * The names of the modules that RP_AGENT_WARM imports; NULL: those that the script imports
     * at its top. If the imports take longer than preload_timeout_ms [60 000], the workers
     * start cold.
     */
    const char *const *preload;
    size_t preload_len;
    int64_t preload_timeout_ms;

    /*
     * What this node does when its workers fail: "restart", "regroup" (see rp_regroup),
     * "leave:N/TIME" (the run then ends with RP_ERR_WORKERS, and the job keeps the node out)
     * or "keep", as --on-failure of `rallypoint run` takes it; NULL: "restart".
     */
    const char *on_failure;

    /*
     * Shell commands that check this node before it joins, and before it joins again after
     * its workers were the first to fail. If one exits with 1, the run ends with
     * RP_ERR_UNFIT. Each may take check_timeout_ms [30 000]. They also run every
     * check_every_ms while the workers run [not at all]; if the node proves unfit then, the
     * job keeps it out for check_away_ms [3 600 000].
     */
    const char *const *checks;
    size_t checks_len;
    int64_t check_timeout_ms;
    int64_t check_every_ms;
    int64_t check_away_ms;

    /*
     * What the workers run if argv does not say it, such as a function and its arguments, in
     * the same words on all nodes. Nodes compare it, and other nodes' logs show it, so it must
     * hold no secrets. A node that comes to a complete round with another command than its
     * members have is refused with RP_ERR_MISMATCH. NULL: argv says it.
     */
    const char *command;
} rp_agent_config;

/* What follows when a job is said to hang. Numbers never change; new ones may be added. */
enum rp_on_hang {
    RP_HANG_REPORT = 0, /* nothing else */
    RP_HANG_STACKS = 1, /* the stacks of all workers are logged on one node, too */
    RP_HANG_RESTART = 2 /* the first suspect is killed and counts as a worker that failed */
};

/*
 * Makes an agent. Checks the configuration and touches neither network nor files:
 * RP_ERR_INVALID names what is wrong with it. To be closed with rp_agent_close.
 */
RP_API int32_t rp_agent_open(const rp_agent_config *config, rp_agent *agent, rp_error *err);

/*
 * Runs the agent: joins the rendezvous, runs the workers until all have succeeded, or
 * until they have failed more often than max_restarts allows, and waits for the other
 * nodes. The first call starts the run; RP_PENDING means that `timeout_ms` passed before
 * the run ended, and the next call continues to wait. With a timeout of 0 a call only
 * starts the run, or asks whether it has ended. An agent runs once: after the end every
 * call returns the run's result again. Calls from several threads wait for the same run.
 * Stopped by rp_agent_stop and rp_agent_close.
 *
 * RP_OK: the workers succeeded, or the node was not needed. RP_ERR_WORKERS: workers of
 * this node failed; the message begins with the report of the failures, which
 * rp_agent_get_result has in full. RP_ERR_CANCELED: it was stopped. RP_ERR_START: a
 * worker or its log folder could not be made. RP_ERR_CLOSED and the others of
 * rp_member_next: the rendezvous failed or was closed by another node, a directive has ended
 * the run to be queued again (RP_AGENT_REQUEUED), or it makes no progress
 * (RP_AGENT_NO_PROGRESS).
 */
RP_API int32_t rp_agent_run(rp_agent agent, int64_t timeout_ms, rp_error *err);

/*
 * Asks a run to end: sends `signal` (SIGTERM, SIGINT, ...) to the workers, waits at most
 * `grace_ms` for them to end (-1: shutdown_timeout_ms) and then kills them. A call within
 * 5 s of the first counts as the same request, since signals are often sent twice; a later
 * one kills the workers at once. So does, at any time, a call with SIGKILL or with a grace
 * of 0, and a second SIGINT after 300 ms if the process is in the foreground of its
 * terminal. The node leaves the run, which stays open for the others. Returns at once, and
 * the run ends by itself afterwards. A call before rp_agent_run makes the run end as soon
 * as it starts; a call after the run has ended does nothing. If on_signal names the signal
 * and `grace_ms` is -1, the job is asked for the directive named there instead, and the run
 * continues.
 */
RP_API int32_t rp_agent_stop(rp_agent agent, int32_t signal, int64_t grace_ms, rp_error *err);

/* What a job is asked for while it runs. Numbers never change; new ones may be added. */
enum rp_directive_kind {
    RP_DIRECTIVE_NONE = 0,
    RP_DIRECTIVE_SAVE = 1,  /* write a checkpoint */
    RP_DIRECTIVE_DRAIN = 2, /* write one: the nodes it names are going to be taken away */
    RP_DIRECTIVE_SCALE = 3, /* write one: the number of nodes changes */
    RP_DIRECTIVE_STOP = 4   /* write one: the job ends */
};

/*
 * Gives the run a directive, whose workers learn of it at the same step
 * (rp_progress_directive): RP_DIRECTIVE_SAVE, RP_DIRECTIVE_DRAIN of this node, or
 * RP_DIRECTIVE_STOP. The workers have `within_ms` to save, at least 1. `reason` is
 * human-readable and not NULL. A directive that already stands is not given again. Blocks
 * until the control plane has received it, for at most option close_timeout (30 s);
 * rp_agent_close ends the wait early. RP_ERR_INVALID if no directive is possible because no
 * workers run or the run does not support it; RP_ERR_TIMEOUT, RP_ERR_CLOSED,
 * RP_ERR_CANCELED.
 */
RP_API int32_t rp_agent_direct(rp_agent agent, int32_t kind, int64_t within_ms,
                               const char *reason, rp_error *err);

/* What rp_admin_start asks a run for; the first four are rp_directive_kind's. */
enum rp_admin_action {
    RP_ADMIN_SAVE = 1,    /* within_ms > 0 */
    RP_ADMIN_DRAIN = 2,   /* nodes leave, and are refused for for_ms; 0: until undrained */
    RP_ADMIN_SCALE = 3,   /* the job continues with `target` nodes */
    RP_ADMIN_STOP = 4,    /* the job ends, to be queued again */
    RP_ADMIN_CANCEL = 5,  /* take back `directive` */
    RP_ADMIN_UNDRAIN = 6, /* let the one node in `nodes` join again */
    RP_ADMIN_EVICT = 7,   /* take the one node in `nodes` out at once; it may come back */
    RP_ADMIN_CLOSE = 8,   /* let no more nodes join */
    RP_ADMIN_FAIL = 9,    /* end the job as failed, at once */
    RP_ADMIN_FORGET = 10, /* let a job that stays closed, and has no live node, begin again */
    RP_ADMIN_STACKS = 11, /* where its workers are; changes nothing */
    RP_ADMIN_STATUS = 12, /* how it stands; changes nothing */
    RP_ADMIN_LOGS = 13,  /* what workers wrote last: of rank `target`, of all for -1, of the one
                             that failed first for -2; changes nothing */
    RP_ADMIN_CORDON = 14 /* keep the one node in `nodes` out for for_ms, 0: until undrained; one
                             whose workers run stays until its round ends */
};

/*
 * A request to a run from outside, by an administrator or a program; `rallypoint admin`
 * sends the same ones. Fields that an action does not need are 0.
 */
typedef struct rp_admin_request {
    size_t struct_size;
    const char *endpoint; /* required: HOST[:PORT][,HOST[:PORT]...] of the control plane,
                             file:///DIRECTORY, or etcd://HOST */
    const char *run_id;   /* NULL: the only one there */
    const char *reason;   /* human-readable, the job's nodes receive it; NULL: none is given */
    const char *by;       /* who asks; NULL: USER@HOST */
    int32_t action;       /* required: enum rp_admin_action */
    int32_t target;       /* number of nodes, between min and max, a multiple of node_unit; of
                             RP_ADMIN_LOGS a rank */
    const char *const
        *nodes; /* ids, as their node_id option or `rallypoint status` has them, or
                                 names of hosts, which stand for all nodes there */
    size_t nodes_len;
    const char *directive;  /* id, that makes a repetition do nothing; NULL: a new one */
    int64_t within_ms;      /* until it is done at the latest; 0: now */
    int64_t for_ms;         /* for which a drained node is refused */
    const char *token_file; /* of the control plane; NULL: $RALLYPOINT_TOKEN_FILE, if set */
} rp_admin_request;

/*
 * Sends a request to a run and returns at once; the answer must arrive within `timeout_ms`.
 * In the result (rp_op_result), `value` is one sentence that says what is done, and `list`
 * holds the id of the directive, if one was given. Three actions differ in `value`:
 * RP_ADMIN_STACKS: the JSON that `rallypoint stacks --json` prints, with the answers received
 * when all nodes have answered or `timeout_ms` has passed. RP_ADMIN_LOGS: the JSON of
 * `rallypoint logs --json`, which waits at most 2 s for the nodes. RP_ADMIN_STATUS: the run
 * as in the JSON of `rallypoint status --json`.
 *
 * The operation fails with RP_ERR_INVALID, whose message says why nothing is done, if the
 * run or node does not exist, or if the target or the deadline does not fit the run (a
 * deadline in the past, for example). It fails with RP_ERR_CLOSED if the run is closed, and
 * with RP_ERR_TIMEOUT, RP_ERR_CONNECTION or RP_ERR_AUTH. A request that was not answered may
 * have been received all the same.
 */
RP_API int32_t rp_admin_start(const rp_admin_request *request, int64_t timeout_ms, rp_op *op,
                              rp_error *err);

/* What an event reports. Numbers never change; new ones may be added. */
enum rp_agent_event_kind {
    RP_AGENT_JOINING = 1,        /* the node waits for its place in the next round */
    RP_AGENT_JOINED = 2,         /* it has its place, and its workers have ranks */
    RP_AGENT_WORKER_STARTED = 3, /* local_rank, rank and pid say which */
    RP_AGENT_WORKER_EXITED = 4,  /* with exit_code, too */
    RP_AGENT_STOPPING = 5,       /* the workers are being stopped; text says why */
    RP_AGENT_RESTARTING = 6,     /* workers failed and are started again; text says how often */
    RP_AGENT_ENDED = 7,          /* the run has ended; text is its error, "" for none */
    RP_AGENT_STALLED = 8 /* the job makes no step; text says where it stands, "": it does */
};

/*
 * One event of a run. Fields whose value is not known yet are 0, and the fields of a worker
 * are -1 in events that are not about one. If a signal ended the worker, exit_code is minus
 * its number. time_ms is wall-clock time since 1970. dropped is the number of events lost
 * just before this one because the program did not take them in time. text is UTF-8, ends
 * with NUL and is cut if it is too long.
 */
typedef struct rp_agent_event {
    size_t struct_size;
    int32_t kind; /* enum rp_agent_event_kind */
    uint32_t dropped;
    int64_t time_ms;
    uint64_t round;
    int32_t restarts;
    int32_t group_rank;       /* of this node */
    int32_t group_world_size; /* nodes */
    int32_t world_size;       /* workers of all nodes */
    int32_t local_rank;
    int32_t rank;
    int32_t pid;
    int32_t exit_code;
    int32_t store_port; /* MASTER_PORT of the workers */
    char store_addr[516];
    char text[1024];
    char advertised_addr[516]; /* of the store, as in rp_outcome */
} rp_agent_event;

/*
 * Takes the oldest event. RP_PENDING if there is none. The last 4096 events are kept until
 * this function takes them.
 */
RP_API int32_t rp_agent_next_event(rp_agent agent, rp_agent_event *event, rp_error *err);

/*
 * Stores a descriptor in *fd that poll(2) and the like find readable while there are
 * events to take, and permanently once the run is over and rp_agent_run has its result.
 * The descriptor belongs to the agent and lives as long as the agent's handle; do not read
 * from it or close it.
 */
RP_API int32_t rp_agent_fd(rp_agent agent, int32_t *fd, rp_error *err);

/* How a run ended. */
enum rp_agent_state {
    RP_AGENT_SUCCEEDED = 1,   /* the workers of this node succeeded */
    RP_AGENT_FAILED = 2,      /* workers of this node failed */
    RP_AGENT_PEER_FAILED = 3, /* another node closed the run */
    RP_AGENT_STOPPED = 4,     /* by rp_agent_stop or rp_agent_close */
    RP_AGENT_NOT_NEEDED = 5,  /* the run ended well without this node */
    RP_AGENT_BROKEN = 6,      /* any other error, that of rp_agent_run */
    RP_AGENT_REQUEUED = 7,    /* a directive has ended the run: queue it again */
    RP_AGENT_NO_PROGRESS = 8  /* max_no_progress rounds ended without a higher step */
};

/*
 * How a run ended, and where this node stood in its last round (0 if there was none).
 * `workers` and `failures` are the numbers of entries that rp_agent_get_worker and
 * rp_agent_get_failure return. The failures are those of this node's workers or, if there
 * were none, those that other nodes have published. root_cause is the index of the failure
 * that caused the others, or -1. report is the text that torchrun prints for the failures,
 * empty if there were none. Free it with rp_agent_result_free.
 */
typedef struct rp_agent_result {
    size_t struct_size;
    int32_t state;  /* enum rp_agent_state */
    int32_t signal; /* that stopped the run, or 0 */
    uint64_t round;
    int32_t restarts;
    int32_t group_rank;
    int32_t group_world_size;
    int32_t world_size;
    int32_t workers;
    int32_t failures;
    int32_t root_cause;
    rp_buffer report;
} rp_agent_result;

/*
 * One worker of the last attempt. exit_code is minus the number of the signal that
 * ended it. Paths are empty where its output went to no file; error_file is where its
 * error file would be. To be freed with rp_worker_result_free.
 */
typedef struct rp_worker_result {
    size_t struct_size;
    int32_t local_rank;
    int32_t rank;
    int32_t role_rank;
    int32_t role_world_size;
    int32_t pid;
    int32_t exit_code;
    rp_buffer stdout_path;
    rp_buffer stderr_path;
    rp_buffer error_file;
} rp_worker_result;

/*
 * One failure. terminated is 1 if the agent's own signal ended the worker. time_ms is
 * wall-clock time since 1970, by the clock of the worker's node. error_file is the path of
 * the file in which the worker described its failure, or "<N/A>", and error_data is its
 * content. message is the human-readable description, the traceback if there is one. Free
 * it with rp_failure_free.
 */
typedef struct rp_failure {
    size_t struct_size;
    int32_t rank;
    int32_t local_rank;
    int32_t pid;
    int32_t exit_code;
    int32_t terminated;
    int64_t time_ms;
    rp_buffer host;
    rp_buffer error_file;
    rp_buffer error_data;
    rp_buffer message;
} rp_failure;

/*
 * Return how the run ended, or RP_PENDING if it has not ended yet. Workers are identified
 * by local rank, and failures by an index in the order in which they were noticed.
 * RP_ERR_INVALID if there is no such worker or failure.
 */
RP_API int32_t rp_agent_get_result(rp_agent agent, rp_agent_result *result, rp_error *err);
RP_API int32_t rp_agent_get_worker(rp_agent agent, int32_t local_rank, rp_worker_result *worker,
                                   rp_error *err);
RP_API int32_t rp_agent_get_failure(rp_agent agent, int32_t index, rp_failure *failure,
                                    rp_error *err);

/* Like rp_buffer_free. */
RP_API void rp_agent_result_free(rp_agent_result *result);
RP_API void rp_worker_result_free(rp_worker_result *worker);
RP_API void rp_failure_free(rp_failure *failure);

/*
 * Closes the agent. A run under way is stopped, its workers are killed at once, and
 * the call waits for its end; its member, if it was given one, stays open.
 */
RP_API int32_t rp_agent_close(rp_agent agent, rp_error *err);

/* ---------------------------------------------------------- a worker's progress */

/*
 * Reports the training step that this worker is at. Call it once a step, from one process
 * of each worker, so that the worker's agent knows how far it is (`rallypoint status`,
 * /metrics). Steps may skip numbers and may go back.
 *
 * The first call maps the record that RALLYPOINT_PROGRESS_FILE names, which the agent made
 * for this worker; from then on a call is one write to memory, without a system call. If
 * that variable is not set, nothing happens and the result is RP_OK. Works after fork():
 * the child reports into the record of its parent.
 *
 * RP_ERR_INVALID if the step is negative. RP_ERR_STATE if the record cannot be mapped or
 * has a version that this library does not know; steps are then not recorded, and the
 * program can continue without them.
 */
RP_API int32_t rp_progress(int64_t step, rp_error *err);

/*
 * Announces a period in which this worker deliberately makes no step, such as an evaluation
 * or a checkpoint. Until rp_busy_end, but for at most `within_ms`, the job is not reported
 * to hang (hang_timeout_ms), whatever its other workers wait for. Each call needs its own
 * rp_busy_end. If several periods overlap, in one thread or several, the longest one counts
 * until all are over. Like rp_progress, a call is one write to memory.
 *
 * RP_ERR_INVALID if within_ms is not above 0; RP_ERR_STATE as rp_progress.
 */
RP_API int32_t rp_busy(int64_t within_ms, rp_error *err);

/* Ends a period that rp_busy began. RP_ERR_STATE if there is none. */
RP_API int32_t rp_busy_end(rp_error *err);

/*
 * A directive. Texts are UTF-8, end with NUL and are cut if they are too long; they, the
 * deadline and the target are empty or 0 if the file that RALLYPOINT_DIRECTIVE_FILE names
 * cannot be read.
 */
typedef struct rp_directive {
    size_t struct_size;
    int32_t kind;        /* enum rp_directive_kind; RP_DIRECTIVE_NONE: nothing is asked for */
    int32_t named;       /* 1: it is about the node of this worker */
    int64_t step;        /* at which all workers get it; 0 if they have not agreed on one */
    int64_t deadline_ms; /* since 1970; 0: not known */
    int32_t target;      /* of RP_DIRECTIVE_SCALE: the number of nodes */
    char id[256];        /* unlike any other's in the job */
    char by[256];        /* who asked for it */
    char reason[1024];
} rp_directive;

/*
 * Reports a step as rp_progress does, and delivers directives in *directive: each one once,
 * at the same step in all workers of the job. A worker that gets one writes a checkpoint and
 * calls rp_saved. In all other calls directive->kind is RP_DIRECTIVE_NONE and the rest is
 * left as it is.
 *
 * While the nodes are agreeing on that step, the call waits for them, for at most 10 s;
 * otherwise it is one write to memory and one read. rp_progress never waits, and it delivers
 * no directive.
 */
RP_API int32_t rp_progress_directive(int64_t step, rp_directive *directive, rp_error *err);

/*
 * Stores in *directive the directive that this worker has been given, as long as it stands;
 * otherwise the kind is RP_DIRECTIVE_NONE. Meant for workers that do not call
 * rp_progress_directive; a worker that does gets each directive from that call first.
 */
RP_API int32_t rp_get_directive(rp_directive *directive, rp_error *err);

/*
 * Reports that this worker has saved `step` for the standing directive. Once all workers of
 * the job have saved, the job does not wait for the directive's deadline. May be called from
 * any thread and from a child of fork(). RP_PENDING if this save answers no directive: none
 * stands, this worker has not been given it yet, or `step` is before the directive's step.
 * RP_ERR_INVALID if `step` is negative.
 */
RP_API int32_t rp_saved(int64_t step, rp_error *err);

/* ------------------------------------------------------------ a worker's world */

/*
 * The workers of a job are a world, which changes when some are lost or join. With
 * `--on-failure regroup` (on_failure of rp_agent_config) a worker that can regroup keeps its
 * process then: it leaves its world, waits for the next one, and continues with its memory.
 * The worker's agent has made a record for that, which RALLYPOINT_WORLD_FILE names. None of
 * these functions enters Go, and they work in a child of fork(), too; one process of each
 * worker calls them.
 */
typedef struct rp_world {
    size_t struct_size;
    uint64_t epoch; /* the number of the round: it grows, and never repeats in a run's life */
    int32_t rank;
    int32_t size;
    int32_t local_rank; /* on this worker's node */
    int32_t local_size;
    int32_t node_rank;
    int32_t store_port;   /* of the store of this world (rp_store_connect) */
    char store_addr[320]; /* its address, for this machine */
    char prefix[64];      /* what the names of all keys of this world begin with */
    int32_t carried;      /* workers that continue from an earlier world; 0: all begin here */
} rp_world;

/*
 * Stores the world that this process is in. It changes only by rp_regroup. Without a record it
 * is what RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and so on say, and the epoch is 0;
 * RP_ERR_INVALID if they say nothing. RP_ERR_STATE if the record cannot be mapped, or has a
 * version that this library does not know.
 */
RP_API int32_t rp_world_get(rp_world *world, rp_error *err);

/*
 * Tells the agent that this worker can regroup: it looks at rp_world_changing and calls
 * rp_regroup. If a worker of the job has not called this, all are started anew when one is
 * lost. RP_ERR_UNSUPPORTED if the agent starts them anew in any case, as torchrun does.
 */
RP_API int32_t rp_world_can_regroup(rp_error *err);

/*
 * 1 once the world is about to change, until rp_regroup returns; else 0. When workers join, it
 * turns 1 in all workers after the same step, if they report steps by rp_progress_directive;
 * when one is lost, at once. It is one read from memory.
 */
RP_API int32_t rp_world_changing(void);

/*
 * Leaves the world, waits for the next one for at most `timeout_ms` (-1: no limit), and stores
 * it in *world. All workers that are left call it, when rp_world_changing says so or when
 * another one does not answer; a call that comes before the agent knows of a loss waits. Where
 * fewer are left than the job needs, it waits until others come.
 *
 * RP_ERR_TIMEOUT if no other world came in time; call it again then. RP_ERR_CLOSED if there is
 * none for this worker, which should end. RP_ERR_UNSUPPORTED as rp_world_can_regroup;
 * RP_ERR_STATE as rp_world_get.
 */
RP_API int32_t rp_regroup(int64_t timeout_ms, rp_world *world, rp_error *err);

/* -------------------------------------------------------------- checkpoints */

/*
 * A fence lets only that process write a checkpoint which loaded the present version of it
 * or wrote it. The version, and who wrote it, are in a record beside the checkpoint,
 * NAME.fence, which is compared and replaced under a lock, NAME.fence.lock. So two jobs, or
 * two parts of one that are cut off from each other, never overwrite each other's work: one
 * of them goes on, the other gets RP_ERR_FENCED at its next write.
 *
 * The folder may be shared by several machines if its file system has flock(2) over all of
 * them. Each process that writes the checkpoint needs a fence; one process of a job writes.
 *
 * The functions read and write files, and block until that is done. `timeout_ms` limits the
 * wait for another process that has the lock; then they return RP_ERR_TIMEOUT, whose
 * message names the holder, and may be called again. Calls on one fence run one after the
 * other. All may return RP_ERR_FENCED, RP_ERR_TIMEOUT, RP_ERR_CANCELED if the fence is closed
 * meanwhile, RP_ERR_STATE if the record is damaged or another user's, RP_ERR_UNSUPPORTED if
 * the file system has no locks, RP_ERR_INVALID if the system refuses a path,
 * RP_ERR_TOO_LARGE if the disk is full, and RP_ERR_CONNECTION for other failures of it.
 */

/* Bits of rp_fence_config.flags. */
enum rp_fence_flag {
    RP_FENCE_INTO = 1 /* path is a folder that checkpoints are written into, each by a name
                         of its own; its record is in it: _rallypoint.fence */
};

/*
 * path: required; the file or folder that is replaced as a whole or, with RP_FENCE_INTO,
 * written into. It need not exist.
 */
typedef struct rp_fence_config {
    size_t struct_size;
    const char *path;
    uint32_t flags; /* enum rp_fence_flag */
} rp_fence_config;

/*
 * Opens a fence, which remembers the present version. Call it before the checkpoint is
 * loaded: what others write from then on makes this process's own writes fail. Waits for a
 * process that is writing. The record that this process will write names the run, generation
 * and round that its environment holds now.
 */
RP_API int32_t rp_fence_open(const rp_fence_config *config, int64_t timeout_ms, rp_fence *fence,
                             rp_error *err);

/*
 * What a fence knows. existed: 1 if there was a checkpoint when it was opened, else 0.
 * version: the version that this process has loaded or written, 32 hexadecimal digits; ""
 * for a checkpoint without a record, or none.
 */
typedef struct rp_fence_state {
    size_t struct_size;
    int32_t existed;
    char version[64];
} rp_fence_state;

/* Fills *state. */
RP_API int32_t rp_fence_get_state(rp_fence fence, rp_fence_state *state, rp_error *err);

/*
 * Begins to replace the checkpoint: returns a new path in its folder, in *temporary, for the
 * new file or folder. RP_ERR_FENCED at once if another process has written the checkpoint.
 * What an earlier call has begun is removed. A process that writes the checkpoint meanwhile
 * removes it, too: if writing there fails, call this again to learn who that was. Not with
 * RP_FENCE_INTO.
 */
RP_API int32_t rp_fence_prepare(rp_fence fence, int64_t timeout_ms, rp_buffer *temporary,
                                rp_error *err);

/*
 * Replaces the checkpoint by what is at the path of rp_fence_prepare. Readers see the old one
 * or the new one, whole (a folder is missing for a moment on file systems that cannot exchange
 * two names, such as NFS); on return the new one is on the disk. After an error the old one is
 * in place; after another error than RP_ERR_TIMEOUT begin with rp_fence_prepare again.
 */
RP_API int32_t rp_fence_commit(rp_fence fence, int64_t timeout_ms, rp_error *err);

/*
 * Begins to write into the folder, with RP_FENCE_INTO: until rp_fence_release, or the end of
 * this process, other processes can neither open nor claim it. A claim of one that has
 * claimed does nothing.
 */
RP_API int32_t rp_fence_claim(rp_fence fence, int64_t timeout_ms, rp_error *err);

/*
 * Ends what rp_fence_claim or rp_fence_prepare has begun, and removes what was prepared;
 * without them it does nothing. RP_ERR_FENCED if another process has claimed the folder
 * although this one had: the server of a network file system allows that once this machine
 * was cut off from it.
 */
RP_API int32_t rp_fence_release(rp_fence fence, rp_error *err);

/* Releases and closes the fence, and ends calls that wait for the lock. */
RP_API int32_t rp_fence_close(rp_fence fence, rp_error *err);

/* ------------------------------------------------- a place of your own to meet */

/*
 * The answer of a rp_backend's function, which fills it with rp_backend_answer and does not
 * touch the fields itself.
 */
typedef struct rp_backend_reply {
    size_t struct_size;
    int32_t answered;
    int32_t stored;
    rp_buffer state;
    rp_buffer token;
} rp_backend_reply;

/*
 * The functions of a rp_backend. Its value is shared by all nodes of a run and can be
 * compared and set. A token is any sequence of bytes that identifies the stored value and
 * differs after each write. The functions return RP_OK after a rp_backend_answer, or an
 * error with *err filled in. After RP_ERR_CONNECTION the library tries again; every other
 * code ends the member's part in the run. If err->retryable is -1 and the member has never
 * reached the value, RP_ERR_CONNECTION is not tried again either: rp_member_next returns it.
 * The functions run on threads of the library, several at once. They may block, but not
 * forever, and must not close the member.
 *
 * get:     answers the stored value and its token; if nothing is stored, state NULL.
 * set:     stores `state` if `token` identifies the stored value (treat an unknown token
 *          as an old one), or, with token NULL, if nothing is stored. Answers the value
 *          stored afterwards, with `stored` 1 if this call stored it, else 0.
 * release: (may be NULL) is called once when no function will be called any more,
 *          at the latest when the last one returns after rp_member_close.
 */
typedef int32_t (*rp_backend_get)(void *user, rp_backend_reply *reply, rp_error *err);
typedef int32_t (*rp_backend_set)(void *user, const void *state, size_t state_len,
                                  const void *token, size_t token_len, rp_backend_reply *reply,
                                  rp_error *err);
typedef void (*rp_backend_release)(void *user);

/* A rendezvous backend that the program provides. `user` is passed to each function. */
typedef struct rp_backend {
    size_t struct_size;
    void *user;
    rp_backend_get get;
    rp_backend_set set;
    rp_backend_release release;
} rp_backend;

/* Copies an answer into *reply. Only the functions of a rp_backend call it. */
RP_API int32_t rp_backend_answer(rp_backend_reply *reply, const void *state, size_t state_len,
                                 const void *token, size_t token_len, int32_t stored,
                                 rp_error *err);

/*
 * Makes a member whose run uses `backend` in place of a control plane: the nodes keep the
 * log of their run in its value, which is at most 64 MB and usually some tens of kB.
 * Everything else is as in rp_member_open. config->endpoint is a name for display.
 * If an error is returned, release is not called.
 */
RP_API int32_t rp_member_open_backend(const rp_member_config *config, const rp_backend *backend,
                                      rp_member *member, rp_error *err);

/* ---------------------------------------------------------------------- etcd */

/*
 * endpoint: required; etcd://[USER:PASSWORD@]HOST[:PORT][,HOST[:PORT]...], the members of
 * one cluster, etcds:// with TLS; port 2379. prefix: in front of all keys; NULL: option
 * key_prefix or /rallypoint/store. options: protocol (http, https), ca_cert, ssl_cert,
 * ssl_cert_key (files in PEM), user, password, ttl (seconds; with it the keys vanish so
 * long after the store was closed, else they stay), key_prefix.
 */
typedef struct rp_store_etcd_config {
    size_t struct_size;
    const char *endpoint;
    const char *prefix;
    const rp_option *options;
    size_t options_len;
} rp_store_etcd_config;

/*
 * Opens a store in an etcd (3.4 or newer, its v3 API), shared with all that open it with
 * one prefix. Operations are applied exactly once, even if a member of the cluster dies
 * meanwhile. Opening is tried until `timeout_ms` has passed and then returns
 * RP_ERR_CONNECTION. It returns RP_ERR_INVALID at once if trying again cannot help: a wrong
 * user, password or certificate, or an endpoint that is not an etcd. Operations also return
 * RP_ERR_TOO_LARGE for values above 1.25 MiB and RP_ERR_UNSUPPORTED for queues.
 */
RP_API int32_t rp_store_open_etcd(const rp_store_etcd_config *config, int64_t timeout_ms,
                                  rp_store *store, rp_error *err);
RP_API int32_t rp_store_open_etcd_start(const rp_store_etcd_config *config, int64_t timeout_ms,
                                        rp_op *op, rp_error *err);

/*
 * All may be NULL. binary: the etcd to start; NULL: what TORCHELASTIC_ETCD_BINARY_PATH
 * names, else `beside` if that is a file, else etcd in PATH. data_dir: made if missing,
 * and kept; NULL: a temporary directory, removed with the server. retries: how often a
 * failed start is tried again. output_fd: receives the output of the etcd; -1: none does.
 */
typedef struct rp_etcd_server_config {
    size_t struct_size;
    const char *binary;
    const char *beside;
    const char *data_dir;
    int32_t retries;
    int32_t output_fd;
} rp_etcd_server_config;

/*
 * Starts an etcd of one member, for this process and others on this machine, and returns
 * at once; it has `timeout_ms` to become ready. It listens on free ports of 127.0.0.1
 * until rp_etcd_server_stop, or until this process ends, even if that is killed.
 */
RP_API int32_t rp_etcd_server_start(const rp_etcd_server_config *config, int64_t timeout_ms,
                                    rp_etcd_server *server, rp_error *err);

/*
 * Waits at most `timeout_ms` until the etcd answers, and stores its port in *port.
 * RP_PENDING: not yet. If it failed to start, an error with the end of its output.
 */
RP_API int32_t rp_etcd_server_ready(rp_etcd_server server, int64_t timeout_ms, int32_t *port,
                                    rp_error *err);

/* Stops the etcd, waits for its end (some seconds at most) and closes the handle. */
RP_API int32_t rp_etcd_server_stop(rp_etcd_server server, rp_error *err);

/* ------------------------------------------------------------------- command */

/*
 * Runs the command `rallypoint` with these arguments (argv[0] is the program's name)
 * and returns its exit code. Prints to the process's standard output and error and
 * handles SIGINT and SIGTERM while it runs. Meant for a process that does nothing
 * else; to be called once. Returns 70 in a forked child or if argv is not valid.
 */
RP_API int rp_main(int argc, char *const *argv);

#ifdef __cplusplus
}
#endif

#endif /* RALLYPOINT_H */
