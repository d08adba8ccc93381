/* A worker's steps in its progress record. */
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include "check.h"

#define RECORD_SIZE 64

static char folder[] = "/tmp/rallypoint-progress-test-XXXXXX";

/* Makes a record as an agent does, and returns its path. */
static char *new_record(const char *name, const char *magic, uint32_t version, uint32_t size,
                        size_t length) {
    static char path[256];
    unsigned char bytes[RECORD_SIZE * 2] = {0};
    int64_t none = -1;
    int fd;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    memcpy(bytes, magic, 8);
    memcpy(bytes + 8, &version, sizeof version);
    memcpy(bytes + 12, &size, sizeof size);
    memcpy(bytes + 16, &none, sizeof none);
    fd = open(path, O_RDWR | O_CREAT | O_EXCL, 0600);
    CHECK(fd >= 0);
    CHECK_INT(length, write(fd, bytes, length));
    close(fd);
    return path;
}

static int64_t step_in(const char *path) {
    int64_t step;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK_INT(sizeof step, pread(fd, &step, sizeof step, 16));
    close(fd);
    return step;
}

/* Runs a test in a process of its own, which maps its record by its first call. */
static void in_child(void (*test)(const char *), const char *path) {
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        if (path != NULL) {
            setenv("RALLYPOINT_PROGRESS_FILE", path, 1);
        } else {
            unsetenv("RALLYPOINT_PROGRESS_FILE");
        }
        test(path);
        _exit(0); /* a check for leaks would meet the threads of the parent */
    }
    CHECK_INT(child, waitpid(child, &status, 0));
    CHECK_INT(0, status);
}

static void *many(void *path) {
    for (int64_t step = 0; step < 10000; step++) {
        CHECK_OK(rp_progress(step, ERR));
    }
    return path;
}

static void reports(const char *path) {
    pthread_t threads[4];
    pid_t child;
    int status;
    for (int i = 0; i < 4; i++) {
        threads[i] = start_thread(many, NULL);
    }
    for (int i = 0; i < 4; i++) {
        join_thread(threads[i]);
    }
    CHECK_INT(9999, step_in(path));
    CHECK_OK(rp_progress(5, NULL)); /* back */
    CHECK_INT(5, step_in(path));
    CHECK_OK(rp_progress(INT64_MAX, ERR));
    CHECK_INT(INT64_MAX, step_in(path));
    CHECK_CODE(RP_ERR_INVALID, rp_progress(-1, ERR));
    CHECK_CONTAINS(last_error.message, "negative");
    CHECK_INT(RP_ERR_INVALID, rp_progress(INT64_MIN, NULL));
    last_error.struct_size--;
    CHECK_INT(RP_ERR_INVALID, rp_progress(-1, ERR));
    last_error.struct_size++;
    CHECK_INT(INT64_MAX, step_in(path));

    CHECK(unlink(path) == 0); /* the mapping stays */
    CHECK_OK(rp_progress(6, ERR));

    child = fork();
    if (child == 0) {
        _exit(rp_progress(7, NULL));
    }
    CHECK_INT(child, waitpid(child, &status, 0));
    CHECK_INT(0, status);
}

/* The child of a process that reports already writes into the same record. */
static void forks(const char *path) {
    int status;
    pid_t child;
    CHECK_OK(rp_progress(1, ERR));
    child = fork();
    if (child == 0) {
        _exit(rp_progress(2, NULL));
    }
    CHECK_INT(child, waitpid(child, &status, 0));
    CHECK_INT(0, status);
    CHECK_INT(2, step_in(path));
}

/* For how many milliseconds the record says that the worker is busy; 0: it is not. */
static int64_t busy_for(const char *path) {
    uint64_t word;
    struct timespec now;
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    CHECK_INT(sizeof word, pread(fd, &word, sizeof word, 40));
    close(fd);
    CHECK_INT(0, word & 0xff); /* it takes no directives */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return word == 0 ? 0 : (int64_t)(word >> 8) - now.tv_sec * 1000 - now.tv_nsec / 1000000;
}

/* The stretch that lasts longest counts until all are over. */
static void is_busy(const char *path) {
    CHECK_CODE(RP_ERR_INVALID, rp_busy(0, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_busy(-1, ERR));
    CHECK_CODE(RP_ERR_STATE, rp_busy_end(ERR));
    CHECK_INT(0, busy_for(path));
    CHECK_OK(rp_busy(600000, ERR));
    CHECK(busy_for(path) > 50000 && busy_for(path) <= 600001);
    CHECK_OK(rp_busy(50000, ERR));
    CHECK(busy_for(path) > 590000 && busy_for(path) <= 600002);
    CHECK_OK(rp_busy_end(ERR));
    CHECK(busy_for(path) > 590000);
    CHECK_OK(rp_busy_end(NULL));
    CHECK_INT(0, busy_for(path));
    CHECK_CODE(RP_ERR_STATE, rp_busy_end(ERR));
    CHECK_OK(rp_busy(INT64_MAX, ERR));
    CHECK(busy_for(path) > INT64_C(1) << 49);
    CHECK_OK(rp_busy_end(ERR));
    CHECK_INT(-1, step_in(path));
}

static void goes_nowhere(const char *path) {
    (void)path;
    CHECK_OK(rp_busy(1, ERR));
    CHECK_OK(rp_busy_end(ERR));
    CHECK_OK(rp_progress(3, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_progress(-3, ERR));
}

static void is_refused(const char *path) {
    struct stat info;
    for (int i = 0; i < 3; i++) {
        CHECK_CODE(RP_ERR_STATE, rp_progress(3, ERR));
        CHECK_CONTAINS(last_error.message, "the steps of this worker are not recorded");
        CHECK_CONTAINS(last_error.message, "RALLYPOINT_PROGRESS_FILE");
        CHECK_CODE(RP_ERR_STATE, rp_busy(1, ERR));
    }
    CHECK_CODE(RP_ERR_INVALID, rp_progress(-3, ERR));
    if (stat(path, &info) == 0 && S_ISREG(info.st_mode) && info.st_size >= RECORD_SIZE) {
        CHECK_INT(-1, step_in(path));
    }
}

int main(void) {
    CHECK(mkdtemp(folder) != NULL);
    in_child(reports, new_record("reports", "rp-steps", 1, RECORD_SIZE, RECORD_SIZE));
    in_child(forks, new_record("forks", "rp-steps", 1, RECORD_SIZE, RECORD_SIZE));
    in_child(is_busy, new_record("busy", "rp-steps", 1, RECORD_SIZE, RECORD_SIZE));
    in_child(goes_nowhere, NULL);
    in_child(goes_nowhere, "");
    in_child(is_refused, new_record("version", "rp-steps", 2, RECORD_SIZE, RECORD_SIZE));
    in_child(is_refused, new_record("size", "rp-steps", 1, 128, RECORD_SIZE));
    in_child(is_refused, new_record("longer", "rp-steps", 1, RECORD_SIZE, RECORD_SIZE * 2));
    in_child(is_refused, new_record("shorter", "rp-steps", 1, RECORD_SIZE, RECORD_SIZE - 1));
    in_child(is_refused, new_record("magic", "another!", 1, RECORD_SIZE, RECORD_SIZE));
    in_child(is_refused, "/nowhere/record");
    in_child(is_refused, folder);

    static const char *const made[] = {"forks",  "busy",    "version", "size",
                                       "longer", "shorter", "magic"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        char path[256];
        snprintf(path, sizeof path, "%s/%s", folder, made[i]);
        CHECK(unlink(path) == 0);
    }
    CHECK(rmdir(folder) == 0);
    return 0;
}
