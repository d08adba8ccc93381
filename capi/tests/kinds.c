/* The kinds of stores other than a server's: memory, file, prefix. */
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "operations.h"

static rp_store open_hash(void) {
    rp_store store = {0};
    CHECK_OK(rp_store_open_hash(&store, ERR));
    return store;
}

static rp_store open_prefix(rp_store store, const char *prefix) {
    rp_store view = {0};
    CHECK_OK(rp_store_open_prefix(store, prefix, RP_TEXT, &view, ERR));
    return view;
}

static void hash(void) {
    const struct traits traits = {.queues = 1};
    rp_store store = open_hash();
    operations(store, traits);
    operations_in_background(store, traits);
    /* Stores do not see each other. */
    rp_store other = open_hash();
    int64_t keys;
    CHECK_OK(rp_store_num_keys(other, 1000, &keys, ERR));
    CHECK_INT(0, keys);
    CHECK_OK(rp_store_close(other, ERR));
    int64_t sum;
    CHECK_OK(rp_store_set(store, "k", 1, "v", 1, 1000, ERR));
    CHECK_CODE(RP_ERR_NUMBER, rp_store_add(store, "k", 1, 1, 1000, &sum, ERR));
    CHECK_OK(rp_store_close(store, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_store_open_hash(NULL, ERR));
}

static void *close_later(void *store) {
    await_main();
    CHECK_OK(rp_store_close(*(rp_store *)store, ERR));
    return NULL;
}

static void prefix(void) {
    rp_store below = open_hash();
    rp_store a = open_prefix(below, "a");
    rp_store ab = open_prefix(a, "b");
    rp_buffer value;
    int64_t keys;
    operations(a, (struct traits){.queues = 1});
    operations_in_background(a, (struct traits){.queues = 1});
    CHECK_OK(rp_store_set(ab, "k", 1, "v", 1, 1000, ERR));
    CHECK_OK(rp_store_get(below, "a/b/k", RP_TEXT, 1000, &value, ERR));
    CHECK_BUFFER("v", value);
    rp_buffer_free(&value);
    CHECK_OK(rp_store_num_keys(ab, 1000, &keys, ERR));
    CHECK(keys > 1);
    rp_list list;
    CHECK_OK(rp_store_list_keys(ab, 1000, &list, ERR));
    CHECK_INT(1, list.len);
    CHECK_BUFFER("k", list.items[0]);
    rp_list_free(&list);
    /* A prefix is bytes. */
    rp_store bytes;
    CHECK_OK(rp_store_open_prefix(below, "\xff\0", 2, &bytes, ERR));
    CHECK_OK(rp_store_set(bytes, "", 0, "v", 1, 1000, ERR));
    CHECK_OK(rp_store_get(below, "\xff\0/", 3, 1000, &value, ERR));
    rp_buffer_free(&value);
    CHECK_OK(rp_store_close(bytes, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_store_open_prefix(below, NULL, 1, &bytes, ERR));
    CHECK_CODE(RP_ERR_INVALID, rp_store_open_prefix(below, "a", 1, NULL, ERR));
    CHECK_CODE(RP_ERR_HANDLE, rp_store_open_prefix(bytes, "a", 1, &bytes, ERR));

    /* Closing a view ends what waits in it and leaves the rest alone. */
    pthread_t thread = start_thread(close_later, &a);
    CHECK_CODE(RP_ERR_CANCELED, rp_store_get(a, "never", RP_TEXT, -1, &value, ERR));
    join_thread(thread);
    CHECK_CODE(RP_ERR_HANDLE, rp_store_get(a, "b/k", RP_TEXT, 1000, &value, ERR));
    CHECK_OK(rp_store_get(below, "a/b/k", RP_TEXT, 1000, &value, ERR));
    rp_buffer_free(&value);
    /* Closing the store below ends its views. */
    rp_store view = open_prefix(below, "v");
    thread = start_thread(close_later, &below);
    CHECK_CODE(RP_ERR_CANCELED, rp_store_get(view, "never", RP_TEXT, -1, &value, ERR));
    join_thread(thread);
    CHECK_CODE(RP_ERR_CANCELED, rp_store_get(view, "k", 1, 1000, &value, ERR));
    CHECK_OK(rp_store_close(view, ERR));
    CHECK_OK(rp_store_close(ab, ERR));
}

static rp_store open_file(const char *path, int64_t world_size) {
    rp_store_file_config config = {sizeof config, path, world_size, 0};
    rp_store store = {0};
    CHECK_OK(rp_store_open_file(&config, 5000, &store, ERR));
    return store;
}

/* While another holds the lock of its file, an attempt to write is handed over, and what
 * it writes is then written once. One that is called off has written nothing. */
static void locked(rp_store store, const char *path) {
    rp_op op = {0}, late = {0};
    rp_store_result r = {.struct_size = sizeof r};
    rp_store_request add = {.struct_size = sizeof add,
                            .op = RP_STORE_ADD,
                            KEY("locked"),
                            .number = 1,
                            .timeout_ms = -1};
    int other = open(path, O_RDONLY | O_CLOEXEC);
    CHECK(other >= 0);
    CHECK_INT(0, flock(other, LOCK_EX));
    CHECK_CODE(RP_PENDING, rp_store_attempt(store, &add, 20, &op, &r, ERR));
    CHECK_CODE(RP_PENDING, rp_store_attempt(store, &add, 0, &late, &r, ERR));
    CHECK_OK(rp_op_cancel(late, ERR));
    CHECK_CODE(RP_ERR_CANCELED, rp_op_wait(late, -1, ERR));
    CHECK_OK(rp_op_free(late, ERR));
    add.timeout_ms = 20;
    CHECK_CODE(RP_ERR_TIMEOUT, rp_store_attempt(store, &add, -1, &late, &r, ERR));
    CHECK_CONTAINS(last_error.message, "lock");
    CHECK_CODE(RP_PENDING, rp_op_wait(op, 0, ERR));
    CHECK_INT(0, close(other));
    CHECK_OK(rp_op_wait(op, -1, ERR));
    CHECK_OK(rp_op_result(op, &r, ERR));
    CHECK_INT(1, r.number);
    CHECK_OK(rp_op_free(op, ERR));
    add.timeout_ms = 5000;
    late.id = 0;
    CHECK_OK(rp_store_attempt(store, &add, -1, &late, &r, ERR));
    CHECK_INT(2, r.number);
    CHECK_INT(0, late.id);
}

static void file(const char *folder) {
    const struct traits traits = {.own_keys = 1, .own_listed = 1};
    char path[256], missing[300];
    snprintf(path, sizeof path, "%s/store", folder);
    rp_store one = open_file(path, 0);
    operations(one, traits);
    operations_in_background(one, traits);
    locked(one, path);
    /* A second one on the same file sees the first one's keys. */
    rp_store two = open_file(path, 0);
    rp_buffer value;
    CHECK_OK(rp_store_set(one, "k", 1, "v", 1, 5000, ERR));
    CHECK_OK(rp_store_get(two, "k", 1, 5000, &value, ERR));
    CHECK_BUFFER("v", value);
    rp_buffer_free(&value);
    int64_t sum;
    CHECK_CODE(RP_ERR_NUMBER, rp_store_add(two, "k", 1, 1, 5000, &sum, ERR));
    CHECK_OK(rp_store_close(one, ERR));
    CHECK_INT(0, access(path, F_OK));
    CHECK_OK(rp_store_close(two, ERR));
    CHECK_INT(-1, access(path, F_OK)); /* the last one removes it */

    /* In the background; a file that stays. */
    rp_store_file_config config = {sizeof config, path, -1, RP_FILE_REMOTE};
    rp_store_result result = {.struct_size = sizeof result};
    rp_op op;
    CHECK_OK(rp_store_open_file_start(&config, 5000, &op, ERR));
    await_op(op);
    CHECK_OK(rp_op_result(op, &result, ERR));
    CHECK_OK(rp_op_free(op, ERR));
    CHECK_OK(rp_store_set(result.store, "k", 1, "v", 1, 5000, ERR));
    /* A file that is taken away. */
    CHECK_INT(0, unlink(path));
    struct timespec pause = {0, 5000000}; /* looks are at most a millisecond apart */
    nanosleep(&pause, NULL);
    CHECK_CODE(RP_ERR_STATE, rp_store_set(result.store, "k", 1, "v", 1, 5000, ERR));
    CHECK_CONTAINS(last_error.message, path);
    CHECK_OK(rp_store_close(result.store, ERR));

    /* What cannot be a store. */
    snprintf(missing, sizeof missing, "%s/missing/store", folder);
    rp_store store;
    const char *bad[] = {NULL, "", folder, missing, "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        config.path = bad[i];
        CHECK_CODE(RP_ERR_INVALID, rp_store_open_file(&config, 1000, &store, ERR));
    }
    FILE *f = fopen(path, "w");
    CHECK(f != NULL);
    for (int i = 0; i < 100; i++) {
        fputs("not a store", f);
    }
    CHECK_INT(0, fclose(f));
    config.path = path;
    CHECK_CODE(RP_ERR_STATE, rp_store_open_file(&config, 1000, &store, ERR));
    CHECK_CONTAINS(last_error.message, path);
    CHECK_INT(0, unlink(path));
    config.flags = 2;
    CHECK_CODE(RP_ERR_INVALID, rp_store_open_file(&config, 1000, &store, ERR));
    config.flags = 0;
    config.world_size = -2;
    CHECK_CODE(RP_ERR_INVALID, rp_store_open_file(&config, 1000, &store, ERR));
}

int main(void) {
    char folder[] = "/tmp/rallypoint-kinds-XXXXXX";
    CHECK(mkdtemp(folder) != NULL);
    hash();
    prefix();
    file(folder);
    CHECK_INT(0, rmdir(folder));
    CHECK_INT(0, handles_open());
    return 0;
}
