/* Stores in an etcd, and the server that the library starts. */
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "etcd.h"
#include "operations.h"

/* What needs no etcd: arguments, an etcd that is not there, one that is none. */
static void faults(void) {
    rp_store_etcd_config config = {.struct_size = sizeof config};
    rp_store store = {77};
    const char *bad[] = {NULL,
                         "",
                         "http://127.0.0.1",
                         "etcd://",
                         "etcd://127.0.0.1:0",
                         "etcd://127.0.0.1/run",
                         "etcd://127.0.0.1?ttl=5",
                         "etcd://\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        config.endpoint = bad[i];
        CHECK_CODE(RP_ERR_INVALID, rp_store_open_etcd(&config, 1000, &store, ERR));
    }
    config.endpoint = "etcd://127.0.0.1:1";
    rp_option options[] = {{"protocol", "gopher"}};
    config.options = options;
    config.options_len = 1;
    CHECK_CODE(RP_ERR_INVALID, rp_store_open_etcd(&config, 1000, &store, ERR));
    options[0] = (rp_option){"ca_cert", "/nonexistent/ca.pem"};
    config.endpoint = "etcds://127.0.0.1:1";
    CHECK_CODE(RP_ERR_INVALID, rp_store_open_etcd(&config, 1000, &store, ERR));
    CHECK_CONTAINS(last_error.message, "/nonexistent/ca.pem");

    /* Nothing listens. */
    config =
        (rp_store_etcd_config){.struct_size = sizeof config, .endpoint = "etcd://127.0.0.1:1"};
    CHECK_CODE(RP_ERR_CONNECTION, rp_store_open_etcd(&config, 50, &store, ERR));
    CHECK_CONTAINS(last_error.message, "127.0.0.1:1");
    CHECK_INT(77, store.id);
    rp_op op;
    rp_store_result result = {.struct_size = sizeof result};
    CHECK_OK(rp_store_open_etcd_start(&config, 50, &op, ERR));
    await_op(op);
    CHECK_CODE(RP_ERR_CONNECTION, rp_op_result(op, &result, ERR));
    CHECK_OK(rp_op_free(op, ERR));
    CHECK_OK(rp_store_open_etcd_start(&config, -1, &op, ERR));
    CHECK_OK(rp_op_cancel(op, ERR));
    await_op(op);
    CHECK_CODE(RP_ERR_CANCELED, rp_op_wait(op, 0, ERR));
    CHECK_OK(rp_op_free(op, ERR));

    /* Servers that are none. */
    rp_etcd_server_config bad_server = {
        .struct_size = sizeof bad_server, .binary = "/bin/false", .output_fd = -1};
    rp_etcd_server server;
    int32_t port = -1;
    CHECK_OK(rp_etcd_server_start(&bad_server, 10000, &server, ERR));
    CHECK_CODE(RP_ERR_CONNECTION, rp_etcd_server_ready(server, -1, &port, ERR));
    CHECK_INT(-1, port);
    CHECK_OK(rp_etcd_server_stop(server, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_etcd_server_stop(server, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_etcd_server_ready(server, 0, &port, ERR));
    bad_server.binary = "/nonexistent/etcd";
    CHECK_OK(rp_etcd_server_start(&bad_server, 10000, &server, ERR));
    CHECK(rp_etcd_server_ready(server, -1, &port, ERR) > RP_PENDING);
    CHECK_CONTAINS(last_error.message, "/nonexistent/etcd");
    CHECK_OK(rp_etcd_server_stop(server, ERR));
    bad_server.output_fd = 1 << 20;
    CHECK_CODE(RP_ERR_INVALID, rp_etcd_server_start(&bad_server, 10000, &server, ERR));
    bad_server.output_fd = -1;
    bad_server.retries = -1;
    CHECK_CODE(RP_ERR_INVALID, rp_etcd_server_start(&bad_server, 10000, &server, ERR));
}

static void *close_later(void *store) {
    await_main();
    CHECK_OK(rp_store_close(*(rp_store *)store, ERR));
    return NULL;
}

static void stores(int32_t port) {
    const struct traits traits = {.queues = 0};
    rp_store one = open_etcd(port, NULL);
    operations(one, traits);
    rp_store two = open_etcd(port, "/rallypoint/store");
    operations_in_background(two, (struct traits){.queues = 0});
    rp_buffer value;
    int64_t number;
    /* Two with one prefix are one store, others are others. */
    CHECK_OK(rp_store_set(one, "k", 1, "v", 1, 5000, ERR));
    CHECK_OK(rp_store_get(two, "k", 1, 5000, &value, ERR));
    CHECK_BUFFER("v", value);
    rp_buffer_free(&value);
    rp_store other = open_etcd(port, "/other/");
    CHECK_OK(rp_store_num_keys(other, 5000, &number, ERR));
    CHECK_INT(0, number);
    CHECK_CODE(RP_ERR_NUMBER, rp_store_add(one, "k", 1, 1, 5000, &number, ERR));
    size_t size = 3 << 20;
    char *huge = calloc(1, size);
    CHECK(huge != NULL);
    CHECK_CODE(RP_ERR_TOO_LARGE, rp_store_set(one, "huge", 4, huge, size, 5000, ERR));
    free(huge);
    CHECK_OK(rp_store_close(two, ERR));
    CHECK_OK(rp_store_close(other, ERR));

    /* Opened in the background; one that is never taken is closed with its operation. */
    char endpoint[64];
    snprintf(endpoint, sizeof endpoint, "etcd://127.0.0.1:%d", port);
    rp_store_etcd_config config = {.struct_size = sizeof config, .endpoint = endpoint};
    rp_store_result result = {.struct_size = sizeof result};
    rp_op op;
    CHECK_OK(rp_store_open_etcd_start(&config, 20000, &op, ERR));
    await_op(op);
    CHECK_OK(rp_op_result(op, &result, ERR));
    CHECK_OK(rp_op_free(op, ERR));
    CHECK_OK(rp_store_get(result.store, "k", 1, 5000, &value, ERR));
    rp_buffer_free(&value);
    CHECK_OK(rp_store_close(result.store, ERR));
    CHECK_OK(rp_store_open_etcd_start(&config, 20000, &op, ERR));
    await_op(op);
    CHECK_OK(rp_op_free(op, ERR));

    /* Closing ends what waits. */
    pthread_t thread = start_thread(close_later, &one);
    CHECK_CODE(RP_ERR_CANCELED, rp_store_get(one, "never", RP_TEXT, -1, &value, ERR));
    join_thread(thread);
    CHECK_CODE(RP_ERR_HANDLE, rp_store_get(one, "k", 1, 1000, &value, ERR));
}

static void *join(void *argument) {
    rp_outcome *outcome = calloc(1, sizeof *outcome);
    CHECK(outcome != NULL);
    outcome->struct_size = sizeof *outcome;
    CHECK_OK(rp_member_next(*(rp_member *)argument, -1, outcome, ERR));
    return outcome;
}

static void members(int32_t port) {
    char endpoint[64];
    rp_option options[] = {{"join_timeout", "30"}, {"advertise_addr", "127.0.0.1"}};
    rp_member_config config = {.struct_size = sizeof config,
                               .run_id = "run",
                               .endpoint = endpoint,
                               .min_nodes = 2,
                               .max_nodes = 2,
                               .options = options,
                               .options_len = 2};
    rp_member member[2];
    rp_outcome *outcome[2];
    pthread_t threads[2];
    snprintf(endpoint, sizeof endpoint, "etcd://127.0.0.1:%d", port);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(rp_member_open(&config, &member[i], ERR));
        threads[i] = start_thread(join, &member[i]);
    }
    for (int i = 0; i < 2; i++) {
        CHECK_INT(0, pthread_join(threads[i], (void **)&outcome[i]));
        CHECK_INT(2, outcome[i]->world_size);
    }
    CHECK_INT(1, outcome[0]->rank + outcome[1]->rank);
    for (int i = 0; i < 2; i++) {
        CHECK_OK(rp_member_close(member[i], ERR));
        free(outcome[i]);
    }
}

int main(void) {
    faults();
    const char *binary = etcd_binary();
    if (binary == NULL) {
        printf("skipped: stores in a real etcd; RALLYPOINT_TEST_ETCD names none (make etcd)\n");
    } else {
        int32_t port;
        rp_etcd_server server = start_etcd(binary, &port);
        stores(port);
        members(port);
        CHECK_OK(rp_etcd_server_stop(server, ERR));
        /* It is gone. */
        char endpoint[64];
        rp_store_etcd_config config = {.struct_size = sizeof config, .endpoint = endpoint};
        rp_store store;
        snprintf(endpoint, sizeof endpoint, "etcd://127.0.0.1:%d", port);
        CHECK_CODE(RP_ERR_CONNECTION, rp_store_open_etcd(&config, 50, &store, ERR));
    }
    CHECK_INT(0, handles_open());
    return 0;
}
