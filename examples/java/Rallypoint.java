import com.sun.jna.Callback;
import com.sun.jna.Library;
import com.sun.jna.Native;
import com.sun.jna.Pointer;
import com.sun.jna.Structure;
import com.sun.jna.ptr.IntByReference;

/** What a program in Java needs of rallypoint.h, through JNA. */
public interface Rallypoint extends Library {
    Rallypoint API = Native.load(
            System.getenv().getOrDefault("RALLYPOINT_LIBRARY", "librallypoint.so.0"), Rallypoint.class);

    int OK = 0;
    int END_SUCCESS = 1;
    long FOREVER = -1;

    /** rp_error. */
    @Structure.FieldOrder({"struct_size", "code", "retryable", "message"})
    class Failure extends Structure {
        public long struct_size;
        public int code;
        public int retryable;
        public byte[] message = new byte[2048];

        public Failure() {
            struct_size = size();
        }
    }

    /** rp_member and rp_store: structs of one number, by value. */
    @Structure.FieldOrder({"id"})
    class Handle extends Structure {
        public long id;

        public static class ByValue extends Handle implements Structure.ByValue {}

        ByValue value() {
            ByValue copy = new ByValue();
            copy.id = id;
            return copy;
        }
    }

    @Structure.FieldOrder({"struct_size", "host", "port"})
    class StoreConfig extends Structure {
        public long struct_size;
        public String host;
        public int port;

        public StoreConfig(String host, int port) {
            this.host = host;
            this.port = port;
            struct_size = size();
        }
    }

    @Structure.FieldOrder({"struct_size", "run_id", "endpoint", "min_nodes", "max_nodes", "local_addr",
        "options", "options_len", "flags"})
    class MemberConfig extends Structure {
        public long struct_size;
        public String run_id;
        public String endpoint;
        public int min_nodes;
        public int max_nodes;
        public String local_addr;
        public Pointer options;
        public long options_len;
        public int flags;

        public MemberConfig() {
            struct_size = size();
        }
    }

    @Structure.FieldOrder({"struct_size", "round", "rank", "world_size", "store_port", "store_addr"})
    class Place extends Structure {
        public long struct_size;
        public long round;
        public int rank;
        public int world_size;
        public int store_port;
        public byte[] store_addr = new byte[516];

        public Place() {
            struct_size = size();
        }
    }

    /** rp_log_callback. The record begins with size, level, dropped, time (24 bytes); then text. */
    interface LogCallback extends Callback {
        void invoke(Pointer user, Pointer record);
    }

    int rp_log_set_callback(LogCallback callback, Pointer user, Failure err);

    int rp_member_open(MemberConfig config, Handle member, Failure err);

    int rp_member_next(Handle.ByValue member, long timeoutMs, Place place, Failure err);

    int rp_member_wait(Handle.ByValue member, long timeoutMs, Failure err);

    int rp_member_finish(Handle.ByValue member, long timeoutMs, Failure err);

    int rp_member_shutdown(Handle.ByValue member, int ending, String reason, long timeoutMs, Failure err);

    int rp_member_nodes_waiting(Handle.ByValue member, IntByReference count, Failure err);

    int rp_member_close(Handle.ByValue member, Failure err);

    int rp_store_connect(StoreConfig config, long timeoutMs, Handle store, Failure err);

    int rp_store_barrier(Handle.ByValue store, byte[] key, long keyLen, long worldSize, long timeoutMs, Failure err);

    int rp_store_close(Handle.ByValue store, Failure err);
}
