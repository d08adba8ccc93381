/* Members that meet in a value of the program's own. */
#include "check.h"

/* A value in memory; its token is its version. */
typedef struct value {
    pthread_mutex_t mu;
    char *state;
    size_t len;
    int64_t version;
    int users; /* members that have not given it back */
    int32_t fail;
    int silent;
} value;

static int32_t get(void *user, rp_backend_reply *reply, rp_error *err) {
    value *v = user;
    int32_t code = v->fail;
    (void)err;
    pthread_mutex_lock(&v->mu);
    if (code != RP_OK) {
        err->code = code;
        snprintf(err->message, sizeof err->message, "the value has failed");
    } else if (!v->silent) {
        CHECK_OK(
            rp_backend_answer(reply, v->state, v->len, &v->version, sizeof v->version, 0, ERR));
    }
    pthread_mutex_unlock(&v->mu);
    return code;
}

static int32_t set(void *user, const void *state, size_t state_len, const void *token,
                   size_t token_len, rp_backend_reply *reply, rp_error *err) {
    value *v = user;
    int current;
    (void)err;
    pthread_mutex_lock(&v->mu);
    current = v->state == NULL ? token == NULL
                               : token != NULL && token_len == sizeof v->version &&
                                     memcmp(token, &v->version, token_len) == 0;
    if (current) {
        free(v->state);
        v->state = malloc(state_len);
        CHECK(v->state != NULL);
        memcpy(v->state, state, state_len);
        v->len = state_len;
        v->version++;
    }
    CHECK_OK(rp_backend_answer(reply, v->state, v->len, &v->version, sizeof v->version, current,
                               ERR));
    pthread_mutex_unlock(&v->mu);
    return RP_OK;
}

static void release(void *user) {
    value *v = user;
    pthread_mutex_lock(&v->mu);
    v->users--;
    pthread_mutex_unlock(&v->mu);
}

static value shared = {.mu = PTHREAD_MUTEX_INITIALIZER};

static rp_member open_member(int32_t nodes) {
    rp_option options[] = {{"join_timeout", "20"}, {"advertise_addr", "127.0.0.1"}};
    rp_member_config config = {.struct_size = sizeof config,
                               .run_id = "run",
                               .min_nodes = nodes,
                               .max_nodes = nodes,
                               .options = options,
                               .options_len = 2};
    rp_backend backend = {sizeof backend, &shared, get, set, release};
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
    rp_backend backend = {sizeof backend, &shared, get, NULL, release};
    rp_backend_reply reply = {.struct_size = sizeof reply};
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_member member = {0};
    CHECK_CODE(RP_ERR_INVALID, rp_member_open_backend(&config, NULL, &member, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_member_open_backend(&config, &backend, &member, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_backend_answer(&reply, NULL, 1, NULL, 0, 0, ERR));
    backend.set = set;
    config.max_nodes = 0;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open_backend(&config, &backend, &member, ERR));
    CHECK_INT(0, shared.users);

    member = open_member(1);
    shared.fail = RP_ERR_STATE;
    CHECK_CODE(RP_ERR_STATE, rp_member_next(member, -1, &outcome, ERR));
    CHECK_CONTAINS(last_error.message, "the value has failed");
    CHECK_OK(rp_member_close(member, ERR));
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
