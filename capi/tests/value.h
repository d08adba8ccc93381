/* A place to meet of the program's own: a value in memory. */
#ifndef VALUE_H
#define VALUE_H

#include "check.h"

/* A value in memory; its token is its version. */
typedef struct value {
    pthread_mutex_t mu;
    char *state;
    size_t len;
    int64_t version;
    int users; /* members that have not given it back */
    int32_t fail;
    int silent;
} value;

static inline int32_t value_get(void *user, rp_backend_reply *reply, rp_error *err) {
    value *v = user;
    int32_t code = v->fail;
    (void)err;
    pthread_mutex_lock(&v->mu);
    if (code != RP_OK) {
        err->code = code;
        snprintf(err->message, sizeof err->message, "the value has failed");
    } else if (!v->silent) {
        CHECK_OK(
            rp_backend_answer(reply, v->state, v->len, &v->version, sizeof v->version, 0, ERR));
    }
    pthread_mutex_unlock(&v->mu);
    return code;
}

static inline int32_t value_set(void *user, const void *state, size_t state_len,
                                const void *token, size_t token_len, rp_backend_reply *reply,
                                rp_error *err) {
    value *v = user;
    int current;
    (void)err;
    pthread_mutex_lock(&v->mu);
    current = v->state == NULL ? token == NULL
                               : token != NULL && token_len == sizeof v->version &&
                                     memcmp(token, &v->version, token_len) == 0;
    if (current) {
        free(v->state);
        v->state = malloc(state_len);
        CHECK(v->state != NULL);
        memcpy(v->state, state, state_len);
        v->len = state_len;
        v->version++;
    }
    CHECK_OK(rp_backend_answer(reply, v->state, v->len, &v->version, sizeof v->version, current,
                               ERR));
    pthread_mutex_unlock(&v->mu);
    return RP_OK;
}

static inline void value_release(void *user) {
    value *v = user;
    pthread_mutex_lock(&v->mu);
    v->users--;
    pthread_mutex_unlock(&v->mu);
}

/* The functions of a value. */
static inline rp_backend value_backend(value *v) {
    return (rp_backend){sizeof(rp_backend), v, value_get, value_set, value_release};
}

#endif
