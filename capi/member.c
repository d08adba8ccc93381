#include "_cgo_export.h"
#include "guard.h"

int32_t rp_member_open(const rp_member_config *config, rp_member *member, rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(present(member, err));
    return rpgo_member_open((rp_member_config *)config, &member->id, err);
}

int32_t rp_member_next(rp_member member, int64_t timeout_ms, rp_outcome *outcome,
                       rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    TRY(writable(outcome, offsetof(rp_outcome, advertised_addr), err));
    return rpgo_member_next(member.id, timeout_ms, outcome, err);
}

int32_t rp_member_cancel(rp_member member, rp_error *err) {
    TRY(enter(err));
    return rpgo_member_cancel(member.id, err);
}

int32_t rp_member_finish(rp_member member, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_member_finish(member.id, timeout_ms, err);
}

int32_t rp_member_shutdown(rp_member member, int32_t ending, const char *reason,
                           int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_member_shutdown(member.id, ending, (char *)reason, timeout_ms, err);
}

int32_t rp_member_set_closed(rp_member member, const char *reason, int64_t timeout_ms,
                             rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_member_set_closed(member.id, (char *)reason, timeout_ms, err);
}

int32_t rp_member_wait(rp_member member, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_member_wait(member.id, timeout_ms, err);
}

int32_t rp_member_fd(rp_member member, int32_t *fd, rp_error *err) {
    TRY(enter(err));
    TRY(present(fd, err));
    return rpgo_member_fd(member.id, fd, err);
}

int32_t rp_member_nodes_waiting(rp_member member, int32_t *count, rp_error *err) {
    TRY(enter(err));
    TRY(present(count, err));
    return rpgo_member_nodes_waiting(member.id, count, err);
}

int32_t rp_member_is_closed(rp_member member, int32_t *closed, rp_error *err) {
    TRY(enter(err));
    TRY(present(closed, err));
    return rpgo_member_is_closed(member.id, closed, err);
}

int32_t rp_member_reason(rp_member member, char *text, size_t *size, rp_error *err) {
    TRY(enter(err));
    TRY(present(size, err));
    return rpgo_member_reason(member.id, text, size, err);
}

int32_t rp_member_keys(rp_member member, uint64_t round, rp_store *store, rp_error *err) {
    TRY(enter(err));
    TRY(present(store, err));
    return rpgo_member_keys(member.id, round, &store->id, err);
}

int32_t rp_member_close(rp_member member, rp_error *err) {
    TRY(enter(err));
    return rpgo_member_close(member.id, err);
}
