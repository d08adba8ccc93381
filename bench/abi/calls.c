/* Nanoseconds of CPU time for one call through the C interface: "NAME NS" a line. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "rallypoint.h"

#define CALLS 200000

static rp_store store;
static int64_t number;

static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static int32_t num_keys(void) {
    return rp_store_num_keys(store, 1000, &number, NULL);
}

static int32_t add(void) {
    return rp_store_add(store, "counter", 7, 1, 1000, &number, NULL);
}

static int32_t set(void) {
    return rp_store_set(store, "key", 3, "0123456789abcdef", 16, 1000, NULL);
}

static int32_t get(void) {
    rp_buffer value;
    int32_t code = rp_store_get(store, "key", 3, 1000, &value, NULL);
    if (code == RP_OK) {
        rp_buffer_free(&value);
    }
    return code;
}

static int32_t nothing(void) {
    return rp_log_set_level(RP_LOG_INFO, NULL);
}

static void measure(const char *name, int32_t (*call)(void)) {
    double begin;
    for (int i = 0; i < CALLS / 10; i++) {
        if (call() != RP_OK) {
            exit(1);
        }
    }
    begin = cpu();
    for (int i = 0; i < CALLS; i++) {
        if (call() != RP_OK) {
            exit(1);
        }
    }
    printf("%s %.1f\n", name, (cpu() - begin) / CALLS);
}

int main(void) {
    if (rp_store_open_hash(&store, NULL) != RP_OK) {
        return 1;
    }
    measure("num_keys", num_keys);
    measure("add", add);
    measure("set", set);
    measure("get", get);
    measure("nothing", nothing);
    return rp_store_close(store, NULL) == RP_OK ? 0 : 1;
}
