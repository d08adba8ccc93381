/* Every operation of a store, the same for every kind: blocking and in the background. */
#ifndef OPERATIONS_H
#define OPERATIONS_H

#include <poll.h>

#include "check.h"

/* What tells one kind of store from another. */
struct traits {
    int queues;     /* it has queues */
    int own_keys;   /* keys of its own, or of others in the store below, that it counts */
    int own_listed; /* and those that it lists */
};

static inline void operations(rp_store s, struct traits traits) {
    rp_buffer value;
    rp_list list;
    int64_t number;
    int32_t flag;
    rp_bytes keys[2] = {{"a", 1}, {"b", RP_TEXT}};
    rp_bytes values[2] = {{"1", 1}, {NULL, 0}};

    CHECK_OK(rp_store_set(s, "a", RP_TEXT, "x\0y", 3, 5000, ERR));
    CHECK_OK(rp_store_get(s, "a", 1, 5000, &value, ERR));
    CHECK_INT(3, value.len);
    CHECK(memcmp(value.data, "x\0y", 4) == 0);
    rp_buffer_free(&value);
    CHECK(value.data == NULL && value.len == 0);

    CHECK_OK(rp_store_check(s, keys, 1, 5000, &flag, ERR));
    CHECK_INT(1, flag);
    CHECK_OK(rp_store_check(s, keys, 2, 5000, &flag, ERR));
    CHECK_INT(0, flag);
    CHECK_OK(rp_store_multi_set(s, keys, values, 2, 5000, ERR));
    CHECK_OK(rp_store_wait(s, keys, 2, 5000, ERR));
    CHECK_OK(rp_store_multi_get(s, keys, 2, 5000, &list, ERR));
    CHECK_INT(2, list.len);
    CHECK_BUFFER("1", list.items[0]);
    CHECK_BUFFER("", list.items[1]);
    rp_list_free(&list);
    CHECK_OK(rp_store_multi_get(s, NULL, 0, 5000, &list, ERR));
    CHECK(list.len == 0 && list.items == NULL);

    CHECK_OK(rp_store_append(s, "a", 1, "23", 2, 5000, ERR));
    CHECK_OK(rp_store_add(s, "a", 1, -3, 5000, &number, ERR));
    CHECK_INT(120, number);
    CHECK_OK(rp_store_compare_set(s, "a", 1, "120", 3, "z", 1, 5000, &value, ERR));
    CHECK_BUFFER("z", value);
    rp_buffer_free(&value);

    CHECK_OK(rp_store_num_keys(s, 5000, &number, ERR));
    CHECK_INT(2 + traits.own_keys, number);
    CHECK_OK(rp_store_list_keys(s, 5000, &list, ERR));
    CHECK_INT(2 + traits.own_listed, list.len);
    rp_list_free(&list);
    CHECK_OK(rp_store_delete(s, "b", 1, 5000, &flag, ERR));
    CHECK_INT(1, flag);
    CHECK_OK(rp_store_delete(s, "b", 1, 5000, &flag, ERR));
    CHECK_INT(0, flag);

    if (!traits.queues) {
        CHECK_CODE(RP_ERR_UNSUPPORTED, rp_store_queue_pop(s, "q", 1, 0, 5000, &value, ERR));
        CHECK_CODE(RP_ERR_UNSUPPORTED, rp_store_queue_push(s, "q", 1, "i", 1, 5000, ERR));
        CHECK_CODE(RP_ERR_UNSUPPORTED, rp_store_queue_len(s, "q", 1, 5000, &number, ERR));
    } else {
        CHECK_CODE(RP_ERR_EMPTY, rp_store_queue_pop(s, "q", 1, 0, 5000, &value, ERR));
        CHECK_CODE(RP_ERR_TIMEOUT, rp_store_queue_pop(s, "q", 1, 1, 30, &value, ERR));
        CHECK_OK(rp_store_queue_push(s, "q", 1, "i", 1, 5000, ERR));
        CHECK_OK(rp_store_queue_len(s, "q", 1, 5000, &number, ERR));
        CHECK_INT(1, number);
        CHECK_OK(rp_store_queue_pop(s, "q", 1, 1, 5000, &value, ERR));
        CHECK_BUFFER("i", value);
        rp_buffer_free(&value);
    }
    CHECK_OK(rp_store_barrier(s, "bar", 3, 1, 5000, ERR));
    CHECK_OK(rp_store_delete(s, "a", 1, 5000, &flag, ERR));
    CHECK_INT(1, flag);
    CHECK_CODE(RP_ERR_TIMEOUT, rp_store_get(s, "a", 1, 20, &value, ERR));
    CHECK_CODE(RP_ERR_TIMEOUT, rp_store_wait(s, keys, 1, 20, ERR));
    CHECK_CODE(RP_ERR_TIMEOUT, rp_store_multi_get(s, keys, 2, 20, &list, ERR));
    CHECK_CODE(RP_ERR_TIMEOUT, rp_store_barrier(s, "bar2", 4, 2, 20, ERR));
}

/* Waits for the end of an operation as an event loop would. */
static inline void await_op(rp_op op) {
    struct pollfd p = {.events = POLLIN};
    CHECK_OK(rp_op_fd(op, &p.fd, ERR));
    CHECK(p.fd > 0);
    CHECK_INT(1, poll_one(&p, 10000));
    CHECK_INT(POLLIN, p.revents);
    CHECK_INT(1, poll_one(&p, 0)); /* and it stays so */
}

/* What rp_op_notify calls: a byte in a pipe, which an event loop would poll. */
static inline void count_end(void *user) {
    CHECK_INT(1, write(((int *)user)[1], "e", 1));
}

/* Waits for `ends` calls of count_end, and sees that there are no more. */
static inline void await_ends(int pipe[2], int ends) {
    char c;
    struct pollfd p = {.fd = pipe[0], .events = POLLIN};
    for (int i = 0; i < ends; i++) {
        CHECK_INT(1, poll_one(&p, 10000));
        CHECK_INT(1, read(pipe[0], &c, 1));
    }
    CHECK_INT(0, poll_one(&p, 20));
}

/* Whether perform() attempts an operation; else it starts it. */
static int by_attempt;

/* Does what `request` says, waits for it, expects `code`, and hands the result out. */
static inline rp_store_result perform(rp_store s, rp_store_request request, int32_t code) {
    rp_op op = {0};
    rp_store_result result = {.struct_size = sizeof result};
    request.struct_size = sizeof request;
    if (request.timeout_ms == 0) {
        request.timeout_ms = 5000;
    }
    if (by_attempt) {
        CHECK_CODE(code, rp_store_attempt(s, &request, -1, &op, &result, ERR));
        CHECK_INT(0, op.id);
        return result;
    }
    CHECK_OK(rp_store_start(s, &request, &op, ERR));
    await_op(op);
    CHECK_CODE(code, rp_op_wait(op, 0, ERR));
    CHECK_CODE(code, rp_op_result(op, &result, ERR));
    CHECK_OK(rp_op_free(op, ERR));
    return result;
}

/* The same for one whose result is a number. */
static inline int64_t number_of(rp_store s, rp_store_request request) {
    rp_store_result result = perform(s, request, RP_OK);
    rp_store_result_free(&result);
    return result.number;
}

#define KEY(name) .key = {name, RP_TEXT}
#define ASK(...) ((rp_store_request){__VA_ARGS__})

static inline void operations_by_request(rp_store s, struct traits traits) {
    rp_bytes keys[2] = {{"ba", 2}, {"bb", 2}};
    rp_bytes values[2] = {{"1", 1}, {"", 0}};
    rp_store_result r;
    int64_t before = number_of(s, ASK(.op = RP_STORE_NUM_KEYS));

    perform(s, ASK(.op = RP_STORE_SET, KEY("ba"), .value = {"5", 1}), RP_OK);
    r = perform(s, ASK(.op = RP_STORE_GET, KEY("ba")), RP_OK);
    CHECK_BUFFER("5", r.value);
    rp_store_result_free(&r);
    CHECK_INT(7, number_of(s, ASK(.op = RP_STORE_ADD, KEY("ba"), .number = 2)));
    r = perform(
        s, ASK(.op = RP_STORE_COMPARE_SET, KEY("ba"), .expected = {"7", 1}, .value = {"8", 1}),
        RP_OK);
    CHECK_BUFFER("8", r.value);
    rp_store_result_free(&r);
    perform(s, ASK(.op = RP_STORE_APPEND, KEY("ba"), .value = {"0", 1}), RP_OK);
    CHECK_INT(1, number_of(s, ASK(.op = RP_STORE_CHECK, .keys = keys, .keys_len = 1)));
    CHECK_INT(0, number_of(s, ASK(.op = RP_STORE_CHECK, .keys = keys, .keys_len = 2)));
    perform(s, ASK(.op = RP_STORE_WAIT, .keys = keys, .keys_len = 2, .timeout_ms = 20),
            RP_ERR_TIMEOUT);
    perform(s,
            ASK(.op = RP_STORE_MULTI_SET, .keys = keys, .keys_len = 2, .values = values,
                .values_len = 2),
            RP_OK);
    perform(s, ASK(.op = RP_STORE_WAIT, .keys = keys, .keys_len = 2), RP_OK);
    r = perform(s, ASK(.op = RP_STORE_MULTI_GET, .keys = keys, .keys_len = 2), RP_OK);
    CHECK_INT(2, r.list.len);
    CHECK_BUFFER("1", r.list.items[0]);
    rp_store_result_free(&r);
    CHECK_INT(before + 2, number_of(s, ASK(.op = RP_STORE_NUM_KEYS)));
    r = perform(s, ASK(.op = RP_STORE_LIST_KEYS), RP_OK);
    CHECK(r.list.len >= 2);
    rp_store_result_free(&r);
    if (traits.queues) {
        perform(s, ASK(.op = RP_STORE_QUEUE_PUSH, KEY("bq"), .value = {"i", 1}), RP_OK);
        CHECK_INT(1, number_of(s, ASK(.op = RP_STORE_QUEUE_LEN, KEY("bq"))));
        r = perform(s, ASK(.op = RP_STORE_QUEUE_POP, KEY("bq"), .block = 1), RP_OK);
        CHECK_BUFFER("i", r.value);
        rp_store_result_free(&r);
    }
    perform(s, ASK(.op = RP_STORE_QUEUE_POP, KEY("bq")),
            traits.queues ? RP_ERR_EMPTY : RP_ERR_UNSUPPORTED);
    perform(s, ASK(.op = RP_STORE_BARRIER, KEY("bbar"), .number = 1), RP_OK);
    CHECK_INT(1, number_of(s, ASK(.op = RP_STORE_DELETE, KEY("ba"))));
    CHECK_INT(1, number_of(s, ASK(.op = RP_STORE_DELETE, KEY("bb"))));
}

/* An attempt that would wait is handed over, once, and nothing is done twice. */
static inline void attempts(rp_store s) {
    rp_bytes key = {"ba", 2};
    rp_op op = {0};
    rp_store_result r = {.struct_size = sizeof r};
    rp_store_request waits[] = {
        {.op = RP_STORE_GET, .key = key},
        {.op = RP_STORE_MULTI_GET, .keys = &key, .keys_len = 1},
        {.op = RP_STORE_WAIT, .keys = &key, .keys_len = 1},
    };
    by_attempt = 1;
    int64_t handles = handles_open();
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        waits[i].struct_size = sizeof waits[i];
        waits[i].timeout_ms = 20;
        CHECK_CODE(RP_ERR_TIMEOUT, rp_store_attempt(s, &waits[i], -1, &op, &r, ERR));
        waits[i].timeout_ms = 0; /* no time to do anything */
        CHECK_CODE(RP_ERR_TIMEOUT, rp_store_attempt(s, &waits[i], -1, &op, &r, ERR));
        CHECK_INT(handles, handles_open());
        waits[i].timeout_ms = -1;
        CHECK_CODE(RP_PENDING, rp_store_attempt(s, &waits[i], i == 0 ? 20 : 0, &op, &r, ERR));
        CHECK_INT(handles + 1, handles_open());
        CHECK_CODE(RP_PENDING, rp_op_wait(op, 0, ERR));
        perform(s, ASK(.op = RP_STORE_SET, .key = key, .value = {"now", 3}), RP_OK);
        await_op(op);
        CHECK_OK(rp_op_result(op, &r, ERR));
        CHECK_OK(rp_op_free(op, ERR));
        rp_store_result_free(&r);
        CHECK_INT(1, number_of(s, ASK(.op = RP_STORE_DELETE, .key = key)));
    }
    /* The first of two at a barrier is counted once. */
    rp_store_request barrier = {.struct_size = sizeof barrier,
                                .op = RP_STORE_BARRIER,
                                KEY("two"),
                                .number = 2,
                                .timeout_ms = -1};
    CHECK_CODE(RP_PENDING, rp_store_attempt(s, &barrier, 20, &op, &r, ERR));
    rp_op second = {0};
    CHECK_OK(rp_store_attempt(s, &barrier, -1, &second, &r, ERR));
    CHECK_INT(0, second.id);
    await_op(op);
    CHECK_OK(rp_op_wait(op, 0, ERR));
    CHECK_OK(rp_op_free(op, ERR));
    CHECK_INT(handles, handles_open());
    by_attempt = 0;
}

static inline void operations_in_background(rp_store s, struct traits traits) {
    rp_store_result r;
    operations_by_request(s, traits);
    by_attempt = 1;
    operations_by_request(s, traits);
    attempts(s);

    /* One that waits: not readable before the write, then it is. */
    rp_op op;
    rp_store_request get = {
        .struct_size = sizeof get, .op = RP_STORE_GET, KEY("ba"), .timeout_ms = -1};
    CHECK_OK(rp_store_start(s, &get, &op, ERR));
    struct pollfd p = {.events = POLLIN};
    CHECK_OK(rp_op_fd(op, &p.fd, ERR));
    CHECK_INT(0, poll_one(&p, 20));
    CHECK_OK(rp_store_set(s, "ba", 2, "now", 3, 5000, ERR));
    await_op(op);
    r = (rp_store_result){.struct_size = sizeof r};
    CHECK_OK(rp_op_result(op, &r, ERR));
    CHECK_BUFFER("now", r.value);
    rp_store_result_free(&r);
    CHECK_OK(rp_op_free(op, ERR));
    /* One that is cancelled ends, too. */
    get.key = (rp_bytes){"never", RP_TEXT};
    CHECK_OK(rp_store_start(s, &get, &op, ERR));
    int ends[2];
    CHECK_INT(0, pipe(ends));
    CHECK_OK(rp_op_notify(op, count_end, ends, ERR));
    CHECK_OK(rp_op_notify(op, count_end, ends, ERR));
    await_ends(ends, 0);
    CHECK_OK(rp_op_cancel(op, ERR));
    await_op(op);
    await_ends(ends, 2);
    CHECK_CODE(RP_ERR_CANCELED, rp_op_wait(op, 0, ERR));
    CHECK_OK(rp_op_notify(op, count_end, ends, ERR)); /* it has ended already */
    await_ends(ends, 1);
    CHECK_CODE(RP_ERR_INVALID, rp_op_notify(op, NULL, ends, ERR));
    CHECK_OK(rp_op_free(op, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_op_notify(op, count_end, ends, ERR));
    /* One that is freed tells of its end. */
    CHECK_OK(rp_store_start(s, &get, &op, ERR));
    CHECK_OK(rp_op_notify(op, count_end, ends, ERR));
    CHECK_OK(rp_op_free(op, ERR));
    await_ends(ends, 1);
    close(ends[0]);
    close(ends[1]);
}

#endif
