/* The etcd that the tests start, if there is one. */
#ifndef ETCD_H
#define ETCD_H

#include "check.h"

/* The path of an etcd: RALLYPOINT_TEST_ETCD, which `make etcd` builds; NULL: none. */
static inline const char *etcd_binary(void) {
    const char *binary = getenv("RALLYPOINT_TEST_ETCD");
    return binary != NULL && binary[0] != 0 ? binary : NULL;
}

/* Starts it and waits until it answers. */
static inline rp_etcd_server start_etcd(const char *binary, int32_t *port) {
    rp_etcd_server_config config = {
        .struct_size = sizeof config, .binary = binary, .retries = 2, .output_fd = -1};
    rp_etcd_server server = {0};
    CHECK_OK(rp_etcd_server_start(&config, 60000, &server, ERR));
    CHECK_OK(rp_etcd_server_ready(server, -1, port, ERR));
    CHECK(*port > 0 && *port < 65536);
    return server;
}

static inline rp_store open_etcd(int32_t port, const char *prefix) {
    char endpoint[64];
    rp_store_etcd_config config = {
        .struct_size = sizeof config, .endpoint = endpoint, .prefix = prefix};
    rp_store store = {0};
    snprintf(endpoint, sizeof endpoint, "etcd://127.0.0.1:%d", port);
    CHECK_OK(rp_store_open_etcd(&config, 20000, &store, ERR));
    return store;
}

#endif
