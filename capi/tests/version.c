/* Versions, names of codes, the log's own functions. */
#include "check.h"

int main(void) {
    CHECK_INT(RP_ABI_VERSION, rp_abi_version());
    CHECK_INT(2, strspn(rp_version(), "0123456789.") > 4 ? 2 : 0);
    CHECK(rp_version() == rp_version());

    CHECK(strcmp("OK", rp_code_name(RP_OK)) == 0);
    CHECK(strcmp("NODE_IN_USE", rp_code_name(RP_ERR_NODE_IN_USE)) == 0);
    CHECK(strcmp("UNKNOWN", rp_code_name(11)) == 0);
    CHECK(strcmp("UNKNOWN", rp_code_name(INT32_MIN)) == 0);

    static rp_log_record record = {.struct_size = sizeof(rp_log_record)};
    CHECK_CODE(RP_PENDING, rp_log_next(&record, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_log_next(NULL, ERR));
    record.struct_size--;
    CHECK_CODE(RP_ERR_INVALID, rp_log_next(&record, ERR));
    record.struct_size++;

    /* A server that is spoken to in another protocol says so in the log. */
    int32_t port;
    rp_store_server server = start_server(&port);
    CHECK_OK(rp_log_set_level(RP_LOG_DEBUG, ERR));
    rp_store store = connect_to(port);
    CHECK_OK(rp_store_close(store, ERR));
    CHECK_OK(rp_store_server_stop(server, ERR));
    while (rp_log_next(&record, ERR) == RP_OK) {
        CHECK(record.level >= RP_LOG_DEBUG && record.level <= RP_LOG_ERROR);
        CHECK(record.time_ms > 1600000000000);
        CHECK_INT(0, record.dropped);
    }
    CHECK_INT(0, handles_open());
    return 0;
}
