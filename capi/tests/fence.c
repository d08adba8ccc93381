/* Checkpoints that only those replace who loaded them. */
#include <signal.h>
#include <sys/wait.h>

#include "check.h"

static char folder[] = "/tmp/rp-fence-XXXXXX";
static char file[128], series[128];
static const char *program;

static rp_fence open_fence(const char *path, uint32_t flags) {
    rp_fence_config config = {.struct_size = sizeof config, .path = path, .flags = flags};
    rp_fence fence;
    CHECK_OK(rp_fence_open(&config, 10000, &fence, ERR));
    return fence;
}

static void write_file(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    CHECK(fputs(text, f) >= 0);
    CHECK_INT(0, fclose(f));
}

static void check_file(const char *path, const char *want) {
    char text[64] = "";
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    CHECK(fgets(text, sizeof text, f) != NULL);
    fclose(f);
    CHECK(strcmp(want, text) == 0);
}

static void save(rp_fence fence, const char *text) {
    rp_buffer temporary;
    CHECK_OK(rp_fence_prepare(fence, 10000, &temporary, ERR));
    CHECK(strncmp(temporary.data, folder, strlen(folder)) == 0);
    write_file(temporary.data, text);
    CHECK_OK(rp_fence_commit(fence, 10000, ERR));
    CHECK(access(temporary.data, F_OK) != 0);
    rp_buffer_free(&temporary);
}

/* Two writers of one file: the record names the one whose environment has a run. */
static void replace(void) {
    rp_fence_state state = {.struct_size = sizeof state};
    rp_buffer temporary = {0};
    setenv("TORCHELASTIC_RUN_ID", "job7", 1);
    setenv("RALLYPOINT_GENERATION", "G1", 1);
    setenv("RALLYPOINT_ROUND", "3", 1);
    rp_fence first = open_fence(file, 0), second = open_fence(file, 0);
    CHECK_OK(rp_fence_get_state(first, &state, ERR));
    CHECK_INT(0, state.existed);
    CHECK(strcmp("", state.version) == 0);
    save(first, "one");
    check_file(file, "one");
    CHECK_CODE(RP_ERR_FENCED, rp_fence_prepare(second, 0, &temporary, ERR));
    CHECK(temporary.data == NULL);
    CHECK_CONTAINS(last_error.message, file);
    CHECK_CONTAINS(last_error.message, "run \"job7\", generation G1, round 3, process ");
    CHECK_INT(0, last_error.retryable);
    save(first, "two");
    CHECK_OK(rp_fence_close(second, ERR));
    second = open_fence(file, 0);
    CHECK_OK(rp_fence_get_state(second, &state, ERR));
    CHECK_INT(1, state.existed);
    CHECK_INT(32, strlen(state.version));
    save(second, "three");
    CHECK_CODE(RP_ERR_FENCED, rp_fence_prepare(first, 0, &temporary, ERR));
    check_file(file, "three");
    CHECK_OK(rp_fence_close(first, ERR));

    /* What is not committed goes with the release. */
    CHECK_OK(rp_fence_prepare(second, 0, &temporary, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_fence_commit(second, 0, ERR));
    write_file(temporary.data, "x");
    CHECK_OK(rp_fence_release(second, ERR));
    CHECK(access(temporary.data, F_OK) != 0);
    rp_buffer_free(&temporary);
    CHECK_CODE(RP_ERR_INVALID, rp_fence_commit(second, 0, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_fence_claim(second, 0, ERR));
    CHECK_OK(rp_fence_close(second, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_fence_close(second, ERR));
}

static void *wait_for_claim(void *fence) {
    int32_t code = rp_fence_claim(*(rp_fence *)fence, -1, ERR);
    CHECK(code == RP_ERR_CANCELED || code == RP_ERR_HANDLE); /* closed before it began */
    return NULL;
}

/* A folder that is written into: another process holds it, and is killed. */
static void into(void) {
    int fds[2];
    char byte;
    rp_fence fence = open_fence(series, RP_FENCE_INTO);
    CHECK_INT(0, pipe(fds));
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        char out[16];
        snprintf(out, sizeof out, "%d", fds[1]);
        execl(program, "fence", "hold", series, out, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    CHECK_INT(1, read(fds[0], &byte, 1));
    CHECK_CODE(RP_ERR_TIMEOUT, rp_fence_claim(fence, 10, ERR));
    CHECK_CONTAINS(last_error.message, series);
    rp_fence waiting = open_fence(file, RP_FENCE_INTO * 0);
    CHECK_OK(rp_fence_close(waiting, ERR));
    pthread_t thread;
    CHECK_INT(0, pthread_create(&thread, NULL, wait_for_claim, &fence));
    CHECK_OK(rp_fence_close(fence, ERR));
    CHECK_INT(0, pthread_join(thread, NULL));
    CHECK_INT(0, kill(pid, SIGKILL));
    CHECK_INT(pid, waitpid(pid, NULL, 0));
    close(fds[0]);

    fence = open_fence(series, RP_FENCE_INTO);
    rp_fence late = open_fence(series, RP_FENCE_INTO);
    rp_buffer temporary;
    CHECK_CODE(RP_ERR_INVALID, rp_fence_prepare(fence, 0, &temporary, ERR));
    CHECK_OK(rp_fence_claim(fence, 0, ERR));
    CHECK_OK(rp_fence_claim(fence, 0, ERR));
    CHECK_OK(rp_fence_release(fence, ERR));
    CHECK_OK(rp_fence_release(fence, ERR));
    CHECK_CODE(RP_ERR_FENCED, rp_fence_claim(late, 0, ERR));
    CHECK_OK(rp_fence_close(fence, ERR));
    CHECK_OK(rp_fence_close(late, ERR));
}

/* The other process of into. */
static int hold(const char *path, const char *out) {
    rp_fence fence = open_fence(path, RP_FENCE_INTO);
    CHECK_OK(rp_fence_claim(fence, 10000, ERR));
    CHECK_INT(1, write(atoi(out), "h", 1));
    for (;;) {
        pause();
    }
}

static void faults(void) {
    rp_fence_config config = {.struct_size = sizeof config};
    rp_fence_state state = {.struct_size = 8};
    rp_fence fence = {77};
    char below[160];
    CHECK_CODE(RP_ERR_INVALID, rp_fence_open(NULL, 0, &fence, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_fence_open(&config, 0, &fence, ERR));
    config.path = "\xff";
    CHECK_CODE(RP_ERR_INVALID, rp_fence_open(&config, 0, &fence, ERR));
    snprintf(below, sizeof below, "%s/below", file);
    config.path = below;
    CHECK_CODE(RP_ERR_INVALID, rp_fence_open(&config, 0, &fence, ERR));
    config.path = file;
    CHECK_CODE(RP_ERR_INVALID, rp_fence_open(&config, -2, &fence, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_fence_open(&config, 0, NULL, ERR));
    config.flags = 2;
    CHECK_CODE(RP_ERR_INVALID, rp_fence_open(&config, 0, &fence, ERR));
    config.flags = 0;
    char record[160];
    snprintf(record, sizeof record, "%s.fence", file);
    write_file(record, "\n");
    CHECK_CODE(RP_ERR_STATE, rp_fence_open(&config, 0, &fence, ERR));
    CHECK_CONTAINS(last_error.message, record);
    CHECK_INT(77, fence.id);
    CHECK_CODE(RP_ERR_INVALID, rp_fence_get_state(fence, &state, ERR));
    state.struct_size = sizeof state;
    CHECK_CODE(RP_ERR_HANDLE, rp_fence_get_state(fence, &state, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_fence_claim(fence, 0, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_fence_release(fence, ERR));
    CHECK_INT(0, unlink(record));
}

int main(int argc, char **argv) {
    int64_t open;
    program = argv[0];
    if (argc == 4 && strcmp(argv[1], "hold") == 0) {
        return hold(argv[2], argv[3]);
    }
    CHECK(mkdtemp(folder) != NULL);
    snprintf(file, sizeof file, "%s/checkpoint", folder);
    snprintf(series, sizeof series, "%s/out", folder);
    replace();
    into();
    faults();
    CHECK_OK(rp_handles_open(&open, ERR));
    CHECK_INT(0, open);
    char command[160];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK_INT(0, system(command));
    return 0;
}
