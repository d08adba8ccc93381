import com.sun.jna.ptr.IntByReference;

/**
 * One node of a job in Java: joins, meets the others at the store of the round, and
 * regroups when a node is lost.
 *
 * <p>javac -cp jna.jar *.java; java -cp jna.jar:. Node host0:29400 job7 2 3
 * (endpoint, run id, fewest and most nodes). From Java 22 on, jextract makes the same
 * from rallypoint.h without JNA.
 */
public final class Node {
    private static final Rallypoint API = Rallypoint.API;
    private static final Rallypoint.Failure ERROR = new Rallypoint.Failure();

    // Held here, or the collector would take it while the library calls it.
    private static final Rallypoint.LogCallback LOG =
            (user, record) -> System.err.println("rallypoint: " + record.getString(24, "UTF-8"));

    private static void must(int code) {
        if (code != Rallypoint.OK) {
            throw new IllegalStateException(new String(ERROR.message).split("\0", 2)[0] + " (" + code + ")");
        }
    }

    /** Java takes null pointers by SIGSEGV: its handler must work beside the library. */
    private static int countNullPointers(int times) {
        int caught = 0;
        Object[] objects = {null, "text"};
        for (int i = 0; i < times; i++) {
            try {
                objects[i % 2].hashCode();
            } catch (NullPointerException e) {
                caught++;
            }
        }
        return caught;
    }

    public static void main(String[] args) {
        if (args.length != 4) {
            System.err.println("usage: Node ENDPOINT RUN_ID MIN MAX");
            System.exit(2);
        }
        must(API.rp_log_set_callback(LOG, null, ERROR));
        Rallypoint.MemberConfig config = new Rallypoint.MemberConfig();
        config.endpoint = args[0];
        config.run_id = args[1];
        config.min_nodes = Integer.parseInt(args[2]);
        config.max_nodes = Integer.parseInt(args[3]);
        Rallypoint.Handle opened = new Rallypoint.Handle();
        must(API.rp_member_open(config, opened, ERROR));
        Rallypoint.Handle.ByValue member = opened.value();
        for (;;) {
            Rallypoint.Place place = new Rallypoint.Place();
            must(API.rp_member_next(member, Rallypoint.FOREVER, place, ERROR));
            System.out.printf("round %d: rank %d of %d%n", place.round, place.rank, place.world_size);
            if (place.world_size == 2) { // so that this example has something to lose a node for
                meet(place);
                break;
            }
            IntByReference waiting = new IntByReference();
            while (waiting.getValue() == 0) {
                must(API.rp_member_wait(member, Rallypoint.FOREVER, ERROR));
                must(API.rp_member_nodes_waiting(member, waiting, ERROR));
            }
            System.out.println("regrouping");
        }
        if (countNullPointers(200_000) != 100_000) {
            throw new IllegalStateException("null pointers were not caught");
        }
        must(API.rp_member_finish(member, Rallypoint.FOREVER, ERROR));
        System.out.println("done");
        must(API.rp_member_shutdown(member, Rallypoint.END_SUCCESS, "the work is done", Rallypoint.FOREVER, ERROR));
        must(API.rp_member_close(member, ERROR));
        must(API.rp_log_set_callback(null, null, ERROR));
    }

    private static void meet(Rallypoint.Place place) {
        String address = new String(place.store_addr).split("\0", 2)[0];
        Rallypoint.Handle opened = new Rallypoint.Handle();
        must(API.rp_store_connect(new Rallypoint.StoreConfig(address, place.store_port), 30_000, opened, ERROR));
        byte[] key = "met".getBytes();
        must(API.rp_store_barrier(opened.value(), key, key.length, place.world_size, 30_000, ERROR));
        must(API.rp_store_close(opened.value(), ERROR));
    }
}
