/* The handlers of the program stay the program's: those of profilers and of faults go
 * on working, whether they were installed before the library was loaded or after. */
#include "loaded.h"
/* after loaded.h */
#include <setjmp.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "check.h"

static volatile sig_atomic_t profiled;
static sigjmp_buf escape;

static void on_profile(int number) {
    (void)number;
    profiled++;
}

static void on_fault(int number, siginfo_t *info, void *context) {
    (void)context;
    siglongjmp(escape, number == SIGSEGV && info->si_addr == (void *)16 ? 1 : 2);
}

/* As profilers and JVMs do it: on a stack of its own where there is one. */
static void install(void) {
    struct sigaction profile = {.sa_handler = on_profile, .sa_flags = SA_ONSTACK | SA_RESTART};
    struct sigaction fault = {.sa_sigaction = on_fault, .sa_flags = SA_ONSTACK | SA_SIGINFO};
    CHECK_INT(0, sigaction(SIGPROF, &profile, NULL));
    CHECK_INT(0, sigaction(SIGSEGV, &fault, NULL));
    CHECK_INT(0, sigaction(SIGBUS, &fault, NULL));
}

static void expect_fault(void) {
    volatile int *nowhere = (volatile int *)16;
    int how = sigsetjmp(escape, 1);
    if (how == 0) {
        *nowhere = 1;
        FAIL("a fault was passed over");
    }
    CHECK_INT(1, how);
}

static void *fault_in_a_thread(void *library) {
    rp_store store;
    (void)library;
    expect_fault();
    CHECK_OK(rp_store_open_hash(&store, ERR)); /* a thread that Go knows of */
    CHECK_OK(rp_store_close(store, ERR));
    return NULL;
}

static void use_for(int ticks) {
    rp_store store;
    int64_t sum;
    CHECK_OK(rp_store_open_hash(&store, ERR));
    profiled = 0;
    while (profiled < ticks) {
        CHECK_OK(rp_store_add(store, "n", 1, 1, 10000, &sum, ERR));
    }
    CHECK_OK(rp_store_close(store, ERR));
}

static void run(int install_first) {
    const int others[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGCHLD, SIGUSR1, SIGUSR2};
    struct itimerval often = {{0, 1000}, {0, 1000}}, never = {{0, 0}, {0, 0}};
    struct sigaction now;
    alarm(60);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) { /* nohup ignores some */
        CHECK(signal(others[i], others[i] == SIGUSR1 ? SIG_IGN : SIG_DFL) != SIG_ERR);
    }
    if (install_first) {
        install();
    }
    void *library = load();
    use_for(0);
    if (!install_first) {
        install();
    }
    CHECK_INT(0, setitimer(ITIMER_PROF, &often, NULL));
    use_for(50);
    join_thread(start_thread(fault_in_a_thread, library));
    CHECK_INT(0, setitimer(ITIMER_PROF, &never, NULL));
    expect_fault(); /* on a thread that has called Go */
    use_for(0);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        CHECK_INT(0, sigaction(others[i], NULL, &now));
        CHECK(now.sa_handler == (others[i] == SIGUSR1 ? SIG_IGN : SIG_DFL));
    }
}

/* What a broken pipe does to the program is its own choice still. */
static void broken_pipe(int ignored) {
    int ends[2];
    CHECK(signal(SIGPIPE, ignored ? SIG_IGN : SIG_DFL) != SIG_ERR);
    load();
    use_for(0);
    CHECK_INT(0, pipe(ends));
    CHECK_INT(0, close(ends[0]));
    CHECK_INT(-1, write(ends[1], "x", 1));
}

int main(void) {
    for (int ignored = 0; ignored < 2; ignored++) {
        int status;
        pid_t pid = fork();
        if (pid == 0) {
            broken_pipe(ignored);
            exit(0);
        }
        CHECK_INT(pid, waitpid(pid, &status, 0));
        CHECK_INT(ignored ? 0 : SIGPIPE, status);
    }
    for (int install_first = 0; install_first < 2; install_first++) {
        pid_t pid = fork(); /* each in a process that has not loaded the library yet */
        if (pid == 0) {
            run(install_first);
            exit(0);
        }
        int status;
        CHECK_INT(pid, waitpid(pid, &status, 0));
        CHECK_INT(0, status);
    }
    return 0;
}
