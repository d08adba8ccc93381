// What a program in Node needs of rallypoint.h, through koffi. Calls that wait are made
// on koffi's own threads and are promises here; the event loop goes on.
import koffi from "koffi";
import { promisify } from "node:util";

const library = koffi.load(process.env.RALLYPOINT_LIBRARY ?? "librallypoint.so.0");

const Failure = koffi.struct("rp_error", {
  struct_size: "size_t", code: "int32_t", retryable: "int32_t", message: koffi.array("char", 2048, "String"),
});
const StoreHandle = koffi.struct("rp_store", { id: "uint64_t" });
const MemberHandle = koffi.struct("rp_member", { id: "uint64_t" });
const StoreConfig = koffi.struct("rp_store_config", { struct_size: "size_t", host: "const char *", port: "int32_t" });
const MemberConfig = koffi.struct("rp_member_config", {
  struct_size: "size_t", run_id: "const char *", endpoint: "const char *",
  min_nodes: "int32_t", max_nodes: "int32_t", local_addr: "const char *",
  options: "void *", options_len: "size_t", flags: "uint32_t",
});
const Place = koffi.struct("rp_outcome", {
  struct_size: "size_t", round: "uint64_t", rank: "int32_t", world_size: "int32_t",
  store_port: "int32_t", store_addr: koffi.array("char", 516, "String"),
});

export const END_SUCCESS = 1;
const FOREVER = -1;

// Declares a function whose last argument is the error, and makes it throw. The result
// is a promise if the call may wait.
function declare(name, args, waits) {
  const f = library.func(name, "int32_t", [...args, koffi.inout(koffi.pointer(Failure))]);
  const check = (code, error) => {
    if (code !== 0) throw Object.assign(new Error(error.message || name), { code });
  };
  const fresh = () => ({ struct_size: koffi.sizeof(Failure), code: 0, retryable: 0, message: "" });
  if (!waits) {
    return (...given) => {
      const error = fresh();
      check(f(...given, error), error);
    };
  }
  const later = promisify(f.async);
  return async (...given) => {
    const error = fresh();
    check(await later(...given, error), error);
  };
}

const out = (type) => koffi.out(koffi.pointer(type));
const api = {
  member_open: declare("rp_member_open", [koffi.pointer(MemberConfig), out(MemberHandle)]),
  member_next: declare("rp_member_next", [MemberHandle, "int64_t", koffi.inout(koffi.pointer(Place))], true),
  member_wait: declare("rp_member_wait", [MemberHandle, "int64_t"], true),
  member_finish: declare("rp_member_finish", [MemberHandle, "int64_t"], true),
  member_shutdown: declare("rp_member_shutdown", [MemberHandle, "int32_t", "const char *", "int64_t"], true),
  member_nodes_waiting: declare("rp_member_nodes_waiting", [MemberHandle, out("int32_t")]),
  member_close: declare("rp_member_close", [MemberHandle], true),
  store_connect: declare("rp_store_connect", [koffi.pointer(StoreConfig), "int64_t", out(StoreHandle)], true),
  store_barrier: declare("rp_store_barrier", [StoreHandle, "str", "size_t", "int64_t", "int64_t"], true),
  store_close: declare("rp_store_close", [StoreHandle], true),
};

export class Store {
  static async connect(host, port, timeout = 30000) {
    const handle = {};
    await api.store_connect({ struct_size: koffi.sizeof(StoreConfig), host, port }, timeout, handle);
    return new Store(handle);
  }
  constructor(handle) { this.handle = handle; }
  barrier(key, worldSize, timeout = 30000) {
    return api.store_barrier(this.handle, key, Buffer.byteLength(key), worldSize, timeout);
  }
  close() { return api.store_close(this.handle); }
}

export class Member {
  constructor({ runId, endpoint, min, max }) {
    this.handle = {};
    api.member_open({
      struct_size: koffi.sizeof(MemberConfig), run_id: runId, endpoint, min_nodes: min, max_nodes: max,
      local_addr: null, options: null, options_len: 0, flags: 0,
    }, this.handle);
  }
  async next() {
    const place = { struct_size: koffi.sizeof(Place), round: 0, rank: 0, world_size: 0, store_port: 0, store_addr: "" };
    await api.member_next(this.handle, FOREVER, place);
    return place;
  }
  wait() { return api.member_wait(this.handle, FOREVER); }
  finish() { return api.member_finish(this.handle, FOREVER); }
  shutdown(ending, reason) { return api.member_shutdown(this.handle, ending, reason, FOREVER); }
  nodesWaiting() {
    const count = [0];
    api.member_nodes_waiting(this.handle, count);
    return count[0];
  }
  close() { return api.member_close(this.handle); }
}
