// A third party's program, in C++: every method of the wrapper is called.
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <future>
#include <iostream>
#include <mutex>
#include <poll.h>
#include <rallypoint.hpp>
#include <thread>

using namespace std::chrono_literals;

namespace {

int failures = 0;

void expect(bool truth, const char *what) {
    if (!truth) {
        std::cerr << "not so: " << what << "\n";
        failures++;
    }
}

#define EXPECT(truth) expect((truth), #truth)

template <typename Call> std::int32_t code_of(Call &&call) {
    try {
        call();
    } catch (const rallypoint::Error &e) {
        return e.code();
    }
    return RP_OK;
}

void every_operation(rallypoint::Store &s) {
    s.set("k", std::string_view("a\0b", 3));
    EXPECT(s.get("k") == std::string("a\0b", 3));
    EXPECT(s.add("n", 5) == 5 && s.add("n", -7) == -2);
    EXPECT(s.compare_set("k", "x", "y") == std::string("a\0b", 3));
    s.append("n", "0");
    EXPECT(s.get("n") == "-20");
    EXPECT(s.check({"k", "n"}) && !s.check({"k", "missing"}));
    s.wait({"k", "n"});
    s.multi_set({{"x", "1"}, {"y", ""}});
    EXPECT(s.multi_get({"y", "x"}) == (std::vector<std::string>{"", "1"}));
    EXPECT(s.num_keys() == 4 && s.list_keys().size() == 4);
    EXPECT(s.remove("x") && !s.remove("x"));
    s.queue_push("q", "item");
    EXPECT(s.queue_len("q") == 1 && s.queue_pop("q") == "item");
    EXPECT(code_of([&] { s.queue_pop("q", false); }) == RP_ERR_EMPTY);
    s.barrier("b", 1);
    EXPECT(code_of([&] { s.get("never", 20ms); }) == RP_ERR_TIMEOUT);
    rallypoint::Store part = s.prefix("part");
    part.set("k", "inner");
    EXPECT(s.get("part/k") == "inner");
    s.set_timeout(10ms);
    EXPECT(code_of([&] { s.get("never"); }) == RP_ERR_TIMEOUT);
    s.set_timeout(10s);
}

bool readable(int fd, rallypoint::Duration timeout) {
    pollfd p{fd, POLLIN, 0};
    return poll(&p, 1, static_cast<int>(timeout.count())) == 1;
}

// The same in the background. `queues`: the store has them.
void every_operation_in_background(rallypoint::Store &s, bool queues) {
    s.start_set("bk", std::string_view("a\0b", 3)).result();
    EXPECT(s.start_get("bk").result() == std::string("a\0b", 3));
    EXPECT(s.start_add("bn", 5).result() == 5);
    EXPECT(s.start_compare_set("bk", "x", "y").result() == std::string("a\0b", 3));
    s.start_append("bn", "0").result();
    EXPECT(s.start_check({"bk", "bn"}).result() && !s.start_check({"missing"}).result());
    s.start_wait({"bk", "bn"}).result();
    s.start_multi_set({{"bx", "1"}, {"by", ""}}).result();
    EXPECT(s.start_multi_get({"by", "bx"}).result() == (std::vector<std::string>{"", "1"}));
    const auto count = s.start_num_keys().result();
    EXPECT(count >= 4 && s.start_list_keys().result().size() >= 4);
    EXPECT(s.start_remove("bx").result() && !s.start_remove("bx").result());
    if (queues) {
        s.start_queue_push("bq", "item").result();
        EXPECT(s.start_queue_len("bq").result() == 1);
        EXPECT(s.start_queue_pop("bq").result() == "item");
    }
    EXPECT(code_of([&] { s.start_queue_pop("bq", false).result(); }) ==
           (queues ? RP_ERR_EMPTY : RP_ERR_UNSUPPORTED));
    s.start_barrier("bb", 1).result();
    EXPECT(code_of([&] { s.start_get("never", 20ms).result(); }) == RP_ERR_TIMEOUT);

    auto later = s.start_get("later", rallypoint::forever);
    EXPECT(!later.wait(0ms) && !readable(later.fd(), 10ms));
    std::promise<void> ended;
    later.notify([&] { ended.set_value(); });
    s.set("later", "now");
    ended.get_future().wait();
    EXPECT(readable(later.fd(), 10s) && later.wait(0ms) && later.result() == "now");
    EXPECT(code_of([&] { later.result(); }) == RP_ERR_INVALID);
    auto never = s.start_get("never", rallypoint::forever);
    never.cancel();
    EXPECT(code_of([&] { never.wait(); }) == RP_ERR_CANCELED);
    // One that is dropped ends, and what it was to call is called.
    std::promise<void> dropped;
    {
        auto moved = s.start_get("never", rallypoint::forever);
        auto other = std::move(moved);
        other.notify([&] { dropped.set_value(); });
        EXPECT(code_of([&] { moved.wait(); }) == RP_ERR_HANDLE);
        EXPECT(code_of([&] { moved.notify([] {}); }) == RP_ERR_HANDLE);
    }
    dropped.get_future().wait();
}

void stores(const std::string &folder) {
    rallypoint::StoreServer server("127.0.0.1");
    auto store = rallypoint::Store::connect("127.0.0.1", server.port(), 10s);
    every_operation(store);
    every_operation_in_background(store, true);
    auto second = rallypoint::Store::start_connect("127.0.0.1", server.port(), 10s).result();
    EXPECT(second.get("k") == store.get("k"));
    auto hash = rallypoint::Store::hash();
    auto moved = std::move(hash);
    EXPECT(hash.handle().id == 0);
    every_operation(moved);
    moved.close();
    EXPECT(code_of([&] { moved.get("k"); }) == RP_ERR_HANDLE);
    auto file = rallypoint::Store::file(folder + "/store", 0, 10s);
    file.set("k", "v");
    EXPECT(file.get("k") == "v");
    every_operation_in_background(file, false);
    EXPECT(rallypoint::Store::start_file(folder + "/store").result().get("k") == "v");
    try {
        rallypoint::Store::file(folder + "/missing/store");
        EXPECT(false);
    } catch (const rallypoint::Error &e) {
        EXPECT(e.code() == RP_ERR_INVALID && !e.retryable());
        EXPECT(std::string(e.what()).find("missing") != std::string::npos);
    }
}

void nodes(const std::string &endpoint) {
    rallypoint::MemberConfig config;
    config.run_id = "installed";
    config.endpoint = endpoint;
    config.min_nodes = config.max_nodes = 2;
    config.options = {{"advertise_addr", "127.0.0.1"}};
    rallypoint::Member a(config), b(config);
    EXPECT(!a.next_within(0ms));
    std::optional<rallypoint::Outcome> first;
    auto second = b.next();
    while (!first) {
        a.wait(10s);
        EXPECT(a.fd() > 0);
        first = a.next_within(0ms);
    }
    EXPECT(first->world_size == 2 && first->rank + second.rank == 1);
    EXPECT(first->store_addr == second.store_addr && first->store_port == second.store_port);
    a.keys(first->round).set("k", "v");
    EXPECT(b.keys(first->round).get("k") == "v");
    EXPECT(a.nodes_waiting() == 0 && !a.is_closed());
    a.cancel();
    a.set_closed("enough");
    EXPECT(a.is_closed() && a.reason().find("enough") != std::string::npos);
    std::thread other([&] {
        b.finish();
        b.shutdown(RP_END_SUCCESS);
    });
    a.finish();
    a.shutdown(RP_END_SUCCESS, "done");
    other.join();
}

// Stores in an etcd, and nodes that meet there: if there is one.
void etcd(const char *binary) {
    using rallypoint::Store;
    rallypoint::EtcdServerConfig config;
    config.binary = "/bin/false";
    config.retries = 0;
    rallypoint::EtcdServer failing(config, 10s);
    EXPECT(code_of([&] { failing.ready(); }) == RP_ERR_CONNECTION);
    EXPECT(code_of([&] { Store::etcd("etcd://127.0.0.1:1", "", 20ms); }) == RP_ERR_CONNECTION);
    EXPECT(code_of([&] { Store::etcd("127.0.0.1"); }) == RP_ERR_INVALID);
    if (binary == nullptr) {
        std::cout << "not tried, since RALLYPOINT_TEST_ETCD names none: an etcd\n";
        return;
    }
    config.binary = binary;
    config.retries = 2;
    rallypoint::EtcdServer server(config);
    while (!server.ready_within(100ms)) {
    }
    auto store = Store::etcd(server.endpoint(), "", 20s);
    store.set("k", "v");
    EXPECT(Store::start_etcd(server.endpoint()).result().get("k") == "v");
    auto own = Store::etcd(server.endpoint(), "", 20s, {{"key_prefix", "/own"}});
    EXPECT(own.num_keys() == 0);
    every_operation_in_background(own, false);
    nodes(server.endpoint());
    server.close();
    EXPECT(code_of([&] { server.ready(); }) == RP_ERR_HANDLE);
}

// A value in memory as a place to meet; its token is its version.
class Memory : public rallypoint::Backend {
  public:
    Value get() override {
        if (broken) {
            broken(); // throws
        }
        const std::lock_guard lock(mu_);
        return now();
    }

    Written set(std::string_view state, std::optional<std::string_view> token) override {
        const std::lock_guard lock(mu_);
        const bool current = state_ ? token && *token == std::to_string(version_) : !token;
        if (current) {
            state_ = state;
            version_++;
        }
        return {now(), current};
    }

    std::function<void()> broken;

  private:
    Value now() const {
        return {state_, std::to_string(version_)};
    }

    std::mutex mu_;
    std::optional<std::string> state_;
    int version_ = 0;
};

void backends() {
    auto memory = std::make_shared<Memory>();
    rallypoint::MemberConfig config;
    config.run_id = "memory";
    config.min_nodes = config.max_nodes = 2;
    config.options = {{"join_timeout", "30"}, {"advertise_addr", "127.0.0.1"}};
    {
        rallypoint::Member a(config, memory), b(config, memory);
        auto second = std::async(std::launch::async, [&] { return b.next(); });
        const auto first = a.next();
        EXPECT(first.world_size == 2 && first.rank + second.get().rank == 1);
    }
    // What it throws is the member's error, and it is given back.
    const auto thrown = [&](std::function<void()> broken) {
        auto failing = std::make_shared<Memory>();
        failing->broken = std::move(broken);
        const std::weak_ptr<Memory> watched = failing;
        std::string said;
        const auto code = code_of([&] {
            rallypoint::Member member(config, std::move(failing));
            EXPECT(!watched.expired());
            try {
                member.next();
            } catch (const rallypoint::Error &e) {
                said = e.what();
                throw;
            }
        });
        EXPECT(said.find("broken") != std::string::npos);
        while (!watched.expired()) { // until its last method has returned
            std::this_thread::yield();
        }
        return code;
    };
    EXPECT(thrown([] { throw rallypoint::Error(RP_ERR_AUTH, false, "broken"); }) ==
           RP_ERR_AUTH);
    EXPECT(thrown([] { throw std::logic_error("broken"); }) == RP_ERR_STATE);
    EXPECT(thrown([] { // tried again
               static std::atomic<int> times;
               if (times++ == 0) {
                   throw std::runtime_error("none there");
               }
               throw std::logic_error("broken");
           }) == RP_ERR_STATE);
    config.min_nodes = 0;
    EXPECT(code_of([&] { rallypoint::Member(config, memory); }) == RP_ERR_INVALID);
    EXPECT(code_of([&] { rallypoint::Member(config, nullptr); }) == RP_ERR_INVALID);
    while (memory.use_count() > 1) {
        std::this_thread::yield();
    }
}

void workers() {
    rallypoint::AgentConfig config;
    config.argv = {"/bin/sh", "-c", "test $WORLD_SIZE = 2"};
    config.workers = 2;
    rallypoint::Agent agent(config);
    EXPECT(!agent.result());
    agent.run();
    EXPECT(agent.result()->state == RP_AGENT_SUCCEEDED && agent.result()->world_size == 2);
    int exits = 0;
    EXPECT(agent.fd() > 0);
    while (auto event = agent.next_event()) {
        exits += event->kind == RP_AGENT_WORKER_EXITED;
    }
    EXPECT(exits == 2);
    config.argv = {"/bin/sh", "-c", "exit 3"};
    rallypoint::Agent failing(config);
    EXPECT(!failing.worker(0) && !failing.failure(0));
    EXPECT(code_of([&] { failing.run(); }) == RP_ERR_WORKERS);
    EXPECT(failing.result()->workers == 2 && failing.result()->failures >= 1);
    EXPECT(failing.worker(1)->local_rank == 1 && failing.worker(1)->pid > 0);
    const auto cause = failing.failure(failing.result()->root_cause);
    EXPECT(cause->exit_code == 3 && !cause->terminated && !cause->host.empty());
    EXPECT(code_of([&] { failing.worker(2); }) == RP_ERR_INVALID);
    EXPECT(code_of([&] { failing.failure(2); }) == RP_ERR_INVALID);
    config.argv = {"/bin/sleep", "1000"};
    rallypoint::Agent stopped(config);
    EXPECT(!stopped.run_within(0ms));
    stopped.stop(SIGTERM, 5s);
    EXPECT(code_of([&] { stopped.run(); }) == RP_ERR_CANCELED);
}

} // namespace

int main(int argc, char **argv) {
    if (argc != 3) {
        std::cerr << "usage: program ENDPOINT FOLDER\n";
        return 2;
    }
    std::atomic<int> records{0};
    std::optional<rallypoint::LogCallback> log;
    rallypoint::set_log_level(RP_LOG_DEBUG);
    log.emplace([&](const rp_log_record &record) { records += record.text[0] != 0; });
    stores(argv[2]);
    nodes(argv[1]);
    log.reset();
    EXPECT(records > 0);
    rallypoint::set_log_level(RP_LOG_WARNING);
    etcd(std::getenv("RALLYPOINT_TEST_ETCD"));
    backends();
    workers();
    std::int64_t open = -1;
    EXPECT(rp_handles_open(&open, nullptr) == RP_OK && open == 0);
    std::cout << "version " << rallypoint::version() << ", " << failures << " failures\n";
    return failures == 0 ? 0 : 1;
}
