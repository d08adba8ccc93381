/* What the C and the Go files of this folder share. Nothing of it is exported. */
#ifndef RALLYPOINT_GLUE_H
#define RALLYPOINT_GLUE_H

#include "rallypoint.h"

/* Whether this process is a child of fork() of the one that loaded the library. */
int glue_forked(void);

/*
 * Copies text, cut between two UTF-8 characters, and a NUL into dst[size]. Returns
 * the number of bytes without the NUL.
 */
size_t glue_text(char *dst, size_t size, const char *text, size_t len);

/* Fills *err, if there is one, and returns code. */
int32_t glue_fail(rp_error *err, int32_t code, int32_t retryable, const char *text, size_t len);

/*
 * Calls the program with one record of the log. The text may be longer than the
 * record and need not end with NUL.
 */
void glue_log(rp_log_callback callback, uintptr_t user, int32_t level, uint32_t dropped,
              int64_t time_ms, const char *text, size_t len);

/* Tells the program that an operation has ended. */
void glue_op(rp_op_callback callback, uintptr_t user);

/* Call the functions of a backend of the program. */
int32_t glue_backend_get(const rp_backend *backend, rp_backend_reply *reply, rp_error *err);
int32_t glue_backend_set(const rp_backend *backend, const void *state, size_t state_len,
                         const void *token, size_t token_len, rp_backend_reply *reply,
                         rp_error *err);
void glue_backend_release(const rp_backend *backend);

#endif
