#include "_cgo_export.h"
#include "guard.h"

int32_t rp_admin_start(const rp_admin_request *request, int64_t timeout_ms, rp_op *op,
                       rp_error *err) {
    TRY(enter(err));
    TRY(readable(request, sizeof *request, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(op, err));
    return rpgo_admin_start((rp_admin_request *)request, timeout_ms, &op->id, err);
}
