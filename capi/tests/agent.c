/* Agents: configuration, a run, events, failures, stopping, two nodes that meet. */
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include "check.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* An agent whose workers run a shell script. */
static rp_agent_config script_config(const char **argv, const char *script) {
    rp_agent_config config = {
        .struct_size = sizeof config, .workers = 2, .log_dir = "/dev/null"};
    argv[0] = "sh";
    argv[1] = "-c";
    argv[2] = script;
    config.argv = argv;
    config.argv_len = 3;
    config.flags = RP_AGENT_NO_MACROS;
    return config;
}

static rp_agent open_agent(const rp_agent_config *config) {
    rp_agent agent = {0};
    CHECK_OK(rp_agent_open(config, &agent, ERR));
    CHECK(agent.id != 0);
    return agent;
}

static void expect_invalid(const rp_agent_config *config, const char *part) {
    rp_agent agent;
    CHECK_CODE(RP_ERR_INVALID, rp_agent_open(config, &agent, ERR));
    CHECK_CONTAINS(last_error.message, part);
}

static void configuration(void) {
    const char *argv[3];
    rp_agent agent;
    rp_member_config meeting = {.struct_size = sizeof meeting,
                                .run_id = "run",
                                .endpoint = "127.0.0.1:1",
                                .min_nodes = 2,
                                .max_nodes = 2};
    rp_agent_config good = script_config(argv, "true"), config = good;
    CHECK_CODE(RP_ERR_INVALID, rp_agent_open(NULL, &agent, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_agent_open(&config, NULL, ERR));
    config.struct_size = 8;
    expect_invalid(&config, "struct_size");
    config = good;
    config.argv_len = 0;
    expect_invalid(&config, "no command");
    argv[1] = NULL;
    config = good;
    expect_invalid(&config, "argv");
    argv[1] = "-c";
    config.workers = 0;
    expect_invalid(&config, "workers");
    config = good;
    config.max_restarts = -1;
    expect_invalid(&config, "restarts");
    config = good;
    config.shutdown_timeout_ms = -2;
    expect_invalid(&config, "shutdown_timeout_ms");
    config = good;
    config.redirects = "4";
    expect_invalid(&config, "redirects");
    config = good;
    config.tee = "7:1";
    expect_invalid(&config, "local rank 7");
    config = good;
    config.role = "\xc3(";
    expect_invalid(&config, "UTF-8");
    config = good;
    config.flags = 1u << 30;
    expect_invalid(&config, "flags");
    config.flags = RP_AGENT_WARM;
    expect_invalid(&config, "RP_AGENT_SUBREAPER");
    config.flags |= RP_AGENT_SUBREAPER | RP_AGENT_KEEP_DAEMONS;
    expect_invalid(&config, "RP_AGENT_KEEP_DAEMONS");
    config = good;
    config.preload = (const char *const[]){"json", "a b"};
    config.preload_len = 2;
    expect_invalid(&config, "\"a b\"");
    config = good;
    config.preload_timeout_ms = -2;
    expect_invalid(&config, "preload_timeout_ms");
    config = good;
    config.on_failure = "stay";
    expect_invalid(&config,
                   "on_failure: \"stay\" must be restart, regroup[:TIME], keep, or leave");
    config.on_failure = "leave";
    expect_invalid(&config, "one that leaves a standalone job");
    config.on_failure = "keep";
    expect_invalid(&config, "the nodes of a standalone job do not notice");
    config = good;
    config.checks = (const char *const[]){"true"};
    config.checks_len = 1;
    config.check_every_ms = 1000;
    expect_invalid(&config, "check_every_ms");
    config = good;
    config = good;
    config.rendezvous = &meeting;
    meeting.endpoint = NULL;
    expect_invalid(&config, "endpoint");
    meeting.endpoint = "static://127.0.0.1:1";
    expect_invalid(&config, "node_rank");
    meeting.endpoint = "static://127.0.0.1";
    CHECK_CODE(RP_ERR_INVALID, rp_agent_open(&config, &agent, ERR));
    meeting.struct_size = 1;
    expect_invalid(&config, "struct_size");
    config.rendezvous = NULL;
    config.member.id = 7;
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_open(&config, &agent, ERR));
}

static void handles(void) {
    rp_agent none = {0};
    rp_agent_event event = {.struct_size = sizeof event};
    rp_agent_result result = {.struct_size = sizeof result};
    rp_worker_result worker = {.struct_size = sizeof worker};
    rp_failure failure = {.struct_size = sizeof failure};
    int32_t fd;
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_run(none, 0, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_stop(none, SIGTERM, 0, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_next_event(none, &event, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_fd(none, &fd, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_get_result(none, &result, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_get_worker(none, 0, &worker, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_get_failure(none, 0, &failure, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_close(none, ERR));
}

/* Takes events until the run has ended; counts them by kind. */
static void take_events(rp_agent agent, int *counts, rp_agent_event *last) {
    struct pollfd ready = {.events = POLLIN};
    CHECK_OK(rp_agent_fd(agent, &ready.fd, ERR));
    last->struct_size = sizeof *last;
    do {
        CHECK_INT(1, poll_one(&ready, 30000));
        CHECK_OK(rp_agent_next_event(agent, last, ERR));
        CHECK(last->kind >= RP_AGENT_JOINING && last->kind <= RP_AGENT_ENDED);
        CHECK_INT(0, last->dropped);
        counts[last->kind]++;
        if (last->kind == RP_AGENT_WORKER_EXITED) {
            CHECK(last->pid > 0 && last->local_rank >= 0 && last->rank == last->local_rank);
        } else if (last->kind != RP_AGENT_WORKER_STARTED) {
            CHECK_INT(-1, last->pid);
        }
    } while (last->kind != RP_AGENT_ENDED);
    CHECK_CODE(RP_PENDING, rp_agent_next_event(agent, last, ERR));
    /* Readable for good now: who polls learns also that the result is there. */
    CHECK_INT(1, poll_one(&ready, 30000));
    CHECK(rp_agent_run(agent, 0, ERR) != RP_PENDING);
}

/* The environment, the macros and the results of workers that succeed. */
static void success(void) {
    char folder[] = "/tmp/rp-agent-XXXXXX", text[64];
    CHECK(mkdtemp(folder) != NULL);
    const char *argv[] = {"sh", "-c",
                          "echo \"$GIVEN $RANK $WORLD_SIZE $TORCHELASTIC_RUN_ID $1\"", "sh",
                          "${local_rank}"};
    const char *environment[] = {"GIVEN=given", "PATH=/usr/bin:/bin"};
    rp_member_config meeting = {.struct_size = sizeof meeting, .run_id = "job"};
    rp_agent_config config = {.struct_size = sizeof config,
                              .argv = argv,
                              .argv_len = COUNT(argv),
                              .environment = environment,
                              .environment_len = COUNT(environment),
                              .workers = 2,
                              .rendezvous = &meeting,
                              .log_dir = folder,
                              .redirects = "1:1",
                              .local_ranks = (const int32_t[]){1},
                              .local_ranks_len = 1};
    rp_agent agent = open_agent(&config);
    rp_agent_result result = {.struct_size = sizeof result};
    rp_worker_result worker = {.struct_size = sizeof worker};
    rp_failure failure = {.struct_size = sizeof failure};
    rp_agent_event last;
    int counts[8] = {0};
    CHECK_CODE(RP_PENDING, rp_agent_get_result(agent, &result, ERR));
    CHECK_CODE(RP_PENDING, rp_agent_run(agent, 0, ERR));
    take_events(agent, counts, &last);
    CHECK_INT(2, counts[RP_AGENT_WORKER_STARTED]);
    CHECK_INT(2, counts[RP_AGENT_WORKER_EXITED]);
    CHECK_INT(0, counts[RP_AGENT_STOPPING]);
    CHECK_INT(0, strlen(last.text));
    CHECK_OK(rp_agent_run(agent, -1, ERR));
    CHECK_OK(rp_agent_run(agent, 0, ERR)); /* again: the same result */

    CHECK_OK(rp_agent_get_result(agent, &result, ERR));
    CHECK_INT(RP_AGENT_SUCCEEDED, result.state);
    CHECK_INT(1, result.round);
    CHECK_INT(2, result.world_size);
    CHECK_INT(1, result.group_world_size);
    CHECK_INT(2, result.workers);
    CHECK_INT(0, result.failures);
    CHECK_INT(-1, result.root_cause);
    CHECK_BUFFER("", result.report);
    rp_agent_result_free(&result);
    CHECK_CODE(RP_ERR_INVALID, rp_agent_get_failure(agent, 0, &failure, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_agent_get_worker(agent, 2, &worker, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_agent_get_worker(agent, -1, &worker, ERR));
    CHECK_OK(rp_agent_get_worker(agent, 1, &worker, ERR));
    CHECK_INT(1, worker.rank);
    CHECK_INT(1, worker.role_rank);
    CHECK_INT(2, worker.role_world_size);
    CHECK_INT(0, worker.exit_code);
    CHECK_BUFFER("", worker.stderr_path);
    CHECK_CONTAINS((char *)worker.error_file.data, "/attempt_0/1/error.json");
    FILE *written = fopen(worker.stdout_path.data, "r");
    CHECK(written != NULL && fgets(text, sizeof text, written) != NULL);
    fclose(written);
    CHECK(strcmp(text, "given 1 2 job 1\n") == 0);
    rp_worker_result_free(&worker);
    CHECK_OK(rp_agent_stop(agent, SIGTERM, -1, ERR)); /* too late: nothing happens */
    CHECK_OK(rp_agent_run(agent, 0, ERR));
    CHECK_OK(rp_agent_close(agent, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_agent_run(agent, 0, ERR));
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", folder);
    CHECK_INT(0, system(command));
}

/* A failure restarts the workers, and the second one ends the run. */
static void failures(void) {
    const char *argv[3];
    rp_agent_config config =
        script_config(argv, "[ $LOCAL_RANK = 1 ] && exit 7; exec sleep 100");
    config.max_restarts = 1;
    config.name = "job.sh";
    rp_agent agent = open_agent(&config);
    rp_agent_result result = {.struct_size = sizeof result};
    rp_failure failure = {.struct_size = sizeof failure};
    rp_worker_result worker = {.struct_size = sizeof worker};
    rp_agent_event last;
    int counts[8] = {0};
    CHECK_CODE(RP_ERR_WORKERS, rp_agent_run(agent, -1, ERR));
    CHECK_CONTAINS(last_error.message, "job.sh FAILED");
    CHECK_INT(0, last_error.retryable);
    take_events(agent, counts, &last);
    CHECK_INT(2, counts[RP_AGENT_JOINED]);
    CHECK_INT(4, counts[RP_AGENT_WORKER_EXITED]);
    CHECK_INT(2, counts[RP_AGENT_STOPPING]);
    CHECK_INT(1, counts[RP_AGENT_RESTARTING]);
    CHECK_INT(1, last.restarts);
    CHECK_OK(rp_agent_get_result(agent, &result, ERR));
    CHECK_INT(RP_AGENT_FAILED, result.state);
    CHECK_INT(1, result.restarts);
    CHECK_INT(2, result.failures);
    CHECK_CONTAINS((char *)result.report.data, "exitcode  : 7 ");
    rp_agent_result_free(&result);
    CHECK_OK(rp_agent_get_failure(agent, result.root_cause, &failure, ERR));
    CHECK_INT(1, failure.rank);
    CHECK_INT(7, failure.exit_code);
    CHECK_INT(0, failure.terminated);
    CHECK(failure.time_ms > 1600000000000);
    CHECK_BUFFER("<N/A>", failure.error_file);
    CHECK_BUFFER("", failure.error_data);
    CHECK(failure.host.len > 0 && failure.message.len > 0);
    rp_failure_free(&failure);
    CHECK_OK(rp_agent_get_failure(agent, 1 - result.root_cause, &failure, ERR));
    CHECK_INT(-SIGTERM, failure.exit_code);
    CHECK_INT(1, failure.terminated);
    rp_failure_free(&failure);
    CHECK_OK(rp_agent_get_worker(agent, 0, &worker, ERR));
    CHECK_INT(-SIGTERM, worker.exit_code);
    rp_worker_result_free(&worker);
    CHECK_OK(rp_agent_close(agent, ERR));
}

static void no_program(void) {
    const char *argv[3];
    rp_agent_config config = script_config(argv, "");
    argv[0] = "/no/such/program";
    rp_agent agent = open_agent(&config);
    rp_agent_result result = {.struct_size = sizeof result};
    CHECK_CODE(RP_ERR_START, rp_agent_run(agent, -1, ERR));
    CHECK_CONTAINS(last_error.message, "/no/such/program");
    CHECK_OK(rp_agent_get_result(agent, &result, ERR));
    CHECK_INT(RP_AGENT_BROKEN, result.state);
    CHECK_INT(0, result.workers);
    rp_agent_result_free(&result);
    CHECK_OK(rp_agent_close(agent, ERR));
}

/* Waits for the start of the first worker. */
static int32_t await_worker(rp_agent agent) {
    rp_agent_event event = {.struct_size = sizeof event};
    struct pollfd ready = {.events = POLLIN};
    CHECK_OK(rp_agent_fd(agent, &ready.fd, ERR));
    do {
        CHECK_INT(1, poll_one(&ready, 30000));
        CHECK_OK(rp_agent_next_event(agent, &event, ERR));
    } while (event.kind != RP_AGENT_WORKER_STARTED);
    return event.pid;
}

/* A worker that ignores the signal is killed once the grace is over. */
static void stopping(void) {
    const char *argv[3];
    rp_agent_config config = script_config(argv, "trap '' TERM; while :; do sleep 100; done");
    rp_agent agent = open_agent(&config);
    rp_agent_result result = {.struct_size = sizeof result};
    CHECK_CODE(RP_PENDING, rp_agent_run(agent, 0, ERR));
    int32_t pid = await_worker(agent);
    CHECK_CODE(RP_ERR_INVALID, rp_agent_stop(agent, 0, -1, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_agent_stop(agent, 65, -1, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_agent_stop(agent, SIGTERM, -2, ERR));
    CHECK_OK(rp_agent_stop(agent, SIGTERM, 1, ERR));
    CHECK_CODE(RP_ERR_CANCELED, rp_agent_run(agent, -1, ERR));
    CHECK_INT(-1, kill(pid, 0));
    CHECK_OK(rp_agent_get_result(agent, &result, ERR));
    CHECK_INT(RP_AGENT_STOPPED, result.state);
    CHECK_INT(SIGTERM, result.signal);
    rp_agent_result_free(&result);
    CHECK_OK(rp_agent_close(agent, ERR));

    /* Before its start. */
    agent = open_agent(&config);
    CHECK_OK(rp_agent_stop(agent, SIGINT, -1, ERR));
    CHECK_CODE(RP_ERR_CANCELED, rp_agent_run(agent, -1, ERR));
    CHECK_OK(rp_agent_close(agent, ERR));
    /* Never started at all. */
    agent = open_agent(&config);
    CHECK_OK(rp_agent_close(agent, ERR));
}

/* A stop whose deadline passes ends the run, to be queued again. */
static void directing(void) {
    const char *argv[3];
    rp_agent_config config = script_config(argv, "while :; do sleep 0.02; done");
    rp_agent_result result = {.struct_size = sizeof result};
    config.directive_signal = 65;
    expect_invalid(&config, "directive_signal is 65");
    config.directive_signal = SIGWINCH; /* which ends no shell */
    config.max_no_progress = -1;
    expect_invalid(&config, "rounds without progress");
    config.max_no_progress = 0;
    config.restart_window_ms = -2;
    expect_invalid(&config, "restart_window_ms");
    config.restart_window_ms = 0;
    config.on_signal = "USR1:scale";
    expect_invalid(&config, "on_signal: \"scale\" says what signal USR1 asks for");
    config.on_signal = "USR1:stop";
    config.drain_timeout_ms = -1;
    expect_invalid(&config, "it must be greater than 0");
    config.drain_timeout_ms = 100;
    rp_agent agent = open_agent(&config);
    CHECK_CODE(RP_ERR_INVALID, rp_agent_direct(agent, RP_DIRECTIVE_STOP, 1000, "why", ERR));
    CHECK_CONTAINS(last_error.message, "no workers of this node run");
    CHECK_CODE(RP_PENDING, rp_agent_run(agent, 0, ERR));
    await_worker(agent);
    CHECK_CODE(RP_ERR_INVALID, rp_agent_direct(agent, RP_DIRECTIVE_STOP, 0, "why", ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_agent_direct(agent, RP_DIRECTIVE_SCALE, 9, "why", ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_agent_direct(agent, RP_DIRECTIVE_STOP, 9, NULL, ERR));
    CHECK_OK(rp_agent_direct(agent, RP_DIRECTIVE_STOP, 100, "the disk", ERR));
    CHECK_CODE(RP_ERR_CLOSED, rp_agent_run(agent, -1, ERR));
    CHECK_CONTAINS(last_error.message, "to be queued again");
    CHECK_CONTAINS(last_error.message, "the disk");
    CHECK_OK(rp_agent_get_result(agent, &result, ERR));
    CHECK_INT(RP_AGENT_REQUEUED, result.state);
    rp_agent_result_free(&result);
    CHECK_OK(rp_agent_close(agent, ERR));

    agent = open_agent(&config);
    CHECK_CODE(RP_PENDING, rp_agent_run(agent, 0, ERR));
    await_worker(agent);
    CHECK_OK(rp_agent_stop(agent, SIGUSR1, -1, ERR)); /* the same by a signal */
    CHECK_CODE(RP_ERR_CLOSED, rp_agent_run(agent, -1, ERR));
    CHECK_CONTAINS(last_error.message, "to be queued again");
    CHECK_CONTAINS(last_error.message, "SIGUSR1");
    CHECK_OK(rp_agent_close(agent, ERR));
}

static void *run(void *agent) {
    static __thread rp_error error = {.struct_size = sizeof(rp_error)};
    return (void *)(intptr_t)rp_agent_run(*(rp_agent *)agent, -1, &error);
}

/* Closing in the middle kills the workers, and ends the call of another thread. */
static void closing(void) {
    const char *argv[3];
    void *code;
    rp_agent_config config = script_config(argv, "trap '' TERM; while :; do sleep 100; done");
    rp_agent agent = open_agent(&config);
    pthread_t thread = start_thread(run, &agent);
    int32_t pid = await_worker(agent);
    CHECK_OK(rp_agent_close(agent, ERR));
    CHECK_INT(-1, kill(pid, 0));
    CHECK_INT(0, pthread_join(thread, &code));
    CHECK_INT(RP_ERR_CANCELED, (intptr_t)code);
}

/* Two nodes in one process: one takes a member, the other makes its own. */
static void meeting(const char *scheme) {
    char endpoint[48], rank[] = "0";
    int32_t port;
    rp_store_server server = start_server(&port); /* a port that is free in a moment */
    CHECK_OK(rp_store_server_stop(server, ERR));
    snprintf(endpoint, sizeof endpoint, "%s127.0.0.1:%d", scheme, port);
    rp_option options[] = {{"node_rank", rank}};
    rp_member_config place = {.struct_size = sizeof place,
                              .run_id = "run",
                              .endpoint = endpoint,
                              .min_nodes = 2,
                              .max_nodes = 2,
                              .options = options,
                              .options_len = 1};
    rp_member member;
    rp_agent agents[2];
    pthread_t threads[2];
    const char *argv[3];
    CHECK_OK(rp_member_open(&place, &member, ERR));
    for (int i = 0; i < 2; i++) {
        rp_agent_config config = script_config(argv, "[ $WORLD_SIZE = 4 ]");
        if (i == 0) {
            config.member = member;
        } else {
            rank[0] = '1';
            config.rendezvous = &place;
        }
        agents[i] = open_agent(&config);
        threads[i] = start_thread(run, &agents[i]);
    }
    for (int i = 0; i < 2; i++) {
        void *code;
        rp_agent_result result = {.struct_size = sizeof result};
        CHECK_INT(0, pthread_join(threads[i], &code));
        CHECK_INT(RP_OK, (intptr_t)code);
        CHECK_OK(rp_agent_get_result(agents[i], &result, ERR));
        CHECK_INT(2, result.group_world_size);
        CHECK_INT(4, result.world_size);
        CHECK_INT(i, result.group_rank);
        rp_agent_result_free(&result);
        CHECK_OK(rp_agent_close(agents[i], ERR));
    }
    CHECK_OK(rp_member_close(member, ERR));
}

/* An agent that is closed without a run leaves the member that it was given alone. */
static void lending(void) {
    int32_t port;
    char endpoint[32];
    const char *argv[3];
    rp_store_server server = start_server(&port); /* a port that is free in a moment */
    CHECK_OK(rp_store_server_stop(server, ERR));
    snprintf(endpoint, sizeof endpoint, "127.0.0.1:%d", port);
    rp_member_config place = {.struct_size = sizeof place,
                              .run_id = "run",
                              .endpoint = endpoint,
                              .min_nodes = 1,
                              .max_nodes = 1};
    rp_outcome outcome = {.struct_size = sizeof outcome};
    rp_member member;
    rp_agent_config config = script_config(argv, "exit 0");
    CHECK_OK(rp_member_open(&place, &member, ERR));
    config.member = member;
    CHECK_OK(rp_agent_close(open_agent(&config), ERR));
    CHECK_OK(rp_member_next(member, -1, &outcome, ERR));
    CHECK_INT(1, outcome.world_size);
    CHECK_OK(rp_member_shutdown(member, RP_END_SUCCESS, NULL, -1, ERR));
    CHECK_OK(rp_member_close(member, ERR));
}

int main(void) {
    int64_t before = handles_open();
    CHECK_OK(rp_log_set_level(RP_LOG_OFF, ERR));
    configuration();
    handles();
    success();
    failures();
    no_program();
    stopping();
    directing();
    closing();
    meeting("");
    meeting("static://");
    lending();
    CHECK_INT(before, handles_open());
    return 0;
}
