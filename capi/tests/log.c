/* The log: taken record by record, and handed to a function. */
#include <unistd.h>

#include "check.h"

#define WARNINGS 5

/* Has the library write one warning. */
static void warn(int number) {
    char key[32];
    rp_option option = {key, "1"};
    rp_member_config config = {.struct_size = sizeof config,
                               .run_id = "run",
                               .endpoint = "127.0.0.1",
                               .min_nodes = 1,
                               .max_nodes = 1,
                               .options = &option,
                               .options_len = 1};
    rp_member member;
    snprintf(key, sizeof key, "unknown-%d", number);
    CHECK_OK(rp_member_open(&config, &member, ERR));
    CHECK_OK(rp_member_close(member, ERR));
}

struct seen {
    pthread_mutex_t mutex;
    pthread_cond_t more;
    int records;
    int running;
    int32_t inside; /* what rp_log_set_callback says inside a callback */
    char last[sizeof((rp_log_record *)0)->text];
};

static void take(void *user, const rp_log_record *record) {
    struct seen *seen = user;
    int64_t handles;
    CHECK_INT(1, __atomic_add_fetch(&seen->running, 1, __ATOMIC_SEQ_CST));
    CHECK_INT(sizeof *record, record->struct_size);
    CHECK(record->time_ms > 0);
    CHECK_OK(rp_handles_open(&handles, ERR)); /* the library may be called */
    int32_t inside = rp_log_set_callback(NULL, NULL, NULL);
    pthread_mutex_lock(&seen->mutex);
    seen->records += strstr(record->text, "unknown-") != NULL;
    seen->inside = inside;
    strcpy(seen->last, record->text);
    pthread_cond_signal(&seen->more);
    pthread_mutex_unlock(&seen->mutex);
    __atomic_sub_fetch(&seen->running, 1, __ATOMIC_SEQ_CST);
}

static void await_records(struct seen *seen, int n) {
    pthread_mutex_lock(&seen->mutex);
    while (seen->records < n) {
        pthread_cond_wait(&seen->more, &seen->mutex);
    }
    pthread_mutex_unlock(&seen->mutex);
}

int main(void) {
    static rp_log_record record = {.struct_size = sizeof(rp_log_record)};
    static struct seen seen = {
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0, 0, 0, ""};
    alarm(60);
    warn(0);
    CHECK_OK(rp_log_next(&record, ERR));
    CHECK_INT(RP_LOG_WARNING, record.level);
    CHECK_CONTAINS(record.text, "unknown-0");
    CHECK_CODE(RP_PENDING, rp_log_next(&record, ERR));

    warn(1); /* kept for the function */
    CHECK_OK(rp_log_set_callback(take, &seen, ERR));
    await_records(&seen, 1);
    for (int i = 0; i < WARNINGS; i++) {
        warn(2 + i);
    }
    await_records(&seen, 1 + WARNINGS);
    CHECK_CONTAINS(seen.last, "unknown-6");
    CHECK_INT(RP_ERR_INVALID, seen.inside);
    /* Another function, set while records come. */
    for (int i = 0; i < 50; i++) {
        warn(100 + i);
        CHECK_OK(rp_log_set_callback(take, &seen, ERR));
    }
    await_records(&seen, 1 + WARNINGS + 50);
    CHECK_OK(rp_log_set_callback(NULL, NULL, ERR));
    CHECK_OK(rp_log_set_callback(NULL, NULL, ERR));
    warn(200);
    CHECK_OK(rp_log_next(&record, ERR));
    CHECK_CONTAINS(record.text, "unknown-200");
    CHECK_OK(rp_log_set_level(RP_LOG_OFF, ERR));
    warn(201);
    CHECK_CODE(RP_PENDING, rp_log_next(&record, ERR));

    rp_usage usage = {.struct_size = sizeof usage};
    CHECK_OK(rp_usage_get(&usage, ERR));
    CHECK_INT(0, usage.handles);
    CHECK(usage.goroutines > 0);
    return 0;
}
