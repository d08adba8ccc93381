/* What an agent asks of a worker through its record; here the test is the agent. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "check.h"

#define RECORD_SIZE 64

enum { NONE, HOLD, RELEASE };         /* phases */
enum { GOES_ON, HELD, TAKEN, SAVED }; /* states of a worker */
enum { STEP = 16, ASKED = 24, ANSWER = 32, KNOWS = 40, REACH = 48 };

static char folder[] = "/tmp/rallypoint-directive-test-XXXXXX";
static char record_path[128], file_path[128];
static int record = -1;

static void new_record(void) {
    unsigned char bytes[RECORD_SIZE] = "rp-steps";
    bytes[8] = 1;
    bytes[12] = RECORD_SIZE;
    memset(bytes + STEP, 0xff, 8);
    if (record >= 0) {
        close(record);
    }
    unlink(file_path);
    unlink(record_path); /* a new one for each worker */
    record = open(record_path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(record >= 0);
    CHECK_INT(RECORD_SIZE, write(record, bytes, RECORD_SIZE));
}

static int64_t word(int offset) {
    int64_t value;
    CHECK_INT(8, pread(record, &value, 8, offset));
    return value;
}

static void put(int64_t value, size_t size, int offset) {
    CHECK_INT((int64_t)size, pwrite(record, &value, size, offset));
}

/* Asks as an agent does: the phase is written last, and alone. */
static void ask(int64_t number, int64_t kind, int64_t named, int phase, int64_t reach) {
    put(NONE, 1, ASKED);
    put(number << 16 | named << 8 | kind, 7, ASKED + 1);
    put(reach, 8, REACH);
    put(phase, 1, ASKED);
}

static void tell(const char *json) {
    FILE *f = fopen(file_path, "w");
    CHECK(f != NULL);
    CHECK(fputs(json, f) >= 0);
    CHECK_INT(0, fclose(f));
}

static void await_answer(int64_t number, int state) {
    while (word(ANSWER) >> 24 != number || (word(ANSWER) & 0xff) != state) {
        struct timespec ms = {0, 1000000};
        nanosleep(&ms, NULL);
    }
}

static pid_t start(void (*worker)(void)) {
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        setenv("RALLYPOINT_PROGRESS_FILE", record_path, 1);
        setenv("RALLYPOINT_DIRECTIVE_FILE", file_path, 1);
        worker();
        _exit(0); /* a check for leaks would meet the threads of the parent */
    }
    return child;
}

static void finish(pid_t child) {
    int status;
    CHECK_INT(child, waitpid(child, &status, 0));
    CHECK_INT(0, status);
}

/* Steps from 10 to 19; returns at which the directive came, once. */
static int64_t steps(rp_directive *d) {
    int64_t got = -1;
    rp_directive each = {.struct_size = sizeof each};
    for (int64_t step = 10; step < 20; step++) {
        CHECK_OK(rp_progress_directive(step, &each, ERR));
        if (each.kind != RP_DIRECTIVE_NONE) {
            CHECK_INT(-1, got);
            got = step;
            *d = each;
        }
    }
    return got;
}

static void takes_at_13(void) {
    rp_directive d = {.struct_size = sizeof d}, again = d;
    CHECK_INT(13, steps(&d));
    CHECK_INT(RP_DIRECTIVE_DRAIN, d.kind);
    CHECK_INT(1, d.named);
    CHECK_INT(13, d.step);
    CHECK_INT(1763806012250, d.deadline_ms);
    CHECK_INT(4, d.target);
    CHECK(strcmp(d.id, "d5") == 0);
    CHECK(strcmp(d.by, "car\"ol\\") == 0);
    CHECK(strcmp(d.reason, "its <disk> \xe2\x80\xa8 caf\xc3\xa9 \"id\": \"no\"") == 0);
    CHECK_OK(rp_get_directive(&again, ERR));
    CHECK(memcmp(&d, &again, sizeof d) == 0);
    CHECK_INT(RP_PENDING, rp_saved(12, NULL));
    CHECK_OK(rp_saved(13, ERR));
    CHECK_OK(rp_saved(14, ERR));
}

static void takes_none(void) {
    rp_directive d = {.struct_size = sizeof d};
    CHECK_INT(-1, steps(&d));
}

static void takes_at_once(void) {
    rp_directive d = {.struct_size = sizeof d};
    CHECK_INT(10, steps(&d));
    CHECK_INT(77, d.kind);
    CHECK_INT(0, d.deadline_ms);
    CHECK_INT(0, d.id[0]);
}

/* A program that calls rp_progress alone is not held, and asks for what there is. */
static void asks_itself(void) {
    rp_directive d = {.struct_size = sizeof d};
    CHECK_OK(rp_get_directive(&d, ERR));
    CHECK_INT(RP_DIRECTIVE_SAVE, d.kind);
    CHECK_OK(rp_progress(10, ERR));
    CHECK_OK(rp_saved(50, ERR));
}

static void is_too_early(void) {
    rp_directive d = {.struct_size = sizeof d, .kind = 9};
    CHECK_OK(rp_progress(10, ERR));
    CHECK_OK(rp_get_directive(&d, ERR));
    CHECK_INT(RP_DIRECTIVE_NONE, d.kind);
    CHECK_INT(RP_PENDING, rp_saved(60, NULL));
    CHECK_OK(rp_progress(50, ERR));
    CHECK_OK(rp_get_directive(&d, ERR));
    CHECK_INT(RP_DIRECTIVE_SAVE, d.kind);
}

/* The next one is asked while a save takes its time. */
static void saves_behind(void) {
    rp_directive d = {.struct_size = sizeof d};
    CHECK_OK(rp_progress_directive(10, &d, ERR));
    CHECK_INT(RP_DIRECTIVE_DRAIN, d.kind);
    ask(2, RP_DIRECTIVE_SAVE, 0, HOLD, 0);
    CHECK_INT(RP_PENDING, rp_saved(9, NULL));
    CHECK_OK(rp_saved(10, ERR));
    CHECK_INT(1 << 24 | RP_DIRECTIVE_DRAIN << 8 | SAVED, word(ANSWER));
    put(11, 8, REACH);
    put(RELEASE, 1, ASKED);
    CHECK_OK(rp_saved(10, ERR));
    CHECK_OK(rp_progress_directive(11, &d, ERR));
    CHECK_INT(RP_DIRECTIVE_SAVE, d.kind);
    CHECK_INT(RP_PENDING, rp_saved(10, NULL));
    put(NONE, 1, ASKED);
    CHECK_INT(RP_PENDING, rp_saved(11, NULL));
}

/* There is one word for the answers about two directives: another thread, which has saved for
 * the first meanwhile, leaves its own there. */
static void takes_once(void) {
    rp_directive d = {.struct_size = sizeof d};
    CHECK_OK(rp_progress_directive(10, &d, ERR));
    CHECK_INT(RP_DIRECTIVE_DRAIN, d.kind);
    put(1 << 24 | RP_DIRECTIVE_SAVE << 8 | SAVED, 8, ANSWER);
    CHECK_OK(rp_progress_directive(11, &d, ERR));
    CHECK_INT(0, d.kind);
    CHECK_OK(rp_get_directive(&d, ERR));
    CHECK_INT(RP_DIRECTIVE_DRAIN, d.kind);
    CHECK_OK(rp_saved(11, ERR));
    CHECK_INT(2 << 24 | RP_DIRECTIVE_DRAIN << 8 | SAVED, word(ANSWER));
}

static void has_no_record(void) {
    rp_directive d = {.struct_size = sizeof d};
    unsetenv("RALLYPOINT_PROGRESS_FILE");
    CHECK_INT(-1, steps(&d));
    CHECK_OK(rp_get_directive(&d, ERR));
    CHECK_INT(RP_DIRECTIVE_NONE, d.kind);
    CHECK_INT(RP_PENDING, rp_saved(3, NULL));
}

static void gives_wrong_arguments(void) {
    rp_directive d = {.struct_size = sizeof d}, small = {.struct_size = sizeof d - 8};
    CHECK_CODE(RP_ERR_INVALID, rp_progress_directive(-1, &d, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_progress_directive(1, NULL, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_progress_directive(1, &small, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_get_directive(NULL, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_get_directive(&small, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_saved(-1, ERR));
    CHECK_INT(-1, word(STEP));
}

static void reads_long_texts(void) {
    rp_directive d = {.struct_size = sizeof d};
    CHECK_INT(10, steps(&d));
    CHECK_INT(255, (int64_t)strlen(d.id)); /* x and 127 whole letters of two bytes */
    CHECK_INT(0, d.by[0]);
}

static void reads_half_an_escape(void) {
    rp_directive d;
    memset(&d, 'x', sizeof d);
    d.struct_size = sizeof d;
    CHECK_OK(rp_progress_directive(10, &d, ERR));
    CHECK(memcmp(d.id, "d", 2) == 0);
}

static void reads_no_deadline(void) {
    rp_directive d = {.struct_size = sizeof d};
    CHECK_INT(10, steps(&d));
    CHECK(strcmp(d.id, "d1") == 0);
    CHECK_INT(0, d.deadline_ms);
}

int main(void) {
    pid_t child;
    char json[1000] = "{\n \"number\": 1,\n \"id\": \"x";
    CHECK(mkdtemp(folder) != NULL);
    snprintf(record_path, sizeof record_path, "%s/record", folder);
    snprintf(file_path, sizeof file_path, "%s/directive", folder);

    new_record();
    tell("{\n \"number\": 5,\n \"id\": \"d5\",\n \"kind\": \"drain\",\n \"step\": 13,\n"
         " \"deadline\": 1763806012.2509,\n \"target\": 4,\n \"by\": \"car\\\"ol\\\\\",\n"
         " \"reason\": \"its \\u003cdisk\\u003e \\u2028 caf\xc3\xa9 \\\"id\\\": "
         "\\\"no\\\"\"\n}\n");
    ask(5, RP_DIRECTIVE_DRAIN, 1, HOLD, 0);
    child = start(takes_at_13);
    await_answer(5, HELD);
    CHECK_INT(10, word(STEP));
    CHECK_INT(1, word(KNOWS));
    put(13, 8, REACH);
    put(RELEASE, 1, ASKED);
    finish(child);
    await_answer(5, SAVED);
    CHECK_INT(19, word(STEP));

    new_record(); /* canceled while it is held, and another in its place */
    ask(1, RP_DIRECTIVE_SAVE, 0, HOLD, 0);
    child = start(takes_none);
    await_answer(1, HELD);
    ask(2, RP_DIRECTIVE_SAVE, 0, HOLD, 0);
    await_answer(2, HELD);
    put(NONE, 1, ASKED);
    finish(child);
    await_answer(2, GOES_ON);

    new_record();
    tell("{\n \"number\": 2,\n \"id\": \"another\"\n}\n");
    ask(1, 77, 0, RELEASE, 0);
    finish(start(takes_at_once));
    await_answer(1, TAKEN);

    new_record();
    ask(1, RP_DIRECTIVE_SAVE, 0, RELEASE, 50);
    finish(start(asks_itself));
    await_answer(1, SAVED);
    CHECK_INT(0, word(KNOWS));

    new_record();
    ask(1, RP_DIRECTIVE_SAVE, 0, RELEASE, 50);
    finish(start(is_too_early));
    await_answer(1, TAKEN);

    new_record();
    for (int i = 0; i < 200; i++) {
        strcat(json, "\xc3\xa9");
    }
    tell(json); /* it does not even end */
    ask(1, RP_DIRECTIVE_SAVE, 0, RELEASE, 0);
    finish(start(reads_long_texts));

    for (int i = 0; i < 2; i++) {
        new_record();
        snprintf(json, sizeof json, "{\n \"number\": 1,\n \"id\": \"d%s",
                 i == 0 ? "\\" : "\\u00");
        tell(json);
        ask(1, RP_DIRECTIVE_SAVE, 0, RELEASE, 0);
        finish(start(reads_half_an_escape));
    }

    new_record();
    tell("{\n \"number\": 1,\n \"id\": \"d1\",\n \"deadline\": 9223372036854775807\n}\n");
    ask(1, RP_DIRECTIVE_SAVE, 0, RELEASE, 0);
    finish(start(reads_no_deadline));

    new_record();
    unlink(file_path);
    CHECK_INT(0, mkfifo(file_path, 0600)); /* nothing waits for what may write it */
    ask(1, 77, 0, RELEASE, 0);
    finish(start(takes_at_once));

    new_record();
    ask(1, RP_DIRECTIVE_DRAIN, 0, RELEASE, 10);
    finish(start(saves_behind));

    new_record();
    ask(2, RP_DIRECTIVE_DRAIN, 0, RELEASE, 10);
    finish(start(takes_once));

    new_record();
    finish(start(has_no_record));
    finish(start(gives_wrong_arguments));

    close(record);
    CHECK(unlink(record_path) == 0);
    unlink(file_path);
    CHECK(rmdir(folder) == 0);
    return 0;
}
