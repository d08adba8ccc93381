// rallypoint.hpp - Rallypoint for C++17, over rallypoint.h, without a library of its own.
//
// Objects close what they own, errors are exceptions (rallypoint::Error), and everything
// else is as rallypoint.h says: that is where the meaning, limits and error codes of each
// function are. Objects can be moved, not copied. As below, all methods may be called
// from any thread, and close() from one ends the calls of others; moving and destroying
// an object is for one thread that has it for itself.
//
// Durations are std::chrono; rallypoint::forever waits without a limit. Keys and values
// are std::string_view of any bytes.
#ifndef RALLYPOINT_HPP
#define RALLYPOINT_HPP

#include <chrono>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "rallypoint.h"

namespace rallypoint {

using Duration = std::chrono::milliseconds;

// No limit, as a timeout.
inline constexpr Duration forever{-1};

// Names and values, as in --rdzv-conf.
using Options = std::vector<std::pair<std::string, std::string>>;

// What went wrong. what() is human-readable; code() is an rp_code.
class Error : public std::runtime_error {
  public:
    Error(std::int32_t code, bool retryable, const std::string &message)
        : std::runtime_error(message), code_(code), retryable_(retryable) {}

    std::int32_t code() const noexcept {
        return code_;
    }

    // Whether the same call may succeed later without a change by the user.
    bool retryable() const noexcept {
        return retryable_;
    }

  private:
    std::int32_t code_;
    bool retryable_;
};

namespace detail {

// Makes a call that takes an rp_error last. Returns whether it is done, false for
// RP_PENDING.
template <typename Call> bool done(Call &&call) {
    rp_error err;
    err.struct_size = sizeof err;
    err.code = 0;
    err.retryable = 0;
    err.message[0] = 0;
    const std::int32_t code = call(&err);
    if (code > RP_PENDING) {
        throw Error(code, err.retryable != 0,
                    err.code == code ? err.message : rp_code_name(code));
    }
    return code == RP_OK;
}

inline std::string take(rp_buffer &buffer) {
    struct Free {
        rp_buffer *buffer;
        ~Free() {
            rp_buffer_free(buffer);
        }
    } free{&buffer};
    return std::string(static_cast<const char *>(buffer.data), buffer.len);
}

inline std::vector<std::string> take(rp_list &list) {
    struct Free {
        rp_list *list;
        ~Free() {
            rp_list_free(list);
        }
    } free{&list};
    std::vector<std::string> texts;
    texts.reserve(list.len);
    for (std::size_t i = 0; i < list.len; i++) {
        texts.emplace_back(static_cast<const char *>(list.items[i].data), list.items[i].len);
    }
    return texts;
}

inline rp_bytes bytes(std::string_view text) {
    return rp_bytes{text.data() != nullptr ? text.data() : "", text.size()};
}

template <typename Texts> std::vector<rp_bytes> array(const Texts &texts) {
    std::vector<rp_bytes> items;
    for (const auto &text : texts) {
        items.push_back(bytes(text));
    }
    return items;
}

// The options in C; they are good as long as the texts are.
inline std::vector<rp_option> array(const Options &options) {
    std::vector<rp_option> items;
    for (const auto &[key, value] : options) {
        items.push_back(rp_option{key.c_str(), value.c_str()});
    }
    return items;
}

// NULL for an empty text.
inline const char *pointer(const std::string &text) {
    return text.empty() ? nullptr : text.c_str();
}

inline std::vector<const char *> pointers(const std::vector<std::string> &texts) {
    std::vector<const char *> items;
    for (const auto &text : texts) {
        items.push_back(text.c_str());
    }
    return items;
}

// A struct that the library fills, and whose buffers go with it.
template <typename Struct, void (*Free)(Struct *)> struct Freed : Struct {
    Freed() : Struct{} {
        this->struct_size = sizeof(Struct);
    }
    Freed(const Freed &) = delete;
    Freed &operator=(const Freed &) = delete;
    ~Freed() {
        Free(this);
    }
};

// A handle that is closed with its owner.
template <typename Handle, std::int32_t (*Close)(Handle, rp_error *)> class Owner {
  public:
    Owner() = default;
    explicit Owner(Handle handle) : handle_(handle) {}
    Owner(Owner &&other) noexcept : handle_(std::exchange(other.handle_, Handle{})) {}
    Owner &operator=(Owner &&other) noexcept {
        if (this != &other) {
            reset();
            handle_ = std::exchange(other.handle_, Handle{});
        }
        return *this;
    }
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    ~Owner() {
        reset();
    }

    // The handle, for functions of rallypoint.h. It stays this object's.
    Handle handle() const noexcept {
        return handle_;
    }

    // Closes it now, and throws if that fails, which the destructor does not. Calls
    // of other threads on it end. To close it again is RP_ERR_HANDLE.
    void close() {
        const Handle handle = handle_;
        done([&](rp_error *err) { return Close(handle, err); });
    }

  private:
    void reset() noexcept {
        if (handle_.id != 0) {
            Close(handle_, nullptr);
            handle_ = Handle{};
        }
    }

    Handle handle_{};
};

} // namespace detail

// The version of the library that is linked, "0.1.0".
inline std::string version() {
    return rp_version();
}

// Has a function called with each record of the library's log, the ones kept included,
// from its beginning to its end: there may be one at a time. The function runs on a thread
// of the library, one call after the other, should not wait, must not end this object, and
// an exception ends the program.
class LogCallback {
  public:
    using Call = std::function<void(const rp_log_record &)>;

    explicit LogCallback(Call call) : call_(std::move(call)) {
        detail::done([&](rp_error *err) {
            return rp_log_set_callback(
                [](void *user, const rp_log_record *record) noexcept {
                    (*static_cast<Call *>(user))(*record);
                },
                &call_, err);
        });
    }
    LogCallback(const LogCallback &) = delete;
    LogCallback &operator=(const LogCallback &) = delete;
    ~LogCallback() {
        rp_log_set_callback(nullptr, nullptr, nullptr);
    }

  private:
    Call call_;
};

// The lowest level that is logged from now on.
inline void set_log_level(rp_log_level level) {
    detail::done([&](rp_error *err) { return rp_log_set_level(level, err); });
}

// An operation in the background, whose result is a T. Destroying one cancels it if it is
// under way, and does not wait; its store may be closed before it.
template <typename T> class Operation : public detail::Owner<rp_op, rp_op_free> {
  public:
    using Owner::Owner;

    // Waits for its end, which is an Error if it failed. False: it is still under way.
    bool wait(Duration timeout = forever) const {
        return detail::done(
            [&](rp_error *err) { return rp_op_wait(handle(), timeout.count(), err); });
    }

    // A descriptor that poll(2) finds readable as soon as it has ended.
    int fd() const {
        std::int32_t fd = -1;
        detail::done([&](rp_error *err) { return rp_op_fd(handle(), &fd, err); });
        return fd;
    }

    // Has `call` called once as soon as it has ended, or at once if it has: on a thread of
    // the library, also if this object is destroyed before. It should not wait, and an
    // exception ends the program.
    void notify(std::function<void()> call) {
        auto held = std::make_unique<std::function<void()>>(std::move(call));
        detail::done([&](rp_error *err) {
            return rp_op_notify(
                handle(),
                [](void *user) noexcept {
                    std::unique_ptr<std::function<void()>>(
                        static_cast<std::function<void()> *>(user))
                        ->operator()();
                },
                held.get(), err);
        });
        held.release(); // by the call
    }

    // Asks it to end soon.
    void cancel() {
        detail::done([&](rp_error *err) { return rp_op_cancel(handle(), err); });
    }

    // Waits for its end and takes its result, for once: again is RP_ERR_INVALID.
    T result() {
        wait();
        detail::Freed<rp_store_result, rp_store_result_free> taken;
        detail::done([&](rp_error *err) { return rp_op_result(handle(), &taken, err); });
        if constexpr (std::is_same_v<T, bool>) {
            return taken.number != 0;
        } else if constexpr (std::is_integral_v<T>) {
            return taken.number;
        } else if constexpr (std::is_same_v<T, std::string>) {
            return detail::take(taken.value);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
            return detail::take(taken.list);
        } else if constexpr (!std::is_void_v<T>) {
            return T(taken.store);
        }
    }
};

// A key-value store. start_x(...) begins what x(...) does, and returns at once.
class Store : public detail::Owner<rp_store, rp_store_close> {
  public:
    using Owner::Owner;

    // A server of TCPStore: PyTorch's own, StoreServer, or the store of a round.
    static Store connect(const std::string &host, int port,
                         Duration timeout = std::chrono::seconds(300)) {
        const rp_store_config config{sizeof config, host.c_str(), port};
        return open(rp_store_connect, config, timeout);
    }

    static Operation<Store> start_connect(const std::string &host, int port,
                                          Duration timeout = std::chrono::seconds(300)) {
        const rp_store_config config{sizeof config, host.c_str(), port};
        return start_open(rp_store_connect_start, config, timeout);
    }

    // A file, shared with PyTorch's FileStore.
    static Store file(const std::string &path, std::int64_t world_size = 0,
                      Duration timeout = std::chrono::seconds(300), std::uint32_t flags = 0) {
        const rp_store_file_config config{sizeof config, path.c_str(), world_size, flags};
        return open(rp_store_open_file, config, timeout);
    }

    static Operation<Store> start_file(const std::string &path, std::int64_t world_size = 0,
                                       Duration timeout = std::chrono::seconds(300),
                                       std::uint32_t flags = 0) {
        const rp_store_file_config config{sizeof config, path.c_str(), world_size, flags};
        return start_open(rp_store_open_file_start, config, timeout);
    }

    // An etcd, "etcd://host:2379", shared with all that open it with one prefix. An empty
    // prefix: that of option key_prefix, or else the usual one.
    static Store etcd(const std::string &endpoint, const std::string &prefix = "",
                      Duration timeout = std::chrono::seconds(300),
                      const Options &options = {}) {
        const auto pairs = detail::array(options);
        const rp_store_etcd_config config{sizeof config, endpoint.c_str(),
                                          detail::pointer(prefix), pairs.data(), pairs.size()};
        return open(rp_store_open_etcd, config, timeout);
    }

    static Operation<Store> start_etcd(const std::string &endpoint,
                                       const std::string &prefix = "",
                                       Duration timeout = std::chrono::seconds(300),
                                       const Options &options = {}) {
        const auto pairs = detail::array(options);
        const rp_store_etcd_config config{sizeof config, endpoint.c_str(),
                                          detail::pointer(prefix), pairs.data(), pairs.size()};
        return start_open(rp_store_open_etcd_start, config, timeout);
    }

    // The memory of this process.
    static Store hash() {
        rp_store store{};
        detail::done([&](rp_error *err) { return rp_store_open_hash(&store, err); });
        return Store(store);
    }

    // A part of this store, which must be kept open.
    Store prefix(std::string_view name) const {
        const rp_bytes text = detail::bytes(name);
        rp_store view{};
        detail::done([&](rp_error *err) {
            return rp_store_open_prefix(handle(), text.data, text.len, &view, err);
        });
        return Store(view);
    }

    // The timeout of calls that are given none; 300 s at first.
    void set_timeout(Duration timeout) noexcept {
        timeout_ = timeout;
    }

    using Timeout = std::optional<Duration>;

    void set(std::string_view key, std::string_view value, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key), v = detail::bytes(value);
        detail::done([&](rp_error *err) {
            return rp_store_set(handle(), k.data, k.len, v.data, v.len, limit(timeout), err);
        });
    }

    std::string get(std::string_view key, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key);
        rp_buffer value{};
        detail::done([&](rp_error *err) {
            return rp_store_get(handle(), k.data, k.len, limit(timeout), &value, err);
        });
        return detail::take(value);
    }

    std::int64_t add(std::string_view key, std::int64_t amount, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key);
        std::int64_t sum = 0;
        detail::done([&](rp_error *err) {
            return rp_store_add(handle(), k.data, k.len, amount, limit(timeout), &sum, err);
        });
        return sum;
    }

    std::string compare_set(std::string_view key, std::string_view expected,
                            std::string_view desired, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key), e = detail::bytes(expected),
                       d = detail::bytes(desired);
        rp_buffer current{};
        detail::done([&](rp_error *err) {
            return rp_store_compare_set(handle(), k.data, k.len, e.data, e.len, d.data, d.len,
                                        limit(timeout), &current, err);
        });
        return detail::take(current);
    }

    void append(std::string_view key, std::string_view value, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key), v = detail::bytes(value);
        detail::done([&](rp_error *err) {
            return rp_store_append(handle(), k.data, k.len, v.data, v.len, limit(timeout), err);
        });
    }

    bool check(const std::vector<std::string> &keys, Timeout timeout = {}) {
        const auto k = detail::array(keys);
        std::int32_t ready = 0;
        detail::done([&](rp_error *err) {
            return rp_store_check(handle(), k.data(), k.size(), limit(timeout), &ready, err);
        });
        return ready != 0;
    }

    void wait(const std::vector<std::string> &keys, Timeout timeout = {}) {
        const auto k = detail::array(keys);
        detail::done([&](rp_error *err) {
            return rp_store_wait(handle(), k.data(), k.size(), limit(timeout), err);
        });
    }

    // Removes the key; returns whether there was one.
    bool remove(std::string_view key, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key);
        std::int32_t existed = 0;
        detail::done([&](rp_error *err) {
            return rp_store_delete(handle(), k.data, k.len, limit(timeout), &existed, err);
        });
        return existed != 0;
    }

    std::int64_t num_keys(Timeout timeout = {}) {
        std::int64_t count = 0;
        detail::done([&](rp_error *err) {
            return rp_store_num_keys(handle(), limit(timeout), &count, err);
        });
        return count;
    }

    std::vector<std::string> list_keys(Timeout timeout = {}) {
        rp_list keys{};
        detail::done([&](rp_error *err) {
            return rp_store_list_keys(handle(), limit(timeout), &keys, err);
        });
        return detail::take(keys);
    }

    std::vector<std::string> multi_get(const std::vector<std::string> &keys,
                                       Timeout timeout = {}) {
        const auto k = detail::array(keys);
        rp_list values{};
        detail::done([&](rp_error *err) {
            return rp_store_multi_get(handle(), k.data(), k.size(), limit(timeout), &values,
                                      err);
        });
        return detail::take(values);
    }

    void multi_set(const std::vector<std::pair<std::string, std::string>> &pairs,
                   Timeout timeout = {}) {
        const auto c = columns(pairs);
        detail::done([&](rp_error *err) {
            return rp_store_multi_set(handle(), c.first.data(), c.second.data(), c.first.size(),
                                      limit(timeout), err);
        });
    }

    void queue_push(std::string_view key, std::string_view value, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key), v = detail::bytes(value);
        detail::done([&](rp_error *err) {
            return rp_store_queue_push(handle(), k.data, k.len, v.data, v.len, limit(timeout),
                                       err);
        });
    }

    // The oldest item; if there is none: waits for one, or RP_ERR_EMPTY without `block`.
    std::string queue_pop(std::string_view key, bool block = true, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key);
        rp_buffer value{};
        detail::done([&](rp_error *err) {
            return rp_store_queue_pop(handle(), k.data, k.len, block ? 1 : 0, limit(timeout),
                                      &value, err);
        });
        return detail::take(value);
    }

    std::int64_t queue_len(std::string_view key, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key);
        std::int64_t count = 0;
        detail::done([&](rp_error *err) {
            return rp_store_queue_len(handle(), k.data, k.len, limit(timeout), &count, err);
        });
        return count;
    }

    void barrier(std::string_view key, std::int64_t world_size, Timeout timeout = {}) {
        const rp_bytes k = detail::bytes(key);
        detail::done([&](rp_error *err) {
            return rp_store_barrier(handle(), k.data, k.len, world_size, limit(timeout), err);
        });
    }

    Operation<void> start_set(std::string_view key, std::string_view value,
                              Timeout timeout = {}) const {
        rp_store_request r = request(RP_STORE_SET, key);
        r.value = detail::bytes(value);
        return start<void>(r, timeout);
    }

    Operation<std::string> start_get(std::string_view key, Timeout timeout = {}) const {
        return start<std::string>(request(RP_STORE_GET, key), timeout);
    }

    Operation<std::int64_t> start_add(std::string_view key, std::int64_t amount,
                                      Timeout timeout = {}) const {
        rp_store_request r = request(RP_STORE_ADD, key);
        r.number = amount;
        return start<std::int64_t>(r, timeout);
    }

    Operation<std::string> start_compare_set(std::string_view key, std::string_view expected,
                                             std::string_view desired,
                                             Timeout timeout = {}) const {
        rp_store_request r = request(RP_STORE_COMPARE_SET, key);
        r.expected = detail::bytes(expected);
        r.value = detail::bytes(desired);
        return start<std::string>(r, timeout);
    }

    Operation<void> start_append(std::string_view key, std::string_view value,
                                 Timeout timeout = {}) const {
        rp_store_request r = request(RP_STORE_APPEND, key);
        r.value = detail::bytes(value);
        return start<void>(r, timeout);
    }

    Operation<bool> start_check(const std::vector<std::string> &keys,
                                Timeout timeout = {}) const {
        return start_keys<bool>(RP_STORE_CHECK, keys, timeout);
    }

    Operation<void> start_wait(const std::vector<std::string> &keys,
                               Timeout timeout = {}) const {
        return start_keys<void>(RP_STORE_WAIT, keys, timeout);
    }

    Operation<bool> start_remove(std::string_view key, Timeout timeout = {}) const {
        return start<bool>(request(RP_STORE_DELETE, key), timeout);
    }

    Operation<std::int64_t> start_num_keys(Timeout timeout = {}) const {
        return start<std::int64_t>(request(RP_STORE_NUM_KEYS), timeout);
    }

    Operation<std::vector<std::string>> start_list_keys(Timeout timeout = {}) const {
        return start<std::vector<std::string>>(request(RP_STORE_LIST_KEYS), timeout);
    }

    Operation<std::vector<std::string>> start_multi_get(const std::vector<std::string> &keys,
                                                        Timeout timeout = {}) const {
        return start_keys<std::vector<std::string>>(RP_STORE_MULTI_GET, keys, timeout);
    }

    Operation<void>
    start_multi_set(const std::vector<std::pair<std::string, std::string>> &pairs,
                    Timeout timeout = {}) const {
        const auto c = columns(pairs);
        rp_store_request r = request(RP_STORE_MULTI_SET);
        r.keys = c.first.data();
        r.values = c.second.data();
        r.keys_len = r.values_len = c.first.size();
        return start<void>(r, timeout);
    }

    Operation<void> start_queue_push(std::string_view key, std::string_view value,
                                     Timeout timeout = {}) const {
        rp_store_request r = request(RP_STORE_QUEUE_PUSH, key);
        r.value = detail::bytes(value);
        return start<void>(r, timeout);
    }

    Operation<std::string> start_queue_pop(std::string_view key, bool block = true,
                                           Timeout timeout = {}) const {
        rp_store_request r = request(RP_STORE_QUEUE_POP, key);
        r.block = block ? 1 : 0;
        return start<std::string>(r, timeout);
    }

    Operation<std::int64_t> start_queue_len(std::string_view key, Timeout timeout = {}) const {
        return start<std::int64_t>(request(RP_STORE_QUEUE_LEN, key), timeout);
    }

    Operation<void> start_barrier(std::string_view key, std::int64_t world_size,
                                  Timeout timeout = {}) const {
        rp_store_request r = request(RP_STORE_BARRIER, key);
        r.number = world_size;
        return start<void>(r, timeout);
    }

  private:
    template <typename Function, typename Config>
    static Store open(Function *function, const Config &config, Duration timeout) {
        rp_store store{};
        detail::done(
            [&](rp_error *err) { return function(&config, timeout.count(), &store, err); });
        return Store(store);
    }

    template <typename Function, typename Config>
    static Operation<Store> start_open(Function *function, const Config &config,
                                       Duration timeout) {
        rp_op op{};
        detail::done(
            [&](rp_error *err) { return function(&config, timeout.count(), &op, err); });
        return Operation<Store>(op);
    }

    static rp_store_request request(rp_store_op op, std::string_view key = {}) {
        rp_store_request r{};
        r.struct_size = sizeof r;
        r.op = op;
        r.key = detail::bytes(key);
        return r;
    }

    template <typename T> Operation<T> start(rp_store_request r, Timeout timeout) const {
        r.timeout_ms = limit(timeout);
        rp_op op{};
        detail::done([&](rp_error *err) { return rp_store_start(handle(), &r, &op, err); });
        return Operation<T>(op);
    }

    template <typename T>
    Operation<T> start_keys(rp_store_op op, const std::vector<std::string> &keys,
                            Timeout timeout) const {
        const auto k = detail::array(keys);
        rp_store_request r = request(op);
        r.keys = k.data();
        r.keys_len = k.size();
        return start<T>(r, timeout);
    }

    static std::pair<std::vector<rp_bytes>, std::vector<rp_bytes>>
    columns(const std::vector<std::pair<std::string, std::string>> &pairs) {
        std::pair<std::vector<rp_bytes>, std::vector<rp_bytes>> columns;
        for (const auto &[key, value] : pairs) {
            columns.first.push_back(detail::bytes(key));
            columns.second.push_back(detail::bytes(value));
        }
        return columns;
    }

    std::int64_t limit(Timeout timeout) const noexcept {
        return timeout.value_or(timeout_).count();
    }

    Duration timeout_ = std::chrono::seconds(300);
};

// A server that TCPStore clients connect to. Listens from the beginning; closing stops it.
class StoreServer : public detail::Owner<rp_store_server, rp_store_server_stop> {
  public:
    explicit StoreServer(const std::string &host = "", int port = 0)
        : Owner(start(host, port)) {}

    int port() const {
        std::int32_t port = 0;
        detail::done([&](rp_error *err) { return rp_store_server_port(handle(), &port, err); });
        return port;
    }

  private:
    static rp_store_server start(const std::string &host, int port) {
        rp_store_server_config config{};
        config.struct_size = sizeof config;
        config.host = host.c_str();
        config.port = port;
        rp_store_server server{};
        detail::done(
            [&](rp_error *err) { return rp_store_server_start(&config, &server, err); });
        return server;
    }
};

// Which etcd to start, and how: rp_etcd_server_config. Empty texts are NULL there.
struct EtcdServerConfig {
    std::string binary;
    std::string beside;
    std::string data_dir; // empty: a temporary one
    int retries = 3;
    int output_fd = -1; // -1: what the etcd writes is dropped
};

// An etcd of one member on 127.0.0.1, which ends with this object, and with this process.
// It starts from the beginning; ready() waits until it answers.
class EtcdServer : public detail::Owner<rp_etcd_server, rp_etcd_server_stop> {
  public:
    explicit EtcdServer(const EtcdServerConfig &config = {},
                        Duration timeout = std::chrono::seconds(60))
        : Owner(start(config, timeout)) {}

    // Waits until it answers, and returns its port. An Error if it does not within the
    // timeout of its start.
    int ready() const {
        return *ready_within(forever);
    }

    // The same, for at most so long; nothing says: not yet, ask again.
    std::optional<int> ready_within(Duration timeout) const {
        std::int32_t port = 0;
        if (!detail::done([&](rp_error *err) {
                return rp_etcd_server_ready(handle(), timeout.count(), &port, err);
            })) {
            return std::nullopt;
        }
        return port;
    }

    // Its endpoint, for Store::etcd and MemberConfig; waits as ready() does.
    std::string endpoint() const {
        return "etcd://127.0.0.1:" + std::to_string(ready());
    }

  private:
    static rp_etcd_server start(const EtcdServerConfig &config, Duration timeout) {
        rp_etcd_server_config c{};
        c.struct_size = sizeof c;
        c.binary = detail::pointer(config.binary);
        c.beside = detail::pointer(config.beside);
        c.data_dir = detail::pointer(config.data_dir);
        c.retries = config.retries;
        c.output_fd = config.output_fd;
        rp_etcd_server server{};
        detail::done([&](rp_error *err) {
            return rp_etcd_server_start(&c, timeout.count(), &server, err);
        });
        return server;
    }
};

// A place of your own where the nodes of a run meet: a value that they all share, and that
// can be compared and set. To be derived from.
//
// The methods run on threads of the library, several at once, may wait, but not for ever,
// and must not close or destroy the member. An Error that they throw keeps its code:
// RP_ERR_CONNECTION is tried again, every other one ends the member's part in the run. All
// else that they throw counts as RP_ERR_CONNECTION, except std::logic_error and
// std::bad_alloc, which end it with RP_ERR_STATE.
class Backend {
  public:
    // What is stored, if anything is, and the token that stands for it: any bytes, which
    // are others after each write.
    struct Value {
        std::optional<std::string> state;
        std::string token;
    };

    // What is stored after a set, and whether that is because of it.
    struct Written {
        Value value;
        bool stored = false;
    };

    virtual ~Backend() = default;

    virtual Value get() = 0;

    // Stores `state` if `token` stands for what is stored (one that is not known is an old
    // one), or, without a token, if nothing is stored.
    virtual Written set(std::string_view state, std::optional<std::string_view> token) = 0;
};

namespace detail {

// A backend as the functions of rp_backend; `user` is a shared_ptr that is given back with
// release.
struct BackendTable {
    using Held = std::shared_ptr<Backend>;

    static rp_backend of(Held *held) {
        return rp_backend{sizeof(rp_backend), held, get, set, release};
    }

    static std::int32_t get(void *user, rp_backend_reply *reply, rp_error *err) {
        return guarded(err, [&] {
            return answer(Backend::Written{(*static_cast<Held *>(user))->get(), false}, reply,
                          err);
        });
    }

    static std::int32_t set(void *user, const void *state, std::size_t state_len,
                            const void *token, std::size_t token_len, rp_backend_reply *reply,
                            rp_error *err) {
        return guarded(err, [&] {
            std::optional<std::string_view> known;
            if (token != nullptr) {
                known.emplace(static_cast<const char *>(token), token_len);
            }
            return answer((*static_cast<Held *>(user))
                              ->set({static_cast<const char *>(state), state_len}, known),
                          reply, err);
        });
    }

    static void release(void *user) {
        delete static_cast<Held *>(user);
    }

  private:
    static std::int32_t answer(const Backend::Written &written, rp_backend_reply *reply,
                               rp_error *err) {
        const auto &[state, token] = written.value;
        return rp_backend_answer(reply, state ? state->data() : nullptr,
                                 state ? state->size() : 0, token.data(), token.size(),
                                 written.stored ? 1 : 0, err);
    }

    // No exception may pass through the library.
    template <typename Call> static std::int32_t guarded(rp_error *err, Call &&call) noexcept {
        try {
            return call();
        } catch (const Error &e) {
            return fail(err, e.code() > RP_PENDING ? e.code() : RP_ERR_INTERNAL, e.what());
        } catch (const std::logic_error &e) {
            return fail(err, RP_ERR_STATE, e.what());
        } catch (const std::bad_alloc &e) {
            return fail(err, RP_ERR_STATE, e.what());
        } catch (const std::exception &e) {
            return fail(err, RP_ERR_CONNECTION, e.what());
        } catch (...) {
            return fail(err, RP_ERR_CONNECTION, "the backend threw what is no std::exception");
        }
    }

    static std::int32_t fail(rp_error *err, std::int32_t code, const char *text) noexcept {
        err->code = code;
        const std::size_t len =
            std::string_view(text).copy(err->message, sizeof err->message - 1);
        err->message[len] = 0;
        return code;
    }
};

} // namespace detail

// What a node brings to a rendezvous: rp_member_config.
struct MemberConfig {
    std::string run_id;
    std::string endpoint;
    int min_nodes = 1;
    int max_nodes = 1;
    std::string local_addr; // empty: found out
    Options options;
    bool environment = false; // also read settings and hints from the environment

    // Calls with the same in C; its pointers are good during the call only.
    template <typename Call> auto with(Call &&call) const {
        const auto pairs = detail::array(options);
        rp_member_config config{};
        config.struct_size = sizeof config;
        config.run_id = run_id.c_str();
        config.endpoint = endpoint.c_str();
        config.min_nodes = min_nodes;
        config.max_nodes = max_nodes;
        config.local_addr = detail::pointer(local_addr);
        config.options = pairs.data();
        config.options_len = pairs.size();
        config.flags = environment ? RP_MEMBER_ENVIRONMENT : 0;
        return call(config);
    }
};

// A node's place in a completed round: rp_outcome.
struct Outcome {
    std::uint64_t round;
    int rank;
    int world_size;
    std::string store_addr;
    int store_port;
    std::string advertised_addr;
};

// One node of a run. Destroying one that was not shut down makes it count as lost.
class Member : public detail::Owner<rp_member, rp_member_close> {
  public:
    explicit Member(const MemberConfig &config) : Owner(open(config)) {}

    // A member whose run meets in `backend`, which is kept until no method of it will be
    // called any more: that may be shortly after the member's end. config.endpoint is a
    // name for display.
    Member(const MemberConfig &config, std::shared_ptr<Backend> backend)
        : Owner(open(config, std::move(backend))) {}

    // Joins the next round and waits for this node's place in it.
    Outcome next() {
        return *next_within(forever);
    }

    // The same, for at most so long; nothing says: not yet, call again.
    std::optional<Outcome> next_within(Duration timeout) {
        rp_outcome outcome{};
        outcome.struct_size = sizeof outcome;
        if (!detail::done([&](rp_error *err) {
                return rp_member_next(handle(), timeout.count(), &outcome, err);
            })) {
            return std::nullopt;
        }
        return Outcome{outcome.round,      outcome.rank,       outcome.world_size,
                       outcome.store_addr, outcome.store_port, outcome.advertised_addr};
    }

    // Withdraws a join, and ends a shutdown's waiting.
    void cancel() {
        detail::done([&](rp_error *err) { return rp_member_cancel(handle(), err); });
    }

    // Tells that this node's workers have succeeded.
    void finish() {
        detail::done([&](rp_error *err) { return rp_member_finish(handle(), -1, err); });
    }

    // Ends this node's part in the run; to be followed by close() or the destructor.
    void shutdown(rp_ending ending, const std::string &reason = "") {
        detail::done([&](rp_error *err) {
            return rp_member_shutdown(handle(), ending, reason.c_str(), -1, err);
        });
    }

    // Closes the run for newcomers; the running round continues.
    void set_closed(const std::string &reason = "") {
        detail::done([&](rp_error *err) {
            return rp_member_set_closed(handle(), reason.c_str(), -1, err);
        });
    }

    // Waits for something to look at again: nodes_waiting(), is_closed(), reason() or the
    // end of a join. False: there was nothing in that time.
    bool wait(Duration timeout = forever) {
        return detail::done(
            [&](rp_error *err) { return rp_member_wait(handle(), timeout.count(), err); });
    }

    // A descriptor that poll(2) finds readable while wait() would not wait.
    int fd() const {
        std::int32_t fd = -1;
        detail::done([&](rp_error *err) { return rp_member_fd(handle(), &fd, err); });
        return fd;
    }

    // Above 0 if the nodes have to regroup, by another next().
    int nodes_waiting() const {
        std::int32_t count = 0;
        detail::done(
            [&](rp_error *err) { return rp_member_nodes_waiting(handle(), &count, err); });
        return count;
    }

    bool is_closed() const {
        std::int32_t closed = 0;
        detail::done(
            [&](rp_error *err) { return rp_member_is_closed(handle(), &closed, err); });
        return closed != 0;
    }

    // Why nodes_waiting() or is_closed() is what it is, human-readable.
    std::string reason() const {
        std::string text(256, '\0');
        for (;;) {
            std::size_t size = text.size();
            const std::int32_t code = rp_member_reason(handle(), text.data(), &size, nullptr);
            text.resize(size);
            if (code == RP_ERR_BUFFER) {
                continue;
            }
            if (code != RP_OK) {
                throw Error(code, false, rp_code_name(code));
            }
            text.resize(size - 1);
            return text;
        }
    }

    // The store that the nodes of a round share.
    Store keys(std::uint64_t round) const {
        rp_store store{};
        detail::done(
            [&](rp_error *err) { return rp_member_keys(handle(), round, &store, err); });
        return Store(store);
    }

  private:
    static rp_member open(const MemberConfig &config) {
        rp_member member{};
        detail::done([&](rp_error *err) {
            return config.with(
                [&](const rp_member_config &c) { return rp_member_open(&c, &member, err); });
        });
        return member;
    }

    static rp_member open(const MemberConfig &config, std::shared_ptr<Backend> backend) {
        if (backend == nullptr) {
            throw Error(RP_ERR_INVALID, false, "the backend is nullptr");
        }
        auto held = std::make_unique<std::shared_ptr<Backend>>(std::move(backend));
        const rp_backend table = detail::BackendTable::of(held.get());
        rp_member member{};
        detail::done([&](rp_error *err) {
            return config.with([&](const rp_member_config &c) {
                return rp_member_open_backend(&c, &table, &member, err);
            });
        });
        held.release(); // by BackendTable::release
        return member;
    }
};

// What an agent runs: the fields of rp_agent_config that most programs need. `more` may
// set the others.
struct AgentConfig {
    std::vector<std::string> argv;
    std::vector<std::string> environment; // NAME=value; empty: this process's
    int workers = 1;
    MemberConfig rendezvous; // one without an endpoint: this node is the whole job
    int max_restarts = 0;
    std::string log_dir;   // empty: a temporary one
    std::string redirects; // "3", "0:1,1:3"
    std::string tee;
    std::uint32_t flags = 0; // rp_agent_flag
    std::function<void(rp_agent_config &)> more;
};

// Runs the workers of one node.
class Agent : public detail::Owner<rp_agent, rp_agent_close> {
  public:
    explicit Agent(const AgentConfig &config) : Owner(open(config)) {}

    // Runs until the end, which is an Error (RP_ERR_WORKERS and others) if it is none of
    // success.
    void run() {
        run_within(forever);
    }

    // The same, for at most so long; false: it still runs, call again.
    bool run_within(Duration timeout) {
        return detail::done(
            [&](rp_error *err) { return rp_agent_run(handle(), timeout.count(), err); });
    }

    void stop(int signal, Duration grace = forever) {
        detail::done(
            [&](rp_error *err) { return rp_agent_stop(handle(), signal, grace.count(), err); });
    }

    // The oldest event, if there is one.
    std::optional<rp_agent_event> next_event() {
        rp_agent_event event{};
        event.struct_size = sizeof event;
        if (!detail::done(
                [&](rp_error *err) { return rp_agent_next_event(handle(), &event, err); })) {
            return std::nullopt;
        }
        return event;
    }

    // A descriptor that poll(2) finds readable while there are events, and for good
    // once the run is over.
    int fd() const {
        std::int32_t fd = -1;
        detail::done([&](rp_error *err) { return rp_agent_fd(handle(), &fd, err); });
        return fd;
    }

    struct Result {
        rp_agent_state state;
        std::uint64_t round;
        int restarts;
        int group_rank;
        int group_world_size;
        int world_size;
        std::string report;
        int signal; // that stopped the run, or 0
        int workers;
        int failures;
        int root_cause; // index of the failure that caused the others, or -1
    };

    // How the run ended; nothing before.
    std::optional<Result> result() const {
        detail::Freed<rp_agent_result, rp_agent_result_free> r;
        if (!detail::done(
                [&](rp_error *err) { return rp_agent_get_result(handle(), &r, err); })) {
            return std::nullopt;
        }
        return Result{static_cast<rp_agent_state>(r.state),
                      r.round,
                      r.restarts,
                      r.group_rank,
                      r.group_world_size,
                      r.world_size,
                      detail::take(r.report),
                      r.signal,
                      r.workers,
                      r.failures,
                      r.root_cause};
    }

    // One worker of the last attempt: rp_worker_result.
    struct WorkerResult {
        int local_rank;
        int rank;
        int role_rank;
        int role_world_size;
        int pid;
        int exit_code;
        std::string stdout_path;
        std::string stderr_path;
        std::string error_file;
    };

    // How a worker ended; nothing before the end of the run.
    std::optional<WorkerResult> worker(int local_rank) const {
        detail::Freed<rp_worker_result, rp_worker_result_free> w;
        if (!detail::done([&](rp_error *err) {
                return rp_agent_get_worker(handle(), local_rank, &w, err);
            })) {
            return std::nullopt;
        }
        return WorkerResult{w.local_rank,
                            w.rank,
                            w.role_rank,
                            w.role_world_size,
                            w.pid,
                            w.exit_code,
                            detail::take(w.stdout_path),
                            detail::take(w.stderr_path),
                            detail::take(w.error_file)};
    }

    // One failure: rp_failure.
    struct Failure {
        int rank;
        int local_rank;
        int pid;
        int exit_code;
        bool terminated; // by the agent's own signal
        std::chrono::system_clock::time_point time;
        std::string host;
        std::string error_file;
        std::string error_data;
        std::string message;
    };

    // A failure by its index, below Result::failures; nothing before the end of the run.
    std::optional<Failure> failure(int index) const {
        detail::Freed<rp_failure, rp_failure_free> f;
        if (!detail::done([&](rp_error *err) {
                return rp_agent_get_failure(handle(), index, &f, err);
            })) {
            return std::nullopt;
        }
        return Failure{f.rank,
                       f.local_rank,
                       f.pid,
                       f.exit_code,
                       f.terminated != 0,
                       std::chrono::system_clock::time_point(Duration(f.time_ms)),
                       detail::take(f.host),
                       detail::take(f.error_file),
                       detail::take(f.error_data),
                       detail::take(f.message)};
    }

  private:
    static rp_agent open(const AgentConfig &config) {
        return config.rendezvous.with([&](const rp_member_config &rendezvous) {
            const auto argv = detail::pointers(config.argv);
            const auto environment = detail::pointers(config.environment);
            rp_agent_config c{};
            c.struct_size = sizeof c;
            c.argv = argv.data();
            c.argv_len = argv.size();
            c.environment = environment.empty() ? nullptr : environment.data();
            c.environment_len = environment.size();
            c.workers = config.workers;
            c.rendezvous = config.rendezvous.endpoint.empty() ? nullptr : &rendezvous;
            c.max_restarts = config.max_restarts;
            c.log_dir = detail::pointer(config.log_dir);
            c.redirects = detail::pointer(config.redirects);
            c.tee = detail::pointer(config.tee);
            c.flags = config.flags;
            if (config.more) {
                config.more(c);
            }
            rp_agent agent{};
            detail::done([&](rp_error *err) { return rp_agent_open(&c, &agent, err); });
            return agent;
        });
    }
};

// Reports the training step that this worker is at; see rp_progress. Throws for a negative
// step, and for a record that this library does not know.
inline void progress(std::int64_t step) {
    detail::done([&](rp_error *err) { return rp_progress(step, err); });
}

// A stretch without steps that is meant, from its construction to its end: see rp_busy.
class busy {
  public:
    explicit busy(std::chrono::milliseconds within) {
        detail::done([&](rp_error *err) { return rp_busy(within.count(), err); });
    }
    busy(const busy &) = delete;
    busy &operator=(const busy &) = delete;
    ~busy() {
        rp_busy_end(nullptr);
    }
};

// The world that this process is in: see rp_world_get.
inline rp_world world() {
    rp_world world{};
    world.struct_size = sizeof world;
    detail::done([&](rp_error *err) { return rp_world_get(&world, err); });
    return world;
}

// Tells the agent that this worker can regroup; false if the agent starts all workers anew in
// any case. See rp_world_can_regroup.
inline bool can_regroup() {
    bool can = false;
    detail::done([&](rp_error *err) {
        int32_t code = rp_world_can_regroup(err);
        can = code == RP_OK;
        return code == RP_ERR_UNSUPPORTED ? RP_OK : code;
    });
    return can;
}

// Whether the world is about to change: see rp_world_changing.
inline bool world_changing() noexcept {
    return rp_world_changing() != 0;
}

// Leaves the world and waits for the next one: see rp_regroup.
inline rp_world regroup(Duration timeout = forever) {
    rp_world world{};
    world.struct_size = sizeof world;
    detail::done([&](rp_error *err) { return rp_regroup(timeout.count(), &world, err); });
    return world;
}

// Reports a step as progress does, and returns what the job is asked for, once for each directive: see
// rp_progress_directive. Its kind is RP_DIRECTIVE_NONE in all other calls.
inline rp_directive progress_directive(std::int64_t step) {
    rp_directive directive{};
    directive.struct_size = sizeof directive;
    detail::done([&](rp_error *err) { return rp_progress_directive(step, &directive, err); });
    return directive;
}

// The directive that this worker has been given, while it stands: see rp_get_directive.
inline rp_directive get_directive() {
    rp_directive directive{};
    directive.struct_size = sizeof directive;
    detail::done([&](rp_error *err) { return rp_get_directive(&directive, err); });
    return directive;
}

// Tells that this worker has saved a step; false if no directive asks for that. See rp_saved.
inline bool saved(std::int64_t step) {
    bool answered = false;
    detail::done([&](rp_error *err) {
        int32_t code = rp_saved(step, err);
        answered = code == RP_OK;
        return code == RP_PENDING ? RP_OK : code;
    });
    return answered;
}

} // namespace rallypoint

#endif // RALLYPOINT_HPP
