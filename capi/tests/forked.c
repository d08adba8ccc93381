/* In a child of fork() every function answers at once. */
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"

static void in_child(rp_store store, rp_store_server server, rp_buffer *value) {
    alarm(5);
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_member_config config = {.struct_size = sizeof config};
    rp_member member = {1};
    int64_t number;
    static rp_log_record record = {.struct_size = sizeof(rp_log_record)};
    char *argv[] = {"rallypoint", "--help", NULL};
    CHECK_CODE(RP_ERR_FORKED, rp_store_set(store, "k", 1, "v", 1, -1, ERR));
    CHECK_CONTAINS(last_error.message, "fork");
    CHECK_CODE(RP_ERR_FORKED, rp_store_num_keys(store, -1, &number, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_store_close(store, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_store_server_stop(server, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_member_open(&config, &member, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_member_next(member, -1, &outcome, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_member_close(member, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_handles_open(&number, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_log_next(&record, ERR));
    CHECK_INT(70, rp_main(2, argv));
    /* These need no threads of the library. */
    CHECK_INT(RP_ABI_VERSION, rp_abi_version());
    CHECK(strcmp("FORKED", rp_code_name(RP_ERR_FORKED)) == 0);
    CHECK(rp_version() != NULL);
    rp_buffer_free(value);
}

int main(void) {
    int32_t port;
    rp_store_server server = start_server(&port);
    rp_store store = connect_to(port);
    rp_buffer value;
    CHECK_OK(rp_store_set(store, "k", 1, "v", 1, 5000, ERR));
    CHECK_OK(rp_store_get(store, "k", 1, 5000, &value, ERR));
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            in_child(store, server, &value);
            _exit(0);
        }
        int status;
        CHECK_INT(pid, waitpid(pid, &status, 0));
        CHECK_INT(0, status);
    }
    /* The parent goes on. */
    rp_buffer_free(&value);
    CHECK_OK(rp_store_get(store, "k", 1, 5000, &value, ERR));
    CHECK_BUFFER("v", value);
    rp_buffer_free(&value);
    CHECK_OK(rp_store_close(store, ERR));
    CHECK_OK(rp_store_server_stop(server, ERR));
    return 0;
}
