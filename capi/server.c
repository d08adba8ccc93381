#include "_cgo_export.h"
#include "guard.h"

int32_t rp_store_server_start(const rp_store_server_config *config, rp_store_server *server,
                              rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(present(server, err));
    return rpgo_store_server_start((rp_store_server_config *)config, &server->id, err);
}

int32_t rp_store_server_port(rp_store_server server, int32_t *port, rp_error *err) {
    TRY(enter(err));
    TRY(present(port, err));
    return rpgo_store_server_port(server.id, port, err);
}

int32_t rp_store_server_stop(rp_store_server server, rp_error *err) {
    TRY(enter(err));
    return rpgo_store_server_stop(server.id, err);
}
