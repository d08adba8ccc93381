/* A worker that regroups by its record; here the test is the agent. */
#include <fcntl.h>
#include <sys/stat.h>

#include "check.h"

#define RECORD_SIZE 2048

enum { OVER = 16, TURN = 24, LOST = 25, CAN = 32, WAITS = 40, ENTERED = 48 };
enum { SLOTS = 64, SLOT = 448, ADDR = 128, TEXT = 1024 };

static char folder[] = "/tmp/rallypoint-world-test-XXXXXX";
static char path[128];
static int record = -1;

static void put(uint64_t value, size_t size, int offset) {
    CHECK_INT((int64_t)size, pwrite(record, &value, size, offset));
}

static uint64_t word(int offset) {
    uint64_t value;
    CHECK_INT(8, pread(record, &value, 8, offset));
    return value;
}

static void put_world(int slot, uint64_t epoch, uint32_t rank, uint32_t size,
                      uint32_t carried) {
    int at = SLOTS + slot * SLOT;
    put(epoch, 8, at);
    put(rank, 4, at + 8);
    put(size, 4, at + 12);
    put(1, 4, at + 16);    /* local rank */
    put(2, 4, at + 20);    /* local size */
    put(3, 4, at + 24);    /* node */
    put(4, 4, at + 28);    /* nodes */
    put(2940, 4, at + 32); /* port */
    put(carried, 4, at + 36);
    CHECK_INT(9, pwrite(record, "10.0.0.7", 9, at + ADDR));
}

static void new_record(void) {
    CHECK(mkdtemp(folder) != NULL);
    snprintf(path, sizeof path, "%s/world", folder);
    record = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(record >= 0);
    CHECK_INT(0, ftruncate(record, RECORD_SIZE));
    CHECK_INT(8, pwrite(record, "rp-world", 8, 0));
    put(1, 4, 8);
    put(RECORD_SIZE, 4, 12);
    put_world(0, 7, 5, 8, 0);
    CHECK_INT(0, setenv("RALLYPOINT_WORLD_FILE", path, 1));
}

/* A departure at a step is told by the progress record, and is no directive. */
static void check_departure(void) {
    rp_directive directive = {.struct_size = sizeof directive};
    unsigned char steps[64] = "rp-steps";
    char steps_path[160];
    int64_t asked = INT64_C(3) << 24 | 255 << 8 | 2, reach = 41, answer;
    int fd;
    snprintf(steps_path, sizeof steps_path, "%s/steps", folder);
    fd = open(steps_path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0);
    steps[8] = 1;
    steps[12] = sizeof steps;
    memset(steps + 16, 0xff, 8);
    memcpy(steps + 24, &asked, sizeof asked);
    memcpy(steps + 48, &reach, sizeof reach);
    CHECK_INT((int64_t)sizeof steps, write(fd, steps, sizeof steps));
    CHECK_INT(0, setenv("RALLYPOINT_PROGRESS_FILE", steps_path, 1));
    for (int64_t step = 40; step <= 42; step++) {
        CHECK_OK(rp_progress_directive(step, &directive, ERR));
        CHECK_INT(RP_DIRECTIVE_NONE, directive.kind);
        CHECK_OK(rp_get_directive(&directive, ERR));
        CHECK_INT(RP_DIRECTIVE_NONE, directive.kind);
        CHECK_INT(RP_PENDING, rp_saved(step, ERR));
        CHECK_INT(step >= 41, rp_world_changing());
        CHECK_INT(8, pread(fd, &answer, 8, 32));
        CHECK_INT(step >= 41 ? asked : 0, answer);
    }
    CHECK_INT(7, word(OVER));
    CHECK_INT(0, close(fd));
    CHECK_INT(0, unlink(steps_path));
}

static void *next_world(void *unused) {
    (void)unused;
    while (word(WAITS) != 7) {
        usleep(1000);
    }
    put_world(1, 9, 4, 6, 5);
    put(1, 1, TURN);
    return NULL;
}

int main(void) {
    rp_world world = {.struct_size = sizeof world}, small = {.struct_size = 8};
    pthread_t agent;
    new_record();
    CHECK_CODE(RP_ERR_INVALID, rp_world_get(NULL, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_world_get(&small, ERR));
    CHECK_INT(0, word(CAN));
    CHECK_OK(rp_world_can_regroup(ERR));
    CHECK_INT(1, word(CAN));
    CHECK_INT(7, word(ENTERED));
    CHECK_OK(rp_world_get(&world, ERR));
    CHECK_INT(7, world.epoch);
    CHECK_INT(5, world.rank);
    CHECK_INT(8, world.size);
    CHECK_INT(1, world.local_rank);
    CHECK_INT(2, world.local_size);
    CHECK_INT(3, world.node_rank);
    CHECK_INT(2940, world.store_port);
    CHECK_INT(0, world.carried);
    CHECK_INT(0, strcmp("10.0.0.7", world.store_addr));
    CHECK_INT(0, strcmp("rallypoint/world/7", world.prefix));
    CHECK_INT(0, rp_world_changing());

    check_departure();
    CHECK_CODE(RP_ERR_INVALID, rp_regroup(-2, &world, ERR));
    CHECK_CODE(RP_ERR_TIMEOUT, rp_regroup(0, &world, ERR));
    CHECK_INT(7, word(WAITS));
    put(0, 8, WAITS);
    CHECK_INT(0, pthread_create(&agent, NULL, next_world, NULL));
    CHECK_OK(rp_regroup(INT64_MAX, &world, ERR));
    CHECK_INT(0, pthread_join(agent, NULL));
    CHECK_INT(9, world.epoch);
    CHECK_INT(4, world.rank);
    CHECK_INT(5, world.carried);
    CHECK_INT(9, word(ENTERED));
    CHECK_INT(0, word(WAITS));
    CHECK_INT(0, rp_world_changing());

    /* A world that is over already is none to enter. */
    put_world(0, 10, 0, 1, 1);
    put(2, 1, TURN);
    put(10, 8, OVER);
    CHECK_CODE(RP_ERR_TIMEOUT, rp_regroup(0, &world, ERR));
    CHECK_INT(9, word(ENTERED));

    CHECK_INT(9, pwrite(record, "the end.", 9, TEXT));
    put(1, 1, LOST);
    CHECK_CODE(RP_ERR_CLOSED, rp_regroup(-1, &world, ERR));
    CHECK(strstr(last_error.message, "the end.") != NULL);

    CHECK_INT(0, unlink(path));
    CHECK_INT(0, rmdir(folder));
    return 0;
}
