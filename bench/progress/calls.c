/* Nanoseconds of CPU time for one report of a step: "NAME NS" a line. */
#include <stdio.h>
#include <time.h>

#include "rallypoint.h"

#define CALLS 20000000

static double cpu(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(void) {
    double begin;
    rp_error err = {.struct_size = sizeof err};
    if (rp_progress(0, &err) != RP_OK) { /* maps the record */
        fprintf(stderr, "%s\n", err.message);
        return 1;
    }
    begin = cpu();
    for (int64_t step = 0; step < CALLS; step++) {
        if (rp_progress(step, &err) != RP_OK) {
            return 1;
        }
    }
    printf("C %.2f\n", (cpu() - begin) / CALLS);
    return 0;
}
