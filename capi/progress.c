/*
 * A worker's step in the record that its agent made (docs/progress.md). Nothing here enters
 * Go: a report is a store into memory.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "progress.h"

#define RECORD_SIZE 64
#define RECORD_VERSION 1

/* Begins what is said of a record that is not used. It quotes no path, which may be no UTF-8. */
#define NOT_RECORDED                                                                           \
    "the steps of this worker are not recorded: the file in RALLYPOINT_PROGRESS_FILE "

_Static_assert(sizeof(progress_record) == RECORD_SIZE, "the layout is fixed");

progress_target *progress_published;

/* Maps the record; says in target->refused why it cannot be used. */
static progress_record *map_record(const char *path, char *refused, size_t size) {
    progress_record *record;
    struct stat info;
    int fd = open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &info) != 0) {
        snprintf(refused, size, NOT_RECORDED "cannot be opened: errno %d", errno);
        if (fd >= 0) {
            close(fd);
        }
        return NULL;
    }
    record = MAP_FAILED;
    if (info.st_size == RECORD_SIZE) {
        record = mmap(NULL, RECORD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (record == MAP_FAILED) {
        snprintf(refused, size, NOT_RECORDED "has %lld bytes, a progress record has %d",
                 (long long)info.st_size, RECORD_SIZE);
        return NULL;
    }
    if (memcmp(record->magic, "rp-steps", sizeof record->magic) != 0 ||
        record->version != RECORD_VERSION || record->size != RECORD_SIZE) {
        snprintf(refused, size, NOT_RECORDED "is no progress record of version %d",
                 RECORD_VERSION);
        munmap(record, RECORD_SIZE);
        return NULL;
    }
    return record;
}

progress_target *progress_find_target(void) {
    static progress_record nowhere_record;
    static progress_target nowhere = {&nowhere_record, ""};
    progress_target *target = calloc(1, sizeof *target), *first = NULL;
    const char *path = getenv("RALLYPOINT_PROGRESS_FILE");
    if (target == NULL) {
        return &nowhere; /* and tried again by the next call */
    }
    if (path != NULL && path[0] != 0) {
        target->record = map_record(path, target->refused, sizeof target->refused);
    }
    if (target->record == NULL) {
        target->record = &nowhere_record;
    }
    if (__atomic_compare_exchange_n(&progress_published, &first, target, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
        return target;
    }
    if (target->record != &nowhere_record) {
        munmap(target->record, RECORD_SIZE);
    }
    free(target);
    return first;
}

int32_t rp_progress(int64_t step, rp_error *err) {
    progress_target *target = progress_get_target();
    if (err != NULL && err->struct_size < sizeof *err) {
        return RP_ERR_INVALID;
    }
    if (__builtin_expect(step < 0, 0)) {
        return fail(err, RP_ERR_INVALID, "a step is negative");
    }
    if (__builtin_expect(target->refused[0] != 0, 0)) {
        return fail(err, RP_ERR_STATE, target->refused);
    }
    __atomic_store_n(&target->record->step, step, __ATOMIC_RELEASE);
    return RP_OK;
}

/* Until when the worker is busy, in milliseconds of CLOCK_MONOTONIC: above the first byte of
 * `knows`. */
#define BUSY_SHIFT 8
#define BUSY_MOST (INT64_C(1) << 50)

/* How many stretches are not over. */
static int32_t busy_depth;

/* Makes the worker busy until then or, if it is busy already, a bit longer than it said: by
 * the change, the code that ends a stretch sees that another one has begun. */
static void announce(progress_record *record, uint64_t until) {
    uint64_t word = __atomic_load_n(&record->knows, __ATOMIC_ACQUIRE), next;
    do {
        uint64_t before = word >> BUSY_SHIFT;
        next = (word & 0xff) | (before < until ? until : before + 1) << BUSY_SHIFT;
    } while (!__atomic_compare_exchange_n(&record->knows, &word, next, 0, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
}

int32_t rp_busy(int64_t within_ms, rp_error *err) {
    progress_target *target = progress_get_target();
    struct timespec now;
    if (err != NULL && err->struct_size < sizeof *err) {
        return RP_ERR_INVALID;
    }
    if (within_ms <= 0) {
        return fail(err, RP_ERR_INVALID, "within_ms is not above 0");
    }
    if (target->refused[0] != 0) {
        return fail(err, RP_ERR_STATE, target->refused);
    }
    __atomic_add_fetch(&busy_depth, 1, __ATOMIC_ACQ_REL);
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (within_ms > BUSY_MOST) {
        within_ms = BUSY_MOST;
    }
    announce(target->record,
             (uint64_t)(now.tv_sec * INT64_C(1000) + now.tv_nsec / 1000000 + within_ms + 1));
    return RP_OK;
}

int32_t rp_busy_end(rp_error *err) {
    progress_record *record = progress_get_target()->record;
    int32_t depth = __atomic_load_n(&busy_depth, __ATOMIC_ACQUIRE);
    uint64_t word = __atomic_load_n(&record->knows, __ATOMIC_ACQUIRE),
             seen = word >> BUSY_SHIFT;
    if (err != NULL && err->struct_size < sizeof *err) {
        return RP_ERR_INVALID;
    }
    do {
        if (depth == 0) {
            return fail(err, RP_ERR_STATE, "rp_busy was not called, or is over already");
        }
    } while (!__atomic_compare_exchange_n(&busy_depth, &depth, depth - 1, 0, __ATOMIC_ACQ_REL,
                                          __ATOMIC_ACQUIRE));
    while (depth == 1 && word >> BUSY_SHIFT == seen &&
           !__atomic_compare_exchange_n(&record->knows, &word, word & 0xff, 0, __ATOMIC_ACQ_REL,
                                        __ATOMIC_ACQUIRE)) {
    }
    return RP_OK;
}
