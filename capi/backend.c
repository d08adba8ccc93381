/* A place of the program's own to meet. */
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"
#include "guard.h"

#define MAX_STATE ((size_t)64 << 20)

static void *copy(const void *data, size_t len) {
    char *p = malloc(len + 1);
    if (p != NULL) {
        memcpy(p, len > 0 ? data : "", len);
        p[len] = 0;
    }
    return p;
}

int32_t rp_backend_answer(rp_backend_reply *reply, const void *state, size_t state_len,
                          const void *token, size_t token_len, int32_t stored, rp_error *err) {
    TRY(enter(err));
    TRY(writable(reply, sizeof *reply, err));
    if (state_len > MAX_STATE || token_len > MAX_STATE) {
        return fail(err, RP_ERR_TOO_LARGE, "a state or token has more than 64 MB");
    }
    if ((state == NULL && state_len > 0) || (token == NULL && token_len > 0)) {
        return fail(err, RP_ERR_INVALID, "state or token is NULL with a length");
    }
    rp_buffer_free(&reply->state);
    rp_buffer_free(&reply->token);
    if (state != NULL) {
        reply->state.data = copy(state, state_len);
        reply->state.len = state_len;
        reply->token.data = copy(token, token_len);
        reply->token.len = token_len;
        if (reply->state.data == NULL || reply->token.data == NULL) {
            return fail(err, RP_ERR_TOO_LARGE, "there is no memory for the state");
        }
    }
    reply->stored = stored != 0;
    reply->answered = 1;
    return RP_OK;
}

int32_t rp_member_open_backend(const rp_member_config *config, const rp_backend *backend,
                               rp_member *member, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(readable(backend, sizeof *backend, err));
    TRY(present(member, err));
    if (backend->get == NULL || backend->set == NULL) {
        return fail(err, RP_ERR_INVALID, "a function of the backend is NULL");
    }
    return rpgo_member_open_backend((rp_member_config *)config, (rp_backend *)backend,
                                    &member->id, err);
}

int32_t glue_backend_get(const rp_backend *backend, rp_backend_reply *reply, rp_error *err) {
    return backend->get(backend->user, reply, err);
}

int32_t glue_backend_set(const rp_backend *backend, const void *state, size_t state_len,
                         const void *token, size_t token_len, rp_backend_reply *reply,
                         rp_error *err) {
    return backend->set(backend->user, state, state_len, token, token_len, reply, err);
}

void glue_backend_release(const rp_backend *backend) {
    if (backend->release != NULL) {
        backend->release(backend->user);
    }
}
