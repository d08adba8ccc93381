/*
 * A worker's place in its world, in the record that its agent made (docs/world-record.md).
 * Nothing here enters Go.
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
#include "world.h"

#define RECORD_SIZE 2048
#define RECORD_VERSION 1

/* One world, in one of the two slots. */
typedef struct world_slot {
    uint64_t epoch;
    uint32_t rank, size, local_rank, local_size, node_rank, nodes, store_port, carried;
    char reserved[24];
    char generation[64];
    char store_addr[320];
} world_slot;

typedef struct world_record {
    char magic[8];
    uint32_t version, size;
    uint64_t over; /* the last epoch that the worker has to leave; the worker writes it, too */
    uint8_t turn;  /* its lowest bit says which slot has the last world */
    uint8_t lost;  /* 1: there is no other world, and the text says why */
    char reserved[6];
    uint64_t can;   /* from here on of the worker: 1: it can regroup */
    uint64_t waits; /* the epoch that it has left, while it waits for the next one */
    uint64_t entered;
    uint64_t reserved2;
    world_slot slots[2];
    char reserved3[64];
    char text[1024];
} world_record;

_Static_assert(sizeof(world_slot) == 448, "the layout is fixed");
_Static_assert(sizeof(world_record) == RECORD_SIZE, "the layout is fixed");

/* What this process knows. It stays until the process ends. */
typedef struct world_target {
    world_record *record; /* NULL: there is none */
    char refused[256];    /* why it is not used; "" if that is no error */
} world_target;

static world_target *published;
static uint64_t
    current; /* the epoch of the world that this process is in; 0: it has not asked */

static world_record *map_record(const char *path, char *refused, size_t size) {
    struct stat info;
    world_record *record = MAP_FAILED;
    int fd = open(path, O_RDWR | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &info) == 0 && info.st_size == RECORD_SIZE) {
        record = mmap(NULL, RECORD_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    if (fd >= 0) {
        close(fd);
    }
    if (record == MAP_FAILED || memcmp(record->magic, "rp-world", sizeof record->magic) != 0 ||
        record->version != RECORD_VERSION || record->size != RECORD_SIZE) {
        snprintf(
            refused, size,
            "the file in RALLYPOINT_WORLD_FILE is no world record of version %d, or cannot "
            "be opened: errno %d",
            RECORD_VERSION, errno);
        if (record != MAP_FAILED) {
            munmap(record, RECORD_SIZE);
        }
        return NULL;
    }
    return record;
}

static world_target *find_target(void) {
    static world_target none = {NULL, "there is no memory"};
    world_target *target = __atomic_load_n(&published, __ATOMIC_ACQUIRE), *first = NULL;
    const char *path = getenv("RALLYPOINT_WORLD_FILE");
    if (target != NULL) {
        return target;
    }
    target = calloc(1, sizeof *target);
    if (target == NULL) {
        return &none; /* and tried again by the next call */
    }
    if (path != NULL && path[0] != 0) {
        target->record = map_record(path, target->refused, sizeof target->refused);
    }
    if (__atomic_compare_exchange_n(&published, &first, target, 0, __ATOMIC_ACQ_REL,
                                    __ATOMIC_ACQUIRE)) {
        return target;
    }
    if (target->record != NULL) {
        munmap(target->record, RECORD_SIZE);
    }
    free(target);
    return first;
}

/* The last world that the agent has written. */
static world_slot read_slot(const world_record *record) {
    world_slot slot;
    uint8_t turn;
    do { /* the agent writes the other slot, and then the turn */
        turn = __atomic_load_n(&record->turn, __ATOMIC_ACQUIRE);
        memcpy(&slot, &record->slots[turn & 1], sizeof slot);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
    } while (__atomic_load_n(&record->turn, __ATOMIC_RELAXED) != turn);
    slot.generation[sizeof slot.generation - 1] = 0;
    slot.store_addr[sizeof slot.store_addr - 1] = 0;
    return slot;
}

static void fill(rp_world *world, const world_slot *slot) {
    world->epoch = slot->epoch;
    world->rank = (int32_t)slot->rank;
    world->size = (int32_t)slot->size;
    world->local_rank = (int32_t)slot->local_rank;
    world->local_size = (int32_t)slot->local_size;
    world->node_rank = (int32_t)slot->node_rank;
    world->store_port = (int32_t)slot->store_port;
    world->carried = (int32_t)slot->carried;
    memcpy(world->store_addr, slot->store_addr, sizeof world->store_addr);
    snprintf(world->prefix, sizeof world->prefix, "rallypoint/world/%llu",
             (unsigned long long)slot->epoch);
}

/* The world that this process is in. Its slot may be gone by the time that the next but one
 * is written, so that it is kept here. */
static rp_world entered;

static void enter_world(world_record *record, const world_slot *slot) {
    entered.struct_size = sizeof entered;
    fill(&entered, slot);
    __atomic_store_n(&current, slot->epoch, __ATOMIC_RELEASE);
    __atomic_store_n(&record->entered, slot->epoch, __ATOMIC_RELEASE);
    __atomic_store_n(&record->waits, UINT64_C(0), __ATOMIC_RELEASE);
}

static uint64_t current_epoch(world_record *record) {
    uint64_t epoch = __atomic_load_n(&current, __ATOMIC_ACQUIRE);
    if (epoch == 0) {
        world_slot slot = read_slot(record);
        enter_world(record, &slot);
        epoch = slot.epoch;
    }
    return epoch;
}

/* A number of the environment; -1 if it has none. */
static int32_t number(const char *name) {
    const char *text = getenv(name);
    char *end;
    long n = text != NULL ? strtol(text, &end, 10) : -1;
    return text != NULL && text[0] != 0 && *end == 0 && n >= 0 && n <= INT32_MAX ? (int32_t)n
                                                                                 : -1;
}

/* What launchers that do not let workers regroup say. */
static int32_t from_environment(rp_world *world, rp_error *err) {
    const char *addr = getenv("MASTER_ADDR"), *restarts = getenv("TORCHELASTIC_RESTART_COUNT");
    int32_t local = number("LOCAL_RANK"), locals = number("LOCAL_WORLD_SIZE"),
            node = number("GROUP_RANK");
    world->epoch = 0;
    world->carried = 0;
    world->rank = number("RANK");
    world->size = number("WORLD_SIZE");
    world->store_port = number("MASTER_PORT");
    if (world->rank < 0 || world->size < 0 || world->store_port < 0 || addr == NULL ||
        strlen(addr) >= sizeof world->store_addr) {
        return fail(err, RP_ERR_INVALID,
                    "RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT say no world; start the "
                    "program by a launcher");
    }
    world->local_rank = local < 0 ? world->rank : local;
    world->local_size = locals < 0 ? world->size : locals;
    world->node_rank = node < 0 ? 0 : node;
    strcpy(world->store_addr, addr);
    snprintf(world->prefix, sizeof world->prefix, "rallypoint/world/0/%.20s",
             restarts != NULL ? restarts : "0");
    return RP_OK;
}

/* Checks what all functions check, and finds the record; NULL if there is none. */
static int32_t find_record(world_record **record, rp_error *err) {
    world_target *target;
    if (err != NULL && err->struct_size < sizeof *err) {
        return RP_ERR_INVALID;
    }
    target = find_target();
    *record = target->record;
    return target->refused[0] != 0 ? fail(err, RP_ERR_STATE, target->refused) : RP_OK;
}

static const char cannot[] =
    "this worker cannot regroup: it needs `rallypoint run --on-failure regroup`";

int32_t rp_world_get(rp_world *world, rp_error *err) {
    world_record *record;
    TRY(find_record(&record, err));
    TRY(writable(world, sizeof *world, err));
    if (record == NULL) {
        return from_environment(world, err);
    }
    current_epoch(record);
    *world = entered;
    return RP_OK;
}

int32_t rp_world_can_regroup(rp_error *err) {
    world_record *record;
    TRY(find_record(&record, err));
    if (record == NULL) {
        return fail(err, RP_ERR_UNSUPPORTED, cannot);
    }
    current_epoch(record);
    __atomic_store_n(&record->can, UINT64_C(1), __ATOMIC_RELEASE);
    return RP_OK;
}

int32_t rp_world_changing(void) {
    world_record *record = find_target()->record;
    return record != NULL &&
           __atomic_load_n(&record->over, __ATOMIC_ACQUIRE) >= current_epoch(record);
}

void world_depart(void) {
    world_record *record = find_target()->record;
    if (record != NULL) {
        uint64_t epoch = current_epoch(record);
        if (__atomic_load_n(&record->over, __ATOMIC_ACQUIRE) < epoch) {
            __atomic_store_n(&record->over, epoch, __ATOMIC_RELEASE);
        }
    }
}

#define FIRST_PAUSE_NS 50000
#define LONGEST_PAUSE_NS 2000000
#define LATER_PAUSE_NS 20000000
#define SECOND_NS INT64_C(1000000000)

static int64_t monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * SECOND_NS + t.tv_nsec;
}

int32_t rp_regroup(int64_t timeout_ms, rp_world *world, rp_error *err) {
    world_record *record;
    uint64_t left;
    int64_t began = monotonic(), pause = FIRST_PAUSE_NS;
    TRY(find_record(&record, err));
    TRY(writable(world, sizeof *world, err));
    TRY(timeout(timeout_ms, err));
    if (record == NULL) {
        return fail(err, RP_ERR_UNSUPPORTED, cannot);
    }
    TRY(rp_world_can_regroup(err));
    left = current_epoch(record);
    __atomic_store_n(&record->waits, left, __ATOMIC_RELEASE);
    for (;;) {
        world_slot slot;
        struct timespec rest;
        int64_t waited = monotonic() - began;
        if (__atomic_load_n(&record->lost, __ATOMIC_ACQUIRE)) {
            char why[sizeof record->text + 64];
            snprintf(why, sizeof why, "there is no other world for this worker: %.1000s",
                     record->text);
            return fail(err, RP_ERR_CLOSED, why);
        }
        slot = read_slot(record);
        if (slot.epoch > left &&
            __atomic_load_n(&record->over, __ATOMIC_ACQUIRE) < slot.epoch) {
            enter_world(record, &slot);
            *world = entered;
            return RP_OK;
        }
        if (timeout_ms >= 0 && waited / 1000000 >= timeout_ms) {
            return fail(err, RP_ERR_TIMEOUT, "no other world came in time");
        }
        rest.tv_sec = 0;
        rest.tv_nsec = (long)pause;
        nanosleep(&rest, NULL);
        pause = 2 * pause;
        if (pause > (waited < SECOND_NS ? LONGEST_PAUSE_NS : LATER_PAUSE_NS)) {
            pause = waited < SECOND_NS ? LONGEST_PAUSE_NS : LATER_PAUSE_NS;
        }
    }
}
