/*
 * A launcher in C: joins a run, starts workers with their ranks, prints what happens,
 * and starts them again when a node is lost or comes.
 *
 *   cc launcher.c $(pkg-config --cflags --libs rallypoint) -o launcher
 *   ./launcher host0:29400 job7 2 4 8 ./worker --its arguments     # on each node
 *
 * This is: endpoint, run id, fewest and most nodes, workers on this node, program.
 */
#define _GNU_SOURCE /* pipe2 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <rallypoint.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static rp_error err = {.struct_size = sizeof(rp_error)};

static void must(int32_t code) {
    if (code > RP_PENDING) {
        fprintf(stderr, "launcher: %s (%s)\n", err.message, rp_code_name(code));
        exit(1);
    }
}

static void log_line(void *user, const rp_log_record *record) {
    (void)user;
    fprintf(stderr, "launcher: %s\n", record->text);
}

static int signals[2];

static void on_signal(int number) {
    char byte = (char)number;
    if (write(signals[1], &byte, 1) < 0) {
        /* full: there was one before */
    }
}

static void show(const rp_agent_event *e) {
    switch (e->kind) {
    case RP_AGENT_JOINED:
        printf("round %llu: node %d of %d, %d workers in all, store at %s:%d\n",
               (unsigned long long)e->round, e->group_rank, e->group_world_size, e->world_size,
               e->store_addr, e->store_port);
        break;
    case RP_AGENT_WORKER_STARTED:
        printf("rank %d of %d: process %d\n", e->rank, e->world_size, e->pid);
        break;
    case RP_AGENT_WORKER_EXITED:
        printf("rank %d: exit code %d\n", e->rank, e->exit_code);
        break;
    case RP_AGENT_STOPPING:
        printf("stopping the workers: %s\n", e->text);
        break;
    }
    fflush(stdout);
}

int main(int argc, char **argv) {
    if (argc < 7) {
        fprintf(stderr,
                "usage: launcher ENDPOINT RUN_ID MIN MAX WORKERS PROGRAM [ARGUMENT...]\n");
        return 2;
    }
    rp_member_config where = {.struct_size = sizeof where,
                              .run_id = argv[2],
                              .endpoint = argv[1],
                              .min_nodes = atoi(argv[3]),
                              .max_nodes = atoi(argv[4]),
                              .flags = RP_MEMBER_ENVIRONMENT};
    rp_agent_config config = {.struct_size = sizeof config,
                              .argv = (const char *const *)(argv + 6),
                              .argv_len = (size_t)(argc - 6),
                              .workers = atoi(argv[5]),
                              .max_restarts = 3,
                              .rendezvous = &where};
    rp_agent_event event = {.struct_size = sizeof event};
    rp_agent agent;
    int32_t code;

    /*
     * SIGINT and SIGTERM become something to poll, as all else here is. (A signalfd would
     * not do: the library's threads, which were there first, do not block them.)
     */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART | SA_ONSTACK};
    if (pipe2(signals, O_CLOEXEC | O_NONBLOCK) != 0) {
        perror("launcher: pipe2");
        return 1;
    }
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);

    must(rp_log_set_callback(log_line, NULL, &err));
    must(rp_agent_open(&config, &agent, &err));
    struct pollfd polled[2] = {{.events = POLLIN}, {.fd = signals[0], .events = POLLIN}};
    must(rp_agent_fd(agent, &polled[0].fd, &err));

    while ((code = rp_agent_run(agent, 0, &err)) == RP_PENDING) {
        if (poll(polled, 2, -1) < 0 && errno != EINTR) {
            perror("launcher: poll");
            return 1;
        }
        if (polled[1].revents != 0) {
            must(rp_agent_stop(agent, SIGTERM, -1, &err));
            polled[1].fd = -1; /* one is enough */
        }
        while (rp_agent_next_event(agent, &event, &err) == RP_OK) {
            show(&event);
        }
    }
    while (rp_agent_next_event(agent, &event, NULL) == RP_OK) {
        show(&event);
    }
    if (code != RP_OK) {
        fprintf(stderr, "launcher: %s (%s)\n", err.message, rp_code_name(code));
    }
    rp_agent_close(agent, NULL);
    rp_log_set_callback(NULL, NULL, NULL);
    return code == RP_OK ? 0 : 1;
}
