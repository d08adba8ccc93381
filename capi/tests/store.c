/* A store behind a server: every operation, cancelling, closing, many threads. */
#include "operations.h"

static rp_op start(rp_store s, int32_t what, const char *key, int64_t timeout_ms) {
    rp_op op;
    rp_store_request request = {.struct_size = sizeof request,
                                .op = what,
                                .key = {key, RP_TEXT},
                                .value = {"later", 5},
                                .timeout_ms = timeout_ms};
    CHECK_OK(rp_store_start(s, &request, &op, ERR));
    return op;
}

static void background(rp_store s, int32_t port) {
    rp_store_result result = {.struct_size = sizeof result};
    rp_op get = start(s, RP_STORE_GET, "future", -1);
    CHECK_CODE(RP_PENDING, rp_op_wait(get, 0, ERR));
    CHECK_CODE(RP_PENDING, rp_op_wait(get, 20, ERR));
    CHECK_CODE(RP_PENDING, rp_op_result(get, &result, ERR));
    rp_op set = start(s, RP_STORE_SET, "future", 5000);
    CHECK_OK(rp_op_wait(set, -1, ERR));
    CHECK_OK(rp_op_wait(get, -1, ERR));
    CHECK_OK(rp_op_wait(get, 0, ERR));
    CHECK_OK(rp_op_result(get, &result, ERR));
    CHECK_BUFFER("later", result.value);
    rp_store_result_free(&result);
    CHECK_CODE(RP_ERR_INVALID, rp_op_result(get, &result, ERR));
    CHECK_OK(rp_op_cancel(get, ERR));
    CHECK_OK(rp_op_free(get, ERR));
    CHECK_OK(rp_op_free(set, ERR));

    rp_op late = start(s, RP_STORE_GET, "never", 20);
    CHECK_CODE(RP_ERR_TIMEOUT, rp_op_wait(late, -1, ERR));
    CHECK_CODE(RP_ERR_TIMEOUT, rp_op_result(late, &result, ERR));
    CHECK_OK(rp_op_free(late, ERR));

    rp_op canceled = start(s, RP_STORE_GET, "never", -1);
    CHECK_OK(rp_op_cancel(canceled, ERR));
    CHECK_CODE(RP_ERR_CANCELED, rp_op_wait(canceled, -1, ERR));
    CHECK_OK(rp_op_free(canceled, ERR));

    /* Freed while under way. */
    CHECK_OK(rp_op_free(start(s, RP_STORE_GET, "never", -1), ERR));

    rp_store_config config = {sizeof config, "127.0.0.1", port};
    rp_op dial;
    CHECK_OK(rp_store_connect_start(&config, 5000, &dial, ERR));
    CHECK_OK(rp_op_wait(dial, -1, ERR));
    CHECK_OK(rp_op_result(dial, &result, ERR));
    CHECK_OK(rp_op_free(dial, ERR));
    int64_t keys;
    CHECK_OK(rp_store_num_keys(result.store, 5000, &keys, ERR));
    CHECK_OK(rp_store_close(result.store, ERR));
    /* A store that is never taken is closed with the operation. */
    CHECK_OK(rp_store_connect_start(&config, 5000, &dial, ERR));
    CHECK_OK(rp_op_wait(dial, -1, ERR));
    CHECK_OK(rp_op_free(dial, ERR));
}

static void *cancel_later(void *op) {
    await_main();
    CHECK_OK(rp_op_cancel(*(rp_op *)op, ERR));
    return NULL;
}

static void *close_later(void *store) {
    await_main();
    CHECK_OK(rp_store_close(*(rp_store *)store, ERR));
    return NULL;
}

/* What another thread does ends a call that waits without a limit. */
static void other_threads(int32_t port) {
    rp_store s = connect_to(port);
    rp_op op = start(s, RP_STORE_GET, "never", -1);
    pthread_t thread = start_thread(cancel_later, &op);
    CHECK_CODE(RP_ERR_CANCELED, rp_op_wait(op, -1, ERR));
    join_thread(thread);
    CHECK_OK(rp_op_free(op, ERR));

    rp_buffer value;
    thread = start_thread(close_later, &s);
    CHECK_CODE(RP_ERR_CANCELED, rp_store_get(s, "never", RP_TEXT, -1, &value, ERR));
    join_thread(thread);
    CHECK_CODE(RP_ERR_HANDLE, rp_store_get(s, "never", RP_TEXT, -1, &value, ERR));
}

struct hammer {
    rp_store store;
    pthread_t thread;
};

static void *hammer(void *argument) {
    rp_store s = ((struct hammer *)argument)->store;
    for (int i = 0; i < 200; i++) {
        int64_t sum;
        CHECK_OK(rp_store_add(s, "count", 5, 1, 10000, &sum, ERR));
    }
    return NULL;
}

static void many_threads(rp_store s) {
    struct hammer all[16];
    for (int i = 0; i < 16; i++) {
        all[i].store = s;
        all[i].thread = start_thread(hammer, &all[i]);
    }
    for (int i = 0; i < 16; i++) {
        join_thread(all[i].thread);
    }
    int64_t sum;
    CHECK_OK(rp_store_add(s, "count", 5, 0, 10000, &sum, ERR));
    CHECK_INT(16 * 200, sum);
}

int main(void) {
    int32_t port;
    rp_store_server server = start_server(&port);
    rp_store store = connect_to(port);
    const struct traits traits = {.queues = 1};
    operations(store, traits);
    operations_in_background(store, traits);
    background(store, port);
    other_threads(port);
    many_threads(store);
    CHECK_OK(rp_store_server_stop(server, ERR));
    CHECK_CODE(RP_ERR_TIMEOUT, rp_store_set(store, "k", 1, "v", 1, 200, ERR));
    CHECK_CONTAINS(last_error.message, "127.0.0.1");
    CHECK_OK(rp_store_close(store, ERR));
    CHECK_INT(0, handles_open());
    return 0;
}
