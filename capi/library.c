/* The library as such: versions, memory that it hands out, handles, the command. */
#include <stdlib.h>

#include "_cgo_export.h"
#include "guard.h"

/* These work after fork(), too, since they do not enter Go. */

uint32_t rp_abi_version(void) {
    return RP_ABI_VERSION;
}

const char *rp_version(void) {
    static const char *version;
    const char *known = __atomic_load_n(&version, __ATOMIC_ACQUIRE);
    if (known == NULL) {
        if (glue_forked()) {
            return "";
        }
        known = rpgo_version();
        __atomic_store_n(&version, known, __ATOMIC_RELEASE);
    }
    return known;
}

const char *rp_code_name(int32_t code) {
#define NAME(name)                                                                             \
    case RP_##name:                                                                            \
        return #name;
#define ERR(name)                                                                              \
    case RP_ERR_##name:                                                                        \
        return #name;
    switch (code) {
        NAME(OK)
        NAME(PENDING)
        ERR(INVALID)
        ERR(MISMATCH)
        ERR(TENANT)
        ERR(NODE_IN_USE)
        ERR(AUTH)
        ERR(CLOSED)
        ERR(GRACEFUL)
        ERR(UNFIT)
        ERR(TIMEOUT)
        ERR(CANCELED)
        ERR(CONNECTION)
        ERR(STATE)
        ERR(FENCED)
        ERR(EVICTED)
        ERR(ROUND_OVER)
        ERR(WORKERS)
        ERR(START)
        ERR(NUMBER)
        ERR(TOO_LARGE)
        ERR(EMPTY)
        ERR(UNSUPPORTED)
        ERR(HANDLE)
        ERR(FORKED)
        ERR(BUFFER)
        ERR(INTERNAL)
    }
    return "UNKNOWN";
}

void rp_buffer_free(rp_buffer *buffer) {
    if (buffer != NULL) {
        free(buffer->data);
        buffer->data = NULL;
        buffer->len = 0;
    }
}

void rp_list_free(rp_list *list) {
    size_t i;
    if (list != NULL) {
        for (i = 0; i < list->len; i++) {
            free(list->items[i].data);
        }
        free(list->items);
        list->items = NULL;
        list->len = 0;
    }
}

void rp_store_result_free(rp_store_result *result) {
    if (result != NULL) {
        rp_buffer_free(&result->value);
        rp_list_free(&result->list);
    }
}

int32_t rp_handles_open(int64_t *count, rp_error *err) {
    TRY(enter(err));
    TRY(present(count, err));
    return rpgo_handles_open(count, err);
}

int32_t rp_usage_get(rp_usage *usage, rp_error *err) {
    TRY(enter(err));
    TRY(writable(usage, sizeof *usage, err));
    return rpgo_usage_get(usage, err);
}

int rp_main(int argc, char *const *argv) {
    int i;
    if (glue_forked() || argc < 1 || argv == NULL) {
        return 70; /* EX_SOFTWARE */
    }
    for (i = 0; i < argc; i++) {
        if (argv[i] == NULL) {
            return 70;
        }
    }
    return rpgo_main(argc, (char **)argv);
}
