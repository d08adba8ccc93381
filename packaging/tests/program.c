/* A third party's program: a node of a run of one, with a store. */
#include <rallypoint.h>
#include <stdio.h>
#include <string.h>

static rp_error err = {.struct_size = sizeof(rp_error)};

static int check(int32_t code) {
    if (code != RP_OK) {
        fprintf(stderr, "%s: %s\n", rp_code_name(code), err.message);
    }
    return code == RP_OK;
}

int main(int argc, char **argv) {
    rp_member_config config = {.struct_size = sizeof config,
                               .run_id = "installed",
                               .endpoint = argc > 1 ? argv[1] : "",
                               .min_nodes = 1,
                               .max_nodes = 1};
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_member member;
    rp_store store;
    rp_buffer value;
    if (rp_abi_version() != RP_ABI_VERSION || !check(rp_member_open(&config, &member, &err)) ||
        !check(rp_member_next(member, 30000, &outcome, &err))) {
        return 1;
    }
    rp_store_config address = {sizeof address, outcome.store_addr, outcome.store_port};
    if (!check(rp_store_connect(&address, 10000, &store, &err)) ||
        !check(rp_store_set(store, "key", RP_TEXT, "value", RP_TEXT, 10000, &err)) ||
        !check(rp_store_get(store, "key", RP_TEXT, 10000, &value, &err)) ||
        strcmp(value.data, "value") != 0) {
        return 1;
    }
    rp_buffer_free(&value);
    printf("rank %d of %d, version %s\n", outcome.rank, outcome.world_size, rp_version());
    return check(rp_store_close(store, &err)) &&
                   check(rp_member_shutdown(member, RP_END_SUCCESS, NULL, -1, &err)) &&
                   check(rp_member_close(member, &err))
               ? 0
               : 1;
}
