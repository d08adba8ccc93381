#include "_cgo_export.h"
#include "guard.h"

int32_t rp_agent_open(const rp_agent_config *config, rp_agent *agent, rp_error *err) {
    rp_agent_config full; /* fields that an older caller does not have are 0 */
    TRY(enter(err));
    TRY(readable_since(config, offsetof(rp_agent_config, numa_binding), sizeof full, err));
    memset(&full, 0, sizeof full);
    memcpy(&full, config,
           config->struct_size < sizeof full ? config->struct_size : sizeof full);
    if (full.rendezvous != NULL) {
        TRY(readable(full.rendezvous, sizeof *full.rendezvous, err));
    }
    TRY(present(agent, err));
    return rpgo_agent_open(&full, &agent->id, err);
}

int32_t rp_agent_run(rp_agent agent, int64_t timeout_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(timeout_ms, err));
    return rpgo_agent_run(agent.id, timeout_ms, err);
}

int32_t rp_agent_stop(rp_agent agent, int32_t signal, int64_t grace_ms, rp_error *err) {
    TRY(enter(err));
    TRY(timeout(grace_ms, err));
    return rpgo_agent_stop(agent.id, signal, grace_ms, err);
}

int32_t rp_agent_direct(rp_agent agent, int32_t kind, int64_t within_ms, const char *reason,
                        rp_error *err) {
    TRY(enter(err));
    TRY(present(reason, err));
    return rpgo_agent_direct(agent.id, kind, within_ms, (char *)reason, err);
}

int32_t rp_agent_next_event(rp_agent agent, rp_agent_event *event, rp_error *err) {
    TRY(enter(err));
    TRY(writable(event, offsetof(rp_agent_event, advertised_addr), err));
    return rpgo_agent_next_event(agent.id, event, err);
}

int32_t rp_agent_fd(rp_agent agent, int32_t *fd, rp_error *err) {
    TRY(enter(err));
    TRY(present(fd, err));
    return rpgo_agent_fd(agent.id, fd, err);
}

int32_t rp_agent_get_result(rp_agent agent, rp_agent_result *result, rp_error *err) {
    TRY(enter(err));
    TRY(writable(result, sizeof *result, err));
    return rpgo_agent_get_result(agent.id, result, err);
}

int32_t rp_agent_get_worker(rp_agent agent, int32_t local_rank, rp_worker_result *worker,
                            rp_error *err) {
    TRY(enter(err));
    TRY(writable(worker, sizeof *worker, err));
    return rpgo_agent_get_worker(agent.id, local_rank, worker, err);
}

int32_t rp_agent_get_failure(rp_agent agent, int32_t index, rp_failure *failure,
                             rp_error *err) {
    TRY(enter(err));
    TRY(writable(failure, sizeof *failure, err));
    return rpgo_agent_get_failure(agent.id, index, failure, err);
}

void rp_agent_result_free(rp_agent_result *result) {
    if (result != NULL) {
        rp_buffer_free(&result->report);
    }
}

void rp_worker_result_free(rp_worker_result *worker) {
    if (worker != NULL) {
        rp_buffer_free(&worker->stdout_path);
        rp_buffer_free(&worker->stderr_path);
        rp_buffer_free(&worker->error_file);
    }
}

void rp_failure_free(rp_failure *failure) {
    if (failure != NULL) {
        rp_buffer_free(&failure->host);
        rp_buffer_free(&failure->error_file);
        rp_buffer_free(&failure->error_data);
        rp_buffer_free(&failure->message);
    }
}

int32_t rp_agent_close(rp_agent agent, rp_error *err) {
    TRY(enter(err));
    return rpgo_agent_close(agent.id, err);
}
