#include "_cgo_export.h"
#include "guard.h"

int32_t rp_store_open_etcd(const rp_store_etcd_config *config, int64_t timeout_ms,
                           rp_store *store, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(store, err));
    return rpgo_store_open_etcd((rp_store_etcd_config *)config, timeout_ms, &store->id, err);
}

int32_t rp_store_open_etcd_start(const rp_store_etcd_config *config, int64_t timeout_ms,
                                 rp_op *op, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(op, err));
    return rpgo_store_open_etcd_start((rp_store_etcd_config *)config, timeout_ms, &op->id, err);
}

int32_t rp_etcd_server_start(const rp_etcd_server_config *config, int64_t timeout_ms,
                             rp_etcd_server *server, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(server, err));
    return rpgo_etcd_server_start((rp_etcd_server_config *)config, timeout_ms, &server->id,
                                  err);
}

int32_t rp_etcd_server_ready(rp_etcd_server server, int64_t timeout_ms, int32_t *port,
                             rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    TRY(present(port, err));
    return rpgo_etcd_server_ready(server.id, timeout_ms, port, err);
}

int32_t rp_etcd_server_stop(rp_etcd_server server, rp_error *err) {
    TRY(enter(err));
    return rpgo_etcd_server_stop(server.id, err);
}
