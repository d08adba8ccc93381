/* In a child of fork() every function answers at once. */
#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include "value.h"

static void nothing(void *user) {
    (void)user;
}

static value place = {.mu = PTHREAD_MUTEX_INITIALIZER};

static void in_child(rp_store store, rp_store_server server, rp_buffer *value) {
    alarm(5);
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_member_config config = {.struct_size = sizeof config};
    rp_member member = {1};
    int64_t number;
    static rp_log_record record = {.struct_size = sizeof(rp_log_record)};
    char *argv[] = {"rallypoint", "--help", NULL};
    rp_store_etcd_config etcd_config = {.struct_size = sizeof etcd_config,
                                        .endpoint = "etcd://127.0.0.1:1"};
    rp_etcd_server_config etcd_server_config = {
        .struct_size = sizeof etcd_server_config, .binary = "/bin/true", .output_fd = -1};
    rp_etcd_server etcd = {1};
    rp_backend backend = value_backend(&place);
    rp_store opened;
    rp_op op = {1};
    rp_store_request request = {
        .struct_size = sizeof request, .op = RP_STORE_NUM_KEYS, .timeout_ms = -1};
    rp_store_result result = {.struct_size = sizeof result};
    int32_t port;
    CHECK_CODE(RP_ERR_FORKED, rp_store_set(store, "k", 1, "v", 1, -1, ERR));
    CHECK_CONTAINS(last_error.message, "fork");
    CHECK_CODE(RP_ERR_FORKED, rp_store_num_keys(store, -1, &number, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_store_close(store, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_store_server_stop(server, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_member_open(&config, &member, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_member_next(member, -1, &outcome, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_member_close(member, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_member_open_backend(&config, &backend, &member, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_store_open_etcd(&etcd_config, -1, &opened, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_store_open_etcd_start(&etcd_config, -1, &op, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_etcd_server_start(&etcd_server_config, -1, &etcd, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_etcd_server_ready(etcd, -1, &port, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_etcd_server_stop(etcd, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_store_attempt(store, &request, -1, &op, &result, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_op_notify(op, nothing, NULL, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_handles_open(&number, ERR));
    CHECK_CODE(RP_ERR_FORKED, rp_log_next(&record, ERR));
    CHECK_INT(70, rp_main(2, argv));
    /* These need no threads of the library. */
    CHECK_INT(RP_ABI_VERSION, rp_abi_version());
    CHECK(strcmp("FORKED", rp_code_name(RP_ERR_FORKED)) == 0);
    CHECK(rp_version() != NULL);
    rp_buffer_free(value);
}

/*
 * The calls that wait. Each runs in a thread of its own while the process forks, and
 * goes on in the parent as if nothing had happened.
 */
static struct {
    rp_store store, hash;
    rp_op op;
    rp_member joining, member, meeting;
    rp_agent agent;
    rp_store_config silent;
    rp_store_file_config locked;
    rp_store_etcd_config no_etcd;
    rp_etcd_server etcd;
    _Atomic int started;
} middle;

static int32_t waits(int which, rp_error *err) {
    static rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_bytes key = {"never", 5};
    rp_store store;
    int64_t limit = -1;
    int32_t code, port;
    rp_store_result got = {.struct_size = sizeof got};
    switch (which) {
    case 0:
        code = rp_store_get(middle.store, "never", 5, limit, &got.value, err);
        break;
    case 1:
        code = rp_store_wait(middle.store, &key, 1, limit, err);
        break;
    case 2:
        code = rp_store_multi_get(middle.hash, &key, 1, limit, &got.list, err);
        break;
    case 3:
        code = rp_store_queue_pop(middle.hash, "q", 1, 1, limit, &got.value, err);
        break;
    case 4:
        code = rp_store_barrier(middle.store, "b", 1, 2, limit, err);
        break;
    case 5:
        code = rp_op_wait(middle.op, limit, err);
        break;
    case 6:
        code = rp_member_next(middle.joining, limit, &outcome, err);
        break;
    case 7:
        code = rp_member_wait(middle.member, limit, err);
        break;
    case 8:
        code = rp_agent_run(middle.agent, limit, err);
        break;
    case 9:
        code = rp_store_connect(&middle.silent, 3000, &store, err);
        break;
    case 10:
        code = rp_store_open_file(&middle.locked, 3000, &store, err);
        break;
    case 11:
        code = rp_store_open_etcd(&middle.no_etcd, 3000, &store, err);
        break;
    case 12:
        code = rp_member_next(middle.meeting, limit, &outcome, err);
        break;
    case 13:
        code = rp_etcd_server_ready(middle.etcd, limit, &port, err);
        break;
    default:
        return -1;
    }
    rp_store_result_free(&got);
    return code;
}

#define WAITS 14

static void *wait_for_it(void *which) {
    rp_error err = {.struct_size = sizeof err};
    atomic_fetch_add(&middle.started, 1);
    return (void *)(intptr_t)waits((int)(intptr_t)which, &err);
}

static void in_the_middle(int32_t port) {
    static const char *const argv[] = {"/bin/sleep", "1000"};
    char endpoint[32], file[64], mute[64];
    own_endpoint(endpoint, sizeof endpoint);
    snprintf(file, sizeof file, "/tmp/rallypoint-forked-%d", (int)getpid());
    snprintf(mute, sizeof mute, "/tmp/rallypoint-forked-%d-etcd", (int)getpid());
    rp_member_config member_config = {.struct_size = sizeof member_config,
                                      .run_id = "forked",
                                      .endpoint = endpoint,
                                      .min_nodes = 2,
                                      .max_nodes = 2};
    rp_agent_config agent_config = {
        .struct_size = sizeof agent_config, .argv = argv, .argv_len = 2, .workers = 1};
    rp_store_request get = {
        .struct_size = sizeof get, .op = RP_STORE_GET, .key = {"never", 5}, .timeout_ms = -1};
    middle.store = connect_to(port);
    middle.silent = (rp_store_config){sizeof middle.silent, "127.0.0.1", 1};
    middle.locked = (rp_store_file_config){sizeof middle.locked, file, -1, 0};
    int lock = open(file, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    CHECK(lock >= 0);
    CHECK_INT(0, flock(lock, LOCK_EX));
    /* An etcd that starts and never answers. */
    int script = open(mute, O_CREAT | O_WRONLY | O_CLOEXEC, 0700);
    CHECK(script >= 0);
    static const char text[] = "#!/bin/sh\nexec sleep 1000\n";
    CHECK_INT(sizeof text - 1, write(script, text, sizeof text - 1));
    CHECK_INT(0, close(script));
    rp_etcd_server_config etcd_config = {
        .struct_size = sizeof etcd_config, .binary = mute, .output_fd = -1};
    rp_backend backend = value_backend(&place);
    middle.no_etcd = (rp_store_etcd_config){.struct_size = sizeof middle.no_etcd,
                                            .endpoint = "etcd://127.0.0.1:1"};
    CHECK_OK(rp_etcd_server_start(&etcd_config, 3000, &middle.etcd, ERR));
    place.users++;
    CHECK_OK(rp_member_open_backend(&member_config, &backend, &middle.meeting, ERR));
    CHECK_OK(rp_store_open_hash(&middle.hash, ERR));
    CHECK_OK(rp_store_start(middle.store, &get, &middle.op, ERR));
    CHECK_OK(rp_member_open(&member_config, &middle.joining, ERR));
    CHECK_OK(rp_member_open(&member_config, &middle.member, ERR));
    CHECK_OK(rp_agent_open(&agent_config, &middle.agent, ERR));
    pthread_t threads[WAITS];
    for (intptr_t i = 0; i < WAITS; i++) {
        threads[i] = start_thread(wait_for_it, (void *)i);
    }
    while (atomic_load(&middle.started) < WAITS) {
        sched_yield();
    }
    for (int i = 0; i < 20; i++) { /* spread over what the calls do until they wait */
        struct timespec pause = {0, 2000000};
        nanosleep(&pause, NULL);
        pid_t pid = fork();
        if (pid == 0) {
            alarm(5);
            for (int which = 0; which < WAITS; which++) {
                rp_error err = {.struct_size = sizeof err};
                CHECK_INT(RP_ERR_FORKED, waits(which, &err));
            }
            execl("/bin/true", "true", (char *)NULL);
            _exit(1);
        }
        int status;
        CHECK_INT(pid, waitpid(pid, &status, 0));
        CHECK_INT(0, status);
    }
    /* The parent's calls still wait, and end as always. */
    CHECK_CODE(RP_PENDING, rp_op_wait(middle.op, 0, ERR));
    CHECK_OK(rp_store_set(middle.store, "never", 5, "now", 3, 5000, ERR));
    CHECK_OK(rp_store_set(middle.hash, "never", 5, "now", 3, 5000, ERR));
    CHECK_OK(rp_store_queue_push(middle.hash, "q", 1, "now", 3, 5000, ERR));
    CHECK_OK(rp_store_barrier(middle.store, "b", 1, 2, 5000, ERR));
    CHECK_OK(rp_member_cancel(middle.joining, ERR));
    CHECK_OK(rp_member_cancel(middle.member, ERR));
    CHECK_OK(rp_member_cancel(middle.meeting, ERR));
    CHECK_OK(rp_agent_stop(middle.agent, 15, 1000, ERR));
    for (int i = 0; i < WAITS; i++) {
        void *code;
        CHECK_INT(0, pthread_join(threads[i], &code));
        int32_t want = i == 6 || i == 8 || i == 12 ? RP_ERR_CANCELED
                       : i == 11                   ? RP_ERR_CONNECTION
                       : i >= 9                    ? RP_ERR_TIMEOUT
                                                   : RP_OK;
        if (want != (intptr_t)code) {
            FAIL("call %d: %s, want %s", i, rp_code_name((int32_t)(intptr_t)code),
                 rp_code_name(want));
        }
    }
    CHECK_OK(rp_op_free(middle.op, ERR));
    CHECK_OK(rp_store_close(middle.store, ERR));
    CHECK_OK(rp_store_close(middle.hash, ERR));
    CHECK_OK(rp_member_close(middle.joining, ERR));
    CHECK_OK(rp_member_close(middle.member, ERR));
    CHECK_OK(rp_member_close(middle.meeting, ERR));
    CHECK_OK(rp_agent_close(middle.agent, ERR));
    CHECK_OK(rp_etcd_server_stop(middle.etcd, ERR));
    CHECK_INT(0, unlink(mute));
    CHECK_INT(0, unlink(file));
    CHECK_INT(0, close(lock));
}

int main(void) {
    int32_t port;
    rp_store_server server = start_server(&port);
    rp_store store = connect_to(port);
    rp_buffer value;
    CHECK_OK(rp_store_set(store, "k", 1, "v", 1, 5000, ERR));
    CHECK_OK(rp_store_get(store, "k", 1, 5000, &value, ERR));
    for (int i = 0; i < 5; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            in_child(store, server, &value);
            _exit(0);
        }
        int status;
        CHECK_INT(pid, waitpid(pid, &status, 0));
        CHECK_INT(0, status);
    }
    in_the_middle(port);
    /* The parent goes on. */
    rp_buffer_free(&value);
    CHECK_OK(rp_store_get(store, "k", 1, 5000, &value, ERR));
    CHECK_BUFFER("v", value);
    rp_buffer_free(&value);
    CHECK_OK(rp_store_close(store, ERR));
    CHECK_OK(rp_store_server_stop(server, ERR));
    return 0;
}
