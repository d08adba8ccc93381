#include "_cgo_export.h"
#include "guard.h"

int32_t rp_store_connect(const rp_store_config *config, int64_t timeout_ms, rp_store *store,
                         rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(store, err));
    return rpgo_store_connect((rp_store_config *)config, timeout_ms, &store->id, err);
}

int32_t rp_store_connect_start(const rp_store_config *config, int64_t timeout_ms, rp_op *op,
                               rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(op, err));
    return rpgo_store_connect_start((rp_store_config *)config, timeout_ms, &op->id, err);
}

int32_t rp_store_open_file(const rp_store_file_config *config, int64_t timeout_ms,
                           rp_store *store, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(store, err));
    return rpgo_store_open_file((rp_store_file_config *)config, timeout_ms, &store->id, err);
}

int32_t rp_store_open_file_start(const rp_store_file_config *config, int64_t timeout_ms,
                                 rp_op *op, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(op, err));
    return rpgo_store_open_file_start((rp_store_file_config *)config, timeout_ms, &op->id, err);
}

int32_t rp_store_open_hash(rp_store *store, rp_error *err) {
    TRY(enter(err));
    TRY(present(store, err));
    return rpgo_store_open_hash(&store->id, err);
}

int32_t rp_store_open_prefix(rp_store store, const void *prefix, size_t prefix_len,
                             rp_store *view, rp_error *err) {
    rp_bytes name = {prefix, prefix_len};
    TRY(enter(err));
    TRY(present(view, err));
    return rpgo_store_open_prefix(store.id, name, &view->id, err);
}
