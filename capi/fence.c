#include "_cgo_export.h"
#include "guard.h"

int32_t rp_fence_open(const rp_fence_config *config, int64_t timeout_ms, rp_fence *fence,
                      rp_error *err) {
    TRY(enter(err));
    TRY(readable(config, sizeof *config, err));
    TRY(timeout(timeout_ms, err));
    TRY(present(fence, err));
    return rpgo_fence_open((rp_fence_config *)config, timeout_ms, &fence->id, err);
}

int32_t rp_fence_get_state(rp_fence fence, rp_fence_state *state, rp_error *err) {
    TRY(enter(err));
    TRY(writable(state, sizeof *state, err));
    return rpgo_fence_get_state(fence.id, state, err);
}

int32_t rp_fence_prepare(rp_fence fence, int64_t timeout_ms, rp_buffer *temporary,
                         rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    TRY(present(temporary, err));
    return rpgo_fence_prepare(fence.id, timeout_ms, temporary, err);
}

int32_t rp_fence_commit(rp_fence fence, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_fence_commit(fence.id, timeout_ms, err);
}

int32_t rp_fence_claim(rp_fence fence, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_fence_claim(fence.id, timeout_ms, err);
}

int32_t rp_fence_release(rp_fence fence, rp_error *err) {
    TRY(enter(err));
    return rpgo_fence_release(fence.id, err);
}

int32_t rp_fence_close(rp_fence fence, rp_error *err) {
    TRY(enter(err));
    return rpgo_fence_close(fence.id, err);
}
