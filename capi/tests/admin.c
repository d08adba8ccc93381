/* What a program asks a run for from outside. */
#include <arpa/inet.h>
#include <sys/socket.h>

#include "check.h"

static char endpoint[32];

static int32_t ask(const rp_admin_request *request, rp_store_result *result) {
    rp_op op = {0};
    int32_t code = rp_admin_start(request, 30000, &op, ERR);
    if (code != RP_OK) {
        return code;
    }
    code = rp_op_wait(op, -1, ERR);
    if (code == RP_OK) {
        CHECK_OK(rp_op_result(op, result, ERR));
    }
    CHECK(rp_op_free(op, NULL) == RP_OK);
    return code;
}

static void expect_done(const rp_admin_request *request, const char *part) {
    rp_store_result result = {.struct_size = sizeof result};
    int gives = request->action <= RP_ADMIN_STOP;
    CHECK_OK(ask(request, &result));
    CHECK_CONTAINS((char *)result.value.data, part);
    CHECK_INT(gives, (int)result.list.len);
    if (gives) { /* the text names it, too */
        CHECK_CONTAINS((char *)result.value.data, (char *)result.list.items[0].data);
    }
    rp_store_result_free(&result);
}

static void expect_refused(const rp_admin_request *request, const char *part) {
    rp_store_result result = {.struct_size = sizeof result};
    CHECK_CODE(RP_ERR_INVALID, ask(request, &result));
    CHECK_CONTAINS(last_error.message, part);
}

/* What no run could be asked for is refused at once. */
static void malformed(const rp_admin_request *good) {
    const char *two[] = {"n0", "n1"};
    rp_admin_request request = *good;
    rp_op op = {0};
    CHECK_CODE(RP_ERR_INVALID, rp_admin_start(NULL, -1, &op, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_admin_start(good, -1, NULL, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_admin_start(good, -2, &op, ERR));
    request.struct_size = 8;
    CHECK_CODE(RP_ERR_INVALID, rp_admin_start(&request, -1, &op, ERR));
    request = *good;
    request.action = 15;
    expect_refused(&request, "action is 15, which is none");
    request.action = RP_ADMIN_EVICT;
    expect_refused(&request, "there are 0 nodes, it must be one");
    request.nodes = two;
    request.nodes_len = 2;
    expect_refused(&request, "there are 2 nodes, it must be one");
    request = *good;
    request.nodes_len = 1;
    expect_refused(&request, "nodes is NULL");
    request = *good;
    request.endpoint = NULL;
    expect_refused(&request, "ENDPOINT is empty");
    request = *good;
    request.token_file = "/nowhere/token";
    CHECK_CODE(RP_ERR_INVALID, rp_admin_start(&request, -1, &op, ERR));
    CHECK_CONTAINS(last_error.message, "/nowhere/token");
}

/* A request that is cancelled, in whatever it waits for, says so. */
static void cancelled(const rp_admin_request *good) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    char silent[32];
    rp_admin_request request = *good;
    rp_op op = {0};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    CHECK(fd >= 0);
    CHECK_INT(0, bind(fd, (struct sockaddr *)&address, size));
    CHECK_INT(0, listen(fd, 8));
    CHECK_INT(0, getsockname(fd, (struct sockaddr *)&address, &size));
    snprintf(silent, sizeof silent, "127.0.0.1:%d", ntohs(address.sin_port));
    request.endpoint = silent;
    CHECK_OK(rp_admin_start(&request, -1, &op, ERR));
    CHECK_CODE(RP_PENDING, rp_op_wait(op, 20, ERR));
    CHECK_OK(rp_op_cancel(op, ERR));
    CHECK_CODE(RP_ERR_CANCELED, rp_op_wait(op, -1, ERR));
    CHECK_CONTAINS(last_error.message, silent);
    CHECK(rp_op_free(op, NULL) == RP_OK);
    CHECK_OK(rp_admin_start(&request, -1, &op, ERR));
    CHECK(rp_op_free(op, NULL) == RP_OK); /* which cancels */
    CHECK_INT(0, close(fd));
}

static void directives(const rp_admin_request *good) {
    const char *nodes[] = {"n0"};
    rp_admin_request request = *good;
    request.within_ms = 60000;
    request.directive = "mine";
    expect_done(&request, "directive mine");
    request.action = RP_ADMIN_CANCEL;
    expect_done(&request, "is canceled");
    request = *good;
    request.within_ms = 60000; /* and no id */
    expect_done(&request, "its workers save, within 1m0s");
    request = *good;
    request.within_ms = -1;
    expect_refused(&request, "the deadline is in -1ms");
    request.within_ms = INT64_MIN;
    expect_refused(&request, "the deadline is in -");
    request.within_ms = INT64_MAX;
    expect_refused(&request, "it must be between 0 and");
    request = *good;
    request.action = RP_ADMIN_SCALE;
    request.target = 2;
    expect_refused(&request, "at most 1 node");
    request = *good;
    request.action = RP_ADMIN_UNDRAIN;
    request.nodes = nodes;
    request.nodes_len = 1;
    expect_refused(&request, "is not drained");
    request = *good;
    request.run_id = "other";
    request.within_ms = 1000;
    expect_refused(&request, "other");
    request = *good;
    request.action = RP_ADMIN_STOP;
    expect_done(&request, "it ends, to be queued again");
}

/* A job that was closed by hand stays closed when its node is gone, until it is forgotten. */
static void forgotten(const rp_admin_request *good, rp_member_config config, rp_member member) {
    char directory[] = "/tmp/rp-admin-XXXXXX", place[64], command[64];
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_admin_request request = *good;
    request.action = RP_ADMIN_FORGET;
    expect_refused(&request, "nodes of it are alive");
    CHECK_OK(rp_member_close(member, ERR));
    CHECK(mkdtemp(directory) != NULL);
    snprintf(place, sizeof place, "file://%s", directory);
    config.endpoint = request.endpoint = place;
    CHECK_OK(rp_member_open(&config, &member, ERR));
    CHECK_OK(rp_member_next(member, -1, &outcome, ERR));
    request.action = RP_ADMIN_CLOSE;
    expect_done(&request, "is closed");
    CHECK_OK(rp_member_close(member, ERR));
    CHECK_OK(rp_member_open(&config, &member, ERR));
    CHECK_CODE(RP_ERR_CLOSED, rp_member_next(member, -1, &outcome, ERR));
    CHECK_CONTAINS(last_error.message, "admin forget");
    CHECK_OK(rp_member_close(member, ERR));
    request.action = RP_ADMIN_FORGET;
    expect_done(&request, "begins it again");
    CHECK_OK(rp_member_open(&config, &member, ERR));
    CHECK_OK(rp_member_next(member, -1, &outcome, ERR));
    CHECK_OK(rp_member_close(member, ERR));
    snprintf(command, sizeof command, "rm -r %s", directory);
    CHECK_INT(0, system(command));
}

int main(void) {
    rp_option options[] = {{"last_call_timeout", "0.1"}, {"node_id", "n0"}};
    rp_member_config config = {.struct_size = sizeof config,
                               .run_id = "run",
                               .endpoint = endpoint,
                               .min_nodes = 1,
                               .max_nodes = 1,
                               .options = options,
                               .options_len = 2};
    rp_admin_request good = {.struct_size = sizeof good,
                             .endpoint = endpoint,
                             .run_id = "run",
                             .reason = "why",
                             .by = "carol",
                             .action = RP_ADMIN_SAVE};
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_member member = {0};
    own_endpoint(endpoint, sizeof endpoint);
    CHECK_CODE(RP_ERR_CONNECTION, ask(&good, NULL));
    cancelled(&good);
    CHECK_OK(rp_member_open(&config, &member, ERR));
    CHECK_OK(rp_member_next(member, -1, &outcome, ERR));
    malformed(&good);
    directives(&good);
    forgotten(&good, config, member);
    CHECK_INT(0, handles_open());
    return 0;
}
