/* For programs that load the library themselves: the functions of the header, by the
 * same names, once load() was called. To be included before check.h. */
#ifndef LOADED_H
#define LOADED_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "rallypoint.h"

#define FUNCTIONS(F)                                                                           \
    F(rp_code_name)                                                                            \
    F(rp_handles_open)                                                                         \
    F(rp_usage_get)                                                                            \
    F(rp_log_set_callback)                                                                     \
    F(rp_store_server_start)                                                                   \
    F(rp_store_server_port)                                                                    \
    F(rp_store_server_stop)                                                                    \
    F(rp_store_connect)                                                                        \
    F(rp_store_open_hash)                                                                      \
    F(rp_store_open_file)                                                                      \
    F(rp_store_open_prefix)                                                                    \
    F(rp_store_close)                                                                          \
    F(rp_store_set)                                                                            \
    F(rp_store_get)                                                                            \
    F(rp_store_add)                                                                            \
    F(rp_store_start)                                                                          \
    F(rp_op_wait)                                                                              \
    F(rp_op_fd)                                                                                \
    F(rp_op_free)                                                                              \
    F(rp_member_open)                                                                          \
    F(rp_member_next)                                                                          \
    F(rp_member_fd)                                                                            \
    F(rp_member_keys)                                                                          \
    F(rp_member_shutdown)                                                                      \
    F(rp_member_close)                                                                         \
    F(rp_agent_open)                                                                           \
    F(rp_agent_run)                                                                            \
    F(rp_agent_fd)                                                                             \
    F(rp_agent_close)

static struct {
#define DECLARE(name) __typeof__(name) *name;
    FUNCTIONS(DECLARE)
#undef DECLARE
} api;

/* Loads the library; the program must not be linked with it. */
static inline void *load(void) {
    void *library = dlopen("librallypoint.so.0", RTLD_NOW | RTLD_NOLOAD);
    if (library != NULL) {
        fprintf(stderr, "the library is loaded already\n");
        exit(1);
    }
    library = dlopen("librallypoint.so.0", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
#define LOOK_UP(name)                                                                          \
    *(void **)&api.name = dlsym(library, #name);                                               \
    if (api.name == NULL) {                                                                    \
        fprintf(stderr, "%s\n", dlerror());                                                    \
        exit(1);                                                                               \
    }
    FUNCTIONS(LOOK_UP)
#undef LOOK_UP
    return library;
}

#define rp_code_name api.rp_code_name
#define rp_handles_open api.rp_handles_open
#define rp_usage_get api.rp_usage_get
#define rp_log_set_callback api.rp_log_set_callback
#define rp_store_server_start api.rp_store_server_start
#define rp_store_server_port api.rp_store_server_port
#define rp_store_server_stop api.rp_store_server_stop
#define rp_store_connect api.rp_store_connect
#define rp_store_open_hash api.rp_store_open_hash
#define rp_store_open_file api.rp_store_open_file
#define rp_store_open_prefix api.rp_store_open_prefix
#define rp_store_close api.rp_store_close
#define rp_store_set api.rp_store_set
#define rp_store_get api.rp_store_get
#define rp_store_add api.rp_store_add
#define rp_store_start api.rp_store_start
#define rp_op_wait api.rp_op_wait
#define rp_op_fd api.rp_op_fd
#define rp_op_free api.rp_op_free
#define rp_member_open api.rp_member_open
#define rp_member_next api.rp_member_next
#define rp_member_fd api.rp_member_fd
#define rp_member_keys api.rp_member_keys
#define rp_member_shutdown api.rp_member_shutdown
#define rp_member_close api.rp_member_close
#define rp_agent_open api.rp_agent_open
#define rp_agent_run api.rp_agent_run
#define rp_agent_fd api.rp_agent_fd
#define rp_agent_close api.rp_agent_close

#endif
