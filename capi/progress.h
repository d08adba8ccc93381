/*
 * A worker's progress record (docs/progress.md). Nothing here enters Go, so that it works
 * in a child of fork(), too.
 */
#ifndef RALLYPOINT_PROGRESS_H
#define RALLYPOINT_PROGRESS_H

#include "guard.h"

/* The record's layout. */
typedef struct progress_record {
    char magic[8];
    uint32_t version;
    uint32_t size;
    int64_t step;
    uint64_t asked;  /* by the agent: see directive.c */
    uint64_t answer; /* of the worker */
    uint64_t knows;  /* what it understands of these words, in the first byte; then: busy */
    int64_t reach;   /* the step from which a released worker takes the directive */
    uint64_t reserved;
} progress_record;

/* Where reports go. The published record stays until the process ends. */
typedef struct progress_target {
    progress_record *record;
    char refused[256]; /* why reports are not recorded; "" if that is no error */
} progress_target;

extern progress_target *progress_published;

/* Finds out where reports go. Threads may do so at once; the first one's answer counts. */
progress_target *progress_find_target(void);

static inline progress_target *progress_get_target(void) {
    progress_target *target = __atomic_load_n(&progress_published, __ATOMIC_ACQUIRE);
    return __builtin_expect(target == NULL, 0) ? progress_find_target() : target;
}

#endif
