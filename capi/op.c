#include "_cgo_export.h"
#include "guard.h"

int32_t rp_store_start(rp_store store, const rp_store_request *request, rp_op *op,
                       rp_error *err) {
    TRY(enter(err));
    TRY(readable(request, sizeof *request, err));
    TRY(timeout(request->timeout_ms, err));
    TRY(present(op, err));
    return rpgo_store_start(store.id, (rp_store_request *)request, &op->id, err);
}

int32_t rp_store_attempt(rp_store store, const rp_store_request *request, int64_t wait_ms,
                         rp_op *op, rp_store_result *result, rp_error *err) {
    TRY(enter(err));
    TRY(readable(request, sizeof *request, err));
    TRY(timeout(request->timeout_ms, err));
    TRY(timeout(wait_ms, err));
    TRY(present(op, err));
    TRY(writable(result, sizeof *result, err));
    return rpgo_store_attempt(store.id, (rp_store_request *)request, wait_ms, &op->id, result,
                              err);
}

int32_t rp_op_wait(rp_op op, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_op_wait(op.id, timeout_ms, err);
}

int32_t rp_op_fd(rp_op op, int32_t *fd, rp_error *err) {
    TRY(enter(err));
    TRY(present(fd, err));
    return rpgo_op_fd(op.id, fd, err);
}

int32_t rp_op_notify(rp_op op, rp_op_callback callback, void *user, rp_error *err) {
    TRY(enter(err));
    if (callback == NULL) {
        return fail(err, RP_ERR_INVALID, "a required argument is NULL");
    }
    return rpgo_op_notify(op.id, callback, (uintptr_t)user, err);
}

void glue_op(rp_op_callback callback, uintptr_t user) {
    callback((void *)user);
}

int32_t rp_op_result(rp_op op, rp_store_result *result, rp_error *err) {
    TRY(enter(err));
    TRY(writable(result, sizeof *result, err));
    return rpgo_op_result(op.id, result, err);
}

int32_t rp_op_cancel(rp_op op, rp_error *err) {
    TRY(enter(err));
    return rpgo_op_cancel(op.id, err);
}

int32_t rp_op_free(rp_op op, rp_error *err) {
    TRY(enter(err));
    return rpgo_op_free(op.id, err);
}
