/* Members: configuration, two that meet, cancelling, closing, the nodes' own store. */
#include <poll.h>
#include <stddef.h>

#include "check.h"

static char endpoint[32];

static rp_member open_node(int32_t min, int32_t max, const char *join_timeout,
                           const char *is_host) {
    rp_option options[] = {
        {"join_timeout", join_timeout}, {"last_call_timeout", "0.1"}, {"is_host", is_host}};
    rp_member_config config = {.struct_size = sizeof config,
                               .run_id = "run",
                               .endpoint = endpoint,
                               .min_nodes = min,
                               .max_nodes = max,
                               .options = options,
                               .options_len = is_host != NULL ? 3 : 2};
    rp_member member = {0};
    CHECK_OK(rp_member_open(&config, &member, ERR));
    CHECK(member.id != 0);
    return member;
}

static rp_member open_member(int32_t min, int32_t max, const char *join_timeout) {
    return open_node(min, max, join_timeout, NULL);
}

static void configuration(void) {
    rp_member member;
    rp_option options[2] = {{"lease_timeout", "abc"}, {"x", "y"}};
    rp_member_config good = {.struct_size = sizeof good,
                             .run_id = "run",
                             .endpoint = "127.0.0.1",
                             .min_nodes = 1,
                             .max_nodes = 2};
    rp_member_config config = good;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(NULL, &member, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, NULL, ERR));
    config.run_id = NULL;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));
    CHECK_CONTAINS(last_error.message, "run id");
    config.run_id = "\xc3(";
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));
    CHECK_CONTAINS(last_error.message, "UTF-8");
    config = good;
    config.min_nodes = 3;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));
    CHECK_CONTAINS(last_error.message, "3");
    config = good;
    config.endpoint = "host:99999";
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));
    CHECK_CONTAINS(last_error.message, "host:99999");
    config = good;
    config.options = options;
    config.options_len = 1;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));
    CHECK_CONTAINS(last_error.message, "lease_timeout");
    CHECK_CONTAINS(last_error.message, "abc");
    options[0].value = NULL;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));
    config.options = NULL;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));
    config = good;
    config.flags = 2;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));

    /* Option backend says what the endpoint is. */
    rp_option backend = {"backend", "zookeeper"};
    config = good;
    config.options = &backend;
    config.options_len = 1;
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));
    CHECK_CONTAINS(last_error.message, "zookeeper");
    backend.value = "rallypoint-file";
    CHECK_CODE(RP_ERR_INVALID, rp_member_open(&config, &member, ERR));
    CHECK_CONTAINS(last_error.message, "rallypoint-file");
    config.endpoint = "/shared";
    CHECK_OK(rp_member_open(&config, &member, ERR));
    CHECK_OK(rp_member_close(member, ERR));

    /* An unknown option is a warning, in the log. */
    static rp_log_record record = {.struct_size = sizeof(rp_log_record)};
    while (rp_log_next(&record, ERR) == RP_OK) {
    }
    config = good;
    config.options = &options[1];
    config.options_len = 1;
    config.flags = RP_MEMBER_ENVIRONMENT;
    CHECK_OK(rp_member_open(&config, &member, ERR));
    CHECK_OK(rp_log_next(&record, ERR));
    CHECK_INT(RP_LOG_WARNING, record.level);
    CHECK_CONTAINS(record.text, "\"x\"");
    CHECK_OK(rp_member_close(member, ERR));
}

struct joining {
    rp_member member;
    rp_outcome outcome;
    rp_error error;
    int32_t code;
};

/* Joins in slices, as a binding would. */
static void *join(void *argument) {
    struct joining *j = argument;
    j->outcome.struct_size = sizeof j->outcome;
    j->error.struct_size = sizeof j->error;
    do {
        j->code = rp_member_next(j->member, 20, &j->outcome, &j->error);
    } while (j->code == RP_PENDING);
    return NULL;
}

static void the_store_of_nodes(struct joining *nodes) {
    rp_store keys[2];
    rp_buffer value;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(rp_member_keys(nodes[i].member, nodes[i].outcome.round, &keys[i], ERR));
    }
    CHECK_OK(rp_store_set(keys[0], "k", 1, "v", 1, 5000, ERR));
    CHECK_OK(rp_store_get(keys[1], "k", 1, 5000, &value, ERR));
    CHECK_BUFFER("v", value);
    rp_buffer_free(&value);
    int64_t sum;
    CHECK_CODE(RP_ERR_NUMBER, rp_store_add(keys[0], "k", 1, 1, 5000, &sum, ERR));
    CHECK_CODE(RP_ERR_TIMEOUT, rp_store_get(keys[0], "never", 5, 30, &value, ERR));
    CHECK_OK(rp_store_close(keys[0], ERR));
    CHECK_OK(rp_store_close(keys[1], ERR));
}

static void *shut_down(void *member) {
    CHECK_OK(rp_member_shutdown(*(rp_member *)member, RP_END_SUCCESS, "done", -1, ERR));
    CHECK_OK(rp_member_close(*(rp_member *)member, ERR));
    return NULL;
}

static void meeting(void) {
    struct joining nodes[2];
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        nodes[i].member = open_member(2, 2, "30");
        threads[i] = start_thread(join, &nodes[i]);
    }
    for (int i = 0; i < 2; i++) {
        join_thread(threads[i]);
        if (nodes[i].code != RP_OK) {
            FAIL("%s", nodes[i].error.message);
        }
        CHECK_INT(1, nodes[i].outcome.round);
        CHECK_INT(2, nodes[i].outcome.world_size);
    }
    CHECK_INT(1, nodes[0].outcome.rank + nodes[1].outcome.rank);
    CHECK_INT(nodes[0].outcome.store_port, nodes[1].outcome.store_port);
    CHECK(strcmp(nodes[0].outcome.store_addr, nodes[1].outcome.store_addr) == 0);
    CHECK(strcmp(nodes[0].outcome.advertised_addr, nodes[0].outcome.store_addr) == 0);

    /* The round's store speaks TCPStore. */
    rp_store_config config = {sizeof config, nodes[0].outcome.store_addr,
                              nodes[0].outcome.store_port};
    rp_store store;
    int64_t sum;
    CHECK_OK(rp_store_connect(&config, 5000, &store, ERR));
    CHECK_OK(rp_store_add(store, "k", 1, 7, 5000, &sum, ERR));
    CHECK_OK(rp_store_close(store, ERR));
    the_store_of_nodes(nodes);

    int32_t number = -1;
    CHECK_OK(rp_member_nodes_waiting(nodes[0].member, &number, ERR));
    CHECK_INT(0, number);
    CHECK_OK(rp_member_is_closed(nodes[0].member, &number, ERR));
    CHECK_INT(0, number);
    CHECK_OK(rp_member_set_closed(nodes[0].member, "enough", -1, ERR));
    CHECK_OK(rp_member_is_closed(nodes[0].member, &number, ERR));
    CHECK_INT(1, number);

    /* Closing tells the others: wait until it has arrived, then who did it. */
    int64_t end = now_ms() + 60000;
    do {
        CHECK(now_ms() < end);
        CHECK_OK(rp_member_is_closed(nodes[1].member, &number, ERR));
    } while (!number);
    char text[1024];
    size_t size = 0;
    CHECK_CODE(RP_ERR_BUFFER, rp_member_reason(nodes[1].member, NULL, &size, ERR));
    CHECK(size > 1 && size <= sizeof text);
    size_t needed = size--;
    CHECK_CODE(RP_ERR_BUFFER, rp_member_reason(nodes[1].member, text, &size, ERR));
    CHECK_INT(needed, size);
    CHECK_OK(rp_member_reason(nodes[1].member, text, &size, ERR));
    CHECK_INT(size, strlen(text) + 1);
    CHECK_CONTAINS(text, "enough");

    /* Who hosts what the other one needs waits for it. */
    for (int i = 0; i < 2; i++) {
        threads[i] = start_thread(shut_down, &nodes[i].member);
    }
    for (int i = 0; i < 2; i++) {
        join_thread(threads[i]);
    }
}

static void await_event(rp_member member) {
    struct pollfd p = {.events = POLLIN};
    CHECK_OK(rp_member_fd(member, &p.fd, ERR));
    CHECK_INT(1, poll_one(&p, 10000));
    CHECK_OK(rp_member_wait(member, 0, ERR));
}

/* Joins as an event loop would: no call waits but poll. */
static void join_by_events(rp_member *members, rp_outcome *outcomes, int n) {
    for (int missing = n; missing > 0;) {
        missing = 0;
        for (int i = 0; i < n; i++) {
            if (outcomes[i].world_size == 0) {
                int32_t code = rp_member_next(members[i], 0, &outcomes[i], ERR);
                CHECK(code == RP_OK || code == RP_PENDING);
                missing += code == RP_PENDING;
            }
        }
        for (int i = 0; i < n; i++) {
            if (outcomes[i].world_size == 0) {
                await_event(members[i]);
                break;
            }
        }
    }
}

/* A program that was built when rp_outcome ended with store_addr. */
static void an_outcome_of_the_first_version(void) {
    rp_member alone = open_member(1, 1, "30");
    rp_outcome outcome = {.struct_size = offsetof(rp_outcome, advertised_addr)};
    memset(outcome.advertised_addr, 'x', sizeof outcome.advertised_addr);
    CHECK_OK(rp_member_next(alone, 10000, &outcome, ERR));
    CHECK_INT('x', outcome.advertised_addr[0]);
    CHECK(outcome.store_addr[0] != 0);
    outcome.struct_size--;
    CHECK_CODE(RP_ERR_INVALID, rp_member_next(alone, 0, &outcome, ERR));
    CHECK_OK(rp_member_close(alone, ERR));
}

/* Three nodes, one of them lost, in one thread. */
static void events(void) {
    rp_member members[3];
    rp_outcome outcomes[3];
    int32_t waiting;
    for (int i = 0; i < 3; i++) {
        members[i] = open_node(2, 3, "30", i == 0 ? NULL : "0");
        outcomes[i] = (rp_outcome){.struct_size = sizeof outcomes[i]};
    }
    join_by_events(members, outcomes, 3);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(3, outcomes[i].world_size);
        while (rp_member_wait(members[i], 20, ERR) == RP_OK) {
        }
    }
    CHECK_OK(rp_member_close(members[2], ERR));
    for (int i = 0; i < 2; i++) {
        do {
            await_event(members[i]);
            CHECK_OK(rp_member_nodes_waiting(members[i], &waiting, ERR));
        } while (waiting == 0);
        outcomes[i] = (rp_outcome){.struct_size = sizeof outcomes[i]};
    }
    join_by_events(members, outcomes, 2);
    CHECK_INT(2, outcomes[0].world_size);
    CHECK(outcomes[0].round > 1);
    for (int i = 0; i < 2; i++) {
        int32_t code;
        while ((code = rp_member_finish(members[i], 0, ERR)) == RP_PENDING) {
            await_event(members[i]);
        }
        CHECK_INT(RP_OK, code);
    }
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        threads[i] = start_thread(shut_down, &members[i]);
    }
    for (int i = 0; i < 2; i++) {
        join_thread(threads[i]);
    }
}

static void *wait_for_event(void *member) {
    rp_error err = {.struct_size = sizeof err};
    return (void *)(intptr_t)rp_member_wait(*(rp_member *)member, -1, &err);
}

/* What ends a wait for an event. */
static void ends_of_waiting(void) {
    rp_member member = open_member(1, 1, "30");
    void *code;
    pthread_t thread = start_thread(wait_for_event, &member);
    CHECK_OK(rp_member_cancel(member, ERR));
    CHECK_INT(0, pthread_join(thread, &code));
    CHECK_INT(RP_OK, (intptr_t)code);
    /* However far the thread has come: it waits, or finds the member closed. */
    thread = start_thread(wait_for_event, &member);
    CHECK_OK(rp_member_close(member, ERR));
    CHECK_INT(0, pthread_join(thread, &code));
    CHECK((intptr_t)code == RP_ERR_CANCELED || (intptr_t)code == RP_ERR_HANDLE);
    CHECK_CODE(RP_ERR_HANDLE, rp_member_wait(member, 0, ERR));
}

static void *cancel_later(void *member) {
    await_main();
    CHECK_OK(rp_member_cancel(*(rp_member *)member, ERR));
    return NULL;
}

static void *close_later(void *member) {
    await_main();
    CHECK_OK(rp_member_close(*(rp_member *)member, ERR));
    return NULL;
}

static void cancelling(void) {
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_member member = open_member(2, 2, "30");
    CHECK_OK(rp_member_cancel(member, ERR)); /* nothing to cancel */
    CHECK_CODE(RP_PENDING, rp_member_next(member, 0, &outcome, ERR));
    pthread_t thread = start_thread(cancel_later, &member);
    CHECK_CODE(RP_ERR_CANCELED, rp_member_next(member, -1, &outcome, ERR));
    join_thread(thread);

    thread = start_thread(close_later, &member);
    CHECK_CODE(RP_ERR_CANCELED, rp_member_next(member, -1, &outcome, ERR));
    join_thread(thread);
    CHECK_CODE(RP_ERR_HANDLE, rp_member_next(member, -1, &outcome, ERR));
}

static void timing_out(void) {
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_member member = open_member(2, 3, "0.3");
    CHECK_CODE(RP_ERR_TIMEOUT, rp_member_next(member, -1, &outcome, ERR));
    CHECK_CONTAINS(last_error.message, "0.3 s");
    CHECK_CONTAINS(last_error.message, endpoint);
    CHECK_CONTAINS(last_error.message, "run");
    /* It may be called again, and a member that leaves closes nothing. */
    CHECK_CODE(RP_ERR_TIMEOUT, rp_member_next(member, -1, &outcome, ERR));
    CHECK_OK(rp_member_shutdown(member, RP_END_SUCCESS, NULL, -1, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_member_shutdown(member, 9, NULL, -1, ERR));
    CHECK_OK(rp_member_close(member, ERR));

    member = open_member(1, 1, "30");
    CHECK_OK(rp_member_next(member, -1, &outcome, ERR));
    CHECK_INT(0, outcome.rank);
    CHECK_INT(1, outcome.world_size);
    CHECK_OK(rp_member_shutdown(member, RP_END_FAILED, "a test", -1, ERR));
    CHECK_OK(rp_member_close(member, ERR));
}

int main(void) {
    own_endpoint(endpoint, sizeof endpoint);

    configuration();
    meeting();
    an_outcome_of_the_first_version();
    events();
    ends_of_waiting();
    cancelling();
    timing_out();
    CHECK_INT(0, handles_open());
    return 0;
}
