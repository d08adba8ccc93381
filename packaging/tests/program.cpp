// A program of somebody else, in C++: every method of the wrapper is called.
#include <csignal>
#include <iostream>
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
}

void stores(const std::string &folder) {
    rallypoint::StoreServer server("127.0.0.1");
    auto store = rallypoint::Store::connect("127.0.0.1", server.port(), 10s);
    every_operation(store);
    auto hash = rallypoint::Store::hash();
    auto moved = std::move(hash);
    EXPECT(hash.handle().id == 0);
    every_operation(moved);
    moved.close();
    EXPECT(code_of([&] { moved.get("k"); }) == RP_ERR_HANDLE);
    auto file = rallypoint::Store::file(folder + "/store", 0, 10s);
    file.set("k", "v");
    EXPECT(file.get("k") == "v");
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
    EXPECT(code_of([&] { failing.run(); }) == RP_ERR_WORKERS);
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
    stores(argv[2]);
    nodes(argv[1]);
    workers();
    std::int64_t open = -1;
    EXPECT(rp_handles_open(&open, nullptr) == RP_OK && open == 0);
    std::cout << "version " << rallypoint::version() << ", " << failures << " failures\n";
    return failures == 0 ? 0 : 1;
}
