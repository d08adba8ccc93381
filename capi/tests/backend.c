/* Members that meet in a value of the program's own. */
#include "value.h"

static value shared = {.mu = PTHREAD_MUTEX_INITIALIZER};

static rp_member open_member(int32_t nodes) {
    rp_option options[] = {{"join_timeout", "20"}, {"advertise_addr", "127.0.0.1"}};
    rp_member_config config = {.struct_size = sizeof config,
                               .run_id = "run",
                               .min_nodes = nodes,
                               .max_nodes = nodes,
                               .options = options,
                               .options_len = 2};
    rp_backend backend = value_backend(&shared);
    rp_member member = {0};
    CHECK_OK(rp_member_open_backend(&config, &backend, &member, ERR));
    shared.users++;
    return member;
}

static void *join(void *argument) {
    rp_member *member = argument;
    rp_outcome *outcome = calloc(1, sizeof *outcome);
    outcome->struct_size = sizeof *outcome;
    CHECK_OK(rp_member_next(*member, -1, outcome, ERR));
    return outcome;
}

static void meet(void) {
    rp_member members[3];
    pthread_t threads[3];
    int seen = 0;
    int i;
    for (i = 0; i < 3; i++) {
        members[i] = open_member(3);
        threads[i] = start_thread(join, &members[i]);
    }
    for (i = 0; i < 3; i++) {
        void *result;
        CHECK_INT(0, pthread_join(threads[i], &result));
        CHECK_INT(3, ((rp_outcome *)result)->world_size);
        seen |= 1 << ((rp_outcome *)result)->rank;
        free(result);
    }
    CHECK_INT(7, seen);
    for (i = 0; i < 3; i++) {
        CHECK_OK(rp_member_close(members[i], ERR));
    }
    CHECK_INT(0, shared.users);
}

static void faults(void) {
    rp_member_config config = {
        .struct_size = sizeof config, .run_id = "run", .min_nodes = 1, .max_nodes = 1};
    rp_backend backend = value_backend(&shared);
    rp_backend_reply reply = {.struct_size = sizeof reply};
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_member member = {0};
    const int32_t numbers[] = {RP_PENDING, 11, -1, INT32_MAX};
    size_t i;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open_backend(&config, NULL, &member, ERR));
    backend.set = NULL;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open_backend(&config, &backend, &member, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_backend_answer(&reply, NULL, 1, NULL, 0, 0, ERR));
    backend.set = value_set;
    config.max_nodes = 0;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open_backend(&config, &backend, &member, ERR));
    CHECK_INT(0, shared.users);

    member = open_member(1);
    shared.fail = RP_ERR_STATE;
    CHECK_CODE(RP_ERR_STATE, rp_member_next(member, -1, &outcome, ERR));
    CHECK_CONTAINS(last_error.message, "the value has failed");
    CHECK_OK(rp_member_close(member, ERR));
    shared.fail = RP_OK;

    for (i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        member = open_member(1);
        shared.fail = numbers[i];
        CHECK_CODE(RP_ERR_INVALID, rp_member_next(member, -1, &outcome, ERR));
        CHECK_CONTAINS(last_error.message, "the number of no error");
        CHECK_OK(rp_member_close(member, ERR));
    }
    shared.fail = RP_OK;

    member = open_member(1);
    shared.silent = 1;
    CHECK_CODE(RP_ERR_INVALID, rp_member_next(member, -1, &outcome, ERR));
    CHECK_CONTAINS(last_error.message, "rp_backend_answer");
    CHECK_OK(rp_member_close(member, ERR));
    shared.silent = 0;
    CHECK_INT(0, shared.users);
}

int main(void) {
    meet();
    faults();
    CHECK_INT(0, handles_open());
    free(shared.state);
    return 0;
}
