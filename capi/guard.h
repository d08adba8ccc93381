/*
 * What every exported function checks before it enters Go.
 *
 * It must be done here: in a child of fork() the threads of the Go runtime are gone and
 * any call into Go may hang.
 */
#ifndef RALLYPOINT_GUARD_H
#define RALLYPOINT_GUARD_H

#include <string.h>

#include "glue.h"

static inline int32_t fail(rp_error *err, int32_t code, const char *text) {
    return glue_fail(err, code, 0, text, strlen(text));
}

/* Checks what every function that enters Go checks first. */
static inline int32_t enter(rp_error *err) {
    if (err != NULL && err->struct_size < sizeof *err) {
        return RP_ERR_INVALID;
    }
    if (glue_forked()) {
        return fail(err, RP_ERR_FORKED,
                    "this process was forked after the library was loaded, and the library's "
                    "threads live only in the parent; load it after the fork, or call exec()");
    }
    return RP_OK;
}

/*
 * Checks a struct of the caller that is read: that its size is at least that of the first
 * version, and that it asks for nothing unknown.
 */
static inline int32_t readable_since(const void *data, size_t first, size_t known,
                                     rp_error *err) {
    size_t size, i;
    if (data == NULL) {
        return fail(err, RP_ERR_INVALID, "a required argument is NULL");
    }
    size = *(const size_t *)data;
    if (size < first || size > 4096) {
        return fail(err, RP_ERR_INVALID, "struct_size is not the size of the struct");
    }
    for (i = known; i < size; i++) {
        if (((const unsigned char *)data)[i] != 0) {
            return fail(err, RP_ERR_INVALID,
                        "a field is set that this version of the library does not know");
        }
    }
    return RP_OK;
}

/* The same for a struct that has not grown. */
static inline int32_t readable(const void *data, size_t known, rp_error *err) {
    return readable_since(data, known, known, err);
}

/*
 * Checks a struct of the caller that is written: `known` is the size of its first version,
 * and later fields are written only where there is room.
 */
static inline int32_t writable(const void *data, size_t known, rp_error *err) {
    if (data == NULL) {
        return fail(err, RP_ERR_INVALID, "a required argument is NULL");
    }
    if (*(const size_t *)data < known) {
        return fail(err, RP_ERR_INVALID, "struct_size is not the size of the struct");
    }
    return RP_OK;
}

static inline int32_t present(const void *data, rp_error *err) {
    return data != NULL ? RP_OK : fail(err, RP_ERR_INVALID, "a required argument is NULL");
}

static inline int32_t timeout(int64_t timeout_ms, rp_error *err) {
    return timeout_ms >= -1 ? RP_OK : fail(err, RP_ERR_INVALID, "timeout_ms is below -1");
}

/* Returns the result of a check unless it is RP_OK. */
#define TRY(check)                                                                             \
    do {                                                                                       \
        int32_t code_ = (check);                                                               \
        if (code_ != RP_OK) {                                                                  \
            return code_;                                                                      \
        }                                                                                      \
    } while (0)

#endif
