#include "_cgo_export.h"
#include "guard.h"

static __thread int in_log_callback;

void glue_log(rp_log_callback callback, uintptr_t user, int32_t level, uint32_t dropped,
              int64_t time_ms, const char *text, size_t len) {
    rp_log_record record;
    record.struct_size = sizeof record;
    record.level = level;
    record.dropped = dropped;
    record.time_ms = time_ms;
    glue_text(record.text, sizeof record.text, text, len);
    in_log_callback = 1;
    callback((void *)user, &record);
    in_log_callback = 0;
}

int32_t rp_log_next(rp_log_record *record, rp_error *err) {
    TRY(enter(err));
    TRY(writable(record, sizeof *record, err));
    return rpgo_log_next(record, err);
}

int32_t rp_log_set_level(int32_t level, rp_error *err) {
    TRY(enter(err));
    return rpgo_log_set_level(level, err);
}

int32_t rp_log_set_callback(rp_log_callback callback, void *user, rp_error *err) {
    TRY(enter(err));
    if (in_log_callback) {
        return fail(err, RP_ERR_INVALID,
                    "rp_log_set_callback was called by the callback itself");
    }
    return rpgo_log_set_callback(callback, (uintptr_t)user, err);
}
