/* 64 threads over all functions, on objects that they share and that are closed under
 * them: every call ends, with a code that it may have. */
#include <poll.h>
#include <sched.h>
#include <stdatomic.h>

#include "etcd.h"
#include "value.h"

#define THREADS 64
#ifndef ROUNDS
#define ROUNDS 200 /* make test-asan: 600 */
#endif
#define SHARED 8

/* Objects that all threads use, and replace now and then. */
static struct {
    _Atomic uint64_t store[SHARED];
    _Atomic uint64_t op[SHARED];
    _Atomic uint64_t member[SHARED];
    _Atomic uint64_t agent[SHARED];
    _Atomic uint64_t server;
    _Atomic uint64_t etcd;
} shared;

static char endpoint[32], file[64];
static int32_t port, etcd_port; /* of an etcd; 0: there is none */
static _Atomic int64_t calls, records, notices, noticed;

/* Where members meet that were opened with a backend. */
static value places[2] = {{.mu = PTHREAD_MUTEX_INITIALIZER}, {.mu = PTHREAD_MUTEX_INITIALIZER}};

/* What may come of a call on objects that others close. */
static void may(int32_t code) {
    atomic_fetch_add(&calls, 1);
    switch (code) {
    case RP_OK:
    case RP_PENDING:
    case RP_ERR_TIMEOUT:
    case RP_ERR_CANCELED:
    case RP_ERR_CONNECTION:
    case RP_ERR_HANDLE:
    case RP_ERR_NUMBER:
    case RP_ERR_EMPTY:
    case RP_ERR_UNSUPPORTED:
    case RP_ERR_INVALID: /* a result that was taken, a second join */
    case RP_ERR_CLOSED:
    case RP_ERR_GRACEFUL: /* a member without a place, when all others have finished */
    case RP_ERR_ROUND_OVER:
    case RP_ERR_BUFFER:
    case RP_ERR_WORKERS:
    case RP_ERR_STATE: /* of a file that was removed with its last store */
        return;
    }
    FAIL("%s: %s", rp_code_name(code), last_error.message);
}

static uint64_t pick(_Atomic uint64_t *from, unsigned *seed) {
    return atomic_load(&from[rand_r(seed) % SHARED]);
}

static uint64_t put(_Atomic uint64_t *into, uint64_t id, unsigned *seed) {
    return atomic_exchange(&into[rand_r(seed) % SHARED], id);
}

/* An etcd, if there is one, or the address of none. */
static rp_store_etcd_config etcd_config(char *text, size_t size) {
    snprintf(text, size, "etcd://127.0.0.1:%d", etcd_port != 0 ? etcd_port : 1);
    return (rp_store_etcd_config){.struct_size = sizeof(rp_store_etcd_config),
                                  .endpoint = text};
}

static void replace_store(unsigned *seed) {
    rp_store store = {0};
    int32_t code;
    switch (rand_r(seed) % 5) {
    case 0: {
        rp_store_config config = {sizeof config, "127.0.0.1", port};
        code = rp_store_connect(&config, 5000, &store, ERR);
        break;
    }
    case 1: {
        rp_store_file_config config = {sizeof config, file, -1, 0};
        code = rp_store_open_file(&config, 5000, &store, ERR);
        break;
    }
    case 2: {
        char text[64];
        rp_store_etcd_config config = etcd_config(text, sizeof text);
        code = rp_store_open_etcd(&config, etcd_port != 0 ? 20000 : 5, &store, ERR);
        break;
    }
    case 3:
        code = rp_store_open_prefix((rp_store){pick(shared.store, seed)}, "p", 1, &store, ERR);
        break;
    default:
        code = rp_store_open_hash(&store, ERR);
    }
    may(code);
    if (code == RP_OK) {
        may(rp_store_close((rp_store){put(shared.store, store.id, seed)}, ERR));
    }
}

static void use_store(unsigned *seed) {
    rp_store s = {pick(shared.store, seed)};
    char key[8];
    rp_bytes keys[2] = {{key, RP_TEXT}, {"k1", 2}};
    rp_buffer buffer = {NULL, 0};
    rp_list list = {NULL, 0};
    int32_t flag;
    int64_t number;
    snprintf(key, sizeof key, "k%d", rand_r(seed) % 4);
    switch (rand_r(seed) % 16) {
    case 0:
        may(rp_store_set(s, key, 2, "1", 1, 1000, ERR));
        break;
    case 1:
        may(rp_store_get(s, key, 2, 5, &buffer, ERR));
        break;
    case 2:
        may(rp_store_add(s, key, 2, 1, 1000, &number, ERR));
        break;
    case 3:
        may(rp_store_compare_set(s, key, 2, "", 0, "1", 1, 1000, &buffer, ERR));
        break;
    case 4:
        may(rp_store_append(s, "text", 4, "x", 1, 1000, ERR));
        break;
    case 5:
        may(rp_store_check(s, keys, 2, 1000, &flag, ERR));
        break;
    case 6:
        may(rp_store_wait(s, keys, 2, 5, ERR));
        break;
    case 7:
        may(rp_store_delete(s, key, 2, 1000, &flag, ERR));
        break;
    case 8:
        may(rp_store_num_keys(s, 1000, &number, ERR));
        break;
    case 9:
        may(rp_store_list_keys(s, 1000, &list, ERR));
        break;
    case 10:
        may(rp_store_multi_get(s, keys, 2, 5, &list, ERR));
        break;
    case 11:
        may(rp_store_multi_set(s, keys, keys, 2, 1000, ERR));
        break;
    case 12:
        may(rp_store_queue_push(s, "q", 1, "i", 1, 1000, ERR));
        break;
    case 13:
        may(rp_store_queue_pop(s, "q", 1, rand_r(seed) % 2, 5, &buffer, ERR));
        break;
    case 14:
        may(rp_store_queue_len(s, "q", 1, 1000, &number, ERR));
        break;
    default:
        may(rp_store_barrier(s, "b", 1, 1, 1000, ERR));
    }
    rp_buffer_free(&buffer);
    rp_list_free(&list);
}

static void count_notice(void *user) {
    CHECK(user == &notices);
    atomic_fetch_add(&noticed, 1);
}

static void use_op(unsigned *seed) {
    rp_op op = {pick(shared.op, seed)};
    rp_store_result result = {.struct_size = sizeof result};
    rp_store_request request = {.struct_size = sizeof request,
                                .op = 1 + rand_r(seed) % 16,
                                .key = {"k", 1},
                                .value = {"1", 1},
                                .timeout_ms = rand_r(seed) % 20,
                                .number = 1};
    rp_store_config dial = {sizeof dial, "127.0.0.1", port};
    rp_store_file_config open = {sizeof open, file, -1, 0};
    char text[64];
    rp_store_etcd_config etcd = etcd_config(text, sizeof text);
    struct pollfd p = {.events = POLLIN};
    int32_t code;
    switch (rand_r(seed) % 10) {
    case 9:
        code = rp_store_attempt((rp_store){pick(shared.store, seed)}, &request,
                                rand_r(seed) % 5, &op, &result, ERR);
        may(code);
        if (code == RP_OK) {
            rp_store_result_free(&result);
        } else if (code == RP_PENDING) {
            may(rp_op_free((rp_op){put(shared.op, op.id, seed)}, ERR));
        }
        break;
    case 0:
        may(rp_op_wait(op, rand_r(seed) % 5, ERR));
        break;
    case 1:
        code = rp_op_result(op, &result, ERR);
        may(code);
        if (code == RP_OK) {
            if (result.store.id != 0) {
                may(rp_store_close(result.store, ERR));
            }
            rp_store_result_free(&result);
        }
        break;
    case 2:
        may(rp_op_cancel(op, ERR));
        break;
    case 3:
        if (rp_op_fd(op, &p.fd, ERR) == RP_OK) {
            poll(&p, 1, 1); /* another thread may close it meanwhile: nothing is read */
        }
        break;
    case 4:
        code = rp_op_notify(op, count_notice, &notices, ERR);
        may(code);
        if (code == RP_OK) {
            atomic_fetch_add(&notices, 1);
        }
        break;
    default:
        code = rand_r(seed) % 3 == 0   ? rp_store_connect_start(&dial, 1000, &op, ERR)
               : rand_r(seed) % 3 == 0 ? rp_store_open_etcd_start(&etcd, 1000, &op, ERR)
               : rand_r(seed) % 3 == 0
                   ? rp_store_open_file_start(&open, 1000, &op, ERR)
                   : rp_store_start((rp_store){pick(shared.store, seed)}, &request, &op, ERR);
        may(code);
        if (code == RP_OK) {
            may(rp_op_free((rp_op){put(shared.op, op.id, seed)}, ERR));
        }
    }
}

static void use_member(unsigned *seed) {
    rp_member m = {pick(shared.member, seed)};
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_option options[] = {
        {"last_call_timeout", "0.01"}, {"close_timeout", "0.1"}, {"join_timeout", "2"}};
    rp_member_config config = {.struct_size = sizeof config,
                               .run_id = "stress",
                               .endpoint = endpoint,
                               .min_nodes = 1,
                               .max_nodes = 4,
                               .options = options,
                               .options_len = 3};
    char text[512];
    size_t size = sizeof text;
    int32_t number, code;
    rp_store store;
    switch (rand_r(seed) % 13) {
    case 0:
        may(rp_member_next(m, 5, &outcome, ERR));
        break;
    case 1:
        may(rp_member_cancel(m, ERR));
        break;
    case 2:
        may(rp_member_wait(m, 2, ERR));
        break;
    case 3:
        may(rp_member_fd(m, &number, ERR));
        break;
    case 4:
        may(rp_member_nodes_waiting(m, &number, ERR));
        break;
    case 5:
        may(rp_member_is_closed(m, &number, ERR));
        break;
    case 6:
        may(rp_member_reason(m, text, &size, ERR));
        break;
    case 7:
        code = rp_member_keys(m, 1, &store, ERR);
        may(code);
        if (code == RP_OK) {
            may(rp_store_close((rp_store){put(shared.store, store.id, seed)}, ERR));
        }
        break;
    case 8:
        may(rp_member_finish(m, 2, ERR));
        break;
    case 9:
        may(rp_member_shutdown(m, RP_END_LEAVE, "stress", 2, ERR));
        break;
    case 10:
        if (rand_r(seed) % 16 == 0) {
            may(rp_member_set_closed(m, "stress", 2, ERR));
        }
        break;
    case 11: {
        int which = rand_r(seed) % 2;
        rp_backend backend = value_backend(&places[which]);
        pthread_mutex_lock(&places[which].mu);
        places[which].users++;
        pthread_mutex_unlock(&places[which].mu);
        CHECK_OK(rp_member_open_backend(&config, &backend, &m, ERR));
        may(rp_member_close((rp_member){put(shared.member, m.id, seed)}, ERR));
        break;
    }
    default:
        CHECK_OK(rp_member_open(&config, &m, ERR));
        may(rp_member_close((rp_member){put(shared.member, m.id, seed)}, ERR));
    }
}

static void use_agent(unsigned *seed) {
    static const char *const argv[] = {"/bin/true"};
    rp_agent a = {pick(shared.agent, seed)};
    rp_agent_config config = {
        .struct_size = sizeof config, .argv = argv, .argv_len = 1, .workers = 1};
    rp_agent_event event = {.struct_size = sizeof event};
    rp_agent_result result = {.struct_size = sizeof result};
    rp_worker_result worker = {.struct_size = sizeof worker};
    rp_failure failure = {.struct_size = sizeof failure};
    int32_t fd;
    switch (rand_r(seed) % 12) {
    case 0:
        may(rp_agent_run(a, 5, ERR));
        break;
    case 1:
        may(rp_agent_stop(a, 15, 1, ERR));
        break;
    case 2:
        may(rp_agent_next_event(a, &event, ERR));
        break;
    case 3:
        may(rp_agent_fd(a, &fd, ERR));
        break;
    case 4:
        may(rp_agent_get_result(a, &result, ERR));
        rp_agent_result_free(&result);
        break;
    case 5:
        may(rp_agent_get_worker(a, 0, &worker, ERR));
        rp_worker_result_free(&worker);
        break;
    case 6:
        may(rp_agent_get_failure(a, 0, &failure, ERR));
        rp_failure_free(&failure);
        break;
    case 7:
        CHECK_OK(rp_agent_open(&config, &a, ERR));
        may(rp_agent_close((rp_agent){put(shared.agent, a.id, seed)}, ERR));
        break;
    default:
        break;
    }
}

static void count_record(void *user, const rp_log_record *record) {
    CHECK(user == &records && record->text[0] != 0);
    atomic_fetch_add(&records, 1);
}

static void use_rest(unsigned *seed) {
    static __thread rp_log_record record = {.struct_size = sizeof(rp_log_record)};
    rp_usage usage = {.struct_size = sizeof usage};
    rp_store_server_config config = {sizeof config, "127.0.0.1", 0};
    rp_etcd_server_config etcd_config = {
        .struct_size = sizeof etcd_config, .binary = "/bin/false", .output_fd = -1};
    rp_etcd_server etcd;
    rp_store_server server;
    int64_t number;
    int32_t bound;
    switch (rand_r(seed) % 10) {
    case 0:
        may(rp_log_next(&record, ERR));
        break;
    case 1:
        CHECK_OK(rp_log_set_callback(rand_r(seed) % 2 ? count_record : NULL, &records, ERR));
        break;
    case 2:
        CHECK_OK(rp_log_set_level(RP_LOG_DEBUG, ERR));
        break;
    case 3:
        CHECK_OK(rp_usage_get(&usage, ERR));
        break;
    case 4:
        CHECK_OK(rp_handles_open(&number, ERR));
        break;
    case 5:
        CHECK_OK(rp_store_server_start(&config, &server, ERR));
        may(rp_store_server_stop((rp_store_server){atomic_exchange(&shared.server, server.id)},
                                 ERR));
        break;
    case 6:
        may(rp_store_server_port((rp_store_server){atomic_load(&shared.server)}, &bound, ERR));
        break;
    case 7: /* a process each time: not so often */
        if (rand_r(seed) % 4 == 0) {
            CHECK_OK(rp_etcd_server_start(&etcd_config, 1000, &etcd, ERR));
            may(rp_etcd_server_stop((rp_etcd_server){atomic_exchange(&shared.etcd, etcd.id)},
                                    ERR));
        }
        break;
    case 8:
        may(rp_etcd_server_ready((rp_etcd_server){atomic_load(&shared.etcd)}, 2, &bound, ERR));
        break;
    default:
        CHECK(rp_abi_version() == RP_ABI_VERSION && rp_version()[0] != 0);
        CHECK(strcmp(rp_code_name(RP_OK), "OK") == 0);
    }
}

static void *work(void *argument) {
    unsigned seed = (unsigned)(uintptr_t)argument;
    for (int i = 0; i < ROUNDS; i++) {
        switch (rand_r(&seed) % 8) {
        case 0:
            replace_store(&seed);
            break;
        case 1:
        case 2:
        case 3:
            use_store(&seed);
            break;
        case 4:
            use_op(&seed);
            break;
        case 5:
            use_member(&seed);
            break;
        case 6:
            use_agent(&seed);
            break;
        default:
            use_rest(&seed);
        }
    }
    return NULL;
}

static int users(int place) {
    pthread_mutex_lock(&places[place].mu);
    int n = places[place].users;
    pthread_mutex_unlock(&places[place].mu);
    return n;
}

int main(void) {
    pthread_t threads[THREADS];
    alarm(100);
    own_endpoint(endpoint, sizeof endpoint);
    snprintf(file, sizeof file, "/tmp/rallypoint-stress-%d", (int)getpid());
    rp_store_server server = start_server(&port);
    rp_etcd_server etcd = {0};
    if (etcd_binary() != NULL) {
        etcd = start_etcd(etcd_binary(), &etcd_port);
    }
    for (uintptr_t i = 0; i < THREADS; i++) {
        threads[i] = start_thread(work, (void *)(i + 1));
    }
    for (int i = 0; i < THREADS; i++) {
        join_thread(threads[i]);
    }
    CHECK_OK(rp_log_set_callback(NULL, NULL, ERR));
    for (int i = 0; i < SHARED; i++) {
        may(rp_op_free((rp_op){shared.op[i]}, ERR));
        may(rp_store_close((rp_store){shared.store[i]}, ERR));
        may(rp_agent_close((rp_agent){shared.agent[i]}, ERR));
        may(rp_member_close((rp_member){shared.member[i]}, ERR));
    }
    may(rp_store_server_stop((rp_store_server){shared.server}, ERR));
    may(rp_etcd_server_stop((rp_etcd_server){shared.etcd}, ERR));
    CHECK_OK(rp_store_server_stop(server, ERR));
    if (etcd.id != 0) {
        CHECK_OK(rp_etcd_server_stop(etcd, ERR));
    }
    CHECK_INT(0, handles_open());
    CHECK(calls > THREADS * ROUNDS / 2);
    /* Every operation has ended and said so, and the backends are given back: soon, since
     * the alarm would end this. */
    while (atomic_load(&noticed) != atomic_load(&notices) || users(0) != 0 || users(1) != 0) {
        sched_yield();
    }
    for (int i = 0; i < 2; i++) {
        free(places[i].state);
    }
    unlink(file);
    return 0;
}
