#include <string.h>

#include "_cgo_export.h"
#include "guard.h"

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

// put performs an operation that takes a key and a value, and returns nothing.
static int32_t put(rp_store store, int32_t op, const void *key, size_t key_len,
                   const void *value, size_t value_len, int64_t timeout_ms, rp_error *err) {
    rp_store_request r = asks_key(op, key, key_len, timeout_ms);
    rp_store_result result;
    r.value.data = value;
    r.value.len = value_len;
    return perform(store, &r, 0, NULL, &result, err);
}

int32_t rp_store_set(rp_store store, const void *key, size_t key_len, const void *value,
                     size_t value_len, int64_t timeout_ms, rp_error *err) {
    return put(store, RP_STORE_SET, key, key_len, value, value_len, timeout_ms, err);
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
    return put(store, RP_STORE_APPEND, key, key_len, value, value_len, timeout_ms, err);
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
    return put(store, RP_STORE_QUEUE_PUSH, key, key_len, value, value_len, timeout_ms, err);
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

int32_t rp_store_close(rp_store store, rp_error *err) {
    TRY(enter(err));
    return rpgo_store_close(store.id, err);
}
