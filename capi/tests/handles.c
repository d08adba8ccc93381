/* Wrong handles and wrong arguments give their code and never crash. */
#include "check.h"

static void wrong_handles(uint64_t id) {
    rp_store store = {id};
    rp_store_server server = {id};
    rp_op op = {id};
    rp_member member = {id};
    rp_store_request request = {.struct_size = sizeof request, .op = RP_STORE_NUM_KEYS};
    rp_store_result result = {.struct_size = sizeof result};
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_buffer buffer;
    int32_t n32;
    int64_t n64;
    size_t size = 0;
    CHECK_CODE(RP_ERR_HANDLE, rp_store_close(store, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_store_set(store, "k", 1, "v", 1, 1000, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_store_get(store, "k", 1, 1000, &buffer, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_store_num_keys(store, 1000, &n64, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_store_start(store, &request, &op, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_store_server_port(server, &n32, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_store_server_stop(server, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_op_wait(op, 0, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_op_result(op, &result, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_op_cancel(op, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_op_free(op, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_next(member, 0, &outcome, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_cancel(member, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_shutdown(member, RP_END_LEAVE, NULL, 0, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_set_closed(member, NULL, 0, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_nodes_waiting(member, &n32, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_is_closed(member, &n32, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_reason(member, NULL, &size, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_keys(member, 1, &store, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_close(member, ERR));
}

static void wrong_arguments(rp_store store, int32_t port) {
    rp_bytes hole = {NULL, 3};
    rp_bytes keys[1] = {{"k", 1}};
    rp_buffer value;
    rp_op op;
    int64_t sum;
    CHECK_CODE(RP_ERR_INVALID, rp_store_set(store, NULL, 1, "v", 1, 1000, ERR));
    CHECK_CONTAINS(last_error.message, "key");
    CHECK_CODE(RP_ERR_INVALID, rp_store_set(store, "k", 1, NULL, 1, 1000, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_store_set(store, "k", 1, "v", 1, -2, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_store_get(store, "k", 1, 1000, NULL, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_store_add(store, "k", 1, 1, 1000, NULL, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_store_wait(store, NULL, 1, 1000, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_store_wait(store, &hole, 1, 1000, ERR));
    CHECK_CODE(RP_ERR_TOO_LARGE, rp_store_wait(store, keys, (size_t)1 << 40, 1000, ERR));
    CHECK_CODE(RP_ERR_TOO_LARGE, rp_store_set(store, "k", 1, "v", (size_t)1 << 40, 1000, ERR));
    /* TCPStore's protocol says no more than that the server closed the connection. */
    CHECK_OK(rp_store_set(store, "k", 1, "v", 1, 1000, ERR));
    CHECK_CODE(RP_ERR_CONNECTION, rp_store_add(store, "k", 1, 1, 1000, &sum, ERR));
    CHECK_CODE(RP_ERR_TIMEOUT, rp_store_get(store, "missing", RP_TEXT, 20, &value, ERR));
    CHECK_CONTAINS(last_error.message, "missing");

    /* Without an error struct the code still comes. */
    CHECK_INT(RP_ERR_INVALID, rp_store_set(store, NULL, 1, "v", 1, 1000, NULL));
    /* An error struct of an unknown size is not written. */
    rp_error tiny = {.struct_size = 8, .code = 77};
    CHECK_INT(RP_ERR_INVALID, rp_store_set(store, "k", 1, "v", 1, 1000, &tiny));
    CHECK_INT(77, tiny.code);

    /* Structs: NULL, short, longer with zeros (a newer caller), longer with more. */
    struct {
        rp_store_request known;
        int64_t newer;
    } request = {.known = {.struct_size = sizeof request, .op = 99}};
    CHECK_CODE(RP_ERR_INVALID, rp_store_start(store, NULL, &op, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_store_start(store, &request.known, &op, ERR));
    CHECK_CONTAINS(last_error.message, "99");
    request.known.op = RP_STORE_NUM_KEYS;
    request.known.timeout_ms = -2;
    CHECK_CODE(RP_ERR_INVALID, rp_store_start(store, &request.known, &op, ERR));
    request.known.timeout_ms = 1000;
    CHECK_CODE(RP_ERR_INVALID, rp_store_start(store, &request.known, NULL, ERR));
    CHECK_OK(rp_store_start(store, &request.known, &op, ERR));
    CHECK_OK(rp_op_wait(op, -1, ERR));
    CHECK_OK(rp_op_free(op, ERR));
    request.newer = 1;
    CHECK_CODE(RP_ERR_INVALID, rp_store_start(store, &request.known, &op, ERR));
    request.known.struct_size = sizeof(size_t);
    CHECK_CODE(RP_ERR_INVALID, rp_store_start(store, &request.known, &op, ERR));

    rp_store_config config = {sizeof config, "127.0.0.1", 0};
    CHECK_CODE(RP_ERR_INVALID, rp_store_connect(&config, 1000, &store, ERR));
    CHECK_CONTAINS(last_error.message, "port");
    config = (rp_store_config){sizeof config, NULL, port};
    CHECK_CODE(RP_ERR_INVALID, rp_store_connect(&config, 1000, &store, ERR));
    config = (rp_store_config){sizeof config, "\xff", port};
    CHECK_CODE(RP_ERR_INVALID, rp_store_connect(&config, 1000, &store, ERR));
    CHECK_CONTAINS(last_error.message, "UTF-8");
    rp_store_server_config server_config = {sizeof server_config, "127.0.0.1", 65536};
    rp_store_server server;
    CHECK_CODE(RP_ERR_INVALID, rp_store_server_start(&server_config, &server, ERR));
    server_config.port = port;
    CHECK_CODE(RP_ERR_CONNECTION, rp_store_server_start(&server_config, &server, ERR));
    CHECK_CONTAINS(last_error.message, "address already in use");
    CHECK_INT(1, last_error.retryable);
}

/* A long message is cut between two characters. */
static void long_messages(void) {
    enum { N = 4000 };
    static char host[2 * N + 1];
    for (int i = 0; i < N; i++) {
        memcpy(host + 2 * i, "\xc3\xa9", 2);
    }
    rp_store_server_config config = {sizeof config, host, 0};
    rp_store_server server;
    CHECK_INT(RP_ERR_CONNECTION, rp_store_server_start(&config, &server, ERR));
    size_t len = strlen(last_error.message);
    CHECK(len == sizeof last_error.message - 1 || len == sizeof last_error.message - 2);
    CHECK_INT('\xa9', last_error.message[len - 1]);
}

static void frees(void) {
    rp_buffer_free(NULL);
    rp_list_free(NULL);
    rp_store_result_free(NULL);
    rp_buffer buffer = {NULL, 0};
    rp_list list = {NULL, 0};
    rp_buffer_free(&buffer);
    rp_list_free(&list);
}

int main(void) {
    wrong_handles(0);
    wrong_handles(1);
    wrong_handles(UINT64_MAX);

    int32_t port;
    rp_store_server server = start_server(&port);
    rp_store store = connect_to(port);
    CHECK(store.id != server.id);
    /* Handles of another kind. */
    CHECK_CODE(RP_ERR_HANDLE, rp_store_close((rp_store){server.id}, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_member_close((rp_member){store.id}, ERR));
    wrong_arguments(store, port);
    long_messages();
    frees();
    CHECK_OK(rp_store_close(store, ERR));
    /* Closed handles, also after their memory was used again. */
    for (int i = 0; i < 100; i++) {
        rp_store other = connect_to(port);
        CHECK(other.id != store.id);
        CHECK_CODE(RP_ERR_HANDLE, rp_store_close(store, ERR));
        CHECK_OK(rp_store_close(other, ERR));
    }
    wrong_handles(store.id);
    CHECK_OK(rp_store_server_stop(server, ERR));
    wrong_handles(server.id);
    CHECK_INT(0, handles_open());
    return 0;
}
