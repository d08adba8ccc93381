/* The least that stands between a client and a server: what comes from one of the two is sent
 * to the other, one receive and one send, nothing looked at, nothing kept.
 *
 *   hop PORT
 *
 * It prints its port and ends with its standard input. Messages are small and take turns, as
 * load.c's "probe" has them: a send that does not take all of one ends the program. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MAX_EVENTS = 64, MAX_FDS = 1024, BACKLOG = 16 };

static char buffer[64 << 10];
static int other[MAX_FDS]; /* of the two sockets of a connection */

static void die(const char *what) {
    perror(what);
    exit(1);
}

static void watch(int poller, int fd, unsigned int events) {
    struct epoll_event e = {.events = events, .data.fd = fd};
    if (fd >= MAX_FDS || epoll_ctl(poller, EPOLL_CTL_ADD, fd, &e) < 0)
        die("hop: epoll_ctl");
}

static int new_socket(void) {
    int yes = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes) < 0)
        die("hop: socket");
    return fd;
}

static void join(int poller, int listener, const struct sockaddr_in *server) {
    int yes = 1, to = new_socket(), from = accept(listener, NULL, NULL);
    if (from < 0 || connect(to, (const struct sockaddr *)server, sizeof *server) < 0)
        die("hop: connect");
    setsockopt(from, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    watch(poller, from, EPOLLIN | EPOLLET);
    watch(poller, to, EPOLLIN | EPOLLET);
    other[from] = to, other[to] = from;
}

static void carry(int fd) {
    ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) {
        if (send(other[fd], buffer, (size_t)n, MSG_NOSIGNAL) != n)
            die("hop: send");
    } else if (n == 0 || errno != EAGAIN) {
        close(other[fd]);
        close(fd);
    }
}

int main(int count, char **words) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in server = address;
    socklen_t size = sizeof address;
    if (count != 2)
        return 2;
    server.sin_port = htons((in_port_t)atoi(words[1]));
    int listener = new_socket(), poller = epoll_create1(0);
    if (bind(listener, (struct sockaddr *)&address, size) < 0 ||
        listen(listener, BACKLOG) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) < 0)
        die("hop: listen");
    watch(poller, listener, EPOLLIN);
    watch(poller, STDIN_FILENO, EPOLLIN);
    printf("%d\n", ntohs(address.sin_port));
    fflush(stdout);
    for (;;) {
        struct epoll_event events[MAX_EVENTS];
        int n = epoll_wait(poller, events, MAX_EVENTS, -1);
        for (int i = 0; i < n; i++) {
            if (events[i].data.fd == STDIN_FILENO)
                return 0;
            if (events[i].data.fd == listener)
                join(poller, listener, &server);
            else
                carry(events[i].data.fd);
        }
    }
}
