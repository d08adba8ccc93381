/* dlopen, use and close a thousand handles: descriptors, goroutines and threads are
 * then what they were. */
#include "loaded.h"
/* after loaded.h */
#include <dirent.h>

#include "check.h"

#define CYCLES 125 /* of 8 handles each */

static char endpoint[32], file[64];

static int entries(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    CHECK(d != NULL);
    while (readdir(d) != NULL) {
        n++;
    }
    closedir(d);
    return n;
}

static int64_t goroutines(void) {
    rp_usage usage = {.struct_size = sizeof usage};
    CHECK_OK(rp_usage_get(&usage, ERR));
    return usage.goroutines;
}

static void callback(void *user, const rp_log_record *record) {
    (void)user;
    (void)record;
}

/* Opens one of everything, uses it, closes it. */
static void cycle(int join) {
    static const char *const argv[] = {"/bin/true"};
    int32_t port, fd;
    rp_store_server server = start_server(&port);
    rp_store connected = connect_to(port), hash, prefix, shared;
    rp_store_file_config file_config = {sizeof file_config, file, 0, 0};
    rp_member_config member_config = {.struct_size = sizeof member_config,
                                      .run_id = "cycles",
                                      .endpoint = endpoint,
                                      .min_nodes = 1,
                                      .max_nodes = 1};
    rp_agent_config agent_config = {
        .struct_size = sizeof agent_config, .argv = argv, .argv_len = 1, .workers = 1};
    rp_store_request get = {
        .struct_size = sizeof get, .op = RP_STORE_GET, .key = {"never", 5}, .timeout_ms = -1};
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_buffer value;
    rp_member member;
    rp_agent agent;
    rp_op op;
    CHECK_OK(rp_log_set_callback(callback, NULL, ERR));
    CHECK_OK(rp_store_open_hash(&hash, ERR));
    CHECK_OK(rp_store_open_prefix(hash, "p", 1, &prefix, ERR));
    CHECK_OK(rp_store_open_file(&file_config, 10000, &shared, ERR));
    rp_store stores[] = {connected, hash, prefix, shared};
    for (int i = 0; i < 4; i++) {
        CHECK_OK(rp_store_set(stores[i], "k", 1, "v", 1, 10000, ERR));
        CHECK_OK(rp_store_get(stores[i], "k", 1, 10000, &value, ERR));
        CHECK_BUFFER("v", value);
        free(value.data);
    }
    CHECK_OK(rp_store_start(connected, &get, &op, ERR));
    CHECK_OK(rp_op_fd(op, &fd, ERR));
    CHECK_OK(rp_member_open(&member_config, &member, ERR));
    CHECK_OK(rp_member_fd(member, &fd, ERR));
    CHECK_OK(rp_agent_open(&agent_config, &agent, ERR));
    CHECK_OK(rp_agent_fd(agent, &fd, ERR));
    if (join) {
        CHECK_OK(rp_member_next(member, 30000, &outcome, ERR));
        CHECK_OK(rp_agent_run(agent, 30000, ERR));
        CHECK_OK(rp_member_shutdown(member, RP_END_SUCCESS, NULL, 30000, ERR));
    }
    CHECK_OK(rp_op_free(op, ERR)); /* under way */
    CHECK_OK(rp_agent_close(agent, ERR));
    CHECK_OK(rp_member_close(member, ERR));
    for (int i = 3; i >= 0; i--) {
        CHECK_OK(rp_store_close(stores[i], ERR));
    }
    CHECK_OK(rp_store_server_stop(server, ERR));
    CHECK_OK(rp_log_set_callback(NULL, NULL, ERR));
}

int main(void) {
    alarm(100);
    own_endpoint(endpoint, sizeof endpoint);
    snprintf(file, sizeof file, "/tmp/rallypoint-cycles-%d", (int)getpid());
    void *library = load();
    cycle(1); /* what is made once and kept */
    int fds = entries("/proc/self/fd");
    int64_t before = goroutines();
    for (int i = 0; i < CYCLES; i++) {
        cycle(i % 25 == 0);
    }
    CHECK_INT(0, handles_open());
    /* What was cancelled ends soon, in the background. */
    int64_t end = now_ms() + 20000;
    while (goroutines() > before || entries("/proc/self/fd") > fds) {
        struct timespec pause = {0, 10000000};
        if (now_ms() > end) {
            FAIL("%" PRId64 " goroutines and %d descriptors, before %" PRId64 " and %d",
                 goroutines(), entries("/proc/self/fd"), before, fds);
        }
        nanosleep(&pause, NULL);
    }
    int threads = entries("/proc/self/task");
    if (threads > 40) {
        FAIL("%d threads", threads);
    }
    /* The library stays in the process, and works when it is loaded again. */
    CHECK_INT(0, dlclose(library));
    library = dlopen("librallypoint.so.0", RTLD_NOW | RTLD_NOLOAD);
    CHECK(library != NULL);
    cycle(0);
    CHECK_INT(0, dlclose(library));
    return 0;
}
