/* Load on a TCPStore server (docs/spec/tcpstore-wire.md), the same for any server.
 *
 *   load PORT MODE CONNECTIONS [VALUE_BYTES]
 *
 * It connects to 127.0.0.1, prints "ready" and then obeys its standard input: each line is a
 * number of seconds to run for and is answered by a line of JSON. It ends with its input.
 *
 * One thread, one epoll: what is compared are servers, and a request costs this program the
 * same, whichever server answers it. Each connection has one message under way (closed loop).
 *
 *   get, set_get, add, check, compare_set   one key a connection, a value of VALUE_BYTES
 *   multi_get                               128 keys, the same for all connections
 *   wake                                    all wait for a key, another connection sets it
 *   probe                                   get, on one connection, and how long each took
 *   idle                                    one get on each, then silence
 *   slow                                    64 gets sent at once on each; 1 KiB a second read
 *   drip                                    a byte a second sent on each
 *   storm                                   CONNECTIONS connects, evenly in the seconds given
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_EVENTS = 1024,
    MAX_MESSAGE = 1 << 20,
    MULTI_KEYS = 128,
    DIGITS = 6,
    PATCHES = 2,
    STORM_BATCH = 64, /* connects between two looks at what has been answered */
    SLOW_GETS = 64,
    SLOW_READ = 1 << 10,   /* bytes a second */
    SLOW_BUFFER = 4 << 10, /* of the kernel, for what arrives */
    MAX_PROBES = 1 << 20,
};

enum opcode {
    SET = 1,
    COMPARE_SET,
    GET,
    ADD,
    CHECK,
    WAIT,
    DELETE = 8,
    MULTI_GET = 10,
    PING = 13
};

/* One message, the same for all connections up to the digits of their own key. */
struct message {
    char bytes[MAX_MESSAGE];
    size_t length;
    size_t reply; /* bytes */
    size_t patch[PATCHES];
    int patches;
};

struct connection {
    int fd;
    char digits[DIGITS];
    size_t unsent;
    size_t due; /* bytes of the reply still to come */
    double start;
};

static struct sockaddr_in address;
static struct connection *connections;
static int count;
static int poller;
static struct message request;
static char scratch[MAX_MESSAGE];

static void die(const char *what) {
    fprintf(stderr, "load: %s: %s\n", what, strerror(errno));
    exit(1);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void put(struct message *m, const void *bytes, size_t n) {
    if (m->length + n > sizeof m->bytes) {
        fprintf(stderr, "load: the message is too long\n");
        exit(1);
    }
    memcpy(m->bytes + m->length, bytes, n);
    m->length += n;
}

static void put_op(struct message *m, enum opcode op) {
    put(m, &(char){(char)op}, 1);
}

static void put_int(struct message *m, uint64_t n) {
    put(m, &n, sizeof n); /* little endian, as on the wire */
}

static void put_text(struct message *m, const void *text, size_t n) {
    put_int(m, n);
    put(m, text, n);
}

/* Appends the connection's own key, whose digits patch() fills in. */
static void put_own_key(struct message *m) {
    static const char key[] = "/key/000000";
    put_text(m, key, sizeof key - 1);
    m->patch[m->patches++] = m->length - DIGITS;
}

static void put_value(struct message *m, size_t n) {
    memset(scratch, 'v', n);
    put_text(m, scratch, n);
}

static void patch(struct message *m, const struct connection *c) {
    for (int i = 0; i < m->patches; i++)
        memcpy(m->bytes + m->patch[i], c->digits, DIGITS);
}

static void put_multi_keys(struct message *m, enum opcode op, size_t value) {
    char key[32];
    if (op == MULTI_GET) {
        put_op(m, op);
        put_int(m, MULTI_KEYS);
    }
    for (int i = 0; i < MULTI_KEYS; i++) {
        int n = snprintf(key, sizeof key, "/multi/%06d", i);
        if (op == SET)
            put_op(m, op);
        put_text(m, key, (size_t)n);
        if (op == SET)
            put_value(m, value);
    }
}

/* Builds the request of the mode. False if the mode has none. */
static bool build(struct message *m, const char *mode, size_t value) {
    size_t text = 8 + value;
    if (!strcmp(mode, "get") || !strcmp(mode, "idle") || !strcmp(mode, "probe") ||
        !strcmp(mode, "slow") || !strcmp(mode, "drip")) {
        put_op(m, GET), put_own_key(m);
        m->reply = text;
    } else if (!strcmp(mode, "set_get")) {
        put_op(m, SET), put_own_key(m), put_value(m, value);
        put_op(m, GET), put_own_key(m);
        m->reply = text;
    } else if (!strcmp(mode, "add")) {
        static const char counter[] = "/counter"; /* own keys hold text */
        put_op(m, ADD), put_text(m, counter, sizeof counter - 1), put_int(m, 1);
        m->reply = 8;
    } else if (!strcmp(mode, "check")) {
        put_op(m, CHECK), put_int(m, 1), put_own_key(m);
        m->reply = 1;
    } else if (!strcmp(mode, "compare_set")) {
        put_op(m, COMPARE_SET), put_own_key(m), put_value(m, value), put_value(m, value);
        m->reply = text;
    } else if (!strcmp(mode, "multi_get")) {
        put_multi_keys(m, MULTI_GET, value);
        m->reply = MULTI_KEYS * text;
    } else if (!strcmp(mode, "wake")) {
        /* The answer to PING overtakes that to WAIT: it says that the wait is registered. */
        put_op(m, WAIT), put_int(m, 1), put_text(m, "/go", 3);
        put_op(m, PING), put(m, "ping", 4);
        m->reply = 4;
    } else {
        return false;
    }
    return true;
}

/* Blocking I/O, for what is not measured. */

static void send_all(int fd, const char *bytes, size_t n) {
    for (ssize_t sent; n > 0; bytes += sent, n -= (size_t)sent)
        if ((sent = send(fd, bytes, n, MSG_NOSIGNAL)) <= 0)
            die("send");
}

static void receive_all(int fd, size_t n) {
    for (ssize_t got; n > 0; n -= (size_t)got)
        if ((got = recv(fd, scratch, n < sizeof scratch ? n : sizeof scratch, 0)) <= 0)
            die("receive");
}

static void exchange(int fd, const struct message *m) {
    send_all(fd, m->bytes, m->length);
    receive_all(fd, m->reply);
}

static const char hello[] = "\x00\xce\xf7\x85\x3c\x0dping";
enum { HELLO = sizeof hello - 1, HELLO_REPLY = 4 };

static int new_socket(int flags) {
    int fd = socket(AF_INET, SOCK_STREAM | flags, 0);
    if (fd < 0)
        die("socket");
    /* Closing resets: tens of thousands of ports would be in TIME_WAIT otherwise. */
    struct linger reset = {.l_onoff = 1};
    int yes = 1;
    setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
    return fd;
}

static int connect_hello(void) {
    int fd = new_socket(0);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) < 0)
        die("connect");
    send_all(fd, hello, HELLO);
    receive_all(fd, HELLO_REPLY);
    return fd;
}

static void watch(struct connection *c) {
    struct epoll_event e = {.events = EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (fcntl(c->fd, F_SETFL, O_NONBLOCK) < 0 ||
        epoll_ctl(poller, EPOLL_CTL_ADD, c->fd, &e) < 0)
        die("epoll_ctl");
}

/* Connects all and stores the value that each of them is going to read. */
static void connect_all(size_t value) {
    static struct message own, many;
    put_op(&own, SET), put_own_key(&own), put_value(&own, value);
    put_op(&own, PING), put(&own, "ping", 4);
    own.reply = 4;
    for (int i = 0; i < count; i++) {
        struct connection *c = &connections[i];
        char text[16];
        snprintf(text, sizeof text, "%0*d", DIGITS, i);
        memcpy(c->digits, text, DIGITS);
        c->fd = connect_hello();
        patch(&own, c);
        exchange(c->fd, &own);
    }
    if (MULTI_KEYS * (value + 64) < MAX_MESSAGE) {
        put_multi_keys(&many, SET, value);
        put_op(&many, PING), put(&many, "ping", 4);
        many.reply = 4;
        exchange(connections[0].fd, &many);
    }
    for (int i = 0; i < count; i++)
        watch(&connections[i]);
}

/* Goes on sending the request. */
static void push(struct connection *c) {
    if (request.patches > 0)
        patch(&request, c);
    const char *from = request.bytes + request.length - c->unsent;
    ssize_t n = send(c->fd, from, c->unsent, MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN)
        die("send");
    if (n > 0)
        c->unsent -= (size_t)n;
}

static void begin(struct connection *c) {
    c->unsent = request.length;
    c->due = request.reply;
    push(c);
}

/* Takes what there is of the reply. True if that was the end of it. */
static bool pull(struct connection *c) {
    while (c->due > 0) {
        ssize_t n = recv(c->fd, scratch, sizeof scratch, 0);
        if (n < 0 && errno == EAGAIN)
            return false;
        if (n <= 0)
            die("receive");
        if ((size_t)n > c->due) {
            fprintf(stderr, "load: a reply is longer than it should be\n");
            exit(1);
        }
        c->due -= (size_t)n;
        if ((size_t)n < sizeof scratch)
            break;
    }
    return c->due == 0;
}

/* Runs all connections until the time is up and nothing is under way any more. */
static uint64_t closed_loop(double seconds) {
    static struct epoll_event events[MAX_EVENTS];
    double end = now() + seconds;
    uint64_t done = 0;
    int active = count;
    for (int i = 0; i < count; i++)
        begin(&connections[i]);
    for (bool more = true; active > 0; more = now() < end) {
        int n = epoll_wait(poller, events, MAX_EVENTS, -1);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (c->unsent > 0)
                push(c);
            if (c->due == 0 || !pull(c))
                continue;
            done++;
            if (more)
                begin(c);
            else
                active--;
        }
    }
    return done;
}

/* Waits until each connection has got so many bytes. */
static void gather(size_t bytes) {
    static struct epoll_event events[MAX_EVENTS];
    int left = count;
    for (int i = 0; i < count; i++)
        connections[i].due = bytes;
    while (left > 0) {
        int n = epoll_wait(poller, events, MAX_EVENTS, -1);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (c->due > 0 && pull(c))
                left--;
        }
    }
}

/* All wait, one sets. Counts wakes. */
static uint64_t wake(double seconds) {
    static struct message set, delete;
    static int writer = -1;
    if (writer < 0) {
        writer = connect_hello();
        put_op(&set, SET), put_text(&set, "/go", 3), put_text(&set, "x", 1);
        put_op(&delete, DELETE), put_text(&delete, "/go", 3);
        delete.reply = 8;
    }
    uint64_t done = 0;
    for (double end = now() + seconds; now() < end; done += (uint64_t)count) {
        for (int i = 0; i < count; i++)
            begin(&connections[i]);
        gather(request.reply);
        exchange(writer, &set);
        gather(1);
        exchange(writer, &delete);
    }
    return done;
}

/* Sends and reads a little on each connection every second; nothing in between. */
static void trickle(double seconds, bool slow) {
    double start = now();
    static size_t position;
    for (int tick = 0; tick < seconds; tick++) {
        for (int i = 0; i < count; i++) {
            struct connection *c = &connections[i];
            patch(&request, c);
            if (slow)
                recv(c->fd, scratch, SLOW_READ, 0);
            else
                send_all(c->fd, request.bytes + position, 1);
        }
        position = (position + 1) % request.length;
        while (now() - start < tick + 1 && now() - start < seconds)
            usleep(1000);
    }
}

/* Begins what trickle goes on with: more gets than are going to be read. */
static void begin_slow(void) {
    int room = SLOW_BUFFER;
    for (int i = 0; i < count; i++) {
        setsockopt(connections[i].fd, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
        patch(&request, &connections[i]);
        for (int n = 0; n < SLOW_GETS; n++)
            send_all(connections[i].fd, request.bytes, request.length);
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void storm_connect(struct connection *c) {
    c->start = now();
    c->unsent = HELLO;
    c->due = HELLO_REPLY;
    c->fd = new_socket(SOCK_NONBLOCK);
    if (connect(c->fd, (struct sockaddr *)&address, sizeof address) < 0 && errno != EINPROGRESS)
        die("connect");
    watch(c);
}

/* Goes on with one connection. True if it is over, well (*took set) or badly. */
static bool storm_step(struct connection *c, double *took) {
    if (c->due == 0)
        return false;
    if (c->unsent > 0) {
        ssize_t n = send(c->fd, hello, HELLO, MSG_NOSIGNAL);
        if (n < 0 && errno == EAGAIN)
            return false;
        c->unsent = 0;
        if (n != HELLO)
            goto failed;
    }
    ssize_t n = recv(c->fd, scratch, sizeof scratch, 0);
    if (n < 0 && errno == EAGAIN)
        return false;
    if (n != HELLO_REPLY)
        goto failed;
    c->due = 0;
    *took = now() - c->start;
    return true;
failed:
    c->due = 0;
    *took = -1;
    return true;
}

struct spread {
    double median, p99, max;
};

/* Sorts. All -1 if there is nothing. */
static struct spread spread(double *times, size_t n) {
    if (n == 0)
        return (struct spread){-1, -1, -1};
    qsort(times, n, sizeof *times, by_value);
    return (struct spread){times[n / 2], times[n * 99 / 100], times[n - 1]};
}

/* One get after the other on one connection. */
static void probe(double seconds) {
    static double times[MAX_PROBES];
    size_t done = 0;
    fcntl(connections[0].fd, F_SETFL, 0);
    patch(&request, &connections[0]);
    for (double end = now() + seconds, at = now(); at < end && done < MAX_PROBES;) {
        exchange(connections[0].fd, &request);
        double then = now();
        times[done++] = then - at;
        at = then;
    }
    struct spread s = spread(times, done);
    printf("{\"requests\": %zu, \"median\": %.9f, \"p99\": %.9f, \"max\": %.9f}\n", done,
           s.median, s.p99, s.max);
}

/* Connects evenly over the seconds given, and waits until each connection is answered. */
static void storm(double seconds) {
    static struct epoll_event events[MAX_EVENTS];
    double *times = calloc((size_t)count, sizeof *times), start = now(), took;
    int begun = 0, ended = 0, answered = 0;
    while (ended < count) {
        double passed = (now() - start) / seconds;
        int due = passed >= 1 ? count : (int)(passed * count);
        for (int i = 0; i < STORM_BATCH && begun < due; i++)
            storm_connect(&connections[begun++]);
        int n = epoll_wait(poller, events, MAX_EVENTS, begun < due ? 0 : 1);
        for (int i = 0; i < n; i++) {
            if (!storm_step(events[i].data.ptr, &took))
                continue;
            ended++;
            if (took >= 0)
                times[answered++] = took;
        }
        if (now() - start > seconds + 60)
            break;
    }
    double all = now() - start;
    struct spread s = spread(times, (size_t)answered);
    printf("{\"answered\": %d, \"failed\": %d, \"seconds\": %.6f, \"median\": %.6f, "
           "\"p99\": %.6f, \"max\": %.6f}\n",
           answered, count - answered, all, s.median, s.p99, s.max);
    free(times);
}

static void raise_limit(void) {
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv) {
    if (argc < 4) {
        fprintf(stderr, "usage: load PORT MODE CONNECTIONS [VALUE_BYTES]\n");
        return 2;
    }
    const char *mode = argv[2];
    size_t value = argc > 4 ? strtoul(argv[4], NULL, 10) : 64;
    bool storming = !strcmp(mode, "storm");
    count = atoi(argv[3]);
    if (count <= 0 || (!storming && !build(&request, mode, value))) {
        fprintf(stderr, "load: unknown mode %s or bad number %s\n", mode, argv[3]);
        return 2;
    }
    raise_limit();
    address = (struct sockaddr_in){.sin_family = AF_INET,
                                   .sin_port = htons((uint16_t)atoi(argv[1])),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    connections = calloc((size_t)count, sizeof *connections);
    poller = epoll_create1(0);
    bool slow = !strcmp(mode, "slow"), drip = !strcmp(mode, "drip");
    if (!storming)
        connect_all(value);
    if (!strcmp(mode, "idle"))
        closed_loop(0);
    if (slow)
        begin_slow();
    puts("ready");
    fflush(stdout);

    for (double seconds; scanf("%lf", &seconds) == 1; fflush(stdout)) {
        if (storming) {
            storm(seconds);
            continue;
        }
        if (!strcmp(mode, "probe")) {
            probe(seconds);
            continue;
        }
        if (slow || drip) {
            trickle(seconds, slow);
            puts("{}");
            continue;
        }
        double start = now();
        uint64_t done = !strcmp(mode, "wake") ? wake(seconds) : closed_loop(seconds);
        printf("{\"requests\": %llu, \"seconds\": %.6f}\n", (unsigned long long)done,
               now() - start);
    }
    return 0;
}
