/* The least that a server of one thread can do for the load of load.c: one receive and one
 * send a request, nothing looked at but the first and last bytes, nothing kept.
 *
 * It prints its port, answers each GET with a value of 64 bytes and each PING with its nonce,
 * and ends with its standard input. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_EVENTS = 256, GET = 3, VALUE = 64, BACKLOG = 4096 };

static char buffer[128 << 10];
static char value[8 + VALUE] = {VALUE};
static const char nonce[4] = "ping";

static void watch(int poller, int fd) {
    struct epoll_event e = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e) < 0) {
        perror("echo: epoll_ctl");
        exit(1);
    }
}

static void accept_all(int poller, int listener) {
    int yes = 1;
    for (int fd; (fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0;) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
        watch(poller, fd);
    }
}

static void serve(int fd) {
    ssize_t n = recv(fd, buffer, sizeof buffer, 0);
    if (n <= 0) {
        if (n == 0 || errno != EAGAIN)
            close(fd);
        return;
    }
    if (n >= (ssize_t)sizeof nonce && !memcmp(buffer + n - sizeof nonce, nonce, sizeof nonce))
        send(fd, nonce, sizeof nonce, MSG_NOSIGNAL);
    else if (buffer[0] == GET)
        send(fd, value, sizeof value, MSG_NOSIGNAL);
}

int main(void) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (bind(listener, (struct sockaddr *)&address, size) < 0 ||
        listen(listener, BACKLOG) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) < 0) {
        perror("echo: listen");
        return 1;
    }
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    memset(value + 8, 'v', VALUE);
    int poller = epoll_create1(0);
    watch(poller, listener);
    watch(poller, STDIN_FILENO);
    static struct epoll_event events[MAX_EVENTS];
    for (;;) {
        int n = epoll_wait(poller, events, MAX_EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == STDIN_FILENO)
                return 0;
            if (events[i].data.fd == listener)
                accept_all(poller, listener);
            else
                serve(events[i].data.fd);
        }
    }
}
