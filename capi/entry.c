/*
 * The exported functions. Each one checks what can be checked without entering Go,
 * then forwards to its Go twin rpgo_*.
 *
 * The checks must be made here: in a child of fork() the threads of the Go runtime
 * are gone and any call into Go may hang.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "_cgo_export.h"
#include "glue.h"

/* ------------------------------------------------------------------- checks */

static pid_t home; /* the process that loaded the library */

__attribute__((constructor)) static void remember_home(void) {
    home = getpid();
}

static int forked(void) {
    return getpid() != home;
}

size_t glue_text(char *dst, size_t size, const char *text, size_t len) {
    if (len >= size) {
        len = size - 1;
        while (len > 0 && ((unsigned char)text[len] & 0xC0) == 0x80) { /* inside a character */
            len--;
        }
    }
    memcpy(dst, text, len);
    dst[len] = 0;
    return len;
}

int32_t glue_fail(rp_error *err, int32_t code, int32_t retryable, const char *text,
                  size_t len) {
    if (err != NULL) {
        err->code = code;
        err->retryable = retryable;
        glue_text(err->message, sizeof err->message, text, len);
    }
    return code;
}

static __thread int in_log_callback;

void glue_log(rp_log_callback callback, uintptr_t user, int32_t level, uint32_t dropped,
              int64_t time_ms, const char *text, size_t len) {
    rp_log_record record;
    record.struct_size = sizeof record;
    record.level = level;
    record.dropped = dropped;
    record.time_ms = time_ms;
    glue_text(record.text, sizeof record.text, text, len);
    in_log_callback = 1;
    callback((void *)user, &record);
    in_log_callback = 0;
}

static int32_t fail(rp_error *err, int32_t code, const char *text) {
    return glue_fail(err, code, 0, text, strlen(text));
}

/* Checks what every function that enters Go checks first. */
static int32_t enter(rp_error *err) {
    if (err != NULL && err->struct_size < sizeof *err) {
        return RP_ERR_INVALID;
    }
    if (forked()) {
        return fail(err, RP_ERR_FORKED,
                    "this process was forked after the library was loaded, and the library's "
                    "threads live only in the parent; load it after the fork, or call exec()");
    }
    return RP_OK;
}

/*
 * Checks a struct of the caller that is read: that its size is at least that of the first
 * version, and that it asks for nothing unknown.
 */
static int32_t readable_since(const void *data, size_t first, size_t known, rp_error *err) {
    size_t size, i;
    if (data == NULL) {
        return fail(err, RP_ERR_INVALID, "a required argument is NULL");
    }
    size = *(const size_t *)data;
    if (size < first || size > 4096) {
        return fail(err, RP_ERR_INVALID, "struct_size is not the size of the struct");
    }
    for (i = known; i < size; i++) {
        if (((const unsigned char *)data)[i] != 0) {
            return fail(err, RP_ERR_INVALID,
                        "a field is set that this version of the library does not know");
        }
    }
    return RP_OK;
}

/* The same for a struct that has not grown. */
static int32_t readable(const void *data, size_t known, rp_error *err) {
    return readable_since(data, known, known, err);
}

/* Checks a struct of the caller that is written. */
static int32_t writable(const void *data, size_t known, rp_error *err) {
    if (data == NULL) {
        return fail(err, RP_ERR_INVALID, "a required argument is NULL");
    }
    if (*(const size_t *)data < known) {
        return fail(err, RP_ERR_INVALID, "struct_size is not the size of the struct");
    }
    return RP_OK;
}

static int32_t present(const void *data, rp_error *err) {
    return data != NULL ? RP_OK : fail(err, RP_ERR_INVALID, "a required argument is NULL");
}

static int32_t timeout(int64_t timeout_ms, rp_error *err) {
    return timeout_ms >= -1 ? RP_OK : fail(err, RP_ERR_INVALID, "timeout_ms is below -1");
}

/* Returns the result of a check unless it is RP_OK. */
#define TRY(check)                                                                             \
    do {                                                                                       \
        int32_t code_ = (check);                                                               \
        if (code_ != RP_OK) {                                                                  \
            return code_;                                                                      \
        }                                                                                      \
    } while (0)

/* ------------------------------------------- without Go: these work after fork() */

uint32_t rp_abi_version(void) {
    return RP_ABI_VERSION;
}

const char *rp_version(void) {
    static const char *version;
    const char *known = __atomic_load_n(&version, __ATOMIC_ACQUIRE);
    if (known == NULL) {
        if (forked()) {
            return "";
        }
        known = rpgo_version();
        __atomic_store_n(&version, known, __ATOMIC_RELEASE);
    }
    return known;
}

const char *rp_code_name(int32_t code) {
#define NAME(name)                                                                             \
    case RP_##name:                                                                            \
        return #name;
#define ERR(name)                                                                              \
    case RP_ERR_##name:                                                                        \
        return #name;
    switch (code) {
        NAME(OK)
        NAME(PENDING)
        ERR(INVALID)
        ERR(MISMATCH)
        ERR(TENANT)
        ERR(NODE_IN_USE)
        ERR(AUTH)
        ERR(CLOSED)
        ERR(GRACEFUL)
        ERR(TIMEOUT)
        ERR(CANCELED)
        ERR(CONNECTION)
        ERR(STATE)
        ERR(EVICTED)
        ERR(ROUND_OVER)
        ERR(WORKERS)
        ERR(START)
        ERR(NUMBER)
        ERR(TOO_LARGE)
        ERR(EMPTY)
        ERR(UNSUPPORTED)
        ERR(HANDLE)
        ERR(FORKED)
        ERR(BUFFER)
        ERR(INTERNAL)
    }
    return "UNKNOWN";
}

void rp_buffer_free(rp_buffer *buffer) {
    if (buffer != NULL) {
        free(buffer->data);
        buffer->data = NULL;
        buffer->len = 0;
    }
}

void rp_list_free(rp_list *list) {
    size_t i;
    if (list != NULL) {
        for (i = 0; i < list->len; i++) {
            free(list->items[i].data);
        }
        free(list->items);
        list->items = NULL;
        list->len = 0;
    }
}

void rp_store_result_free(rp_store_result *result) {
    if (result != NULL) {
        rp_buffer_free(&result->value);
        rp_list_free(&result->list);
    }
}

/* --------------------------------------------------------- handles, log, command */

int32_t rp_handles_open(int64_t *count, rp_error *err) {
    TRY(enter(err));
    TRY(present(count, err));
    return rpgo_handles_open(count, err);
}

int32_t rp_usage_get(rp_usage *usage, rp_error *err) {
    TRY(enter(err));
    TRY(writable(usage, sizeof *usage, err));
    return rpgo_usage_get(usage, err);
}

int32_t rp_log_next(rp_log_record *record, rp_error *err) {
    TRY(enter(err));
    TRY(writable(record, sizeof *record, err));
    return rpgo_log_next(record, err);
}

int32_t rp_log_set_level(int32_t level, rp_error *err) {
    TRY(enter(err));
    return rpgo_log_set_level(level, err);
}

int32_t rp_log_set_callback(rp_log_callback callback, void *user, rp_error *err) {
    TRY(enter(err));
    if (in_log_callback) {
        return fail(err, RP_ERR_INVALID,
                    "rp_log_set_callback was called by the callback itself");
    }
    return rpgo_log_set_callback(callback, (uintptr_t)user, err);
}

int rp_main(int argc, char *const *argv) {
    int i;
    if (forked() || argc < 1 || argv == NULL) {
        return 70; /* EX_SOFTWARE */
    }
    for (i = 0; i < argc; i++) {
        if (argv[i] == NULL) {
            return 70;
        }
    }
    return rpgo_main(argc, (char **)argv);
}

/* ------------------------------------------------------------- store servers */

int32_t rp_store_server_start(const rp_store_server_config *config, rp_store_server *server,
                              rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(present(server, err));
    return rpgo_store_server_start((rp_store_server_config *)config, &server->id, err);
}

int32_t rp_store_server_port(rp_store_server server, int32_t *port, rp_error *err) {
    TRY(enter(err));
    TRY(present(port, err));
    return rpgo_store_server_port(server.id, port, err);
}

int32_t rp_store_server_stop(rp_store_server server, rp_error *err) {
    TRY(enter(err));
    return rpgo_store_server_stop(server.id, err);
}

/* ------------------------------------------------------------------- stores */

int32_t rp_store_connect(const rp_store_config *config, int64_t timeout_ms, rp_store *store,
                         rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(store, err));
    return rpgo_store_connect((rp_store_config *)config, timeout_ms, &store->id, err);
}

int32_t rp_store_connect_start(const rp_store_config *config, int64_t timeout_ms, rp_op *op,
                               rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(op, err));
    return rpgo_store_connect_start((rp_store_config *)config, timeout_ms, &op->id, err);
}

int32_t rp_store_open_file(const rp_store_file_config *config, int64_t timeout_ms,
                           rp_store *store, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(store, err));
    return rpgo_store_open_file((rp_store_file_config *)config, timeout_ms, &store->id, err);
}

int32_t rp_store_open_file_start(const rp_store_file_config *config, int64_t timeout_ms,
                                 rp_op *op, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(op, err));
    return rpgo_store_open_file_start((rp_store_file_config *)config, timeout_ms, &op->id, err);
}

int32_t rp_store_open_etcd(const rp_store_etcd_config *config, int64_t timeout_ms,
                           rp_store *store, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(store, err));
    return rpgo_store_open_etcd((rp_store_etcd_config *)config, timeout_ms, &store->id, err);
}

int32_t rp_store_open_etcd_start(const rp_store_etcd_config *config, int64_t timeout_ms,
                                 rp_op *op, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(op, err));
    return rpgo_store_open_etcd_start((rp_store_etcd_config *)config, timeout_ms, &op->id, err);
}

int32_t rp_etcd_server_start(const rp_etcd_server_config *config, int64_t timeout_ms,
                             rp_etcd_server *server, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(server, err));
    return rpgo_etcd_server_start((rp_etcd_server_config *)config, timeout_ms, &server->id,
                                  err);
}

int32_t rp_etcd_server_ready(rp_etcd_server server, int64_t timeout_ms, int32_t *port,
                             rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    TRY(present(port, err));
    return rpgo_etcd_server_ready(server.id, timeout_ms, port, err);
}

int32_t rp_etcd_server_stop(rp_etcd_server server, rp_error *err) {
    TRY(enter(err));
    return rpgo_etcd_server_stop(server.id, err);
}

int32_t rp_store_open_hash(rp_store *store, rp_error *err) {
    TRY(enter(err));
    TRY(present(store, err));
    return rpgo_store_open_hash(&store->id, err);
}

int32_t rp_store_open_prefix(rp_store store, const void *prefix, size_t prefix_len,
                             rp_store *view, rp_error *err) {
    rp_bytes name = {prefix, prefix_len};
    TRY(enter(err));
    TRY(present(view, err));
    return rpgo_store_open_prefix(store.id, name, &view->id, err);
}

int32_t rp_store_close(rp_store store, rp_error *err) {
    TRY(enter(err));
    return rpgo_store_close(store.id, err);
}

int32_t rp_store_start(rp_store store, const rp_store_request *request, rp_op *op,
                       rp_error *err) {
    TRY(enter(err));
    TRY(readable(request, sizeof *request, err));
    TRY(timeout(request->timeout_ms, err));
    TRY(present(op, err));
    return rpgo_store_start(store.id, (rp_store_request *)request, &op->id, err);
}

int32_t rp_store_attempt(rp_store store, const rp_store_request *request, int64_t wait_ms,
                         rp_op *op, rp_store_result *result, rp_error *err) {
    TRY(enter(err));
    TRY(readable(request, sizeof *request, err));
    TRY(timeout(request->timeout_ms, err));
    TRY(timeout(wait_ms, err));
    TRY(present(op, err));
    TRY(writable(result, sizeof *result, err));
    return rpgo_store_attempt(store.id, (rp_store_request *)request, wait_ms, &op->id, result,
                              err);
}

int32_t rp_op_wait(rp_op op, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_op_wait(op.id, timeout_ms, err);
}

int32_t rp_op_fd(rp_op op, int32_t *fd, rp_error *err) {
    TRY(enter(err));
    TRY(present(fd, err));
    return rpgo_op_fd(op.id, fd, err);
}

int32_t rp_op_notify(rp_op op, rp_op_callback callback, void *user, rp_error *err) {
    TRY(enter(err));
    if (callback == NULL) {
        return fail(err, RP_ERR_INVALID, "a required argument is NULL");
    }
    return rpgo_op_notify(op.id, callback, (uintptr_t)user, err);
}

void glue_op(rp_op_callback callback, uintptr_t user) {
    callback((void *)user);
}

int32_t rp_op_result(rp_op op, rp_store_result *result, rp_error *err) {
    TRY(enter(err));
    TRY(writable(result, sizeof *result, err));
    return rpgo_op_result(op.id, result, err);
}

int32_t rp_op_cancel(rp_op op, rp_error *err) {
    TRY(enter(err));
    return rpgo_op_cancel(op.id, err);
}

int32_t rp_op_free(rp_op op, rp_error *err) {
    TRY(enter(err));
    return rpgo_op_free(op.id, err);
}

/*
 * The blocking operations fill a request, and take what they need from the result.
 * `out` is the caller's output argument, NULL if the operation has none.
 */
static int32_t perform(rp_store store, const rp_store_request *request, int has_output,
                       const void *out, rp_store_result *result, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(request->timeout_ms, err));
    if (has_output) {
        TRY(present(out, err));
    }
    memset(result, 0, sizeof *result);
    return rpgo_store_perform(store.id, (rp_store_request *)request, result, err);
}

static rp_store_request asks(int32_t op, int64_t timeout_ms) {
    rp_store_request r;
    memset(&r, 0, sizeof r);
    r.struct_size = sizeof r;
    r.op = op;
    r.timeout_ms = timeout_ms;
    return r;
}

static rp_store_request asks_key(int32_t op, const void *key, size_t key_len,
                                 int64_t timeout_ms) {
    rp_store_request r = asks(op, timeout_ms);
    r.key.data = key;
    r.key.len = key_len;
    return r;
}

static rp_store_request asks_keys(int32_t op, const rp_bytes *keys, size_t keys_len,
                                  int64_t timeout_ms) {
    rp_store_request r = asks(op, timeout_ms);
    r.keys = keys;
    r.keys_len = keys_len;
    return r;
}

int32_t rp_store_set(rp_store store, const void *key, size_t key_len, const void *value,
                     size_t value_len, int64_t timeout_ms, rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_SET, key, key_len, timeout_ms);
    rp_store_result result;
    r.value.data = value;
    r.value.len = value_len;
    return perform(store, &r, 0, NULL, &result, err);
}

int32_t rp_store_get(rp_store store, const void *key, size_t key_len, int64_t timeout_ms,
                     rp_buffer *value, rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_GET, key, key_len, timeout_ms);
    rp_store_result result;
    TRY(perform(store, &r, 1, value, &result, err));
    *value = result.value;
    return RP_OK;
}

int32_t rp_store_add(rp_store store, const void *key, size_t key_len, int64_t amount,
                     int64_t timeout_ms, int64_t *sum, rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_ADD, key, key_len, timeout_ms);
    rp_store_result result;
    r.number = amount;
    TRY(perform(store, &r, 1, sum, &result, err));
    *sum = result.number;
    return RP_OK;
}

int32_t rp_store_compare_set(rp_store store, const void *key, size_t key_len,
                             const void *expected, size_t expected_len, const void *desired,
                             size_t desired_len, int64_t timeout_ms, rp_buffer *current,
                             rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_COMPARE_SET, key, key_len, timeout_ms);
    rp_store_result result;
    r.expected.data = expected;
    r.expected.len = expected_len;
    r.value.data = desired;
    r.value.len = desired_len;
    TRY(perform(store, &r, 1, current, &result, err));
    *current = result.value;
    return RP_OK;
}

int32_t rp_store_append(rp_store store, const void *key, size_t key_len, const void *value,
                        size_t value_len, int64_t timeout_ms, rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_APPEND, key, key_len, timeout_ms);
    rp_store_result result;
    r.value.data = value;
    r.value.len = value_len;
    return perform(store, &r, 0, NULL, &result, err);
}

int32_t rp_store_check(rp_store store, const rp_bytes *keys, size_t keys_len,
                       int64_t timeout_ms, int32_t *ready, rp_error *err) {
    rp_store_request r = asks_keys(RP_STORE_CHECK, keys, keys_len, timeout_ms);
    rp_store_result result;
    TRY(perform(store, &r, 1, ready, &result, err));
    *ready = (int32_t)result.number;
    return RP_OK;
}

int32_t rp_store_wait(rp_store store, const rp_bytes *keys, size_t keys_len, int64_t timeout_ms,
                      rp_error *err) {
    rp_store_request r = asks_keys(RP_STORE_WAIT, keys, keys_len, timeout_ms);
    rp_store_result result;
    return perform(store, &r, 0, NULL, &result, err);
}

int32_t rp_store_delete(rp_store store, const void *key, size_t key_len, int64_t timeout_ms,
                        int32_t *existed, rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_DELETE, key, key_len, timeout_ms);
    rp_store_result result;
    TRY(perform(store, &r, 1, existed, &result, err));
    *existed = (int32_t)result.number;
    return RP_OK;
}

int32_t rp_store_num_keys(rp_store store, int64_t timeout_ms, int64_t *count, rp_error *err) {
    rp_store_request r = asks(RP_STORE_NUM_KEYS, timeout_ms);
    rp_store_result result;
    TRY(perform(store, &r, 1, count, &result, err));
    *count = result.number;
    return RP_OK;
}

int32_t rp_store_list_keys(rp_store store, int64_t timeout_ms, rp_list *keys, rp_error *err) {
    rp_store_request r = asks(RP_STORE_LIST_KEYS, timeout_ms);
    rp_store_result result;
    TRY(perform(store, &r, 1, keys, &result, err));
    *keys = result.list;
    return RP_OK;
}

int32_t rp_store_multi_get(rp_store store, const rp_bytes *keys, size_t keys_len,
                           int64_t timeout_ms, rp_list *values, rp_error *err) {
    rp_store_request r = asks_keys(RP_STORE_MULTI_GET, keys, keys_len, timeout_ms);
    rp_store_result result;
    TRY(perform(store, &r, 1, values, &result, err));
    *values = result.list;
    return RP_OK;
}

int32_t rp_store_multi_set(rp_store store, const rp_bytes *keys, const rp_bytes *values,
                           size_t len, int64_t timeout_ms, rp_error *err) {
    rp_store_request r = asks_keys(RP_STORE_MULTI_SET, keys, len, timeout_ms);
    rp_store_result result;
    r.values = values;
    r.values_len = len;
    return perform(store, &r, 0, NULL, &result, err);
}

int32_t rp_store_queue_push(rp_store store, const void *key, size_t key_len, const void *value,
                            size_t value_len, int64_t timeout_ms, rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_QUEUE_PUSH, key, key_len, timeout_ms);
    rp_store_result result;
    r.value.data = value;
    r.value.len = value_len;
    return perform(store, &r, 0, NULL, &result, err);
}

int32_t rp_store_queue_pop(rp_store store, const void *key, size_t key_len, int32_t block,
                           int64_t timeout_ms, rp_buffer *value, rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_QUEUE_POP, key, key_len, timeout_ms);
    rp_store_result result;
    r.block = block;
    TRY(perform(store, &r, 1, value, &result, err));
    *value = result.value;
    return RP_OK;
}

int32_t rp_store_queue_len(rp_store store, const void *key, size_t key_len, int64_t timeout_ms,
                           int64_t *count, rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_QUEUE_LEN, key, key_len, timeout_ms);
    rp_store_result result;
    TRY(perform(store, &r, 1, count, &result, err));
    *count = result.number;
    return RP_OK;
}

int32_t rp_store_barrier(rp_store store, const void *key, size_t key_len, int64_t world_size,
                         int64_t timeout_ms, rp_error *err) {
    rp_store_request r = asks_key(RP_STORE_BARRIER, key, key_len, timeout_ms);
    rp_store_result result;
    r.number = world_size;
    return perform(store, &r, 0, NULL, &result, err);
}

/* ------------------------------------------------------------------- members */

int32_t rp_member_open(const rp_member_config *config, rp_member *member, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(present(member, err));
    return rpgo_member_open((rp_member_config *)config, &member->id, err);
}

int32_t rp_member_next(rp_member member, int64_t timeout_ms, rp_outcome *outcome,
                       rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    TRY(writable(outcome, sizeof *outcome, err));
    return rpgo_member_next(member.id, timeout_ms, outcome, err);
}

int32_t rp_member_cancel(rp_member member, rp_error *err) {
    TRY(enter(err));
    return rpgo_member_cancel(member.id, err);
}

int32_t rp_member_finish(rp_member member, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_member_finish(member.id, timeout_ms, err);
}

int32_t rp_member_shutdown(rp_member member, int32_t ending, const char *reason,
                           int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_member_shutdown(member.id, ending, (char *)reason, timeout_ms, err);
}

int32_t rp_member_set_closed(rp_member member, const char *reason, int64_t timeout_ms,
                             rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_member_set_closed(member.id, (char *)reason, timeout_ms, err);
}

int32_t rp_member_wait(rp_member member, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_member_wait(member.id, timeout_ms, err);
}

int32_t rp_member_fd(rp_member member, int32_t *fd, rp_error *err) {
    TRY(enter(err));
    TRY(present(fd, err));
    return rpgo_member_fd(member.id, fd, err);
}

int32_t rp_member_nodes_waiting(rp_member member, int32_t *count, rp_error *err) {
    TRY(enter(err));
    TRY(present(count, err));
    return rpgo_member_nodes_waiting(member.id, count, err);
}

int32_t rp_member_is_closed(rp_member member, int32_t *closed, rp_error *err) {
    TRY(enter(err));
    TRY(present(closed, err));
    return rpgo_member_is_closed(member.id, closed, err);
}

int32_t rp_member_reason(rp_member member, char *text, size_t *size, rp_error *err) {
    TRY(enter(err));
    TRY(present(size, err));
    return rpgo_member_reason(member.id, text, size, err);
}

int32_t rp_member_keys(rp_member member, uint64_t round, rp_store *store, rp_error *err) {
    TRY(enter(err));
    TRY(present(store, err));
    return rpgo_member_keys(member.id, round, &store->id, err);
}

int32_t rp_member_close(rp_member member, rp_error *err) {
    TRY(enter(err));
    return rpgo_member_close(member.id, err);
}

/* -------------------------------------------------------------------- agents */

int32_t rp_agent_open(const rp_agent_config *config, rp_agent *agent, rp_error *err) {
    rp_agent_config full; /* what an older caller does not have is 0 */
    TRY(enter(err));
    TRY(readable_since(config, offsetof(rp_agent_config, numa_binding), sizeof full, err));
    memset(&full, 0, sizeof full);
    memcpy(&full, config,
           config->struct_size < sizeof full ? config->struct_size : sizeof full);
    if (full.rendezvous != NULL) {
        TRY(readable(full.rendezvous, sizeof *full.rendezvous, err));
    }
    TRY(present(agent, err));
    return rpgo_agent_open(&full, &agent->id, err);
}

int32_t rp_agent_run(rp_agent agent, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_agent_run(agent.id, timeout_ms, err);
}

int32_t rp_agent_stop(rp_agent agent, int32_t signal, int64_t grace_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(grace_ms, err));
    return rpgo_agent_stop(agent.id, signal, grace_ms, err);
}

int32_t rp_agent_next_event(rp_agent agent, rp_agent_event *event, rp_error *err) {
    TRY(enter(err));
    TRY(writable(event, sizeof *event, err));
    return rpgo_agent_next_event(agent.id, event, err);
}

int32_t rp_agent_fd(rp_agent agent, int32_t *fd, rp_error *err) {
    TRY(enter(err));
    TRY(present(fd, err));
    return rpgo_agent_fd(agent.id, fd, err);
}

int32_t rp_agent_get_result(rp_agent agent, rp_agent_result *result, rp_error *err) {
    TRY(enter(err));
    TRY(writable(result, sizeof *result, err));
    return rpgo_agent_get_result(agent.id, result, err);
}

int32_t rp_agent_get_worker(rp_agent agent, int32_t local_rank, rp_worker_result *worker,
                            rp_error *err) {
    TRY(enter(err));
    TRY(writable(worker, sizeof *worker, err));
    return rpgo_agent_get_worker(agent.id, local_rank, worker, err);
}

int32_t rp_agent_get_failure(rp_agent agent, int32_t index, rp_failure *failure,
                             rp_error *err) {
    TRY(enter(err));
    TRY(writable(failure, sizeof *failure, err));
    return rpgo_agent_get_failure(agent.id, index, failure, err);
}

void rp_agent_result_free(rp_agent_result *result) {
    if (result != NULL) {
        rp_buffer_free(&result->report);
    }
}

void rp_worker_result_free(rp_worker_result *worker) {
    if (worker != NULL) {
        rp_buffer_free(&worker->stdout_path);
        rp_buffer_free(&worker->stderr_path);
        rp_buffer_free(&worker->error_file);
    }
}

void rp_failure_free(rp_failure *failure) {
    if (failure != NULL) {
        rp_buffer_free(&failure->host);
        rp_buffer_free(&failure->error_file);
        rp_buffer_free(&failure->error_data);
        rp_buffer_free(&failure->message);
    }
}

int32_t rp_agent_close(rp_agent agent, rp_error *err) {
    TRY(enter(err));
    return rpgo_agent_close(agent.id, err);
}

/* --------------------------------------------- a place of the program's to meet */

#define MAX_STATE ((size_t)64 << 20)

static void *copy(const void *data, size_t len) {
    char *p = malloc(len + 1);
    if (p != NULL) {
        memcpy(p, len > 0 ? data : "", len);
        p[len] = 0;
    }
    return p;
}

int32_t rp_backend_answer(rp_backend_reply *reply, const void *state, size_t state_len,
                          const void *token, size_t token_len, int32_t stored, rp_error *err) {
    TRY(enter(err));
    TRY(writable(reply, sizeof *reply, err));
    if (state_len > MAX_STATE || token_len > MAX_STATE) {
        return fail(err, RP_ERR_TOO_LARGE, "a state or token has more than 64 MB");
    }
    if ((state == NULL && state_len > 0) || (token == NULL && token_len > 0)) {
        return fail(err, RP_ERR_INVALID, "state or token is NULL with a length");
    }
    rp_buffer_free(&reply->state);
    rp_buffer_free(&reply->token);
    if (state != NULL) {
        reply->state.data = copy(state, state_len);
        reply->state.len = state_len;
        reply->token.data = copy(token, token_len);
        reply->token.len = token_len;
        if (reply->state.data == NULL || reply->token.data == NULL) {
            return fail(err, RP_ERR_TOO_LARGE, "there is no memory for the state");
        }
    }
    reply->stored = stored != 0;
    reply->answered = 1;
    return RP_OK;
}

int32_t rp_member_open_backend(const rp_member_config *config, const rp_backend *backend,
                               rp_member *member, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(readable(backend, sizeof *backend, err));
    TRY(present(member, err));
    if (backend->get == NULL || backend->set == NULL) {
        return fail(err, RP_ERR_INVALID, "a function of the backend is NULL");
    }
    return rpgo_member_open_backend((rp_member_config *)config, (rp_backend *)backend,
                                    &member->id, err);
}

int32_t glue_backend_get(const rp_backend *backend, rp_backend_reply *reply, rp_error *err) {
    return backend->get(backend->user, reply, err);
}

int32_t glue_backend_set(const rp_backend *backend, const void *state, size_t state_len,
                         const void *token, size_t token_len, rp_backend_reply *reply,
                         rp_error *err) {
    return backend->set(backend->user, state, state_len, token, token_len, reply, err);
}

void glue_backend_release(const rp_backend *backend) {
    if (backend->release != NULL) {
        backend->release(backend->user);
    }
}
