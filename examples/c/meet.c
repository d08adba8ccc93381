/*
 * The shortest program: meets the others, says its rank, and leaves the run when its work
 * is done.
 *
 *   cc meet.c $(pkg-config --cflags --libs rallypoint) -o meet
 *   ./meet 127.0.0.1:29400 job7     # in two terminals, or on two machines that name one of them
 */
#include <rallypoint.h>
#include <stdio.h>

static rp_error err = {.struct_size = sizeof(rp_error)};

static int failed(const char *what) {
    fprintf(stderr, "%s: %s: %s\n", what, rp_code_name(err.code), err.message);
    return 1;
}

int main(int argc, char **argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: meet ENDPOINT RUN_ID\n");
        return 2;
    }
    rp_member_config config = {.struct_size = sizeof(config),
                               .endpoint = argv[1],
                               .run_id = argv[2],
                               .min_nodes = 2,
                               .max_nodes = 2};
    rp_member member;
    if (rp_member_open(&config, &member, &err) != RP_OK) {
        return failed("open");
    }
    rp_outcome place = {.struct_size = sizeof(place)};
    if (rp_member_next(member, -1, &place, &err) != RP_OK) { /* at most join_timeout, 600 s */
        return failed("join");
    }
    printf("round %llu: rank %d of %d, store at %s:%d\n", (unsigned long long)place.round,
           place.rank, place.world_size, place.store_addr, place.store_port);

    /* ... the work; rp_member_nodes_waiting says when to call rp_member_next again ... */

    if (rp_member_finish(member, -1, &err) != RP_OK ||
        rp_member_shutdown(member, RP_END_SUCCESS, "done", -1, &err) != RP_OK) {
        return failed("end");
    }
    return rp_member_close(member, &err) == RP_OK ? 0 : failed("close");
}
