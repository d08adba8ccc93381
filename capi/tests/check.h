/* Assertions for the C tests. A test is a program; exit code 0 is a pass. */
#ifndef CHECK_H
#define CHECK_H

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "rallypoint.h"

/* The error of the last call in CHECK_OK or CHECK_CODE of this thread. */
static __thread rp_error last_error = {.struct_size = sizeof(rp_error)};
#define ERR (&last_error)

/* poll() of one descriptor, again after a signal: Go's runtime sends SIGURG to any thread. */
static inline int poll_one(struct pollfd *p, int timeout_ms) {
    int ready;
    do {
        ready = poll(p, 1, timeout_ms);
    } while (ready < 0 && errno == EINTR);
    return ready;
}

#define FAIL(...)                                                                              \
    do {                                                                                       \
        fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, __func__);                          \
        fprintf(stderr, __VA_ARGS__);                                                          \
        fprintf(stderr, "\n");                                                                 \
        exit(1);                                                                               \
    } while (0)

#define CHECK(condition)                                                                       \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            FAIL("%s is false", #condition);                                                   \
        }                                                                                      \
    } while (0)

#define CHECK_INT(want, expression)                                                            \
    do {                                                                                       \
        int64_t want_ = (want), got_ = (expression);                                           \
        if (want_ != got_) {                                                                   \
            FAIL("%s is %" PRId64 ", want %" PRId64, #expression, got_, want_);                \
        }                                                                                      \
    } while (0)

#define CHECK_CODE(want, call)                                                                 \
    do {                                                                                       \
        int32_t code_;                                                                         \
        last_error.code = -1;                                                                  \
        last_error.message[0] = 0;                                                             \
        code_ = (call);                                                                        \
        if (code_ != (want)) {                                                                 \
            FAIL("%s returned %s (%s), want %s", #call, rp_code_name(code_),                   \
                 last_error.message, rp_code_name(want));                                      \
        }                                                                                      \
        if (code_ > RP_PENDING && (last_error.code != code_ || last_error.message[0] == 0)) {  \
            FAIL("%s: err has code %d and message '%s'", #call, last_error.code,               \
                 last_error.message);                                                          \
        }                                                                                      \
    } while (0)

#define CHECK_OK(call) CHECK_CODE(RP_OK, call)

#define CHECK_CONTAINS(text, part)                                                             \
    do {                                                                                       \
        if (strstr((text), (part)) == NULL) {                                                  \
            FAIL("'%s' does not contain '%s'", (text), (part));                                \
        }                                                                                      \
    } while (0)

#define CHECK_BUFFER(want, buffer)                                                             \
    do {                                                                                       \
        CHECK_INT(strlen(want), (buffer).len);                                                 \
        CHECK(memcmp((want), (buffer).data, (buffer).len + 1) == 0);                           \
    } while (0)

/* The monotonic clock in milliseconds. */
static inline int64_t now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Waits until the main thread has slept for 50 looks in a row, as it does in a call that waits. */
static inline void await_main(void) {
    char path[64], line[256];
    struct timespec pause = {0, 1000000};
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", (int)getpid());
    for (int asleep = 0; asleep < 50; nanosleep(&pause, NULL)) {
        FILE *file = fopen(path, "r");
        CHECK(file != NULL && fgets(line, sizeof line, file) != NULL);
        fclose(file);
        const char *state = strrchr(line, ')'); /* after the name: ") S ..." */
        CHECK(state != NULL);
        asleep = state[2] == 'S' ? asleep + 1 : 0;
    }
}

static inline int64_t handles_open(void) {
    int64_t n = -1;
    CHECK_OK(rp_handles_open(&n, ERR));
    return n;
}

/* Starts a store server on loopback and returns it with its port. */
static inline rp_store_server start_server(int32_t *port) {
    rp_store_server_config config = {sizeof config, "127.0.0.1", 0};
    rp_store_server server = {0};
    CHECK_OK(rp_store_server_start(&config, &server, ERR));
    CHECK_OK(rp_store_server_port(server, port, ERR));
    CHECK(*port > 0 && *port < 65536);
    return server;
}

/* Writes an endpoint that only this process uses: a loopback address of its own. */
static inline void own_endpoint(char *text, size_t size) {
    unsigned pid = (unsigned)getpid();
    snprintf(text, size, "127.%u.%u.%u:29400", 1 + (pid >> 16 & 127), pid >> 8 & 255,
             1 + (pid & 255) % 254);
}

static inline rp_store connect_to(int32_t port) {
    rp_store_config config = {sizeof config, "127.0.0.1", port};
    rp_store store = {0};
    CHECK_OK(rp_store_connect(&config, 10000, &store, ERR));
    return store;
}

static inline pthread_t start_thread(void *(*run)(void *), void *argument) {
    pthread_t thread;
    CHECK_INT(0, pthread_create(&thread, NULL, run, argument));
    return thread;
}

static inline void join_thread(pthread_t thread) {
    CHECK_INT(0, pthread_join(thread, NULL));
}

#endif
